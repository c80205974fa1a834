//! The cases of a packed file, and the rules of a conformance case.

use std::io::Read;

use judge::pipeline::Rules;
use serde_json::{Value, json};

/// The lines of a packed file, each a case.
pub(crate) fn unpacked(packed: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed)
        .read_to_string(&mut text)
        .expect("gzip of UTF-8");
    text
}

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
