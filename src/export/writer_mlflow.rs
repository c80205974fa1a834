//! Writes a score as an assessment of MLflow.
//!
//! The creator of an assessment chooses its id. So the assessment with our id is updated (`PATCH`),
//! or created (`POST`) if MLflow has none with this id; if both requests are answered with 404,
//! MLflow does not have the trace yet. MLflow's id of a trace that arrived over OTLP is `tr-`
//! followed by the trace id.

use serde_json::{Value, json};

use super::writer_score::{BackendScore, WriterTarget, post};

use crate::rfc3339::rfc3339;

pub(super) fn request(score: &BackendScore<'_>, now_unix_nanos: u64) -> (Vec<WriterTarget>, Value) {
    let trace_id = format!("tr-{}", score.trace_id);
    let id = format!("a-{}", score.key);
    let assessments = format!("/api/3.0/mlflow/traces/{trace_id}/assessments");
    let feedback = match score.value {
        Some(value) => json!({ "value": value }),
        // An assessment without a value has an error instead.
        None => {
            json!({ "error": { "error_code": score.label, "error_message": score.explanation } })
        }
    };
    let metadata = score.metadata_texts();
    let metadata = metadata.map(|(key, text)| (key, json!(text)));
    let now = rfc3339(now_unix_nanos / 1_000_000_000 * 1_000_000_000);
    let body = json!({
        "assessment": {
            "assessment_id": id,
            "assessment_name": score.name,
            "trace_id": trace_id,
            "span_id": score.span_id.to_string(),
            "source": { "source_type": "CODE", "source_id": "spanscore" },
            "create_time": now,
            "last_update_time": now,
            "feedback": feedback,
            "rationale": score.explanation,
            "metadata": metadata.collect::<serde_json::Map<_, _>>(),
            "valid": true,
        },
        "update_mask": "feedback,rationale,metadata",
    });
    (
        vec![
            WriterTarget {
                method: "PATCH",
                path: format!("{assessments}/{id}"),
            },
            post(assessments),
        ],
        body,
    )
}
