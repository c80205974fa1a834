//! Tests that there is no full verdict over a visible hole. Random spans of a captured trace are
//! lost. If a remaining span names a lost parent in its own process, or a top span has not ended,
//! every verdict must equal the verdict on the whole trace. Does not cover losses that leave no
//! mark: a call without child spans can be lost unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::now;
use fastrand::Rng;
use judge::assemble::Settings;
use judge::evaluate::{Evaluation, Verdict};
use judge::pipeline::{Judged, Pipeline, Rules};
use opentelemetry_proto::tonic::trace::v1::Span as OtlpSpan;
use otlp::scan;
use otlp::span::{Span, TraceId};
use serde_json::json;

use super::{Subject, accept, criteria, rules, spans_of, subject, whole};
use crate::support::captures as load;
use crate::support::repetitions::number;
use crate::support::spans::{self, SpanCall, spans_of_run};

const LOCAL: u16 = 0x101;
const REMOTE: u16 = 0x301;

/// Number of losses for each captured session; `.ci/extended properties` tests more of them.
const N_LOSSES: usize = 2;

fn verdicts(judged: &Judged) -> BTreeMap<Subject, (&Evaluation, Verdict)> {
    let evaluations = judged.evaluations.iter();
    evaluations
        .map(|evaluation| (subject(evaluation), (evaluation, evaluation.verdict)))
        .collect()
}

fn is_given(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Pass | Verdict::Fail)
}

/// Returns the spans with the flags of an SDK that records whether each parent is remote.
fn flagged(mut spans: Vec<Span>) -> Vec<Span> {
    let services: BTreeMap<_, _> = spans
        .iter()
        .map(|span| ((span.trace_id, span.span_id), span.resource.encoded.clone()))
        .collect();
    for span in &mut spans {
        let Some(parent_id) = span.parent_id else {
            continue;
        };
        span.flags = match services.get(&(span.trace_id, parent_id)) {
            Some(service) if *service == span.resource.encoded => LOCAL,
            Some(_) => REMOTE,
            None => span.flags,
        };
    }
    spans
}

/// Returns the traces with a visible hole: the local parent of a remaining span is missing, or a
/// top span has not ended.
fn traces_with_holes(left: &[Span]) -> BTreeSet<TraceId> {
    let ids: BTreeSet<_> = left
        .iter()
        .map(|span| (span.trace_id, span.span_id))
        .collect();
    let shows_hole = |span: &&Span| match span.parent_id {
        None => span.end_unix_nanos == 0,
        Some(parent) => {
            let is_absent = !ids.contains(&(span.trace_id, parent));
            is_absent && (!span.parent_is_remote() || span.end_unix_nanos == 0)
        }
    };
    let holes = left.iter().filter(shows_hole);
    holes.map(|span| span.trace_id).collect()
}

/// The number of verdicts on traces that seem complete, how many of them contradict the verdict on
/// the whole trace, and the number of verdicts on traces with a visible hole.
#[derive(Debug, Default)]
struct Counts {
    full: usize,
    full_contradicted: usize,
    over_holes: usize,
}

impl Counts {
    fn lose(&mut self, rules: &Rules, left: Vec<Span>, on_whole: &Judged, whose: &str) {
        let now = now();
        let holes = traces_with_holes(&left);
        let mut pipeline = Pipeline::new(Settings::replay(), now);
        accept(&mut pipeline, left);
        let judged = pipeline.finish(rules, now);
        let on_whole = verdicts(on_whole);
        for (about, (evaluation, verdict)) in verdicts(&judged) {
            let Some(&(_, right)) = on_whole.get(&about).filter(|_| is_given(verdict)) else {
                continue;
            };
            let is_wrong = verdict != right;
            if holes.contains(&about.0) {
                self.over_holes += 1;
                assert!(
                    evaluation.trajectory.cut_short,
                    "{whose}: a full verdict over a hole: {evaluation:#?}"
                );
                assert!(
                    !is_wrong,
                    "{whose}: {verdict:?} where {right:?} is right: {evaluation:#?}"
                );
            } else if !evaluation.trajectory.cut_short {
                self.full += 1;
                self.full_contradicted += usize::from(is_wrong);
            }
        }
    }
}

#[test]
fn losses_that_show_lead_to_no_wrong_verdict_in_half_of_the_captures() {
    lose_spans_of_half(0);
}

#[test]
fn losses_that_show_lead_to_no_wrong_verdict_in_the_other_captures() {
    lose_spans_of_half(1);
}

fn lose_spans_of_half(half: usize) {
    let mut counts = Counts::default();
    for scenario in load::scenarios().iter().skip(half).step_by(2) {
        let none = rules(&[]);
        let on_whole = whole(&none, &flagged(spans_of(scenario, &none)));
        let mut random = Rng::with_seed(on_whole.trajectories.len() as u64);
        let rules = rules(&criteria::some_about(&on_whole.trajectories, &mut random));
        let spans = flagged(spans_of(scenario, &rules));
        let on_whole = whole(&rules, &spans);
        for loss in 0..N_LOSSES * number("SPANSCORE_TEST_ROUNDS", 1) as usize {
            let share = [0.3, 0.6, 0.9][loss % 3];
            let mut left: Vec<Span> = spans.clone();
            left.retain(|_| random.f64() < share);
            // Some SDKs export a span when it starts, without an end.
            for span in left.iter_mut().filter(|span| span.parent_id.is_none()) {
                if random.u8(..3) == 0 {
                    span.end_unix_nanos = 0;
                }
            }
            counts.lose(
                &rules,
                left,
                &on_whole,
                &format!("{} {loss}", scenario.name),
            );
        }
    }
    println!("{counts:?}");
    assert!(counts.over_holes > 500, "{counts:?}: too few to tell");
    assert!(counts.full > 500, "{counts:?}: too few to tell");
}

// === from spans to verdicts, with time ===

const ORDER: &str = "search before report";

/// Returns a root that calls `search` and `report`. Each call is marked as having a local parent.
fn run() -> Vec<OtlpSpan> {
    let call = |name: &str| SpanCall {
        name: name.to_owned(),
        ..SpanCall::default()
    };
    let mut spans = spans_of_run(1, &[], &[call("search"), call("report")]);
    spans
        .iter_mut()
        .skip(1)
        .for_each(|span| span.flags = LOCAL.into());
    spans
}

/// Returns the verdicts on two batches, each followed by four minutes of silence.
fn verdict_in_time(first: Vec<OtlpSpan>, later: Vec<OtlpSpan>) -> Vec<(Verdict, bool, u32)> {
    let order = json!({ "tool_call_order": { "tool_calls_order": ["search", "report"] } });
    let rules = rules(&[json!({ "name": ORDER, "evaluate": order })]);
    let mut now = now();
    let settings = Settings {
        settle: Duration::from_secs(5),
        max_settle: Duration::from_secs(15),
        settle_remote: Duration::from_secs(15),
        inactive: Duration::from_secs(180),
        ..Settings::replay()
    };
    let mut pipeline = Pipeline::new(settings, now);
    let mut verdicts = Vec::new();
    for spans in [first, later] {
        let body = spans::request(spans);
        let scanned = scan::scan(&body, Some(&rules)).expect("OTLP");
        pipeline.take(scanned.batch, now);
        now.instant += Duration::from_secs(240);
        now.unix_nanos += 240_000_000_000;
        let judged = pipeline.advance(&rules, now);
        verdicts.extend(judged.evaluations.iter().map(|evaluation| {
            let is_full = !evaluation.trajectory.cut_short;
            (evaluation.verdict, is_full, evaluation.revision)
        }));
    }
    verdicts
}

#[test]
fn a_person_who_takes_four_minutes_to_approve_causes_no_failure() {
    let whole = run();
    let mut started = run();
    started.truncate(2);
    started[0].end_time_unix_nano = 0;
    assert_eq!(
        verdict_in_time(started, whole),
        [(Verdict::NotEvaluated, false, 0), (Verdict::Pass, true, 1)]
    );
}

#[test]
fn a_lost_root_of_the_same_process_is_a_hole() {
    let (mut whole, mut rest) = (run(), run());
    rest.remove(0);
    rest.remove(1);
    assert_eq!(
        verdict_in_time(rest, whole.split_off(0)),
        [(Verdict::NotEvaluated, false, 0), (Verdict::Pass, true, 1)]
    );
}

#[test]
fn a_sidecar_beside_a_tools_server_fails_no_order() {
    let mut served = run();
    served.remove(0);
    served.remove(1);
    served[0].flags = REMOTE.into();
    assert_eq!(
        verdict_in_time(served, Vec::new()),
        [(Verdict::NotEvaluated, false, 0)]
    );
}
