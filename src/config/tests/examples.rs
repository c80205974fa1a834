//! Tests of example files: their entries and the messages about their mistakes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use judge::evaluate::{Criterion, FromSpans};
use serde_json::{Value, json};

use super::Given;
use crate::config::examples;

/// Returns the evaluator that results from each entry for a criterion with the evaluator
/// `evaluate`.
fn made(text: &str, evaluate: &Value) -> Vec<Value> {
    let criterion: Criterion =
        serde_json::from_value(json!({ "name": "registered", "evaluate": evaluate })).unwrap();
    let criteria = [Arc::new(criterion)];
    let entries = examples(Path::new("examples.yaml"), text, false)
        .unwrap_or_else(|problems| panic!("{problems}"));
    entries
        .iter()
        .map(|entry| {
            let criterion = entry.replace(&criteria).remove(0).unwrap();
            serde_json::to_value(&criterion.evaluate).unwrap()
        })
        .collect()
}

#[test]
fn the_references_own_file_is_read_unchanged() {
    let text = r#"
examples:
  - input:
      prompt: "What should I pack for Paris?"
    expected_tools:
      - tool_name: "get_attractions"
        parameters:
          destination: "Paris"
      - tool_name: "get_weather"
        parameters: { destination: Paris, days: 2 }
  - input: { "prompt": "Book it." }
    expected_tools:
      - tool_name: "book"
"#;
    let criterion = json!({"tool_order": {"expected_tools": [], "exact_match": true}});
    let first = json!([
        {"tool_name": "get_attractions", "parameters": {"destination": "Paris"}},
        {"tool_name": "get_weather", "parameters": {"destination": "Paris", "days": 2}},
    ]);
    let made = made(text, &criterion);
    assert_eq!(
        made[0],
        json!({"tool_order": {"expected_tools": first, "exact_match": true}})
    );
    assert_eq!(
        made[1]["tool_order"]["expected_tools"],
        json!([{"tool_name": "book"}])
    );
    assert_eq!(made.len(), 2);
}

#[test]
fn json_is_taken_too_and_ids_may_be_numbers() {
    let text = r#"{"examples": [{
        "id": 7, "evaluate": {"tool_calls": {"required": [], "disallowed": ["rm"]}}
    }]}"#;
    let entries = examples(Path::new("examples.json"), text, false).unwrap();
    assert_eq!(entries[0].id.as_deref(), Some("7"));
    let made = made(
        text,
        &json!({"tool_calls": {"required": ["a"], "sequence": ["b"]}}),
    );
    assert_eq!(
        made[0],
        json!({"tool_calls": {"disallowed": [{"name": "rm"}], "sequence": [{"name": "b"}]}}),
        "an empty list is written down too"
    );
}

#[test]
fn every_mistake_of_an_example_file_is_reported_at_its_place() {
    let cases = [
        (
            "several",
            "examples:\n  - input: x\n  - id: a\n    expected_tool: []\
             \n  - expected_tools: [{ name: search }]\n  - expected_output: search\n  - id: a\
             \n    expected_output: [a]\n    evaluate: { tool_order: { expected_tools: [] } }\
             \n  - id: [b]\n    evaluate: { tool_call_ordr: {} }\n",
        ),
        (
            "an id twice",
            "examples:\n  - { id: a, expected_output: [a] }\n  - { id: a, expected_output: [b] }\n",
        ),
        ("not a map", "- expected_output: [a]\n"),
        ("a configuration", "criteria:\n  - name: a\n"),
        (
            "a map of examples",
            "examples:\n  a: { expected_output: [a] }\n",
        ),
        ("nothing", "# to be written\n"),
        ("no YAML", "examples: [\n"),
    ];
    let mut report = String::new();
    for (name, text) in cases {
        let problems = examples(Path::new("examples.yaml"), text, false).unwrap_err();
        report.push_str(&format!("=== {name} ===\n{}\n", problems.render(false)));
    }
    insta::assert_snapshot!(report);
}

const CASES: &str = "examples:\n  - { id: paris, expected_tools: [{ tool_name: search }] }\
    \n  - { id: 7, expected_output: [search, book] }\n";

#[test]
fn a_configuration_names_its_cases() {
    let text = "expectations: { from_spans: off, cases_file: cases.yaml }\
        \ncriteria:\n  - name: a\
        \n    evaluate: { tool_order: { expected_tools: [{ tool_name: b }] } }\n";
    let loaded = Given {
        text,
        files: &[("cases.yaml", CASES)],
        ..Given::default()
    }
    .load()
    .unwrap();
    let expectations = loaded.config.expectations();
    assert_eq!(
        expectations.cases.keys().collect::<Vec<_>>(),
        ["7", "paris"]
    );
    assert_eq!(
        (expectations.from_spans, expectations.max_size),
        (FromSpans::Off, 16 << 10)
    );
    assert_eq!(
        loaded.files,
        [PathBuf::from("cases.yaml")],
        "whoever watches files must know of it"
    );
}

#[test]
fn wrong_expectations_are_reported_at_their_place() {
    let set =
        "criteria: [{ name: set, evaluate: { execution_order: { expected_output: [a] } } }]\n";
    let named = "expectations: { cases_file: cases.yaml }\n".to_owned();
    let cases = [
        (
            "words",
            "expectations: { from_spans: names_only, max_size: 0, cases: x }\n".to_owned(),
            "",
        ),
        (
            "no such file",
            "expectations: { cases_file: other.yaml }\n".to_owned(),
            CASES,
        ),
        (
            "an entry without an id",
            named.clone(),
            "examples:\n  - id: a\n    expected_tools: []\
             \n  - expected_tools: [{ tool_name: b }]\n",
        ),
        (
            "a case that a criterion cannot take",
            format!("{named}{set}"),
            "examples:\n  - { id: a, expected_output: [] }\n",
        ),
        (
            "mistakes in both",
            format!("{named}log: {{ level: loud }}\n"),
            "examples:\n  - { id: a, expected_tool: [] }\n",
        ),
        (
            "hardly meant",
            named,
            "examples:\n  - { id: a, expected_tools: [] }\n",
        ),
        (
            "names that are taken",
            "criteria:\n  - { name: expect, evaluate: { tool_calls: { required: [a] } } }\n"
                .to_owned(),
            "",
        ),
    ];
    let mut report = String::new();
    for (name, text, file) in &cases {
        let messages = Given {
            text,
            files: &[("cases.yaml", file)],
            ..Given::default()
        }
        .messages();
        report.push_str(&format!("=== {name} ===\n{}\n", messages.render(false)));
    }
    insta::assert_snapshot!(report);
}
