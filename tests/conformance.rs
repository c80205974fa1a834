//! What the reference evaluators answer, case by case (`tests/conformance/*.jsonl`), against what spanscore answers. Set aside,
//! counted and printed, are cases whose tag says that reference and document differ, or that the reference is a particular of its
//! language. It does not prove that spans become the calls of a case.

#[path = "support/calls.rs"]
mod calls;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use spanscore::evaluate::{Criterion, Evaluation, Explain, Verdict};

use calls::{Call, Written, judged};

/// Files and their evaluators; `extract.jsonl` is information about conventions, not about judging.
const FILES: [(&str, &str, &str); 7] = [
    ("order", "tool_call_order", include_str!("conformance/order.jsonl")),
    ("count", "tool_call_count", include_str!("conformance/count.jsonl")),
    ("args", "tool_call_args", include_str!("conformance/args.jsonl")),
    ("output", "tool_call_output", include_str!("conformance/output.jsonl")),
    ("execution_order", "execution_order", include_str!("conformance/execution_order.jsonl")),
    ("tool_order", "tool_order", include_str!("conformance/tool_order.jsonl")),
    ("tool_calls", "tool_calls", include_str!("conformance/tool_calls.jsonl")),
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

/// The fields of `details` that are meant to be compared; explanations are each peer's own wording.
const COMPARED: [&str; 6] = ["lcs", "success", "passed", "required_satisfied", "disallowed_violated", "sequence_satisfied"];

#[test]
fn every_case_is_answered_as_the_reference_answers_it() {
    let mut wrong = Vec::new();
    let mut counts: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for (file, evaluator, text) in FILES {
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let case: Value = serde_json::from_str(line).unwrap();
            if let Some(reason) = set_aside(&case) {
                *counts.entry((file, format!("set aside: {reason}"))).or_default() += 1;
                continue;
            }
            let answer = answer(evaluator, &case);
            let variants = case["variants"].as_array().into_iter().flatten().map(|variant| &variant["expected"]);
            if [&case["expected"]].into_iter().chain(variants).any(|expected| agrees(expected, &answer)) {
                *counts.entry((file, "as expected".to_owned())).or_default() += 1;
            } else {
                wrong.push(format!("{}: expected {}, answered {}", case["id"], case["expected"], in_words(&answer)));
            }
        }
    }
    for ((file, what), n) in &counts {
        println!("{file}: {n} {what}");
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    let n_compared: usize = counts.iter().filter(|((_, what), _)| what == "as expected").map(|(_, n)| n).sum();
    assert!(n_compared >= 60, "only {n_compared} cases were compared");
}

/// Why a case is not compared, if it is not.
fn set_aside(case: &Value) -> Option<String> {
    let tags: Vec<&str> = case["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(tag) = tags.iter().find(|tag| SET_ASIDE.contains(tag)) {
        return Some((*tag).to_owned());
    }
    // Where no call carries any, capture is off for all that a trace can tell, and `not_evaluated` is the answer.
    let none_carries = |field: &str| case["calls"].as_array().into_iter().flatten().all(|call| call[field].is_null());
    let unseen = [("absent-args", "args"), ("absent-result", "result")];
    unseen.iter().find(|(tag, field)| tags.contains(tag) && none_carries(field)).map(|(tag, _)| format!("{tag}, no call carries any"))
}

fn answer(evaluator: &str, case: &Value) -> Result<Evaluation, String> {
    let mut fields = case["criteria"].clone();
    let threshold = fields.as_object_mut().and_then(|fields| fields.shift_remove("threshold"));
    let mut criterion = json!({ "name": case["id"], "evaluate": { evaluator: fields } });
    if let Some(threshold) = threshold {
        criterion["threshold"] = threshold;
    }
    let criterion: Criterion = serde_json::from_value(criterion).map_err(|error| error.to_string())?;
    let calls: Vec<Call> = serde_json::from_value(case["calls"].clone()).expect("calls of a case");
    let evaluations = judged(&[criterion.into()], &Written { calls, ..Written::default() }, &Explain::default());
    Ok(evaluations.into_iter().next().expect("the selector matches every trajectory"))
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
                    expected.is_none_or(|expected| evaluation.details.get(field) == Some(expected))
                })
        }
    }
}

fn in_words(answer: &Result<Evaluation, String>) -> String {
    match answer {
        Err(error) => format!("refused: {error}"),
        Ok(evaluation) => {
            format!("{} {:?}: {} {}", evaluation.verdict.as_str(), evaluation.value, evaluation.explanation, evaluation.details)
        }
    }
}
