//! Writes the scores of a trace as span annotations of Arize Phoenix.
//!
//! `POST /v1/span_annotations`: an annotation overwrites an earlier one with equal span, name and
//! identifier. With `sync=true` Phoenix first searches for the spans, and answers 404 if a span is
//! missing; without `sync`, it answers 200 and discards the annotation.

use serde_json::{Value, json};

use super::writer_score::{BackendScore, WriterTarget, post};

pub(super) fn request(scores: &[BackendScore<'_>]) -> (Vec<WriterTarget>, Value) {
    let annotations: Vec<Value> = scores
        .iter()
        .map(|score| {
            json!({
                "span_id": score.span_id.to_string(),
                "name": name(score.name),
                "annotator_kind": "CODE",
                "identifier": "spanscore",
                "result": {
                    "label": score.label,
                    "score": score.value,
                    "explanation": score.explanation,
                },
                "metadata": score.metadata,
            })
        })
        .collect();
    (
        vec![post("/v1/span_annotations?sync=true")],
        json!({ "data": annotations }),
    )
}

/// Returns the name of an annotation. Phoenix reserves `note` for its own notes, and would reject a
/// whole request that contains an annotation of this name.
fn name(criterion: &str) -> &str {
    if criterion == "note" { "note_" } else { criterion }
}
