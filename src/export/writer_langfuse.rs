//! Writes a score as a score of Langfuse.
//!
//! `POST /api/public/scores` overwrites by `id`, and accepts a score before its trace has arrived.

use serde_json::{Value, json};

use super::writer_score::{BackendScore, WriterTarget, post};

pub(super) fn request(score: &BackendScore<'_>) -> (Vec<WriterTarget>, Value) {
    // A score without a number must be a category; otherwise averages would count it as zero.
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
