//! Tests MLflow: the agent's trace has the assessments, and each exists only once, even if it is
//! sent several times.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::run::{Backend, TRACE_ID, Told, expected, get, score, told, until};

const WEB: &str = "127.0.0.1:5000";
/// MLflow rejects OTLP without an experiment, and accepts traces only over HTTP.
const CONFIGURATION: &str = "
forward:
  endpoint: http://127.0.0.1:5000
  protocol: http/protobuf
  signals: [traces]
  headers: { x-mlflow-experiment-id: \"0\" }
scores: { writers: [ mlflow: { endpoint: \"http://127.0.0.1:5000\" } ] }
";

pub(crate) fn has_assessments(folder: &Path) {
    let own = tempfile::tempdir().unwrap();
    let mut command = Command::new(folder.join("mlflow/bin/mlflow"));
    command.args([
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        "5000",
        "--workers",
        "1",
        "--backend-store-uri",
        "sqlite:///mlflow.db",
    ]);
    let mlflow = Backend::start(own, command, WEB);
    until(|| get(WEB, "/api/2.0/mlflow/experiments/get?experiment_id=0"));
    score(mlflow.folder.path(), CONFIGURATION);

    let written = until(|| assessments().filter(|assessments| assessments.len() >= 3));
    let told = |one: &Value| {
        told(
            &one["assessment_name"],
            &one["metadata"]["spanscore.label"],
            &one["feedback"]["value"],
        )
    };
    assert_eq!(written.iter().map(told).collect::<Vec<Told>>(), expected());
    assert_eq!(written[0]["source"]["source_type"], "CODE");
    assert!(
        written[0]["rationale"]
            .as_str()
            .unwrap()
            .contains("charge_card"),
        "{}",
        written[0]
    );

    // Simulate a second replica that saw this run and writes the same scores.
    score(mlflow.folder.path(), CONFIGURATION);
    let again = until(|| {
        assessments().filter(|again| again[0]["last_update_time"] != written[0]["last_update_time"])
    });
    let ids = |assessments: &[Value]| {
        assessments
            .iter()
            .map(|assessment| assessment["assessment_id"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&again), ids(&written), "updated, not doubled");
}

/// Returns the assessments of the recorded trace, sorted by name; `None` until MLflow shows any.
fn assessments() -> Option<Vec<Value>> {
    let trace = get(WEB, &format!("/api/3.0/mlflow/traces/tr-{TRACE_ID}"))?;
    let mut assessments = trace["trace"]["trace_info"]["assessments"]
        .as_array()?
        .clone();
    assessments.sort_by_key(|assessment| {
        assessment["assessment_name"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    });
    Some(assessments)
}
