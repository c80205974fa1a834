//! Tests Arize Phoenix: score spans of kind EVALUATOR are in the agent's trace, and each span
//! annotation exists only once, even if it is sent several times.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::run::{Backend, Told, expected, get, score, told, until};

const WEB: &str = "127.0.0.1:6006";
const CONFIGURATION: &str = "
forward: { endpoint: \"http://127.0.0.1:6006\", protocol: http/protobuf, signals: [traces] }
scores: { writers: [ phoenix: { endpoint: \"http://127.0.0.1:6006\" } ] }
";

pub(crate) fn has_annotations(folder: &Path) {
    let own = tempfile::tempdir().unwrap();
    let mut command = Command::new(folder.join("arize-phoenix/bin/phoenix"));
    command.arg("serve").env("PHOENIX_WORKING_DIR", own.path());
    command.envs([
        ("PHOENIX_HOST", "127.0.0.1"),
        ("PHOENIX_TELEMETRY_ENABLED", "false"),
    ]);
    let phoenix = Backend::start(own, command, WEB);
    until(|| get(WEB, "/v1/projects"));
    score(phoenix.folder.path(), CONFIGURATION);

    let failed = until(|| {
        let spans = found("/v1/projects/default/spans?limit=100", 1)?;
        spans
            .into_iter()
            .find(|span| span["name"] == "evaluation charge-exactly-once")
    });
    assert_eq!(failed["span_kind"], "EVALUATOR");
    assert_eq!(
        failed["attributes"]["gen_ai.evaluation.score.label"], "fail",
        "{failed:#}"
    );
    let judged = failed["parent_id"].as_str().unwrap();
    let path = format!("/v1/projects/default/span_annotations?span_ids={judged}&limit=100");
    let written = until(|| found(&path, 3));
    let all_told = |annotations: &[Value]| -> Vec<Told> {
        annotations
            .iter()
            .map(|one| {
                told(
                    &one["name"],
                    &one["result"]["label"],
                    &one["result"]["score"],
                )
            })
            .collect()
    };
    assert_eq!(all_told(&written), expected());
    assert!(
        written
            .iter()
            .all(|annotation| annotation["annotator_kind"] == "CODE"
                && annotation["identifier"] == "spanscore")
    );
    let explanation = written[0]["result"]["explanation"].as_str().unwrap();
    assert!(
        explanation.contains("`charge_card` was called twice"),
        "{explanation}"
    );

    // Simulate a second replica that saw this run and writes the same scores.
    score(phoenix.folder.path(), CONFIGURATION);
    let again = until(|| {
        found(&path, 3).filter(|again| again[0]["updated_at"] != written[0]["updated_at"])
    });
    let ids = |annotations: &[Value]| {
        annotations
            .iter()
            .map(|annotation| annotation["id"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (ids(&again), all_told(&again)),
        (ids(&written), all_told(&written)),
        "overwritten, not doubled"
    );
}

/// Returns spans or annotations, sorted by name; `None` until there are at least `n`.
fn found(path: &str, n: usize) -> Option<Vec<Value>> {
    let mut items = get(WEB, path)?["data"]
        .as_array()
        .filter(|items| items.len() >= n)?
        .clone();
    items.sort_by_key(|item| item["name"].as_str().unwrap_or_default().to_owned());
    Some(items)
}
