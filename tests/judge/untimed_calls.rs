//! Tests how rules, expected calls and limits treat a span that has no start, has no end, or ends
//! before it starts, from OTLP bytes to the verdict, in both orders of arrival. Does not prove that
//! consistent times are right.

use crate::support::now;
use judge::assemble::Settings;
use judge::evaluate::Evaluation;
use judge::pipeline::Pipeline;
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::scan::scan;
use serde_json::{Value, json};

use crate::support::rules_of_case;
use crate::support::spans::{attribute, request};

const BASE: u64 = 1_700_000_000_000_000_000;
const UNKNOWN: &str = "so its time is unknown";

/// A span's name, start and end as they are sent, in milliseconds after the start of the run.
type Sent<'a> = (&'a str, Option<u64>, Option<u64>);

fn judged(evaluator: &str, fields: &Value, run: Sent<'_>, calls: &[Sent<'_>]) -> Evaluation {
    let rules = rules_of_case("any", evaluator, fields).expect("a criterion that loads");
    let mut verdicts = [false, true].map(|is_reversed| {
        let mut spans = vec![span(1, 0, "invoke_agent", "gen_ai.agent.name", run)];
        spans.extend(
            (2..)
                .zip(calls)
                .map(|(id, call)| span(id, 1, "execute_tool", "gen_ai.tool.name", *call)),
        );
        if is_reversed {
            spans.reverse();
        }
        let now = now();
        let mut pipeline = Pipeline::new(Settings::replay(), now);
        let body = request(spans);
        let batch = scan(&body, Some(&rules)).expect("OTLP").batch;
        pipeline.take(batch, now);
        let judged = pipeline.finish(&rules, now);
        judged
            .evaluations
            .into_iter()
            .next()
            .expect("one criterion")
    });
    let [first, second] = &mut verdicts;
    assert_eq!(first.explanation(), second.explanation());
    assert_eq!(first.verdict, second.verdict);
    let [first, _] = verdicts;
    first
}

fn span(id: u64, parent: u64, operation: &str, key: &str, (name, start, end): Sent<'_>) -> Span {
    let nanos = |ms: Option<u64>| ms.map_or(0, |ms| BASE + ms * 1_000_000);
    Span {
        trace_id: [7_u64.to_be_bytes(), 1_u64.to_be_bytes()].concat(),
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: match parent {
            0 => Vec::new(),
            parent => parent.to_be_bytes().to_vec(),
        },
        name: operation.to_owned(),
        start_time_unix_nano: nanos(start),
        end_time_unix_nano: nanos(end),
        attributes: vec![
            attribute("gen_ai.operation.name", operation),
            attribute(key, name),
        ],
        ..Span::default()
    }
}

/// Returns the label, and true if the text mentions that a call's time is unknown.
fn said(evaluator: &str, fields: Value, calls: &[Sent<'_>]) -> (&'static str, bool) {
    let evaluation = judged(evaluator, &fields, ("tester", Some(0), Some(1_000)), calls);
    let text = evaluation.explanation();
    (evaluation.verdict.as_str(), text.contains(UNKNOWN))
}

fn rule(rule: Value) -> Value {
    json!({ "rules": [rule] })
}

const TIMED: Sent<'_> = ("auth", Some(10), Some(20));
const NOT_EVALUATED: (&str, bool) = ("not_evaluated", true);

#[test]
fn a_call_that_ends_before_it_starts_is_in_no_order() {
    // The call of `pay` seems to begin after `auth` ended, or before `auth` began, or has no start.
    for pay in [
        ("pay", Some(30), Some(5)),
        ("pay", Some(5), Some(2)),
        ("pay", None, Some(40)),
    ] {
        let calls = [TIMED, pay];
        for template in ["precedence", "response", "chain_response", "not_succession"] {
            let rule = rule(json!({ template: { "a": "^auth$", "b": "^pay$" } }));
            assert_eq!(
                said("constraints", rule, &calls),
                NOT_EVALUATED,
                "{template} {pay:?}"
            );
        }
        for template in ["init", "end"] {
            let rule = rule(json!({ template: { "a": "^auth$" } }));
            assert_eq!(
                said("constraints", rule, &calls),
                NOT_EVALUATED,
                "{template} {pay:?}"
            );
        }
        let near = rule(json!({ "coexistence": { "a": "^auth$", "b": "^pay$", "within": "1s" } }));
        assert_eq!(said("constraints", near, &calls), NOT_EVALUATED);
        let line = json!({ "expected": ["auth", "pay"], "score": "in_order" });
        assert_eq!(said("trajectory_match", line, &calls), NOT_EVALUATED);
        let edit = json!({ "expected": ["auth", "pay"], "score": "edit" });
        assert_eq!(said("trajectory_match", edit, &calls), NOT_EVALUATED);
    }
}

#[test]
fn what_does_not_depend_on_the_order_is_judged_all_the_same() {
    let calls = [TIMED, ("pay", Some(30), Some(5))];
    let pair = json!({ "a": "^auth$", "b": "^pay$" });
    let rules = [
        ("pass", json!({ "coexistence": pair })),
        ("fail", json!({ "not_coexistence": pair })),
        ("fail", json!({ "absence": { "a": "^pay$" } })),
        // No approval was recorded, so the time of `pay` does not matter.
        (
            "fail",
            json!({ "precedence": { "a": "^approve$", "b": "^pay$", "within": "1s" } }),
        ),
        // A rule about other calls does not depend on the untimed call.
        (
            "fail",
            json!({ "response": { "a": "^auth$", "b": "^log_out$" } }),
        ),
        (
            "pass",
            json!({ "not_succession": { "a": "^refund$", "b": "^pay$" } }),
        ),
    ];
    for (label, written) in rules {
        let text = written.to_string();
        assert_eq!(
            said("constraints", rule(written), &calls),
            (label, false),
            "{text}"
        );
    }
    let any = json!({ "expected": ["pay", "auth"], "score": "any_order" });
    assert_eq!(said("trajectory_match", any, &calls), ("pass", false));
    let line = json!({ "expected": ["pay", "refund"], "score": "in_order" });
    assert_eq!(said("trajectory_match", line, &calls), ("fail", false));
    let limits = json!({ "max_calls": 1, "max_errors": 0 });
    assert_eq!(said("efficiency", limits, &calls), ("fail", false));
}

#[test]
fn times_that_are_equal_keep_the_order_of_the_list() {
    let calls = [("auth", Some(10), Some(20)), ("pay", Some(20), Some(20))];
    let pair = json!({ "precedence": { "a": "^auth$", "b": "^pay$" } });
    assert_eq!(said("constraints", rule(pair), &calls), ("pass", false));
}

#[test]
fn a_call_without_an_end_has_not_ended() {
    let calls = [("auth", Some(10), None), ("pay", Some(30), Some(40))];
    let pair = json!({ "precedence": { "a": "^auth$", "b": "^pay$" } });
    assert_eq!(said("constraints", rule(pair), &calls), ("fail", false));
}

#[test]
fn limits_of_what_comes_in_a_row_need_times() {
    let calls = [TIMED, TIMED, ("pay", Some(30), Some(5)), TIMED];
    let row = json!({ "max_repeats": 1 });
    assert_eq!(said("efficiency", row, &calls), NOT_EVALUATED);
    // Three calls of one tool have at most two repeats, wherever `pay` is in the order.
    let row = json!({ "max_repeats": 2 });
    assert_eq!(said("efficiency", row, &calls), ("pass", false));
    let retries = json!({ "max_retries": 0 });
    assert_eq!(said("efficiency", retries, &calls), ("pass", false));
}

#[test]
fn a_run_without_both_times_has_no_duration() {
    let limits = json!({ "max_duration": "1s" });
    let runs = [(Some(500), Some(100)), (None, Some(900)), (None, None)];
    for (start, end) in runs {
        let evaluation = judged("efficiency", &limits, ("tester", start, end), &[TIMED]);
        assert_eq!(
            evaluation.verdict.as_str(),
            "not_evaluated",
            "{start:?} {end:?}"
        );
        let text = evaluation.explanation();
        assert!(
            text.contains("the evaluated span has no start or no end"),
            "{text}"
        );
    }
}
