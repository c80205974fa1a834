//! Compares expected arguments with the arguments of a call, and describes the differences.

use serde_json::{Map, Value};

use super::captured::{CapturedValues, Known, Tri};
use super::score::Explain;
use crate::extract::equality;

/// The relation that a call's arguments must have to the expected arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// Every expected key is present with an equal value; further keys are allowed.
    Contained,
    /// Both have the same keys with equal values.
    Equal,
}

pub(crate) fn fit(
    expected: &Map<String, Value>,
    call_idx: usize,
    captured: &mut CapturedValues<'_>,
    agreement: Agreement,
) -> Tri {
    let actual = captured.args(call_idx);
    let fit = match actual {
        Known::Unknown if expected.is_empty() && agreement == Agreement::Contained => Tri::Yes,
        Known::Unknown => Tri::Maybe,
        Known::None => Tri::from(expected.is_empty()),
        Known::Value(actual) => match (actual.as_object(), agreement) {
            (Some(actual), Agreement::Equal) if expected.len() != actual.len() => Tri::No,
            (Some(actual), _) => contains(actual, expected),
            // A value that is not an object has no keys: it contains `{}`, but equals no map.
            (None, Agreement::Contained) => Tri::from(expected.is_empty()),
            (None, Agreement::Equal) => Tri::No,
        },
    };
    if fit == Tri::Maybe && matches!(actual, Known::Value(_)) {
        captured.missing.incomparable.get_or_insert(call_idx);
    }
    fit
}

fn contains(actual: &Map<String, Value>, expected: &Map<String, Value>) -> Tri {
    Tri::from(equality::all(expected.iter().map(|(key, value)| {
        let actual = actual.get(key);
        actual.map_or(Some(false), |actual| equality::equal(value, actual))
    })))
}

/// The differences between the arguments of a call and the expected arguments, without values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ArgsDifference {
    /// The arguments were not captured, were cut, or may still change.
    Unknown,
    /// The arguments are not a JSON object.
    NoObject,
    /// The keys that differ: expected keys in the order of the expected arguments, then unexpected
    /// keys.
    Keys(Vec<KeyDifference>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum KeyDifference {
    Missing(String),
    Differs(String),
    /// The key's value cannot be compared: it contains NaN, an infinity, or a number outside the
    /// range of an `f64`.
    Incomparable(String),
    NotExpected(String),
}

impl ArgsDifference {
    pub(crate) fn new(
        expected: &Map<String, Value>,
        actual: Known<&Value>,
        agreement: Agreement,
    ) -> Self {
        let no_arguments = Map::new();
        let actual = match actual {
            Known::Unknown => return Self::Unknown,
            Known::None => &no_arguments,
            Known::Value(value) => match value.as_object() {
                None => return Self::NoObject,
                Some(actual) => actual,
            },
        };
        let mut keys = Vec::new();
        for (key, expected) in expected {
            match actual.get(key) {
                None => keys.push(KeyDifference::Missing(key.clone())),
                Some(actual) => match equality::equal(expected, actual) {
                    Some(true) => {}
                    None => keys.push(KeyDifference::Incomparable(key.clone())),
                    Some(false) => keys.push(KeyDifference::Differs(key.clone())),
                },
            }
        }
        if agreement == Agreement::Equal {
            let others = actual.keys().filter(|key| !expected.contains_key(*key));
            keys.extend(others.cloned().map(KeyDifference::NotExpected));
        }
        Self::Keys(keys)
    }

    pub(crate) fn n_keys(&self, expected: &Map<String, Value>) -> usize {
        match self {
            Self::Unknown | Self::NoObject => expected.len(),
            Self::Keys(keys) => keys.len(),
        }
    }

    /// Returns text such as "`city` differs, `limit` is missing". If `explain.values` is set, a key
    /// that differs is shown with its expected and its actual value.
    pub(crate) fn text(
        &self,
        expected: &Map<String, Value>,
        actual: Known<&Value>,
        explain: &Explain,
    ) -> String {
        let keys = match self {
            Self::Unknown => return "its arguments are not known".to_owned(),
            Self::NoObject => return "its arguments are no JSON object".to_owned(),
            Self::Keys(keys) => keys,
        };
        let shown = |value: Option<&Value>| explain.value(&value?.to_string());
        let sentence = |key: &KeyDifference| match key {
            KeyDifference::Missing(key) => format!("`{key}` is missing"),
            KeyDifference::NotExpected(key) => format!("`{key}` is not expected"),
            KeyDifference::Incomparable(key) => format!("`{key}` cannot be compared"),
            KeyDifference::Differs(key) => {
                let actual = match actual {
                    Known::Value(actual) => actual.get(key),
                    Known::None | Known::Unknown => None,
                };
                match (shown(actual), shown(expected.get(key))) {
                    (Some(actual), Some(expected)) => {
                        format!("`{key}` is {actual}, expected {expected}")
                    }
                    _ => format!("`{key}` differs"),
                }
            }
        };
        keys.iter().map(sentence).collect::<Vec<_>>().join(", ")
    }
}
