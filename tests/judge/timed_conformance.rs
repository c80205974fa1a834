//! Compares `constraints`, `trajectory_match`, `efficiency` and conditions on values with the
//! answers of independent oracles (`tests/conformance/README-beyond.md`). Each criterion is loaded
//! from the text of a configuration file. The calls arrive as OTLP spans with times through the
//! scan and the pipeline, once in order and once reversed. Does not test the texts.

use std::collections::BTreeSet;

use crate::support::now;
use judge::assemble::Settings;
use judge::evaluate::Evaluation;
use judge::pipeline::Pipeline;
use otlp::scan::scan;
use serde_json::{Value, json};

use crate::support::cases::{TimedCall, TimedCase, spans_of, unpacked};
use crate::support::rules_of_case;
use crate::support::spans::request;

#[test]
fn every_rule_is_answered_as_by_the_oracles() {
    compare_all(
        "constraints",
        include_bytes!("../conformance/constraints.jsonl.gz"),
    );
}

#[test]
fn every_trajectory_is_matched_as_by_the_oracles() {
    compare_all(
        "trajectory_match",
        include_bytes!("../conformance/trajectory_match.jsonl.gz"),
    );
}

#[test]
fn every_limit_is_counted_as_by_the_oracles() {
    compare_all(
        "efficiency",
        include_bytes!("../conformance/efficiency.jsonl.gz"),
    );
}

#[test]
fn every_value_is_judged_as_by_the_oracles() {
    compare_all("", include_bytes!("../conformance/values.jsonl.gz"));
}

#[test]
fn sums_are_those_of_dogwood() {
    let text = include_str!("../conformance/dogwood.jsonl");
    compare_lines("constraints", text, 10);
}

/// Compares all cases. An empty `evaluator` means that the cases name several evaluators.
fn compare_all(evaluator: &str, packed: &[u8]) {
    compare_lines(evaluator, &unpacked(packed), 90);
}

fn compare_lines(evaluator: &str, text: &str, least: usize) {
    let (mut wrong, mut n_cases) = (Vec::new(), 0);
    for line in text.lines() {
        let case: TimedCase = serde_json::from_str(line).expect("a case");
        assert!(evaluator.is_empty() || case.evaluator == evaluator);
        n_cases += 1;
        for is_reversed in [false, true] {
            if let Err(why) = compare(&case, is_reversed) {
                wrong.push(format!("{}: {why}\n    {line}", case.id));
                break;
            }
        }
    }
    assert!(n_cases >= least, "only {n_cases} cases were found");
    assert!(
        wrong.is_empty(),
        "{} of {n_cases} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn compare(case: &TimedCase, is_reversed: bool) -> Result<(), String> {
    let expected = &case.expected;
    let evaluation = match evaluation(case, is_reversed) {
        Ok(evaluation) => evaluation,
        Err(_) if expected["error"] == "invalid_config" => return Ok(()),
        Err(problems) => return Err(format!("refused: {problems}")),
    };
    let said = format!(
        "{} {:?}: {} {}",
        evaluation.verdict.as_str(),
        evaluation.value,
        evaluation.explanation(),
        evaluation.details()
    );
    let label = match expected.get("error") {
        Some(error) if error == "evaluator_exception" => "error",
        Some(_) => return Err(format!("was loaded: {said}")),
        None => expected["label"].as_str().expect("a label"),
    };
    if evaluation.verdict.as_str() != label {
        return Err(format!("is {said}"));
    }
    let bounds = expected
        .get("between")
        .map(|bounds| [0, 1].map(|at| bounds[at].as_f64()));
    let is_same = match (evaluation.value, expected["score"].as_f64()) {
        (Some(value), None) => {
            bounds.is_some_and(|[least, most]| least <= Some(value) && Some(value) <= most)
        }
        (Some(value), Some(expected)) => (value - expected).abs() <= 1e-12,
        (value, expected) => value.is_none() == expected.is_none(),
    };
    if !is_same {
        return Err(format!("scores {said}"));
    }
    match details_differ(case, expected, &evaluation) {
        Some(difference) => Err(format!("{difference} in {said}")),
        None => Ok(()),
    }
}

fn details_differ(case: &TimedCase, expected: &Value, evaluation: &Evaluation) -> Option<String> {
    let (details, said) = (expected.get("details")?, evaluation.details());
    match case.evaluator.as_str() {
        "constraints" => {
            let (rules, said) = (details["rules"].as_array()?, said["rules"].as_array()?);
            if rules.len() != said.len() {
                return Some("number of rules".to_owned());
            }
            for (rule, said) in rules.iter().zip(said) {
                let differs = |field: &&str| rule[*field] != said[*field];
                let fields = ["satisfied", "activations", "violations", "violated"];
                if let Some(field) = fields.iter().find(|field| differs(field)) {
                    return Some(format!("{field} of {rule}"));
                }
            }
            None
        }
        "efficiency" => {
            let limits = details["limits"].as_object()?;
            let differs = limits.iter().find(|(limit, found)| {
                let said = &said["limits"][limit.as_str()];
                found["actual"] != said["actual"] || found["kept"] != said["kept"]
            });
            differs.map(|(limit, _)| limit.clone())
        }
        _ => {
            let matched = details.get("matched");
            if matched.is_some_and(|matched| *matched != said["matched"]) {
                return Some("matched".to_owned());
            }
            disproved(case, said)
        }
    }
}

/// Returns the reason why the alignment does not prove the score; `None` if it does.
fn disproved(case: &TimedCase, said: &Value) -> Option<String> {
    let preset = case.criteria["preset"].as_str().unwrap_or_default();
    let score = said["score"].as_str()?;
    let expected = case.criteria["expected"].as_array()?;
    let include_failed =
        !preset.starts_with("pydantic") && case.criteria["include_failed"] != json!(false);
    let exact_args = preset.starts_with("adk")
        || preset.starts_with("agentevals")
        || case.criteria["exact_args"] == json!(true);
    let concurrency = match preset {
        "" if score == "edit" => "none",
        "" => case.criteria["concurrency"].as_str().unwrap_or("interval"),
        "agentevals_strict" => "reply",
        _ => "none",
    };
    let is_ordered = match score {
        "precision" | "recall" | "f1" => {
            preset == "pydantic_in_order" || case.criteria["ordered"] == json!(true)
        }
        "exact" | "in_order" | "lcs_ratio" | "edit" => true,
        _ => false,
    };
    let position = |entry: &Value, key: &str| entry[key].as_u64().map(|at| at as usize - 1);
    let (mut seen_expected, mut seen_calls) = (BTreeSet::new(), BTreeSet::new());
    let mut matched: Vec<usize> = Vec::new();
    for entry in said["alignment"].as_array()? {
        let (at, call) = (position(entry, "expected"), position(entry, "call"));
        let is_new = at.is_none_or(|at| seen_expected.insert(at))
            && call.is_none_or(|call| seen_calls.insert(call));
        if !is_new {
            return Some(format!("twice: {entry}"));
        }
        let has_both = at.is_some() && call.is_some();
        match entry["kind"].as_str() {
            Some("match") => {
                let (at, call) = (at?, call?);
                if !fits(&expected[at], &case.calls[call], exact_args) {
                    return Some(format!("no match: {entry}"));
                }
                if let Some(before) = (matched.iter())
                    .find(|before| is_ordered && is_before(case, concurrency, call, **before))
                {
                    return Some(format!("call {} is before {}", call + 1, before + 1));
                }
                matched.push(call);
            }
            Some("missing") if at.is_some() && call.is_none() => {}
            Some("extra") if at.is_none() && call.is_some() => {}
            Some("moved" | "substituted") if has_both => {}
            _ => return Some(format!("kind of {entry}")),
        }
    }
    let counted = case
        .calls
        .iter()
        .filter(|call| include_failed || !call.error);
    if seen_expected.len() != expected.len() || seen_calls.len() != counted.count() {
        return Some("not all are aligned".to_owned());
    }
    let n_matched = said["matched"].as_u64();
    if n_matched.is_none_or(|n| n as usize == matched.len()) {
        None
    } else {
        Some("number of matches".to_owned())
    }
}

fn fits(expected: &Value, call: &TimedCall, exact: bool) -> bool {
    let name = expected.as_str().or(expected["name"].as_str());
    let args = expected.get("args").and_then(Value::as_object);
    let made = call.args.as_ref().and_then(Value::as_object);
    let equal = |a: &Value, b: &Value| match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    };
    name == Some(call.name.as_str())
        && args.is_none_or(|args| match made {
            None => args.is_empty(),
            Some(made) => {
                (!exact || made.len() == args.len())
                    && (args.iter())
                        .all(|(key, value)| made.get(key).is_some_and(|made| equal(value, made)))
            }
        })
}

/// Returns true if `x` precedes `y` under this setting of `concurrency`.
fn is_before(case: &TimedCase, concurrency: &str, x: usize, y: usize) -> bool {
    let group = |at: usize| -> Vec<usize> {
        let call = &case.calls[at];
        if concurrency == "reply" && call.step.is_some() {
            (0..case.calls.len())
                .filter(|other| {
                    let other = &case.calls[*other];
                    other.step == call.step && other.agent == call.agent
                })
                .collect()
        } else {
            vec![at]
        }
    };
    if concurrency == "none" {
        return x < y;
    }
    let end = group(x).iter().map(|&at| case.calls[at].end_ms).max();
    let start = group(y).iter().map(|&at| case.calls[at].start_ms).min();
    (end, group(x).last()) < (start, group(y).first())
}

fn evaluation(case: &TimedCase, is_reversed: bool) -> Result<Evaluation, String> {
    let mut fields = case.criteria.clone();
    fields["criterion"] = Value::Object(case.criterion.clone());
    let rules = rules_of_case(&case.id, &case.evaluator, &fields)?;
    let mut spans = spans_of(case);
    if is_reversed {
        spans.reverse();
    }
    let now = now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    let body = request(spans);
    pipeline.take(scan(&body, Some(&rules)).expect("OTLP").batch, now);
    let judged = if case.cut {
        pipeline.drain(&rules, now)
    } else {
        pipeline.finish(&rules, now)
    };
    let [trajectory] = judged.trajectories.as_slice() else {
        panic!("{}: {} trajectories", case.id, judged.trajectories.len())
    };
    let seen: Vec<&str> = (trajectory.tool_calls.iter())
        .map(|call| &*call.name)
        .collect();
    let made: Vec<&str> = case.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(seen, made, "{}: the calls that its spans tell of", case.id);
    // A trace whose root has not ended is still open.
    let is_open = case.cut || case.root_end == Some(false);
    assert_eq!(trajectory.cut_short, is_open, "{}", case.id);
    Ok(judged
        .evaluations
        .into_iter()
        .next()
        .expect("one criterion"))
}
