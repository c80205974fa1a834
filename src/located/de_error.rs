//! The errors of the [`Reader`](super::Reader): the mistake that serde found, and the path to its
//! node.

use std::fmt;

use serde::de::{self, Unexpected};
use text::{counted, truncated};

use super::tree::{Node, NodeValue};

#[derive(Debug)]
pub struct DeError {
    pub(crate) fault: MistakeKind,
    /// Indices from the root to the node, the innermost first.
    reversed_path: Vec<usize>,
    /// Indices from the root to the node to remove, the innermost first. For an item of a tuple
    /// such as `[">=", 2]`, the node to remove is the tuple, because without the first item, the
    /// second would become the first.
    reversed_pruned: Vec<usize>,
    /// True if the key of the entry is wrong, not its value.
    pub(crate) at_key: bool,
}

#[derive(Debug)]
pub(crate) enum MistakeKind {
    UnknownKey {
        key: String,
        legal: Vec<&'static str>,
    },
    UnknownWord {
        word: String,
        of: Option<&'static str>,
        legal: Vec<&'static str>,
    },
    Missing(&'static str),
    WrongType {
        expected: String,
        found: String,
    },
    NoValue {
        expected: String,
    },
    NoChoice {
        of: &'static str,
        legal: Vec<&'static str>,
    },
    SecondChoice {
        of: &'static str,
        second: String,
    },
    Other(String),
}

impl DeError {
    pub(crate) fn new(fault: MistakeKind) -> Self {
        Self {
            fault,
            reversed_path: Vec::new(),
            reversed_pruned: Vec::new(),
            at_key: false,
        }
    }

    /// Creates a mistake in the value at the end of `keys` below `node`. A key into a list is an
    /// index among the items that were not removed. Keys that lead to no node are ignored. With
    /// `at_key`, the key of that value is wrong.
    pub fn at(node: &Node, keys: &[String], message: String, at_key: bool) -> Self {
        let (mut node, mut path) = (node, Vec::new());
        for key in keys {
            let next = match &node.value {
                NodeValue::Map(map) => {
                    let mut entries = map.entries.iter();
                    let position = entries.position(|entry| entry.key == *key);
                    position.map(|at| (at, &map.entries[at].value))
                }
                NodeValue::List(items) => {
                    let mut left = items.iter().enumerate().filter(|(_, item)| !item.is_gone());
                    key.parse().ok().and_then(|at| left.nth(at))
                }
                NodeValue::Scalar(_) | NodeValue::Gone => None,
            };
            let Some((at, value)) = next else { break };
            path.push(at);
            node = value;
        }
        path.reverse();
        Self {
            reversed_pruned: path.clone(),
            reversed_path: path,
            at_key,
            ..Self::new(MistakeKind::Other(message))
        }
    }

    pub(crate) fn path(&self) -> Vec<usize> {
        self.reversed_path.iter().rev().copied().collect()
    }

    pub(crate) fn pruned_path(&self) -> Vec<usize> {
        self.reversed_pruned.iter().rev().copied().collect()
    }

    pub(crate) fn below(mut self, idx: usize) -> Self {
        self.reversed_path.push(idx);
        self.reversed_pruned.push(idx);
        self
    }

    pub(crate) fn of_the_whole(mut self) -> Self {
        self.reversed_pruned.clear();
        self
    }

    pub(crate) fn key_of(mut self, idx: usize) -> Self {
        self.at_key = true;
        self.below(idx)
    }
}

impl fmt::Display for DeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.fault)
    }
}

impl std::error::Error for DeError {}

impl de::Error for DeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(MistakeKind::Other(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = expected_words(expected);
        Self::new(match found {
            Unexpected::Unit | Unexpected::Option => MistakeKind::NoValue { expected },
            found => MistakeKind::WrongType {
                expected,
                found: found_words(found),
            },
        })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(len: usize, expected: &dyn de::Expected) -> Self {
        let found = format!("a list of {}", counted(len, "value", "values"));
        Self::new(MistakeKind::WrongType {
            expected: expected_words(expected),
            found,
        })
    }

    fn unknown_variant(word: &str, legal: &'static [&'static str]) -> Self {
        Self::new(MistakeKind::UnknownWord {
            word: shown(word),
            of: None,
            legal: legal.to_vec(),
        })
    }

    fn unknown_field(key: &str, legal: &'static [&'static str]) -> Self {
        Self::new(MistakeKind::UnknownKey {
            key: key.to_owned(),
            legal: legal.to_vec(),
        })
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(MistakeKind::Missing(key))
    }
}

pub(crate) fn expected_words(expected: &dyn de::Expected) -> String {
    match expected.to_string().as_str() {
        "u8" => "a whole number from 0 to 255".to_owned(),
        "u16" => "a whole number from 0 to 65535".to_owned(),
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        words => words.to_owned(),
    }
}

fn found_words(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("`{value}`"),
        Unexpected::Signed(value) => format!("`{value}`"),
        Unexpected::Float(value) => format!("`{value}`"),
        Unexpected::Str(value) => format!("the text `{}`", shown(value)),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a map".to_owned(),
        // The text is "integer `…` as u128".
        Unexpected::Other(text) if text.starts_with("integer ") => {
            let number = text.trim_start_matches("integer ");
            number.split(" as ").next().unwrap_or(number).to_owned()
        }
        other => other.to_string(),
    }
}

/// Returns the start of the first line, because a message must not contain a page of text.
pub(crate) fn shown(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let shown = truncated(line, 60);
    let ellipsis = if shown.len() < text.trim_end().len() { "…" } else { "" };
    format!("{shown}{ellipsis}")
}
