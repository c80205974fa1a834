//! A mistake found while reading a tree in, the message about it out. Knows the wording; does not
//! know the keys but by the schema.

use serde::de::DeserializeOwned;

use super::error::{Place, Problem, Problems, Texts};
use super::mistake::{Mistake, What};
use super::nearest::nearest;
use super::reader::Reader;
use super::tree::{Node, Value};
use super::{keys, rewrite};
use crate::evaluate::{attempt, stands_for};

/// Nobody mends more at once, and a wrong file (not a configuration at all) would fill the screen.
const MAX_PROBLEMS: usize = 100;

/// Is the tree all there is? In one source of several, a key may be missing because another one has
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Part,
    All,
}

/// Reads the node at the end of a path as often as it takes to find every mistake in it: each is
/// reported and taken out, until the rest can be read. `None` if the node itself is wrong, or
/// hardly anything is right.
pub(super) fn read<T: DeserializeOwned>(
    root: &mut Node,
    prefix: &[usize],
    extent: Extent,
    texts: &Texts,
    problems: &mut Problems,
) -> Option<T> {
    loop {
        let mistake = match attempt(|| T::deserialize(Reader(root.follow(prefix).0))) {
            Ok(value) => return Some(value),
            Err(mistake) => mistake,
        };
        let path = [prefix, &mistake.path()].concat();
        let may_follow = extent == Extent::Part && matches!(mistake.what, What::Missing(_));
        if let Some(problem) = describe(&mistake, &path, root, texts).filter(|_| !may_follow) {
            problems.push(problem);
        }
        let pruned_path = [prefix, &mistake.pruned_path()].concat();
        let is_pruned = root.prune(&pruned_path);
        if !is_pruned || pruned_path.len() == prefix.len() || problems.len() >= MAX_PROBLEMS {
            return None;
        }
    }
}

fn describe(mistake: &Mistake, path: &[usize], root: &Node, texts: &Texts) -> Option<Problem> {
    let (node, holder, keys) = root.follow(path);
    let name = dotted(&keys);
    let parent = dotted(&keys[..keys.len().saturating_sub(1)]);
    let place = match holder {
        Some(entry) if mistake.at_key || node.is_null() => entry.key_place,
        Some(entry) if matches!(mistake.what, What::Missing(_) | What::NoChoice { .. }) => {
            entry.key_place
        }
        _ => start_of(node),
    };
    let siblings = root.follow(&path[..path.len().saturating_sub(1)]).0;
    let spot = Some(texts.spot(place));
    let problem = match &mistake.what {
        What::UnknownKey { key, legal } => {
            let title = if parent.is_empty() {
                format!("unknown key `{key}`")
            } else {
                format!("unknown key `{key}` in `{parent}`")
            };
            let problem = Problem::new(title, spot);
            if let Some(rewrite) =
                rewrite::of_key(key, holder.map(|entry| &entry.value), Some(siblings))
            {
                let problem = problem.label(rewrite.remedy);
                rewrite
                    .example
                    .into_iter()
                    .fold(problem, |problem, example| {
                        problem.note(format!("write\n{example}"))
                    })
            } else {
                problem.label(remedy_of_key(key, &parent, legal))
            }
        }
        What::UnknownWord { word, of, legal } => {
            let problem = Problem::new(
                format!(
                    "unknown {} `{word}`",
                    of.map_or_else(|| last_of(&keys), words_of)
                ),
                spot,
            );
            match rewrite::of_word(word) {
                Some(remedy) => problem.label(remedy),
                None => problem.label(remedy_of_word(word, legal)),
            }
        }
        What::Missing(key) => {
            if let Value::Map(map) = &node.value
                && map.pruned.iter().any(|pruned| {
                    nearest(pruned, [*key]).is_some()
                        || rewrite::stands_for(pruned)
                        || stands_for(pruned, key)
                })
            {
                return None;
            }
            let title = if name.is_empty() {
                format!("`{key}` is missing")
            } else {
                format!("`{name}` has no `{key}`")
            };
            Problem::new(title, spot).label(format!("add `{key}: …`"))
        }
        What::WrongType { expected, found } if name.is_empty() => {
            Problem::new(format!("the configuration is {found}"), spot)
                .label(format!("expected {expected}"))
        }
        What::WrongType { expected, found } => {
            Problem::new(format!("`{name}` is {found}"), spot).label(format!("expected {expected}"))
        }
        What::NoValue { expected } => Problem::new(format!("`{name}` has no value"), spot).label(
            format!("expected {expected}; leave the key out for its default"),
        ),
        What::NoChoice { .. } | What::Other(_) if node.is_pruned() => return None,
        What::NoChoice { of, legal } => {
            Problem::new(format!("`{name}` names no {}", words_of(of)), spot)
                .label(format!("expected one of {}", listed(legal)))
        }
        What::SecondChoice { of, second } => Problem::new(
            format!("`{second}` is a second {} in `{parent}`", words_of(of)),
            spot,
        )
        .label("only one can stand here"),
        What::Other(message) => {
            // Texts of values read `what is wrong: the remedy`.
            let problem = match split_remedy(message) {
                Some((title, remedy)) => Problem::new(title, spot).label(remedy),
                None => Problem::new(message.as_str(), spot),
            };
            let refused = holder.filter(|_| mistake.at_key);
            let rewrite = refused
                .and_then(|entry| rewrite::of_key(&entry.key, Some(&entry.value), Some(siblings)));
            match rewrite.and_then(|rewrite| rewrite.example) {
                Some(example) => problem.note(format!("write\n{example}")),
                None => problem,
            }
        }
    };
    Some(problem.at(root.pointer(path)))
}

/// At the last colon outside backticks.
fn split_remedy(message: &str) -> Option<(&str, &str)> {
    if message.contains('\n') {
        return None;
    }
    let at = message
        .rmatch_indices(": ")
        .find(|(at, _)| message[..*at].matches('`').count().is_multiple_of(2))?
        .0;
    Some((&message[..at], &message[at + 2..]))
}

/// Where a node begins; a map written over several lines, at its first key.
pub(super) fn start_of(node: &Node) -> Place {
    match &node.value {
        Value::Map(map) if node.place.start == node.place.end => map
            .entries
            .first()
            .map_or(node.place, |entry| entry.key_place),
        _ => node.place,
    }
}

fn remedy_of_key(key: &str, parent: &str, legal: &[&str]) -> String {
    if let Some(candidate) = nearest(key, legal.iter().copied()) {
        return format!("did you mean `{candidate}`?");
    }
    let elsewhere: Vec<String> = keys::known()
        .iter()
        .filter(|known| {
            known.path.last().is_some_and(|last| last == key) || known.path.join(".") == key
        })
        .map(|known| known.path.join("."))
        .filter(|path| !parent.contains('[') && path != parent)
        .collect();
    match elsewhere.as_slice() {
        [one] if one == key => {
            format!(
                "write it as nested maps: `{}`",
                key.replace('.', ": { ") + ": …" + &" }".repeat(key.matches('.').count())
            )
        }
        [one] => format!("did you mean `{one}`?"),
        [one, two] => format!("did you mean `{one}` or `{two}`?"),
        _ if legal.is_empty() => "no key is expected here".to_owned(),
        _ => format!("expected one of {}", listed(legal)),
    }
}

fn remedy_of_word(word: &str, legal: &[&str]) -> String {
    match nearest(word, legal.iter().copied()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => format!("expected one of {}", listed(legal)),
    }
}

fn listed(words: &[&str]) -> String {
    words
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn last_of(keys: &[String]) -> String {
    keys.iter()
        .rev()
        .find(|key| !key.starts_with('['))
        .map_or_else(|| "word".to_owned(), |key| key.replace('_', " "))
}

/// `OnRevision` as words: on revision.
fn words_of(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// `criteria[2].threshold`.
pub(super) fn dotted(keys: &[String]) -> String {
    let mut name = String::new();
    for key in keys {
        if !name.is_empty() && !key.starts_with('[') {
            name.push('.');
        }
        name.push_str(key);
    }
    name
}
