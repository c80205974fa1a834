//! Pure. Equality of JSON values. Knows nothing of tools.

use serde_json::{Number, Value};

/// Equal as JSON: 1 = 1.0, true ≠ 1, the order of an object's keys is irrelevant. Integers are
/// compared exactly, also beyond 2^53.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => equal_numbers(a, b),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => a == b,
        _ => false,
    }
}

fn equal_numbers(a: &Number, b: &Number) -> bool {
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a == b,
        (None, None) => a.as_f64() == b.as_f64(),
        _ => false,
    }
}

/// The number as an integer, if it is one; `1.0` and `1e3` are.
fn integer(number: &Number) -> Option<i128> {
    if let Some(integer) = number.as_i128() {
        return Some(integer);
    }
    // Every float below 2^100 without a fraction is exactly some i128.
    let float = number
        .as_f64()
        .filter(|float| float.fract() == 0.0 && float.abs() < 2_f64.powi(100))?;
    Some(float as i128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_not_spellings() {
        for (a, b, same) in [
            ("1", "1.0", true),
            ("1e3", "1000", true),
            ("-0.0", "0", true),
            ("true", "1", false),
            ("false", "0", false),
            ("null", "0", false),
            ("1", "\"1\"", false),
            ("9007199254740993", "9007199254740992", false),
            ("9007199254740993", "9007199254740992.0", false),
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
            assert_eq!(equal(&a_value, &b_value), same, "{a} = {b}");
            assert_eq!(equal(&b_value, &a_value), same, "{b} = {a}");
        }
    }
}
