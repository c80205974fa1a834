//! Reads a tree into a serde type repeatedly until every mistake in it is found, and turns each
//! mistake into a message. [`Hints`] contains what is specific to the format.

use text::nearest;

use super::de_error::{DeError, MistakeKind, shown};
use super::parse::infer;
use super::problem::{Problem, Problems};
use super::reader::Reader;
use super::texts::{Place, Texts};
use super::tree::{Kind, Node, NodeValue, Scalar};

/// Maximum number of problems. Nobody corrects more at a time, and a file that is not a
/// configuration would fill the screen.
const MAX_PROBLEMS: usize = 100;

/// Hints about words that people confuse with the keys of a format.
pub trait Hints {
    /// Returns the name of the whole document in messages.
    fn document(&self) -> &'static str;

    /// Returns advice for rewriting a key of another format. `value` is the key's value, `siblings`
    /// the map that contains the key.
    fn rewrite_key(&self, key: &str, value: Option<&Node>, siblings: &Node) -> Option<Rewrite>;

    /// Returns the remedy for a key that people expect at this dotted path but that does not exist.
    fn remedy_of_refused(&self, path: &str) -> Option<&'static str>;

    /// Returns the remedy for a value of another format in place of one from a fixed list.
    fn rewrite_word(&self, word: &str) -> Option<String>;

    /// Returns true if the rejected key was meant as the missing key. Only the rejected key is then
    /// reported.
    fn replaces(&self, refused: &str, missing: &str) -> bool;

    fn paths_of(&self, key: &str) -> Vec<String>;
}

/// The correct form of something that another format writes differently.
pub struct Rewrite {
    pub remedy: String,
    /// The whole corrected text.
    pub example: Option<String>,
}

/// The extent of a tree. A key that a part of the document lacks may be in another part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Part,
    All,
}

/// Reads the node at the end of a path. Each mistake is reported and removed from the tree, until
/// the rest can be read. Returns `None` if the node itself is wrong, or if there are too many
/// mistakes. `read_once` is called for each attempt and returns the mistakes that it found.
pub fn read<T>(
    root: &mut Node,
    prefix: &[usize],
    extent: Extent,
    hints: &dyn Hints,
    mut read_once: impl FnMut(Reader<'_>) -> Result<T, Vec<DeError>>,
    texts: &Texts,
    problems: &mut Problems,
) -> Option<T> {
    loop {
        let mistakes = match read_once(Reader::new(root.follow(prefix).0)) {
            Ok(value) => return Some(value),
            Err(mistakes) => mistakes,
        };
        for mistake in &mistakes {
            let path = [prefix, &mistake.path()].concat();
            let may_follow =
                extent == Extent::Part && matches!(mistake.fault, MistakeKind::Missing(_));
            let problem = diagnose(mistake, &path, root, hints, texts);
            if let Some(problem) = problem.filter(|_| !may_follow) {
                problems.push(problem);
            }
        }
        let mut pruned_paths: Vec<_> = mistakes.iter().map(DeError::pruned_path).collect();
        // Start at the end, because removing an entry shifts the entries after it.
        pruned_paths.sort_unstable_by(|a, b| b.cmp(a));
        let mut is_pruned = !pruned_paths.is_empty();
        for path in pruned_paths {
            is_pruned &= root.prune(&[prefix, &path].concat()) && !path.is_empty();
        }
        if !is_pruned || problems.len() >= MAX_PROBLEMS {
            return None;
        }
    }
}

fn diagnose(
    mistake: &DeError,
    path: &[usize],
    root: &Node,
    hints: &dyn Hints,
    texts: &Texts,
) -> Option<Problem> {
    let (node, holder, keys) = root.follow(path);
    let name = dotted(&keys);
    let parent = dotted(&keys[..keys.len().saturating_sub(1)]);
    let place = match holder {
        Some(entry) if mistake.at_key || node.is_null() => entry.key_place,
        Some(entry)
            if matches!(
                mistake.fault,
                MistakeKind::Missing(_) | MistakeKind::NoChoice { .. }
            ) =>
        {
            entry.key_place
        }
        _ => start_of(node),
    };
    let siblings = root.follow(&path[..path.len().saturating_sub(1)]).0;
    let spot = Some(texts.spot(place));
    let problem = match &mistake.fault {
        MistakeKind::UnknownKey { key, legal } => {
            let title = if parent.is_empty() {
                format!("unknown key `{key}`")
            } else {
                format!("unknown key `{key}` in `{parent}`")
            };
            let problem = Problem::new(title, spot);
            if let Some(remedy) = hints.remedy_of_refused(&format!("{parent}.{key}")) {
                problem.label(remedy)
            } else if let Some(rewrite) =
                hints.rewrite_key(key, holder.map(|entry| &entry.value), siblings)
            {
                let problem = problem.label(rewrite.remedy);
                rewrite
                    .example
                    .into_iter()
                    .fold(problem, |problem, example| {
                        problem.note(format!("write\n{example}"))
                    })
            } else {
                problem.label(remedy_of_key(key, &parent, legal, hints))
            }
        }
        MistakeKind::UnknownWord { word, of, legal } => {
            let problem = Problem::new(
                format!(
                    "unknown {} `{word}`",
                    of.map_or_else(|| last_of(&keys), words_of)
                ),
                spot,
            );
            match hints.rewrite_word(word) {
                Some(remedy) => problem.label(remedy),
                None => problem.label(remedy_of_word(word, legal)),
            }
        }
        MistakeKind::Missing(key) => {
            if let NodeValue::Map(map) = &node.value
                && map
                    .pruned
                    .iter()
                    .any(|pruned| nearest(pruned, [*key]).is_some() || hints.replaces(pruned, key))
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
        MistakeKind::WrongType { expected, found } => {
            let found = match &node.value {
                NodeValue::Scalar(_) if texts.is_hidden(node.place) => "a plain value",
                _ => found,
            };
            let title = if name.is_empty() {
                format!("{} is {found}", hints.document())
            } else {
                format!("`{name}` is {found}")
            };
            Problem::new(title, spot).label(remedy_of_type(expected, node, texts))
        }
        MistakeKind::NoValue { expected } => Problem::new(format!("`{name}` has no value"), spot)
            .label(format!(
                "expected {expected}; to give none, leave the key out"
            )),
        MistakeKind::NoChoice { .. } | MistakeKind::Other(_) if node.is_pruned() => return None,
        MistakeKind::NoChoice { of, legal } => {
            Problem::new(format!("`{name}` names no {}", words_of(of)), spot)
                .label(format!("expected one of {}", listed(legal)))
        }
        MistakeKind::SecondChoice { of, second } => Problem::new(
            format!("`{second}` is a second {} in `{parent}`", words_of(of)),
            spot,
        )
        .label("only one is allowed here"),
        MistakeKind::Other(message) => {
            // Our own deserializers report `mistake: remedy`; other errors may have no remedy.
            let problem = match split_remedy(message) {
                Some((title, remedy)) => Problem::new(title, spot).label(remedy),
                None => Problem::new(message.as_str(), spot),
            };
            let refused = holder.filter(|_| mistake.at_key);
            let rewrite = refused
                .and_then(|entry| hints.rewrite_key(&entry.key, Some(&entry.value), siblings));
            match rewrite.and_then(|rewrite| rewrite.example) {
                Some(example) => problem.note(format!("write\n{example}")),
                None => problem,
            }
        }
    };
    Some(problem.at(root.pointer(path)))
}

/// Splits at the last colon outside backticks; returns `None` for a message without one, or with
/// several lines.
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

/// Returns the start of a node; for a block map, the start of its first key.
pub fn start_of(node: &Node) -> Place {
    match &node.value {
        NodeValue::Map(map) if is_block(node) => map
            .entries
            .first()
            .map_or(node.place, |entry| entry.key_place),
        _ => node.place,
    }
}

/// Returns true if the map is written without brackets. The parser gives this kind of map no
/// length.
fn is_block(node: &Node) -> bool {
    node.place.start == node.place.end
}

fn remedy_of_key(key: &str, parent: &str, legal: &[&str], hints: &dyn Hints) -> String {
    if let Some(candidate) = nearest(key, legal.iter().copied()) {
        return format!("did you mean `{candidate}`?");
    }
    let mut elsewhere = hints.paths_of(key);
    elsewhere.retain(|path| !parent.contains('[') && path != parent);
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

fn remedy_of_type(expected: &str, node: &Node, texts: &Texts) -> String {
    let remedy = match &node.value {
        NodeValue::Scalar(scalar) if expected == "a list" && !texts.is_hidden(node.place) => {
            match shown(&scalar.text) {
                text if text == scalar.text => Some(format!("write `[{text}]`")),
                _ => None,
            }
        }
        NodeValue::Map(_) if expected == "a list" && is_block(node) => {
            Some("write `- ` before each item".to_owned())
        }
        NodeValue::Map(_) if expected == "a list" => Some("write `[{ … }]`".to_owned()),
        NodeValue::Scalar(Scalar {
            text,
            kind: Kind::Text,
            ..
        }) => {
            let is_quoted = match infer(text) {
                Kind::Unsigned(_) | Kind::Signed(_) => expected.contains("number"),
                Kind::Float(_) => expected.starts_with("a number"),
                Kind::Bool(_) => expected.contains("`true`"),
                Kind::Null | Kind::Text => false,
            };
            is_quoted.then(|| "remove the quotes".to_owned())
        }
        _ => None,
    };
    match remedy {
        Some(remedy) => format!("expected {expected}: {remedy}"),
        None => format!("expected {expected}"),
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

/// Returns the words of a name: `OnRevision` becomes "on revision".
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

pub(crate) fn dotted(keys: &[String]) -> String {
    let mut name = String::new();
    for key in keys {
        if !name.is_empty() && !key.starts_with('[') {
            name.push('.');
        }
        name.push_str(key);
    }
    name
}
