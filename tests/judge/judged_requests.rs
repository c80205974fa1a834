//! Judges requests from their bytes, with several traces and with large values. Does not test time:
//! a recording is judged at its end.

use std::collections::BTreeMap;

use crate::support::now;
use judge::assemble::Settings;
use judge::evaluate::{Criterion, Evaluation, Expectations, FromSpans, Verdict};
use judge::extract::Tools;
use judge::pipeline::{Judged, Pipeline, Rules};
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::scan::scan;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::spans::{SpanCall, request, spans_of_run};

fn rules(criteria: Value, tools: &Tools) -> Rules {
    let criteria: Vec<Criterion> =
        serde_json::from_value(criteria).expect("every one of them loads");
    Rules::new(criteria).with_tools(tools)
}

fn judged(rules: &Rules, requests: impl IntoIterator<Item = Vec<Span>>) -> Judged {
    let now = now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    for spans in requests {
        pipeline.take(scan(&request(spans), Some(rules)).expect("OTLP").batch, now);
    }
    pipeline.finish(rules, now)
}

// === unrelated traces ===

/// Returns one criterion for each evaluator except `constraints`, `trajectory_match` and
/// `efficiency`, some more for results that can be certain early, and one with `scope: agent`.
fn of_every_evaluator() -> Rules {
    let evaluators = json!({
        "tool_call_order": { "tool_calls_order": ["a", "b", "a"] },
        "tool_call_count": { "tool_calls_count": { "a": [">=", 2], "b": ["<", 2] } },
        "tool_order": { "expected_tools": [{
            "tool_name": "a",
            "parameters": { "command": "rm" },
        }] },
        "execution_order": { "expected_output": ["b", "a"], "should_consider_ordering": true },
        "tool_calls": {
            "required": [{ "name": "a", "before_step": 2 }],
            "disallowed": [{ "name": "c", "command": "rm" }],
        },
        "tool_call_args": { "tool_calls": [{ "name": "b", "args": { "x": 1 } }] },
        "tool_call_output": { "tool_outputs": [{ "name": "a", "output": "ok" }] },
    });
    let evaluators = evaluators.as_object().expect("a map of evaluators");
    let mut criteria: Vec<Value> = evaluators
        .iter()
        .map(|(name, fields)| json!({ "name": name, "evaluate": { name: fields } }))
        .collect();
    let more = [
        json!({ "tool_call_order": { "tool_calls_order": ["a", "b"], "strict": true } }),
        json!({ "tool_call_count": {
            "tool_calls_count": { "a": ["<=", 1], "c": ["=", 0] },
            "strict": true,
        } }),
        json!({ "tool_order": {
            "expected_tools": [{ "tool_name": "a" }, { "tool_name": "c" }],
            "exact_match": true,
        } }),
        json!({ "execution_order": { "expected_output": ["a", "b"] } }),
        json!({ "execution_order": {
            "expected_output": ["tester"],
            "should_exact_match": true,
            "over": "nodes",
        } }),
        json!({ "tool_calls": {
            "required": ["a"],
            "disallowed": [{ "name": "b", "args": { "command": "rm" } }],
            "sequence": ["c", "a"],
        } }),
        json!({ "tool_calls": { "required": [{ "name": "c", "result": "ok", "final": true }] } }),
        json!({ "tool_calls": { "sequence": [
            "b",
            { "name": "c", "args": { "command": "rm" } },
        ] } }),
    ];
    criteria.extend(
        more.iter()
            .zip(1..)
            .map(|(evaluate, number)| json!({ "name": number.to_string(), "evaluate": evaluate })),
    );
    criteria.push(json!({
        "name": "each run",
        "scope": "agent",
        "select": { "calls": "a" },
        "evaluate": { "tool_calls": { "sequence": ["a", "b"] } },
    }));
    rules(json!(criteria), &Tools::default())
}

fn calls() -> impl Strategy<Value = Vec<SpanCall>> {
    let args = prop::sample::select(vec![json!({}), json!({"x": 1}), json!({"command": "rm"})]);
    let result = prop::option::of(prop::sample::select(vec![json!("ok"), json!("bad")]));
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let call = (
        name,
        prop::option::weighted(0.8, args),
        result,
        0_u32..2,
        prop::bool::weighted(0.9),
    )
        .prop_map(|(name, args, result, step, completed)| SpanCall {
            name: name.to_owned(),
            args,
            result,
            step: Some(step),
            completed: Some(completed),
            id: None,
        });
    prop::collection::vec(call, 0..6)
}

fn said(judged: &Judged) -> BTreeMap<String, Vec<String>> {
    let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for evaluation in &judged.evaluations {
        let Evaluation {
            criterion,
            trajectory,
            value,
            verdict,
            revision,
            ..
        } = evaluation;
        let (explanation, details, offending) = (
            evaluation.explanation(),
            evaluation.details(),
            evaluation.offending(),
        );
        let line = format!(
            "{} {value:?} {verdict:?} {explanation} {details} {offending:?} {revision}",
            criterion.name()
        );
        said.entry(trajectory.trace_id.to_string())
            .or_default()
            .push(line);
    }
    said
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_order_of_unrelated_traces_is_irrelevant(
        (runs, order, n_requests) in prop::collection::vec(calls(), 1..5).prop_flat_map(|runs| {
            let numbered = runs.iter().zip(1..);
            let spans = numbered.map(|(calls, trace)| spans_of_run(trace, &[], calls));
            let runs: Vec<Vec<Span>> = spans.collect();
            let order: Vec<usize> = (0..runs.iter().map(Vec::len).sum()).collect();
            (Just(runs), Just(order).prop_shuffle(), 1_usize..6)
        }),
    ) {
        let rules = of_every_evaluator();
        let mut alone = BTreeMap::new();
        for run in &runs {
            alone.extend(said(&judged(&rules, [run.clone()])));
        }
        prop_assert_eq!(alone.len(), runs.len());
        let spans: Vec<Span> = runs.concat();
        let mixed: Vec<Span> = order.iter().map(|&at| spans[at].clone()).collect();
        let requests = mixed.chunks(mixed.len().div_ceil(n_requests)).map(<[Span]>::to_vec);
        prop_assert_eq!(said(&judged(&rules, requests)), alone);
    }
}

// === early verdicts ===

/// Returns a span as an SDK may send it when the span starts.
fn started(span: &Span) -> Span {
    let mut span = Span {
        end_time_unix_nano: 0,
        ..span.clone()
    };
    span.attributes
        .retain(|attribute| !attribute.key.starts_with("gen_ai.tool.call."));
    span
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Some spans arrive early, a few of them unfinished, but not the root. The trace is judged,
    /// and then the other spans arrive.
    #[test]
    fn a_verdict_given_early_stands_when_the_rest_arrives(
        (spans, early) in calls().prop_flat_map(|calls| {
            let spans = spans_of_run(1, &[], &calls);
            let early = prop::collection::vec(
                (any::<bool>(), prop::bool::weighted(0.2)),
                spans.len(),
            );
            (Just(spans), early)
        }),
    ) {
        let rules = of_every_evaluator();
        let now = now();
        let mut pipeline = Pipeline::new(Settings::replay(), now);
        let mut accept_and_judge = |spans: Vec<Span>| {
            pipeline.take(scan(&request(spans), Some(&rules))
                    .expect("OTLP")
                    .batch,
                now,
            );
            let evaluations = pipeline.finish(&rules, now).evaluations;
            evaluations
                .into_iter()
                .map(|evaluation| (evaluation.criterion.name().to_owned(), evaluation))
                .collect::<BTreeMap<_, _>>()
        };
        let known = spans
            .iter()
            .zip(&early)
            .skip(1)
            .filter(|(_, (is_known, _))| *is_known);
        let first = accept_and_judge(
            known
                .map(|(span, (_, is_open))| {
                    if *is_open {
                        started(span)
                    } else {
                        span.clone()
                    }
                })
                .collect(),
        );
        let last = accept_and_judge(spans.clone());
        for (name, first) in first.iter().filter(|(_, first)| {
            first.trajectory.cut_short && first.verdict != Verdict::NotEvaluated
        }) {
            // An evaluation is not repeated unless it has changed.
            if let Some(last) = last.get(name) {
                prop_assert_eq!(
                    first.verdict,
                    last.verdict,
                    "{}: {}, later {}",
                    name,
                    first.explanation(),
                    last.explanation()
                );
            }
        }
    }
}

// === large values ===

/// A pattern that takes exponential time in an engine that backtracks.
const HOSTILE: &str = r"^(a+)+$|(a|aa)+b|(\w+\s?)*!$";

fn with_a_result_of_10_mb() -> Vec<Span> {
    let large = SpanCall {
        name: "read".to_owned(),
        result: Some(json!("a".repeat(10 << 20) + "?")),
        ..SpanCall::default()
    };
    let small = SpanCall {
        name: "other".to_owned(),
        result: Some(json!("ok")),
        ..SpanCall::default()
    };
    spans_of_run(1, &[], &[large, small])
}

#[test]
fn a_result_of_10_mb_is_cut_before_any_pattern_sees_it() {
    let criteria = json!([
        {
            "name": "reads",
            "evaluate": { "tool_calls": { "disallowed": [{ "name": "read", "result": HOSTILE }] } },
        },
        {
            "name": "other",
            "evaluate": { "tool_calls": { "required": [{ "name": "other", "result": "ok" }] } },
        },
    ]);
    let judged = judged(
        &rules(criteria, &Tools::default()),
        [with_a_result_of_10_mb()],
    );
    let kept = judged.trajectories[0].tool_calls[0]
        .result
        .as_ref()
        .unwrap();
    assert!(
        kept.is_cut() && kept.text.len() <= Tools::default().max_value_size,
        "{} bytes",
        kept.text.len()
    );
    let [reads, other] = judged.evaluations.as_slice() else {
        panic!("one evaluation each")
    };
    assert_eq!(
        (reads.verdict, other.verdict),
        (Verdict::NotEvaluated, Verdict::Pass)
    );
    assert!(
        reads
            .explanation()
            .contains("a value of the call of `read` was cut (raise `tools.max_value_size`)"),
        "{}",
        reads.explanation()
    );
}

#[test]
fn kept_whole_it_takes_a_hostile_pattern_linear_time() {
    let criteria = json!([{
        "name": "reads",
        "evaluate": { "tool_calls": { "disallowed": [{ "name": "read", "result": HOSTILE }] } },
    }]);
    let tools = Tools {
        max_value_size: 16 << 20,
        ..Tools::default()
    };
    let judged = judged(&rules(criteria, &tools), [with_a_result_of_10_mb()]);
    assert_eq!(
        judged.trajectories[0].tool_calls[0]
            .result
            .as_ref()
            .unwrap()
            .text
            .len(),
        (10 << 20) + 1
    );
    // If the search took exponential time, this test would never end.
    assert_eq!(judged.evaluations[0].verdict, Verdict::Pass);
}

/// A pattern that counts as slow, because it is large when its repetition is unrolled.
const SLOW: &str = "[a-z ]{60}!";

fn with_slow_results(n_calls: usize, attributes: &[(&str, &str)]) -> Vec<Span> {
    let call = SpanCall {
        name: "read".to_owned(),
        result: Some(json!("ignore ".repeat(12 << 10).get(..12 << 10))),
        ..SpanCall::default()
    };
    let calls = vec![call; n_calls];
    spans_of_run(1, attributes, &calls)
}

#[test]
fn searches_of_one_evaluation_have_a_limit_whoever_wrote_the_pattern() {
    let evaluate = json!({ "tool_calls": { "disallowed": [{ "name": "read", "result": SLOW }] } });
    let registered = rules(
        json!([{ "name": "registered", "evaluate": evaluate }]),
        &Tools::default(),
    );
    let carried = rules(json!([]), &Tools::default()).expecting(Expectations {
        from_spans: FromSpans::Full,
        max_size: 16 << 10,
        ..Expectations::default()
    });
    let expect = evaluate.to_string();
    for (rules, attributes) in [
        (registered, vec![]),
        (carried, vec![("spanscore.expect", expect.as_str())]),
    ] {
        let few = judged(&rules, [with_slow_results(4, &attributes)]);
        let few = &few.evaluations[0];
        assert_eq!(few.verdict, Verdict::Pass, "{}", few.explanation());
        let many = judged(&rules, [with_slow_results(400, &attributes)]);
        assert_eq!(many.evaluations[0].verdict, Verdict::NotEvaluated);
        let explanation = many.evaluations[0].explanation();
        assert!(
            explanation.contains("takes too much work: use smaller repetitions or fewer patterns"),
            "{explanation}"
        );
    }
}

#[test]
fn the_criteria_of_a_trace_share_one_limit_and_a_run_cannot_spend_theirs() {
    // This pattern counts as slow, like `SLOW`, but a search with it is fast.
    let slow = json!({ "name": "read", "result": "![a-z ]{60}" });
    let evaluate = json!({ "tool_calls": { "disallowed": [slow] } });
    let criteria: Vec<Value> = (0..8)
        .map(|n| json!({ "name": format!("c{n}"), "evaluate": evaluate }))
        .collect();
    let expectations = || Expectations {
        from_spans: FromSpans::Full,
        max_size: 16 << 10,
        ..Expectations::default()
    };
    let expect = evaluate.to_string();
    let verdicts = |criteria: &[Value], n_calls: usize, attributes: &[(&str, &str)]| {
        let rules = rules(json!(criteria), &Tools::default()).expecting(expectations());
        let judged = judged(&rules, [with_slow_results(n_calls, attributes)]);
        let verdicts = judged.evaluations.iter();
        verdicts
            .map(|evaluation| evaluation.verdict)
            .collect::<Vec<_>>()
    };
    // Each evaluation needs more than half of its limit, so fewer than eight of them fit into the
    // limit of a trace, which is four times as large.
    let alone = verdicts(&criteria, 100, &[]);
    let n_passed = alone
        .iter()
        .take_while(|verdict| **verdict == Verdict::Pass)
        .count();
    assert!((4..8).contains(&n_passed), "{alone:?}");
    assert_eq!(
        alone[n_passed..],
        vec![Verdict::NotEvaluated; 8 - n_passed],
        "the first criteria decide, the rest cannot"
    );
    // The run's own expectation has a separate limit.
    let carrying = [("spanscore.expect", expect.as_str())];
    let mut beside = verdicts(&criteria, 100, &carrying);
    assert_eq!(beside.pop(), Some(Verdict::Pass));
    assert_eq!(beside, alone);
}

#[test]
fn the_names_that_efficiency_ignores_are_searched_within_the_limit() {
    let evaluate = json!({ "efficiency": { "max_calls": 1, "ignore": ["![a-z ]{600}"] } });
    let criteria = json!([{ "name": "few", "evaluate": evaluate }]);
    let rules = rules(criteria, &Tools::default());
    let calls = |n_calls: usize| {
        let call = SpanCall {
            name: "x".repeat(1_000),
            ..SpanCall::default()
        };
        spans_of_run(1, &[], &vec![call; n_calls])
    };
    let verdict = |n_calls: usize| judged(&rules, [calls(n_calls)]).evaluations[0].clone();
    assert_eq!(verdict(2).verdict, Verdict::Fail);
    let many = verdict(1_000);
    assert_eq!(many.verdict, Verdict::NotEvaluated);
    assert!(
        many.explanation().contains("takes too much work"),
        "{}",
        many.explanation()
    );
}
