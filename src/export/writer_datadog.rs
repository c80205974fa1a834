//! Writes the scores of a trace as external evaluations of Datadog's Agent Observability.
//!
//! `POST /api/intake/llm-obs/v2/eval-metric`. For spans that arrived over OpenTelemetry, Datadog
//! requires the tag `source:otel` and decimal ids; labels are ASCII letters, digits and
//! underscores, begin with a letter and have at most 200 characters. Datadog documents no key that
//! would overwrite an evaluation: readers use the latest evaluation of a span and label.

use serde_json::{Value, json};

use super::writer_score::{BackendScore, WriterTarget, post};
use crate::config::DatadogWriter;

pub(super) fn request(
    scores: &[BackendScore<'_>],
    writer: &DatadogWriter,
    now_unix_nanos: u64,
) -> (Vec<WriterTarget>, Value) {
    let metrics: Vec<Value> = scores
        .iter()
        .map(|score| metric(score, writer, now_unix_nanos))
        .collect();
    let body =
        json!({ "data": { "type": "evaluation_metric", "attributes": { "metrics": metrics } } });
    (vec![post("/api/intake/llm-obs/v2/eval-metric")], body)
}

fn metric(score: &BackendScore<'_>, writer: &DatadogWriter, now_unix_nanos: u64) -> Value {
    let mut tags = vec!["source:otel".to_owned()];
    let metadata = score.metadata_texts();
    tags.extend(metadata.map(|(key, text)| format!("{key}:{text}")));
    let mut metric = json!({
        "join_on": {
            "span": {
                "span_id": u64::from_be_bytes(score.span_id.to_bytes()).to_string(),
                "trace_id": u128::from_be_bytes(*score.trace_id.as_bytes()).to_string(),
            },
        },
        "ml_app": writer.ml_app.as_deref().unwrap_or(score.service),
        "timestamp_ms": now_unix_nanos / 1_000_000,
        "label": label(score.name),
        "reasoning": score.explanation,
        "tags": tags,
    });
    match score.value {
        Some(value) => {
            metric["metric_type"] = json!("score");
            metric["score_value"] = json!(value);
        }
        None => {
            metric["metric_type"] = json!("categorical");
            metric["categorical_value"] = json!(score.label);
        }
    }
    if matches!(score.label, "pass" | "fail") {
        metric["assessment"] = json!(score.label);
    }
    metric
}

fn label(criterion: &str) -> String {
    let label = criterion
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    let prefix = if criterion.starts_with(|c: char| c.is_ascii_alphabetic()) {
        ""
    } else {
        "criterion_"
    };
    prefix.chars().chain(label).take(200).collect()
}
