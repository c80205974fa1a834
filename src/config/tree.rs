//! YAML or JSON text in, a tree whose every node knows its place out. Knows the syntax; does not
//! know any key.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

use super::error::{Place, Problem, Problems, Texts};

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

/// A value.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Map),
    /// An item of a list that was taken out for a mistake; the others keep their numbers.
    Gone,
}

/// A scalar as it was written, and what YAML takes it for.
#[derive(Debug, Clone)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) kind: Kind,
    /// Quotes decide nothing for a value that came from a variable: inside `{ }` they cannot be
    /// left out.
    pub(super) substituted: bool,
}

/// What YAML takes a scalar for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text,
}

/// A map; `pruned` names the mistaken entries that were taken out.
#[derive(Debug, Clone, Default)]
pub(super) struct Map {
    pub(super) entries: Vec<Entry>,
    pub(super) pruned: Vec<String>,
}

/// A key with its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_place: Place,
    pub(super) value: Node,
}

/// Deepest nesting. Nobody writes half as much, and twice as much would be more than the stack of a
/// thread has room for in a debug build.
const MAX_DEPTH: usize = 32;

/// Reads a text. An empty one is an empty map. Repeated keys are reported, and the first one is
/// kept.
pub(super) fn parse(texts: &Texts, source: usize, problems: &mut Problems) -> Option<Node> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        strict_booleans: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(texts.text(source), options) {
        Ok(raw) => Some(
            Builder {
                texts,
                source,
                problems,
            }
            .node(raw),
        ),
        Err(error) => {
            problems.push(not_yaml(texts, source, &error));
            None
        }
    }
}

/// What a scalar from a variable or a flag is taken for: as if written without quotes.
pub(super) fn infer(text: &str) -> Kind {
    match text.trim() {
        "" | "~" | "null" => Kind::Null,
        "true" => Kind::Bool(true),
        "false" => Kind::Bool(false),
        text => {
            if let Ok(number) = text.parse() {
                Kind::Unsigned(number)
            } else if let Ok(number) = text.parse() {
                Kind::Signed(number)
            } else if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'))
                && let Ok(number) = text.parse()
            {
                Kind::Float(number)
            } else {
                Kind::Text
            }
        }
    }
}

fn not_yaml(texts: &Texts, source: usize, error: &serde_saphyr::Error) -> Problem {
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    let place = error.location().map(|location| {
        texts.place_at(source, location.line() as usize, location.column() as usize)
    });
    let mut spot = place.map(|place| texts.spot(place));
    let line = place.map_or("", |place| texts.line(place));
    if let Some(spot) = spot.as_mut() {
        // Without a tree nobody knows which values are headers, so nothing is shown of a line that
        // may hold a secret.
        spot.excerpt = spot.excerpt.take().filter(|_| !may_hold_a_secret(line));
    }
    let (message, remedy) = match message {
        _ if line.contains("${") && line.contains('{') && !message.contains("tabs") => (
            format!("not valid YAML: {message}"),
            "inside `{ }` and `[ ]`, write `\"${env:NAME}\"` in quotes",
        ),
        _ if message.contains("recursion limit") || message.contains("depth") => (
            format!("nested more than {MAX_DEPTH} deep"),
            "write it flatter",
        ),
        _ if message.contains("budget breached")
            || message.contains("alias") && message.contains("limit") =>
        {
            (
                "more values than anyone would write (what an alias stands for counts each time)"
                    .to_owned(),
                "split it: a file with `criteria_files`, a call of the API into several",
            )
        }
        _ if message.contains("multiple YAML documents") => (
            "a second document starts here".to_owned(),
            "a configuration is one document",
        ),
        _ if message.contains("tabs") => {
            ("a tab in the indentation".to_owned(), "indent with spaces")
        }
        _ if message.contains("mapping values are not allowed") => (
            format!("not valid YAML: {message}"),
            "check the indentation, and quote a value that holds `: `",
        ),
        _ if message.contains("unexpected character") => {
            (format!("not valid YAML: {message}"), "quote the value")
        }
        _ if message.contains("did not find expected key") => (
            format!("not valid YAML: {message}"),
            "check the indentation",
        ),
        _ if message.contains("illegal placement") => (
            format!("not valid YAML: {message}"),
            "is a bracket above left open?",
        ),
        _ if message.contains("did not find expected ','") => (
            format!("not valid YAML: {message}"),
            "quote a value that holds `: ` or a comma",
        ),
        _ => (format!("not valid YAML: {message}"), ""),
    };
    let problem = Problem::new(message, spot);
    if remedy.is_empty() {
        problem
    } else {
        problem.label(remedy)
    }
}

fn may_hold_a_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    [
        "headers",
        "authorization",
        "bearer",
        "key:",
        "key\":",
        "token",
        "secret",
        "password",
    ]
    .iter()
    .any(|word| line.contains(word))
}

// === what the parser hands over ===

enum Raw {
    Scalar(Kind, String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Null, String::new()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Bool(value), String::new()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Unsigned(value), String::new()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Signed(value), String::new()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Float(value), String::new()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Text, value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Raw::Map(map))
    }
}

// === from there to the tree ===

struct Builder<'a> {
    texts: &'a Texts,
    source: usize,
    problems: &'a mut Problems,
}

impl Builder<'_> {
    fn node(&mut self, raw: Spanned<Raw>) -> Node {
        let span = raw.defined.span();
        let start = span.byte_offset().map_or(0, |at| at as usize);
        let place = Place {
            source: self.source,
            start,
            end: start + span.byte_len().map_or(0, |len| len as usize),
        };
        let value = match raw.value {
            Raw::Scalar(kind, text) => {
                // Numbers and booleans keep their spelling, since a text may be wanted: version
                // `1.10` is not `1.1`.
                let text = if kind == Kind::Text {
                    text
                } else {
                    self.texts.slice(place).to_owned()
                };
                Value::Scalar(Scalar {
                    text,
                    kind,
                    substituted: false,
                })
            }
            Raw::List(items) => {
                Value::List(items.into_iter().map(|item| self.node(item)).collect())
            }
            Raw::Map(entries) => Value::Map(self.map(entries)),
        };
        Node { place, value }
    }

    fn map(&mut self, raw_entries: Vec<(Spanned<Raw>, Spanned<Raw>)>) -> Map {
        let mut map = Map::default();
        let mut seen = std::collections::BTreeMap::new();
        for (raw_key, raw_value) in raw_entries {
            let Node { place, value } = self.node(raw_key);
            let Value::Scalar(Scalar { text: key, .. }) = value else {
                self.problems.push(Problem::new(
                    "a key must be a text",
                    Some(self.texts.spot(place)),
                ));
                continue;
            };
            let value = self.node(raw_value);
            if let Some(first) = seen.get(&key) {
                let problem = Problem::new(
                    format!("`{key}` is given twice"),
                    Some(self.texts.spot(place)),
                );
                self.problems
                    .push(problem.label(format!("first given at {}", self.texts.short(*first))));
                continue;
            }
            seen.insert(key.clone(), place);
            map.entries.push(Entry {
                key,
                key_place: place,
                value,
            });
        }
        map
    }
}

// === impl Map ===

impl Map {
    /// Keeps the entries that are to be kept, and remembers the others as taken out.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Entry) -> bool) {
        let pruned = &mut self.pruned;
        self.entries.retain_mut(|entry| {
            let kept = keep(entry);
            if !kept {
                pruned.push(entry.key.clone());
            }
            kept
        });
    }
}

// === impl Node ===

impl Node {
    /// An empty map, as an empty file is one.
    pub(super) fn empty_map(place: Place) -> Self {
        Self {
            place,
            value: Value::Map(Map::default()),
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(
            &self.value,
            Value::Scalar(Scalar {
                kind: Kind::Null,
                ..
            })
        )
    }

    /// The value below a path of keys.
    pub(super) fn find(&self, path: &[&str]) -> Option<&Node> {
        self.find_entry(path).map(|entry| &entry.value)
    }

    /// The entry that a path of keys ends in.
    pub(super) fn find_entry(&self, path: &[&str]) -> Option<&Entry> {
        let (key, rest) = path.split_first()?;
        let Value::Map(map) = &self.value else {
            return None;
        };
        let entry = map.entries.iter().find(|entry| entry.key == *key)?;
        if rest.is_empty() {
            Some(entry)
        } else {
            entry.value.find_entry(rest)
        }
    }

    /// Puts a value at a path of keys; what is in the way is replaced, unless it is to be kept.
    pub(super) fn put(&mut self, path: &[String], key_place: Place, value: Node, keep: Keep) {
        let Some((key, rest)) = path.split_first() else {
            return;
        };
        if !matches!(self.value, Value::Map(_)) {
            if keep == Keep::What {
                return;
            }
            self.value = Value::Map(Map::default());
        }
        let Value::Map(map) = &mut self.value else {
            return;
        };
        let found = map.entries.iter_mut().find(|entry| entry.key == *key);
        match (found, rest.is_empty()) {
            (Some(entry), true) => {
                if keep == Keep::Nothing {
                    (entry.key_place, entry.value) = (key_place, value);
                }
            }
            (Some(entry), false) => entry.value.put(rest, key_place, value, keep),
            (None, true) => map.entries.push(Entry {
                key: key.clone(),
                key_place,
                value,
            }),
            (None, false) => {
                let mut inner = Self::empty_map(value.place);
                inner.put(rest, key_place, value, keep);
                map.entries.push(Entry {
                    key: key.clone(),
                    key_place,
                    value: inner,
                });
            }
        }
    }

    /// Takes out the entry or item at the end of a path of positions. The whole tree cannot be
    /// taken out.
    pub(super) fn prune(&mut self, path: &[usize]) -> bool {
        let Some((first, rest)) = path.split_first() else {
            return false;
        };
        match &mut self.value {
            Value::List(items) if rest.is_empty() => match items.get_mut(*first) {
                Some(item) => {
                    item.value = Value::Gone;
                    true
                }
                None => false,
            },
            Value::Map(map) if rest.is_empty() && *first < map.entries.len() => {
                let entry = map.entries.remove(*first);
                map.pruned.push(entry.key);
                true
            }
            Value::List(items) => items.get_mut(*first).is_some_and(|item| item.prune(rest)),
            Value::Map(map) => map
                .entries
                .get_mut(*first)
                .is_some_and(|entry| entry.value.prune(rest)),
            Value::Scalar(_) | Value::Gone => false,
        }
    }

    /// Was anything taken out, here or below?
    pub(super) fn is_pruned(&self) -> bool {
        match &self.value {
            Value::Scalar(_) => false,
            Value::Gone => true,
            Value::List(items) => items.iter().any(Self::is_pruned),
            Value::Map(map) => {
                !map.pruned.is_empty() || map.entries.iter().any(|entry| entry.value.is_pruned())
            }
        }
    }

    /// Was the value at this path of keys, or anything in it, or what holds it, taken out?
    pub(super) fn is_pruned_at(&self, path: &[&str]) -> bool {
        let Some((key, rest)) = path.split_first() else {
            return self.is_pruned();
        };
        let Value::Map(map) = &self.value else {
            return false;
        };
        map.pruned.iter().any(|pruned| pruned == key)
            || map
                .entries
                .iter()
                .find(|entry| entry.key == *key)
                .is_some_and(|entry| entry.value.is_pruned_at(rest))
    }

    /// The JSON pointer (RFC 6901) of the node at the end of a path of positions.
    pub(super) fn pointer(&self, path: &[usize]) -> String {
        let (mut node, mut pointer) = (self, String::new());
        for idx in path {
            match &node.value {
                Value::List(items) => {
                    let Some(item) = items.get(*idx) else { break };
                    pointer.push_str(&format!("/{idx}"));
                    node = item;
                }
                Value::Map(map) => {
                    let Some(entry) = map.entries.get(*idx) else {
                        break;
                    };
                    pointer.push('/');
                    pointer.push_str(&entry.key.replace('~', "~0").replace('/', "~1"));
                    node = &entry.value;
                }
                Value::Scalar(_) | Value::Gone => break,
            }
        }
        pointer
    }

    /// The node at the end of a path of positions, the entry that holds it, and the keys on the way
    /// (items as `[3]`, or by their name).
    pub(super) fn follow(&self, path: &[usize]) -> (&Node, Option<&Entry>, Vec<String>) {
        let (mut node, mut holder, mut keys) = (self, None, Vec::new());
        for idx in path {
            match &node.value {
                Value::List(items) => {
                    let Some(item) = items.get(*idx) else { break };
                    let name = item.find(&["name"]).and_then(|name| match &name.value {
                        Value::Scalar(Scalar { text, .. }) if !text.is_empty() => {
                            Some(text.as_str())
                        }
                        _ => None,
                    });
                    keys.push(name.map_or_else(|| format!("[{idx}]"), |name| format!("[{name}]")));
                    (node, holder) = (item, None);
                }
                Value::Map(map) => {
                    let Some(entry) = map.entries.get(*idx) else {
                        break;
                    };
                    keys.push(entry.key.clone());
                    (node, holder) = (&entry.value, Some(entry));
                }
                Value::Scalar(_) | Value::Gone => break,
            }
        }
        (node, holder, keys)
    }
}

/// What [`Node::put`] does with what is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// It is replaced.
    Nothing,
    /// It wins.
    What,
}
