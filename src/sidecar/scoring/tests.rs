//! Tests the scoring threads and their queue. The pipeline's own tests cover the judging.

mod behind;
mod threads;

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

use judge::assemble::Sizes;
use judge::pipeline::Judged;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use otlp::scan;
use prost::Message;
use serde_json::json;

use super::worker::MAX_BATCHES_AT_ONCE;
use super::*;
use crate::eventually::eventually;
use crate::telemetry::Unhealthy;

fn started((queue, workers): (ScoringQueue, Vec<Worker>)) -> (ScoringQueue, Vec<JoinHandle<()>>) {
    let threads = workers.into_iter().map(|worker| worker.start().unwrap());
    (queue, threads.collect())
}

fn rules() -> Rules {
    let criterion = json!({
        "name": "both",
        "evaluate": { "tool_call_order": { "tool_calls_order": ["a", "b"] } },
    });
    Rules::new(vec![serde_json::from_value(criterion).unwrap()])
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue {
        value: Some(any_value::Value::StringValue(value.to_owned())),
    });
    KeyValue {
        key: key.to_owned(),
        value,
        ..KeyValue::default()
    }
}

/// Returns the root of a trace (`id` 1), or a call below the root.
fn span(trace: u8, id: u8, tool: &str) -> Span {
    Span {
        trace_id: vec![trace; 16],
        span_id: vec![id; 8],
        parent_span_id: if id == 1 { Vec::new() } else { vec![1; 8] },
        start_time_unix_nano: now().unix_nanos + u64::from(id),
        end_time_unix_nano: now().unix_nanos + 1_000,
        attributes: if tool.is_empty() { Vec::new() } else { vec![text("tool.name", tool)] },
        ..Span::default()
    }
}

fn request(resource: Resource, spans: Vec<Span>) -> Vec<u8> {
    let scope_spans = vec![ScopeSpans {
        spans,
        ..ScopeSpans::default()
    }];
    let resource_spans = vec![ResourceSpans {
        resource: Some(resource),
        scope_spans,
        ..ResourceSpans::default()
    }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

fn batch_of(resource: Resource, spans: Vec<Span>) -> Batch {
    let request = request(resource, spans);
    scan::scan(&request, Some(&rules())).unwrap().batch
}

fn batch(spans: Vec<Span>) -> Batch {
    batch_of(Resource::default(), spans)
}

fn settings() -> Settings {
    Settings {
        restart_guard: None,
        ..Settings::replay()
    }
}

/// Returns limits that never change.
fn bounds(queue: usize) -> ScoringBounds {
    ScoringBounds {
        queue: queue.into(),
        traces: Box::new(|| Sizes {
            trace: Settings::MAX_SIZE_LIMIT,
            open: usize::MAX,
            recent: usize::MAX,
            sessions: usize::MAX,
        }),
    }
}

/// Verdict, completeness and revision of each evaluation, in order of arrival.
type Told = Vec<(&'static str, &'static str, u32)>;

fn told(judged: &Judged) -> Told {
    let evaluations = judged.evaluations.iter();
    evaluations
        .map(|it| {
            (
                it.verdict.as_str(),
                it.trajectory.completeness.as_str(),
                it.revision,
            )
        })
        .collect()
}

/// Waits until no batch is in the queue.
async fn is_empty(queue: &ScoringQueue) {
    eventually("the queue is empty", || {
        (queue.shared.waiting.n_bytes() == 0).then_some(())
    })
    .await;
}

#[test]
fn a_trace_whose_spans_wait_in_the_queue_does_not_settle_without_them() {
    let (tell, judgements) = sync_channel(MAX_BATCHES);
    let judge: Judge = Box::new(move |judged, _| tell.send(told(judged)).unwrap());
    let settle = Duration::from_nanos(1);
    let (queue, mut workers) = ScoringQueue::prepare(
        Settings {
            settle,
            max_settle: settle,
            ..settings()
        },
        bounds(usize::MAX),
        Arc::new(ArcSwap::from_pointee(rules())),
        Arc::default(),
        vec![judge],
        None,
    );
    let send = |at: Now, spans: Vec<Span>| {
        let batch = batch(spans);
        let charge = Arc::new(queue.shared.waiting.charge_anyway(batch.size()));
        let arrived = Box::new(Arrived {
            at,
            charge,
            record: None,
            spans: QueuedSpans::InMemory(batch),
        });
        queue.senders[0].send(arrived).unwrap();
    };
    let arrived = now();
    // All of these spans arrived at one moment. The settle time has passed since then, and reading
    // the spans takes several rounds.
    send(arrived, vec![span(1, 1, ""), span(1, 2, "a")]);
    for trace in 10..=u8::MAX {
        send(arrived, vec![span(trace, 1, "")]);
    }
    send(arrived, vec![span(1, 3, "b")]);
    assert!(usize::from(u8::MAX) > 3 * MAX_BATCHES_AT_ONCE);
    drop(queue);
    workers.remove(0).run();
    assert_eq!(
        judgements.iter().flatten().collect::<Told>(),
        [("pass", "root_ended", 0)]
    );
}

#[tokio::test]
async fn a_batch_that_finds_the_queue_full_is_unscored_and_its_traces_are_incomplete() {
    let telemetry = Arc::new(Telemetry::default());
    let (tell, judgements) = sync_channel(MAX_BATCHES);
    let (go_on, may_go_on) = sync_channel::<()>(0);
    // Every round waits here until it is released, or until the other end is dropped.
    let judge: Judge = Box::new(move |judged, _| {
        tell.send(told(judged)).unwrap();
        let _ = may_go_on.recv();
    });
    let rules = Arc::new(ArcSwap::from_pointee(rules()));
    let (scoring, mut threads) = started(ScoringQueue::prepare(
        settings(),
        bounds(1),
        rules,
        telemetry.clone(),
        vec![judge],
        None,
    ));
    let unscored = || telemetry.counter("spanscore_unscored_spans_total", &[]);

    // The thread is in its first round, so the queue does not shrink until the round is released.
    assert_eq!(judgements.recv().unwrap(), []);
    scoring.offer(batch(vec![span(1, 1, ""), span(1, 2, "a")]), 0, None);
    assert_eq!(unscored(), 0, "an empty queue takes a batch of any size");
    assert!(scoring.shared.waiting.n_bytes() > 1);
    scoring.offer(batch(vec![span(1, 3, "b"), span(1, 4, "b")]), 0, None);
    assert_eq!(unscored(), 2);
    go_on.send(()).unwrap();
    // A batch that is taken from the queue must be subtracted from the waiting bytes, although its
    // spans were pruned in the meantime.
    is_empty(&scoring).await;
    drop(scoring);
    drop(go_on);
    threads.remove(0).join().unwrap();
    // Some of the calls are missing, so the criterion does not certainly pass.
    assert_eq!(
        judgements.iter().flatten().collect::<Told>(),
        [("not_evaluated", "incomplete", 0)]
    );
    assert_eq!(telemetry.unhealthy(now().instant), []);
}

#[test]
fn a_panic_while_judging_is_reported_and_later_spans_count_as_unscored() {
    let telemetry = Arc::new(Telemetry::default());
    let judge: Judge = Box::new(|_, _| panic!("on purpose"));
    let rules = Arc::new(ArcSwap::from_pointee(rules()));
    let (scoring, mut threads) = started(ScoringQueue::prepare(
        settings(),
        bounds(1 << 20),
        rules,
        telemetry.clone(),
        vec![judge],
        None,
    ));
    assert!(threads.remove(0).join().is_err());
    assert_eq!(
        telemetry.unhealthy(now().instant),
        [("scoring".to_owned(), Unhealthy::Dead)]
    );
    scoring.offer(batch(vec![span(1, 1, ""), span(1, 2, "a")]), 0, None);
    assert_eq!(telemetry.counter("spanscore_unscored_spans_total", &[]), 2);
    assert_eq!(scoring.shared.waiting.n_bytes(), 0);
}

#[test]
fn resources_count_in_the_bytes_that_wait() {
    let resource = Resource {
        attributes: vec![text("host.description", &"x".repeat(50_000))],
        ..Resource::default()
    };
    let [one, two] = [vec![span(1, 1, "")], vec![span(1, 1, ""), span(1, 2, "a")]]
        .map(|spans| batch_of(resource.clone(), spans).size());
    assert!(
        one > 50_000 && two < one + 1_000,
        "{one}, {two}: a resource counts once"
    );
}

#[test]
fn discarded_batches_count_as_long_as_their_memory_is_held() {
    let long = "x".repeat(900);
    let spans = |n: u8| (1..=n).map(|id| span(1, id, &long)).collect::<Vec<_>>();
    let own = |spans: Vec<Span>| ScopeSpans {
        scope: Some(InstrumentationScope {
            name: "spanscore".to_owned(),
            ..InstrumentationScope::default()
        }),
        spans,
        ..ScopeSpans::default()
    };
    let foreign = ScopeSpans {
        spans: vec![span(1, 200, "a")],
        ..ScopeSpans::default()
    };
    let size = |scope_spans: Vec<ScopeSpans>| {
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                scope_spans,
                ..ResourceSpans::default()
            }],
        };
        scan::scan(&request.encode_to_vec(), Some(&rules()))
            .unwrap()
            .batch
            .size()
    };
    let (alone, beside) = (
        size(vec![foreign.clone()]),
        size(vec![own(spans(100)), foreign]),
    );
    assert!(beside > alone + 100 * long.len(), "{alone}, {beside}");
}

#[test]
fn a_drain_settles_ended_traces_at_once() {
    let telemetry = Arc::new(Telemetry::default());
    let (tell, judgements) = sync_channel(MAX_BATCHES);
    let judge: Judge = Box::new(move |judged, _| tell.send(told(judged)).unwrap());
    let rules = Arc::new(ArcSwap::from_pointee(rules()));
    let (scoring, _threads) = started(ScoringQueue::prepare(
        settings(),
        bounds(1 << 20),
        rules,
        telemetry.clone(),
        vec![judge],
        None,
    ));
    let spans = vec![
        span(1, 1, ""),
        span(1, 2, "a"),
        span(1, 3, "b"),
        span(2, 2, "a"),
    ];
    scoring.offer(batch(spans), 0, None);
    scoring.begin_drain();
    let first = judgements.iter().find(|told| !told.is_empty());
    assert_eq!(
        first.unwrap(),
        [("pass", "root_ended", 0)],
        "the trace without a root stays open"
    );
    let closed: BTreeMap<_, _> = ["root_ended", "shutdown"]
        .map(|reason| {
            (
                reason,
                telemetry.counter("spanscore_traces_closed_total", &[("reason", reason)]),
            )
        })
        .into();
    assert_eq!(closed, BTreeMap::from([("root_ended", 1), ("shutdown", 0)]));
}
