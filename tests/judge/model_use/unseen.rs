//! A run without a model span counts as a run without model calls if other traces of its service
//! have model spans. Does not prove that a service records all its model calls.

use std::time::Duration;

use judge::assemble::Settings;
use judge::evaluate::Verdict::{self, Fail, NotEvaluated, Pass};
use judge::pipeline::{Judged, LogBatch, LogJudge, LogLimits, LogStart, Pipeline, Rules};
use opentelemetry_proto::tonic::trace::v1::{ScopeSpans, Span};
use otlp::scan::scan;
use otlp::span::Batch;
use serde_json::json;

use super::rules;
use crate::support::now;
use crate::support::records::{SECOND, START};
use crate::support::spans::{SpanCall, attribute, request_of, spans_of_run};

fn limit() -> Rules {
    rules(&json!({ "name": "c", "evaluate": { "efficiency": { "max_model_calls": 0 } } }))
}

/// Returns a run with one call, preceded by a model span if `has_model`.
fn spans(trace: u64, has_model: bool) -> Vec<Span> {
    let call = SpanCall {
        name: "search".to_owned(),
        step: has_model.then_some(0),
        ..SpanCall::default()
    };
    spans_of_run(trace, &[], &[call])
}

fn batch(service: &str, spans: Vec<Span>) -> Batch {
    let scope = ScopeSpans {
        spans,
        ..ScopeSpans::default()
    };
    let body = request_of(service, vec![scope]);
    scan(&body, Some(&limit())).expect("OTLP").batch
}

struct Process {
    pipeline: Pipeline,
    n_traces: u64,
}

impl Process {
    fn new(settings: Settings) -> Self {
        Self {
            pipeline: Pipeline::new(settings, now()),
            n_traces: 0,
        }
    }

    fn judge_each(&mut self, service: &str, spans: Vec<Span>) -> Vec<Verdict> {
        let now = now();
        self.pipeline.take(batch(service, spans), now);
        let judged = self.pipeline.finish(&limit(), now);
        let evaluations = judged.evaluations.iter();
        evaluations.map(|evaluation| evaluation.verdict).collect()
    }

    fn judge(&mut self, service: &str, has_model: bool) -> Verdict {
        self.n_traces += 1;
        self.judge_each(service, spans(self.n_traces, has_model))[0]
    }
}

#[test]
fn no_model_is_called_where_the_service_records_models() {
    let mut process = Process::new(Settings::replay());
    for (service, has_model, expected) in [
        ("shop", false, NotEvaluated),
        ("shop", true, Fail),
        ("shop", false, Pass),
        ("other", false, NotEvaluated),
    ] {
        assert_eq!(process.judge(service, has_model), expected, "{service}");
    }
    // A model span also counts for traces that are judged together with its trace.
    let mut both = spans(100, false);
    both.extend(spans(101, true));
    assert_eq!(process.judge_each("third", both), [Pass, Fail]);
}

#[test]
fn an_agents_total_shows_that_a_model_was_called() {
    let mut process = Process::new(Settings::replay());
    process.judge("shop", true);
    let mut run = spans(2, false);
    run[0]
        .attributes
        .push(attribute("gen_ai.usage.input_tokens", "7"));
    assert_eq!(process.judge_each("shop", run), [NotEvaluated]);
}

#[test]
fn a_service_that_records_no_more_models_is_doubtful() {
    let mut process = Process::new(Settings::replay());
    process.judge("shop", true);
    for _ in 1..200 {
        assert_eq!(process.judge("shop", false), Pass);
    }
    assert_eq!(process.judge("shop", false), NotEvaluated);
    assert_eq!(process.judge("shop", true), Fail);
    assert_eq!(process.judge("shop", false), Pass);
}

#[test]
fn services_beyond_the_bound_stay_open() {
    let mut process = Process::new(Settings::replay());
    for n in 0..201 {
        process.judge(&format!("service {n}"), true);
    }
    assert_eq!(process.judge("service 199", false), Pass);
    assert_eq!(process.judge("service 200", false), NotEvaluated);
}

#[test]
fn replicas_may_hold_the_model_spans_of_a_trace() {
    let mut process = Process::new(Settings {
        has_peers: true,
        ..Settings::replay()
    });
    process.judge("shop", true);
    assert_eq!(process.judge("shop", false), NotEvaluated);
}

/// A judge of a log can start at any record, and must judge as its predecessor did.
#[test]
fn judges_of_a_log_learn_nothing_from_other_traces() {
    let limits = LogLimits {
        max_replay: Duration::from_secs(3_600),
        overlap: Duration::from_secs(60),
    };
    let start = LogStart {
        offset: 0,
        is_beginning: true,
        inherited: None,
    };
    let settings = Settings {
        settle: Duration::from_secs(5),
        ..Settings::replay()
    };
    let (rules, mut judged) = (limit(), Judged::default());
    let mut log = LogJudge::new(settings, limits, start, now().instant);
    for (offset, has_model) in [(0, true), (1, false)] {
        let record = LogBatch {
            offset,
            unix_nanos: START + offset * 600 * SECOND,
            batch: batch("shop", spans(offset + 1, has_model)),
            torn: Vec::new(),
        };
        log.take(record, &rules, &mut judged);
    }
    log.advance(START + 3_600 * SECOND, &rules, &mut judged);
    let verdicts = judged.evaluations.iter().map(|it| it.verdict);
    assert_eq!(verdicts.collect::<Vec<_>>(), [Fail, NotEvaluated]);
}
