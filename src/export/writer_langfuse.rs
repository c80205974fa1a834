//! A score in, a score of Langfuse out. Pure.
//!
//! `POST /api/public/scores` overwrites by `id`, and takes a score before its trace has come.

use serde_json::{Value, json};

use super::writer::{Score, Target, post};

pub(super) fn call(score: &Score<'_>) -> (Vec<Target>, Value) {
    // What has no number is a category, or averages would count it as a zero.
    let (value, data_type) = match score.value {
        Some(value) => (json!(value), "NUMERIC"),
        None => (json!(score.label), "CATEGORICAL"),
    };
    let body = json!({
        "id": score.key,
        "traceId": score.trace_id.to_string(),
        "observationId": score.span_id.to_string(),
        "name": score.name,
        "value": value,
        "dataType": data_type,
        "comment": score.explanation,
        "metadata": score.metadata,
    });
    (vec![post("/api/public/scores")], body)
}
