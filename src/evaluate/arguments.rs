//! Pure. Expected arguments against those of a call: whether they fit, and in words where they do
//! not. Knows one call at a time.

use serde_json::{Map, Value};

use super::capture::{Known, Tri};
use super::json;
use super::score::Explain;

/// How expected arguments must agree with a call's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Agreement {
    /// Every expected key is there and equal; further keys are allowed.
    Contained,
    /// The same keys, all equal.
    Equal,
}

/// Do the arguments fit?
pub(super) fn fit(
    expected: &Map<String, Value>,
    actual: Known<&Value>,
    agreement: Agreement,
) -> Tri {
    match actual {
        Known::Unknown if expected.is_empty() && agreement == Agreement::Contained => Tri::Yes,
        Known::Unknown => Tri::Maybe,
        Known::None => Tri::from(expected.is_empty()),
        Known::Value(actual) => Tri::from(match (actual.as_object(), agreement) {
            (Some(actual), Agreement::Contained) => expected.iter().all(|(key, value)| {
                actual
                    .get(key)
                    .is_some_and(|actual| json::equal(value, actual))
            }),
            (Some(actual), Agreement::Equal) => {
                expected.len() == actual.len()
                    && expected.iter().all(|(key, value)| {
                        actual
                            .get(key)
                            .is_some_and(|actual| json::equal(value, actual))
                    })
            }
            // What is no object has no keys; `{}` asks for none.
            (None, Agreement::Contained) => expected.is_empty(),
            (None, Agreement::Equal) => false,
        }),
    }
}

/// Where they do not fit, by names of arguments: "`city` differs, `limit` is missing"; and how many
/// places that are.
pub(super) fn differences(
    expected: &Map<String, Value>,
    actual: Known<&Value>,
    agreement: Agreement,
    explain: &Explain,
) -> (usize, String) {
    let none = Map::new();
    let actual = match actual {
        Known::Value(value) => match value.as_object() {
            Some(actual) => actual,
            None => {
                return (
                    expected.len(),
                    "its arguments are no JSON object".to_owned(),
                );
            }
        },
        Known::None => &none,
        Known::Unknown => return (expected.len(), "its arguments are not known".to_owned()),
    };
    let mut places = Vec::new();
    for (key, expected) in expected {
        match actual.get(key) {
            None => places.push(format!("`{key}` is missing")),
            Some(actual) if json::equal(expected, actual) => {}
            Some(actual) => places.push(
                match (
                    explain.value(&actual.to_string()),
                    explain.value(&expected.to_string()),
                ) {
                    (Some(actual), Some(expected)) => {
                        format!("`{key}` is {actual}, expected {expected}")
                    }
                    _ => format!("`{key}` differs"),
                },
            ),
        }
    }
    if agreement == Agreement::Equal {
        places.extend(
            actual
                .keys()
                .filter(|key| !expected.contains_key(*key))
                .map(|key| format!("`{key}` is not expected")),
        );
    }
    (places.len(), places.join(", "))
}
