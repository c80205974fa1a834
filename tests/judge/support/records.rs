//! Attributes in OTLP/JSON, a clock, and rules, for tests of judging.

use std::time::Duration;

use crate::support::now;
use judge::evaluate::Criterion;
use judge::pipeline::Rules;
use otlp::span::Now;
use serde_json::{Value, json};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const START: u64 = 1_700_000_000 * SECOND;

pub(crate) fn rules_of(criteria: Value) -> Rules {
    let criteria: Vec<Criterion> = serde_json::from_value(criteria).expect("they load");
    Rules::new(criteria)
}

pub(crate) fn attributes(values: &Value) -> Value {
    values
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| json!({ "key": key, "value": typed(value) }))
        .collect()
}

/// Returns the value in OTLP/JSON notation.
pub(crate) fn typed(value: &Value) -> Value {
    match value {
        Value::String(text) => json!({ "stringValue": text }),
        Value::Bool(value) => json!({ "boolValue": value }),
        Value::Number(number) if number.is_i64() => json!({ "intValue": number.to_string() }),
        Value::Array(items) => {
            json!({ "arrayValue": { "values": items.iter().map(typed).collect::<Vec<_>>() } })
        }
        Value::Object(_) => json!({ "kvlistValue": { "values": attributes(value) } }),
        other => json!({ "doubleValue": other }),
    }
}

/// Returns a clock that returns the time a number of seconds after the start.
pub(crate) fn clock() -> impl Fn(u64) -> Now {
    let start = now().instant;
    move |seconds| Now {
        instant: start + Duration::from_secs(seconds),
        unix_nanos: START + seconds * SECOND,
    }
}
