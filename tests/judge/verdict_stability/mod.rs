//! Tests that early verdicts never change. Any part of the spans of a real or generated trace
//! arrives first, some of them unfinished, and the trace is judged as at shutdown. Then another
//! part and at last all spans arrive, and no verdict may change or be withdrawn. The missing spans
//! merge calls, reveal hand-offs, contain arguments, shift clocks, and change the evaluated span.
//! Proves only for the plain case that an early verdict is given where one is possible.

pub(crate) mod criteria;
pub(crate) mod generated_traces;
mod visible_holes;

use std::collections::BTreeMap;

use crate::support::now;
use fastrand::Rng;
use judge::assemble::Settings;
use judge::evaluate::{Criterion, Evaluation, Scope, Verdict};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::span::{Batch, Span, SpanId, TraceId};
use otlp::{json as otlp_json, scan};
use serde_json::{Value, json};

use crate::support::captures as load;
use crate::support::repetitions::number;
use crate::support::spans::{self, SpanCall, spans_of_run};

fn rules(criteria: &[Value]) -> Rules {
    let criteria: Vec<Criterion> = criteria
        .iter()
        .filter_map(|criterion| serde_json::from_value(criterion.clone()).ok())
        .collect();
    Rules::new(criteria)
}

fn accept(pipeline: &mut Pipeline, spans: Vec<Span>) {
    pipeline.take(
        Batch {
            spans,
            ..Batch::default()
        },
        now(),
    );
}

/// The subject of a verdict: the trace, the agent run if each run is judged, and the criterion.
type Subject = (TraceId, Option<SpanId>, String);

fn subject(evaluation: &Evaluation) -> Subject {
    let (criterion, trajectory) = (&evaluation.criterion, &evaluation.trajectory);
    let subject = trajectory.subject.as_ref();
    let run = subject
        .filter(|_| criterion.scope() == Scope::Agent)
        .map(|subject| subject.span_id);
    (trajectory.trace_id, run, criterion.name().to_owned())
}

/// The early verdicts that must not change, by subject.
#[derive(Default)]
struct Early {
    given: BTreeMap<Subject, Evaluation>,
    n_evaluations: usize,
    n_given: usize,
}

impl Early {
    fn hold(&mut self, judged: Judged, whose: &str) {
        for evaluation in judged.evaluations {
            let about = subject(&evaluation);
            if let Some(given) = self.given.get(&about) {
                assert_eq!(
                    given.verdict,
                    evaluation.verdict,
                    "{whose}: {:?}\nearly: {}\nlater: {}",
                    evaluation.criterion,
                    given.explanation(),
                    evaluation.explanation()
                );
            }
            let is_early = evaluation.trajectory.cut_short;
            self.n_evaluations += usize::from(is_early);
            if is_early && evaluation.verdict != Verdict::NotEvaluated {
                self.n_given += 1;
                self.given.insert(about, evaluation);
            }
        }
    }
}

/// Judges growing parts of the spans, then all of them.
fn cut(rules: &Rules, spans: &[Span], random: &mut Rng, early: &mut Early, whose: &str) {
    let now = now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    early.given.clear();
    for share in [random.f64(), random.f64()] {
        let known = spans
            .iter()
            .filter(|span| random.f64() < share && (span.parent_id.is_some() || random.bool()));
        let mut known: Vec<Span> = known.cloned().collect();
        for span in &mut known {
            if random.u8(..10) == 0 {
                span.end_unix_nanos = 0;
            }
        }
        random.shuffle(&mut known);
        accept(&mut pipeline, known);
        early.hold(pipeline.drain(rules, now), whose);
    }
    accept(&mut pipeline, spans.to_vec());
    early.hold(pipeline.finish(rules, now), whose);
}

pub(crate) fn spans_of(scenario: &load::Scenario, rules: &Rules) -> Vec<Span> {
    let mut spans = Vec::new();
    for (file, body) in scenario
        .requests
        .iter()
        .filter(|(file, _)| file.contains(".traces."))
    {
        let body = if file.ends_with(".json") {
            otlp_json::traces(body).unwrap()
        } else {
            body.clone()
        };
        spans.extend(scan::scan(&body, Some(rules)).unwrap().batch.spans);
    }
    spans
}

pub(crate) fn whole(rules: &Rules, spans: &[Span]) -> Judged {
    let now = now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    accept(&mut pipeline, spans.to_vec());
    pipeline.finish(rules, now)
}

#[test]
fn no_verdict_given_early_on_half_of_the_captures_changes() {
    cut_half_of_the_captures(0);
}

#[test]
fn no_verdict_given_early_on_the_other_captures_changes() {
    cut_half_of_the_captures(1);
}

fn cut_half_of_the_captures(half: usize) {
    let mut early = Early::default();
    for scenario in load::scenarios().iter().skip(half).step_by(2) {
        let none = rules(&[]).without_judgement();
        let spans = spans_of(scenario, &none);
        let mut random = Rng::with_seed(spans.len() as u64);
        let on_whole = whole(&none, &spans);
        let rules = rules(&criteria::some_about(&on_whole.trajectories, &mut random));
        let spans = spans_of(scenario, &rules);
        for round in 0..number("SPANSCORE_TEST_ROUNDS", 1) {
            cut(
                &rules,
                &spans,
                &mut random,
                &mut early,
                &format!("{} round {round}", scenario.name),
            );
        }
    }
    let Early {
        n_evaluations,
        n_given,
        ..
    } = early;
    println!("{n_given} of {n_evaluations} early evaluations gave a verdict");
    assert!(
        n_given * 20 > n_evaluations,
        "only {n_given} of {n_evaluations} were certain: the test says little"
    );
}

#[test]
fn no_verdict_given_early_on_a_made_trace_changes() {
    let mut early = Early::default();
    for seed in 0..40 * number("SPANSCORE_TEST_ROUNDS", 1) {
        let mut random = Rng::with_seed(seed);
        let request = generated_traces::request(&mut random);
        let none = rules(&[]).without_judgement();
        let spans = |rules: &Rules| scan::scan(&request, Some(rules)).unwrap().batch.spans;
        let on_whole = whole(&none, &spans(&none));
        let rules = rules(&criteria::some_about(&on_whole.trajectories, &mut random));
        for round in 0..4 {
            cut(
                &rules,
                &spans(&rules),
                &mut random,
                &mut early,
                &format!("seed {seed} round {round}"),
            );
        }
    }
    let Early {
        n_evaluations,
        n_given,
        ..
    } = early;
    println!("{n_given} of {n_evaluations} early evaluations gave a verdict");
    assert!(
        n_given * 20 > n_evaluations,
        "only {n_given} of {n_evaluations} were certain: the test says little"
    );
}

// === what is certain in the plain case, and what is not ===

/// Judges while the agent still runs: the root has not arrived, and the calls are siblings below
/// it. `says_so` is true if the SDK marks their parent as local.
fn early(says_so: bool, evaluate: Value) -> Verdict {
    let rules = rules(&[json!({ "name": "early", "evaluate": evaluate })]);
    let call = |name: &str, args: Value| SpanCall {
        name: name.to_owned(),
        args: Some(args),
        ..SpanCall::default()
    };
    let calls = [
        call("search", json!({ "query": "x" })),
        call("bash", json!({ "command": "rm -rf /" })),
        call("report", json!({})),
    ];
    let mut run = spans_of_run(1, &[], &calls);
    run.remove(0);
    run.iter_mut()
        .for_each(|span| span.flags = if says_so { 0x100 } else { 0 });
    let now = now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    accept(
        &mut pipeline,
        scan::scan(&spans::request(run), Some(&rules))
            .expect("OTLP")
            .batch
            .spans,
    );
    pipeline.drain(&rules, now).evaluations[0].verdict
}

#[test]
fn a_disallowed_call_fails_before_the_root_is_there() {
    for says_so in [true, false] {
        assert_eq!(
            early(
                says_so,
                json!({ "tool_calls": { "disallowed": ["^bash$"] } })
            ),
            Verdict::Fail
        );
        let with_args = json!({ "name": "^bash$", "args": { "command": "rm -rf" } });
        assert_eq!(
            early(
                says_so,
                json!({ "tool_calls": { "disallowed": [with_args], "sequence": ["later"] } })
            ),
            Verdict::Fail
        );
        assert_eq!(
            early(
                says_so,
                json!({ "tool_calls": { "disallowed": ["^never$"] } })
            ),
            Verdict::NotEvaluated
        );
        assert_eq!(
            early(
                says_so,
                json!({ "tool_call_count": { "tool_calls_count": { "bash": ["<", 1] } } })
            ),
            Verdict::Fail
        );
        assert_eq!(
            early(
                says_so,
                json!({ "tool_calls": { "required": ["^search$"] } })
            ),
            Verdict::Pass
        );
        let args = json!([{ "name": "search", "args": { "query": "x" } }]);
        assert_eq!(
            early(says_so, json!({ "tool_call_args": { "tool_calls": args } })),
            Verdict::Pass
        );
    }
}

#[test]
fn an_order_is_certain_where_the_sdk_says_that_the_missing_parent_is_local() {
    let order = json!({ "tool_call_order": { "tool_calls_order": ["search", "report"] } });
    assert_eq!(early(true, order.clone()), Verdict::Pass);
    assert_eq!(
        early(false, order),
        Verdict::NotEvaluated,
        "a parent in another process could shift each of them to its own start"
    );
}
