//! The rules of a conformance case.

use judge::pipeline::Rules;
use serde_json::{Value, json};

/// A rule set with one criterion; `fields` are the evaluator's, with its threshold and, under
/// `criterion`, further fields of the criterion.
pub(crate) fn rules_of_case(id: &str, evaluator: &str, fields: &Value) -> Result<Rules, String> {
    let mut fields = fields.clone();
    let threshold = fields
        .as_object_mut()
        .and_then(|fields| fields.shift_remove("threshold"));
    let of_criterion = (fields.as_object_mut()).and_then(|fields| fields.shift_remove("criterion"));
    let mut criterion = json!({ "name": id, "evaluate": { evaluator: fields } });
    for (field, value) in of_criterion.iter().filter_map(Value::as_object).flatten() {
        criterion[field] = value.clone();
    }
    if let Some(threshold) = threshold {
        criterion["threshold"] = threshold;
    }
    let text = json!({ "criteria": [criterion] }).to_string();
    Rules::from_json(&text).map_err(|error| error.to_string())
}
