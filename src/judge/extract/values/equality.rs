//! Equality of JSON values.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Number, Value};
use text::decimal::Decimal;

/// Returns true if two values are equal as JSON: 1 = 1.0, true ≠ 1, the order of an object's keys
/// is irrelevant. Numbers are compared exactly, with all their digits. `None` if the values differ
/// only in numbers that JSON cannot represent: NaN, an infinity, or a number outside the range of
/// an `f64`.
pub(crate) fn equal(a: &Value, b: &Value) -> Option<bool> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => equal_numbers(a, b),
        (Value::Number(_), Value::String(text)) | (Value::String(text), Value::Number(_)) => {
            (!is_not_finite(text)).then_some(false)
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            all(a.iter().zip(b).map(|(a, b)| equal(a, b)))
        }
        (Value::Object(a), Value::Object(b)) if a.len() == b.len() => {
            all(a.iter().map(|(key, a)| match b.get(key) {
                Some(b) => equal(a, b),
                None => Some(false),
            }))
        }
        (Value::Null, Value::Null) => Some(true),
        (Value::Bool(a), Value::Bool(b)) => Some(a == b),
        (Value::String(a), Value::String(b)) => Some(a == b),
        _ => Some(false),
    }
}

/// Returns `Some(false)` if any item is `Some(false)`, `Some(true)` if all items are `Some(true)`,
/// else `None`.
pub(crate) fn all(mut equal: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(true);
    let differs = equal.any(|equal| {
        if equal.is_none() {
            all = None;
        }
        equal == Some(false)
    });
    if differs { Some(false) } else { all }
}

/// Returns a hash; [`equal`] values have equal hashes.
pub(crate) fn hash(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    match value {
        Value::Null => 0_u8.hash(&mut hasher),
        Value::Bool(bool) => (1_u8, bool).hash(&mut hasher),
        // Numbers are not hashed as floats, because a sender could send any number of values that
        // round to the same float and so have the same hash.
        Value::Number(number) => match Decimal::parse(number.as_str()) {
            Some(decimal) => (2_u8, decimal).hash(&mut hasher),
            None => (6_u8, number.as_str()).hash(&mut hasher),
        },
        Value::String(text) => (3_u8, text).hash(&mut hasher),
        Value::Array(items) => {
            4_u8.hash(&mut hasher);
            items.iter().for_each(|item| hash(item).hash(&mut hasher));
        }
        // The order of the keys is irrelevant, so their hashes are added up.
        Value::Object(fields) => {
            let sum = fields.iter().fold(0_u64, |sum, (key, value)| {
                let mut of_field = DefaultHasher::new();
                (key, hash(value)).hash(&mut of_field);
                sum.wrapping_add(of_field.finish())
            });
            (5_u8, sum).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Returns true if the value can be compared with every other value: it contains no NaN, no
/// infinity and no number outside the range of an `f64`.
pub(crate) fn is_comparable(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_some(),
        Value::String(text) => !is_not_finite(text),
        Value::Array(items) => items.iter().all(is_comparable),
        Value::Object(fields) => fields.values().all(is_comparable),
        Value::Null | Value::Bool(_) => true,
    }
}

fn equal_numbers(a: &Number, b: &Number) -> Option<bool> {
    match (Decimal::parse(a.as_str()), Decimal::parse(b.as_str())) {
        (Some(a), Some(b)) if a == b => Some(true),
        (None, None) if a == b && a.as_f64().is_some() => Some(true),
        // Most programs read a number outside the range of an `f64` as an infinity, so the value of
        // the number is not known.
        _ if a.as_f64().is_none() || b.as_f64().is_none() => None,
        _ => Some(false),
    }
}

/// Returns true for the words that Protobuf's JSON mapping, and so OTLP, writes for numbers that
/// JSON lacks.
fn is_not_finite(text: &str) -> bool {
    matches!(text, "NaN" | "Infinity" | "-Infinity")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_not_spellings() {
        for (a, b, same) in [
            ("1", "1.0", true),
            ("1e3", "1000", true),
            ("7.0", "7e0", true),
            ("-120", "-1.2e2", true),
            ("1e-99999999999", "1e-99999999999", true),
            ("1e-99999999999", "1e-99999999998", false),
            ("-0.0", "0", true),
            ("true", "1", false),
            ("false", "0", false),
            ("null", "0", false),
            ("1", "\"1\"", false),
            ("9007199254740993", "9007199254740992", false),
            ("9007199254740993", "9007199254740992.0", false),
            ("12345678901234567890123", "12345678901234567890123", true),
            ("12345678901234567890123", "12345678901234567890124", false),
            (
                "12345678901234567890123",
                "1.2345678901234567890123e22",
                true,
            ),
            ("0.1", "0.10000000000000000555", false),
            ("1e400", "1e400", true),
            ("18446744073709551615", "18446744073709551615", true),
            ("1e300", "1e300", true),
            ("0.1", "0.1", true),
            ("1.5", "1", false),
            (
                r#"{"a":1,"b":[2,{"c":null}]}"#,
                r#"{"b":[2.0,{"c":null}],"a":1.0}"#,
                true,
            ),
            (r#"{"a":null}"#, "{}", false),
            ("[1,2]", "[2,1]", false),
            ("[1]", "[1,1]", false),
            (r#""é""#, r#""\u00e9""#, true),
        ] {
            let (a_value, b_value) = (
                serde_json::from_str(a).unwrap(),
                serde_json::from_str(b).unwrap(),
            );
            assert!(!same || hash(&a_value) == hash(&b_value), "{a} and {b}");
            let same = Some(same);
            assert_eq!(equal(&a_value, &b_value), same, "{a} = {b}");
            assert_eq!(equal(&b_value, &a_value), same, "{b} = {a}");
        }
    }

    /// Values with the same hash are searched one by one, so many of them would make a search slow.
    #[test]
    fn numbers_that_round_to_one_double_have_a_hash_each() {
        for begin in ["1.0000000000000000000", "1e-9999999999"] {
            let hashes = (1000..2000).map(|end| {
                let number = serde_json::from_str(&format!("{begin}{end}")).unwrap();
                hash(&number)
            });
            let hashes: std::collections::HashSet<u64> = hashes.collect();
            assert_eq!(hashes.len(), 1000, "{begin}");
        }
    }

    #[test]
    fn what_json_cannot_write_may_be_any_number() {
        for (a, b, expected) in [
            ("1e400", "5", None),
            ("-1e400", "1e400", None),
            ("1e99999999999", "5", None),
            (r#""NaN""#, "5", None),
            (r#""-Infinity""#, "5", None),
            (r#""NaN""#, r#""5""#, Some(false)),
            ("1e400", "null", Some(false)),
            (r#""nancy""#, "5", Some(false)),
            (r#"{"a":1e400,"b":1}"#, r#"{"a":1,"b":1}"#, None),
            (r#"{"a":1e400,"b":1}"#, r#"{"a":1,"b":2}"#, Some(false)),
        ] {
            let (a_value, b_value) = (
                serde_json::from_str(a).unwrap(),
                serde_json::from_str(b).unwrap(),
            );
            assert_eq!(equal(&a_value, &b_value), expected, "{a} = {b}");
            assert_eq!(equal(&b_value, &a_value), expected, "{b} = {a}");
        }
    }
}
