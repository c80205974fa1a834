//! Compares spanscore with the answers of the reference evaluators (`tests/conformance/*.jsonl`).
//! Each criterion is loaded from the text of a configuration file, and the calls arrive as OTLP
//! spans through the scan and the pipeline. Skips and counts a case if its tag says that it cannot
//! be compared: for example, the reference contradicts its documentation, or the answer depends on
//! the reference's language. Does not test conventions other than OpenTelemetry's own, or traces
//! that were cut short.

use std::collections::BTreeMap;

use crate::support::now;
use judge::assemble::Settings;
use judge::evaluate::{Evaluation, Verdict};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::scan::scan;
use serde_json::{Value, json};

use crate::support::rules_of_case;
use crate::support::spans::{SpanCall, request, spans_of_run};

/// The files and their evaluators; `extract.jsonl` documents conventions, not verdicts.
const FILES: [(&str, &str, &str); 7] = [
    (
        "order",
        "tool_call_order",
        include_str!("../conformance/order.jsonl"),
    ),
    (
        "count",
        "tool_call_count",
        include_str!("../conformance/count.jsonl"),
    ),
    (
        "args",
        "tool_call_args",
        include_str!("../conformance/args.jsonl"),
    ),
    (
        "output",
        "tool_call_output",
        include_str!("../conformance/output.jsonl"),
    ),
    (
        "execution_order",
        "execution_order",
        include_str!("../conformance/execution_order.jsonl"),
    ),
    (
        "tool_order",
        "tool_order",
        include_str!("../conformance/tool_order.jsonl"),
    ),
    (
        "tool_calls",
        "tool_calls",
        include_str!("../conformance/tool_calls.jsonl"),
    ),
];

const SET_ASIDE: [&str; 11] = [
    "ambiguous",
    "inferred",
    "python-eq",
    "non-string-result",
    "empty-name",
    "tool-id",
    "coercion-or-default",
    "incomplete-call",
    "regex-flavour",
    "greedy",
    "strict-first-mismatch",
];

/// The fields of `details` to compare. The wording of explanations differs between implementations.
const COMPARED: [&str; 6] = [
    "lcs",
    "success",
    "passed",
    "required_satisfied",
    "disallowed_violated",
    "sequence_satisfied",
];

#[test]
fn every_case_is_answered_as_the_reference_answers_it() {
    let mut wrong = Vec::new();
    let mut counts: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for (file, evaluator, text) in FILES {
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let case: Value = serde_json::from_str(line).unwrap();
            if let Some(reason) = set_aside(&case) {
                *counts
                    .entry((file, format!("set aside: {reason}")))
                    .or_default() += 1;
                continue;
            }
            let answer = answer(evaluator, &case);
            let variants = case["variants"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|variant| &variant["expected"]);
            if [&case["expected"]]
                .into_iter()
                .chain(variants)
                .any(|expected| agrees(expected, &answer))
            {
                *counts.entry((file, "as expected".to_owned())).or_default() += 1;
            } else {
                wrong.push(format!(
                    "{}: expected {}, answered {}",
                    case["id"],
                    case["expected"],
                    in_words(&answer)
                ));
            }
        }
    }
    for ((file, what), n) in &counts {
        println!("{file}: {n} {what}");
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    let n_compared: usize = counts
        .iter()
        .filter(|((_, what), _)| what == "as expected")
        .map(|(_, n)| n)
        .sum();
    assert!(n_compared >= 60, "only {n_compared} cases were compared");
}

/// Returns the reason why a case is skipped; `None` if it is compared.
fn set_aside(case: &Value) -> Option<String> {
    let tags: Vec<&str> = case["tags"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if let Some(tag) = tags.iter().find(|tag| SET_ASIDE.contains(tag)) {
        return Some((*tag).to_owned());
    }
    // If no call has arguments (or a result), a trace cannot show that capture is on, so the answer
    // would be `not_evaluated`.
    let none_carries = |field: &str| {
        case["calls"]
            .as_array()
            .into_iter()
            .flatten()
            .all(|call| call[field].is_null())
    };
    let unseen = [("absent-args", "args"), ("absent-result", "result")];
    unseen
        .iter()
        .find(|(tag, field)| tags.contains(tag) && none_carries(field))
        .map(|(tag, _)| format!("{tag}, no call carries any"))
}

fn answer(evaluator: &str, case: &Value) -> Result<Evaluation, String> {
    let id = case["id"].as_str().expect("an id");
    let rules = rules_of_case(id, evaluator, &case["criteria"])?;
    let calls: Vec<SpanCall> =
        serde_json::from_value(case["calls"].clone()).expect("calls of a case");

    let judged = judged(&rules, &calls);
    let [trajectory] = judged.trajectories.as_slice() else {
        panic!("{}: not one trajectory", case["id"])
    };
    let made: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
    let seen: Vec<&str> = trajectory
        .tool_calls
        .iter()
        .map(|call| &*call.name)
        .collect();
    assert_eq!(
        seen, made,
        "{}: the calls that its spans tell of",
        case["id"]
    );
    Ok(judged
        .evaluations
        .into_iter()
        .next()
        .expect("the selector matches every trajectory"))
}

fn judged(rules: &Rules, calls: &[SpanCall]) -> Judged {
    let now = now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    let body = request(spans_of_run(1, &[], calls));
    pipeline.take(scan(&body, Some(rules)).expect("OTLP").batch, now);
    pipeline.finish(rules, now)
}

#[test]
fn odd_names_and_values_come_through_spans_as_they_are() {
    let names = [
        "a",
        " a ",
        "\"a\"",
        "a\"b",
        "a\\b",
        "a b",
        "A",
        "é",
        "e\u{301}",
        "a\nb",
        "\u{0}",
        "search.v2",
        "mcp__files__read",
        "(a)",
        "💳",
        "null",
        "1",
        "{}",
    ];
    let results = [
        "",
        " ",
        "ok",
        " ok\n",
        "null",
        "true",
        "1",
        "1.0",
        "-0",
        "1e400",
        "{\"a\": 1}",
        " [1, 2] ",
        "{a}",
        "None",
        "{'a': 1}",
    ];
    let args = [
        json!({}),
        json!({"a": 1}),
        json!({"a": 1.0, "b": true, "c": null, "d": [1, {"e": "f"}]}),
        json!({"kwargs": {"a": 1}}),
        json!({"input": "x"}),
        json!({"args": ["x"]}),
        json!({"input_str": "{\"a\": 1}"}),
        json!({"n": u64::MAX, "m": i64::MIN}),
        json!({"json": "{\"a\": 1}"}),
        json!({"": ""}),
    ];
    let mut calls: Vec<SpanCall> = names
        .iter()
        .map(|name| SpanCall {
            name: (*name).to_owned(),
            ..SpanCall::default()
        })
        .collect();
    calls.extend(results.iter().map(|result| SpanCall {
        name: "a".to_owned(),
        result: Some(json!(result)),
        ..SpanCall::default()
    }));
    calls.extend(args.iter().map(|args| SpanCall {
        name: "a".to_owned(),
        args: Some(args.clone()),
        ..SpanCall::default()
    }));
    let rules = Rules::new(Vec::new());
    let judged = judged(&rules, &calls);
    let seen = &judged.trajectories[0].tool_calls;
    assert_eq!(seen.len(), calls.len());
    for (seen, call) in seen.iter().zip(&calls) {
        assert_eq!(*seen.name, *call.name);
        assert_eq!(
            seen.args.as_ref().map(|args| (args.json(), args.is_cut())),
            call.args.as_ref().map(|args| (args, false))
        );
        let result = call.result.as_ref().and_then(Value::as_str);
        assert_eq!(
            seen.result
                .as_ref()
                .map(|result| (&*result.text, result.is_cut())),
            result.map(|text| (text, false))
        );
    }
}

fn agrees(expected: &Value, answer: &Result<Evaluation, String>) -> bool {
    match answer {
        Err(_) => expected.get("error").is_some(),
        Ok(evaluation) if evaluation.verdict == Verdict::Error => expected.get("error").is_some(),
        Ok(evaluation) => {
            expected.get("error").is_none()
                && evaluation.value == expected["score"].as_f64()
                && COMPARED.iter().all(|field| {
                    let expected = expected["details"].get(field);
                    expected
                        .is_none_or(|expected| evaluation.details().get(field) == Some(expected))
                })
        }
    }
}

fn in_words(answer: &Result<Evaluation, String>) -> String {
    match answer {
        Err(error) => format!("refused: {error}"),
        Ok(evaluation) => {
            format!(
                "{} {:?}: {} {}",
                evaluation.verdict.as_str(),
                evaluation.value,
                evaluation.explanation(),
                evaluation.details()
            )
        }
    }
}
