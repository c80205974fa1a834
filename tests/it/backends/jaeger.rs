//! Tests Jaeger 2: failing runs can be found by tag, and the score is a part of the agent's trace.

use std::path::Path;
use std::process::Command;

use super::run::{Backend, get, score, until};

pub(crate) fn finds_failing_runs(folder: &Path) {
    // Without a configuration, Jaeger runs as one process with storage in memory.
    let jaeger = Backend::start(
        tempfile::tempdir().unwrap(),
        Command::new(folder.join("jaeger")),
        "127.0.0.1:16686",
    );
    // Jaeger accepts only traces.
    score(
        jaeger.folder.path(),
        "forward: { endpoint: \"http://127.0.0.1:4317\", signals: [traces] }\n",
    );

    let find = |label: &str| {
        let tags = format!("%7B%22gen_ai.evaluation.score.label%22%3A%22{label}%22%7D");
        // The recording was made on another day, so the query starts at the epoch.
        get(
            "127.0.0.1:16686",
            &format!(
                "/api/traces?service={SERVICE}&tags={tags}&start=0&end=4102444800000000&limit=20"
            ),
        )
    };
    let found = until(|| {
        find("fail").filter(|found| {
            found["data"]
                .as_array()
                .is_some_and(|traces| !traces.is_empty())
        })
    });
    let spans = found["data"][0]["spans"].as_array().unwrap();
    let operations: Vec<&str> = spans
        .iter()
        .map(|span| span["operationName"].as_str().unwrap())
        .collect();
    assert!(
        operations
            .iter()
            .any(|name| !name.starts_with("evaluation ")),
        "the agent's own spans are beside it: {operations:?}"
    );
    let failed = spans
        .iter()
        .find(|span| span["operationName"] == "evaluation charge-exactly-once")
        .unwrap();
    let parent = failed["references"]
        .as_array()
        .unwrap()
        .iter()
        .find(|reference| reference["refType"] == "CHILD_OF")
        .unwrap();
    assert!(
        spans.iter().any(|span| span["spanID"] == parent["spanID"]),
        "it is a child of the judged span"
    );
    let tag = |key: &str| {
        &failed["tags"]
            .as_array()
            .unwrap()
            .iter()
            .find(|tag| tag["key"] == key)
            .unwrap()["value"]
    };
    assert_eq!(
        (
            tag("gen_ai.evaluation.score.value"),
            tag("spanscore.evaluator")
        ),
        (&0.into(), &"tool_call_count".into())
    );
    assert!(
        find("error").unwrap()["data"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

/// The service of the recorded session.
const SERVICE: &str = "pydantic-ai-demo";
