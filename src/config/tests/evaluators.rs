//! Tests the messages about wrong fields of evaluators: three files of them, and empty ones. The
//! tests do not prove that a remedy works.

use std::collections::BTreeSet;

use super::{config, json, messages, titles};

const TEXT: &str = include_str!("wrong_evaluators.yaml");
/// A separate file, since at most a hundred mistakes of one file are reported.
const RULES: &str = include_str!("wrong_rules.yaml");
const VALUES: &str = include_str!("wrong_values.yaml");

/// Returns the report, after checking that each wrong line has its message.
fn report_of(text: &str) -> String {
    let report = messages(text);
    let lines: Vec<usize> = report
        .iter()
        .map(|problem| problem.spot.as_ref().unwrap().line)
        .collect();
    let wrong: Vec<usize> = text
        .lines()
        .zip(1..)
        .filter(|(line, _)| line.trim_end().ends_with("# wrong"))
        .map(|(_, number)| number)
        .collect();
    let distinct: BTreeSet<usize> = lines.iter().copied().collect();
    let missed: Vec<&str> = text
        .lines()
        .zip(1..)
        .filter(|(_, n)| wrong.contains(n) && !distinct.contains(n))
        .map(|(line, _)| line)
        .collect();
    let made_up: Vec<String> = report
        .iter()
        .filter(|problem| !wrong.contains(&problem.spot.as_ref().unwrap().line))
        .map(ToString::to_string)
        .collect();
    assert!(
        missed.is_empty() && made_up.is_empty(),
        "missed: {missed:#?}\nmade up: {made_up:#?}"
    );
    assert_eq!(
        lines, wrong,
        "one message a mistake, in the order of the lines"
    );
    report.render(false)
}

#[test]
fn every_wrong_field_of_an_evaluator_is_reported_at_its_place() {
    insta::assert_snapshot!(report_of(TEXT));
}

#[test]
fn every_wrong_field_of_rules_references_and_limits_is_reported_at_its_place() {
    insta::assert_snapshot!(report_of(RULES));
}

#[test]
fn every_wrong_field_about_values_is_reported_at_its_place() {
    insta::assert_snapshot!(report_of(VALUES));
}

/// Texts of a criterion with one empty field, each with the path of that field.
const NULLS: &[(&str, &str)] = &[
    ("description: ~", "description"),
    ("select: ~", "select"),
    ("select: { agent: ~ }", "select.agent"),
    ("select: { attributes: ~ }", "select.attributes"),
    ("scope: ~", "scope"),
    ("threshold: ~", "threshold"),
    ("evaluate: ~", "evaluate"),
    ("evaluate: { tool_calls: ~ }", "evaluate.tool_calls"),
    (
        "evaluate: { tool_calls: { required: ~, disallowed: [a] } }",
        "evaluate.tool_calls.required",
    ),
    (
        "evaluate: { tool_calls: { required: [~] } }",
        "evaluate.tool_calls.required[0]",
    ),
    (
        "evaluate: { tool_calls: { required: [{ name: b, command: ~ }] } }",
        "evaluate.tool_calls.required[b].command",
    ),
    (
        "evaluate: { tool_calls: { required: [{ name: b, args: ~ }] } }",
        "evaluate.tool_calls.required[b].args",
    ),
    (
        "evaluate: { tool_calls: { required: [{ name: b, at_step: ~ }] } }",
        "evaluate.tool_calls.required[b].at_step",
    ),
    (
        "evaluate: { tool_call_order: { tool_calls_order: ~ } }",
        "evaluate.tool_call_order.tool_calls_order",
    ),
    (
        "evaluate: { tool_call_count: { tool_calls_count: ~ } }",
        "evaluate.tool_call_count.tool_calls_count",
    ),
    (
        "evaluate: { tool_order: { expected_tools: ~ } }",
        "evaluate.tool_order.expected_tools",
    ),
    (
        "evaluate: { execution_order: { expected_output: ~ } }",
        "evaluate.execution_order.expected_output",
    ),
    (
        "evaluate: { tool_call_args: { tool_calls: [{ name: b, args: ~ }] } }",
        "evaluate.tool_call_args.tool_calls[b].args",
    ),
    (
        "evaluate: { constraints: { rules: ~ } }",
        "evaluate.constraints.rules",
    ),
    (
        "evaluate: { constraints: { rules: [{ response: ~ }] } }",
        "evaluate.constraints.rules[0].response",
    ),
    (
        "evaluate: { constraints: { rules: [{ response: { a: x, b: y, within: ~ } }] } }",
        "evaluate.constraints.rules[0].response.within",
    ),
    (
        "evaluate: { constraints: { rules: [{ response: { a: x, b: y, same: ~ } }] } }",
        "evaluate.constraints.rules[0].response.same",
    ),
    (
        "evaluate: { trajectory_match: { expected: ~, score: f1 } }",
        "evaluate.trajectory_match.expected",
    ),
    (
        "evaluate: { tool_call_output: { tool_outputs: ~ } }",
        "evaluate.tool_call_output.tool_outputs",
    ),
];

#[test]
fn a_value_in_short_form_keeps_its_digits() {
    for number in [
        "9007199254740993.5",
        "1.00000000000000000001",
        "12345678901234567890123456789012345678901234",
        "1e+400",
    ] {
        let values = format!("{{ \"args.x\": {number} }}");
        let json_text = format!(
            "{{\"criteria\":[{{\"name\":\"a\",\"evaluate\":{{\"tool_calls\":{{\"required\":\
             [{{\"name\":\"t\",\"where\":{values}}}]}}}}}}]}}"
        );
        let yaml_text = format!(
            "criteria:\n  - name: a\n    evaluate:\n      tool_calls:\n        required:\
             \n          - {{ name: t, where: {values} }}\n"
        );
        for text in [json_text, yaml_text] {
            let read = json(&config(&text));
            let pattern = &read["criteria"][0]["evaluate"]["tool_calls"]["required"][0];
            let value = &pattern["where"]["args.x"]["equals"];
            assert_eq!(value.to_string(), number, "{text}");
        }
    }
}

#[test]
fn a_field_of_a_criterion_without_a_value_is_a_mistake_in_files_and_in_the_api() {
    for (fields, path) in NULLS {
        let evaluate = if fields.starts_with("evaluate") {
            ""
        } else {
            ", evaluate: { tool_calls: { disallowed: [b] } }"
        };
        let criterion = format!("{{ name: a, {fields}{evaluate} }}");
        let in_file = messages(&format!("criteria:\n  - {criterion}\n"));
        assert_eq!(
            titles(&in_file),
            [format!("`criteria[a].{path}` has no value")]
        );
        let in_body =
            crate::config::criterion(&criterion, None, judge::evaluate::PatternLimits::FILE)
                .unwrap_err();
        assert_eq!(titles(&in_body), [format!("`{path}` has no value")]);
    }
}

#[test]
fn a_section_or_list_without_a_value_is_empty() {
    let text = "criteria:\ncriteria_files:\nscores:\n  span:\n  writers:\nforward:\n";
    assert!(messages(text).is_empty());
}
