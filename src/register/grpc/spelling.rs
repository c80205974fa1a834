//! A message in, the same as the configuration file spells it out, and back. Protobuf's own JSON
//! mapping does it, by the descriptors; what is left to do here is the pair that an expected count
//! is in the file (`[">=", 2]`), and whole numbers, which protobuf's `Value` does not know.

use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::{Number, Value, json};

/// The largest whole number up to which every one is exact as a double.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A message as the file spells it.
pub(super) fn to_json(message: &DynamicMessage) -> Result<Value, serde_json::Error> {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(true);
    let mut value = message.serialize_with_options(serde_json::value::Serializer, &options)?;
    whole_numbers(&mut value);
    each_count(&mut value, |count| {
        let operator = count.get("operator").cloned().unwrap_or_else(|| json!(""));
        *count = json!([
            operator,
            count.get("count").cloned().unwrap_or_else(|| json!(0))
        ]);
    });
    Ok(value)
}

/// A message of what is spelled as in the file.
pub(super) fn from_json(
    value: &Value,
    descriptor: MessageDescriptor,
) -> Result<DynamicMessage, serde_json::Error> {
    let mut value = value.clone();
    each_count(&mut value, |count| {
        if let Value::Array(pair) = count {
            *count = json!({ "operator": pair.first(), "count": pair.get(1) });
        }
    });
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    DynamicMessage::deserialize_with_options(descriptor, value, &options)
}

/// Every expected count, wherever a criterion stands.
fn each_count(value: &mut Value, mut change: impl FnMut(&mut Value)) {
    let listed = |key: &str| format!("/{key}");
    let mut criteria: Vec<&mut Value> = Vec::new();
    let Value::Object(fields) = value else { return };
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("evaluate", value) => criteria.push(value),
            ("criterion" | "uncovered", value) => {
                // A registration holds its criterion one level further down.
                let at = if value.get("criterion").is_some() {
                    listed("criterion/evaluate")
                } else {
                    listed("evaluate")
                };
                criteria.extend(value.pointer_mut(&at));
            }
            ("criteria", Value::Array(items)) => {
                for item in items {
                    let at = if item.get("criterion").is_some() {
                        listed("criterion/evaluate")
                    } else {
                        listed("evaluate")
                    };
                    criteria.extend(item.pointer_mut(&at));
                }
            }
            _ => {}
        }
    }
    for evaluate in criteria {
        if let Some(Value::Object(counts)) =
            evaluate.pointer_mut("/tool_call_count/tool_calls_count")
        {
            counts.values_mut().for_each(&mut change);
        }
    }
}

/// 2.0 becomes 2, so that a criterion has one revision however it came.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number
                .as_f64()
                .filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT)
            {
                *number = Number::from(float as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
