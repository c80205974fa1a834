//! Tests a buffer that shares the traces with other replicas: which traces are incomplete after a
//! start, after a change of the replicas, and while traces arrive torn (split between replicas).
//! The tests do not prove when a change is noticed.

use std::sync::Arc;
use std::time::Duration;

use otlp::span::Resource;

use super::fixture::{Fixture, reasons, settings, span, trace_id, traces};
use crate::assemble::CloseReason::*;
use crate::assemble::Settings;

fn with_peers() -> Fixture {
    Fixture::new(Settings {
        warm_up: Duration::from_secs(10),
        has_peers: true,
        ..settings()
    })
}

#[test]
fn a_replica_judges_no_older_trace_in_full_until_it_has_warmed_up() {
    let mut buffer = with_peers();
    buffer.skip(12);
    buffer.send(span(1).of(1).lasting(9, 11));
    buffer.send(span(1).of(2).lasting(10, 11));
    let told = buffer.wait(5);
    assert_eq!(reasons(&told), [Incomplete, RootEnded]);
}

#[test]
fn after_a_change_of_the_replicas_older_traces_that_are_new_here_are_incomplete() {
    let mut buffer = with_peers();
    buffer.skip(20);
    buffer.send(span(2).of(1).under(1).lasting(15, 16));
    buffer.skip(1);
    let last_confirmed = buffer.now();
    buffer.skip(1);
    // The replicas may have changed: no lookup has shown the new addresses yet.
    buffer.send(span(2).of(2).under(1).lasting(15, 16));
    buffer.skip(1);
    let now = buffer.now();
    buffer.buffer.begin_memory(last_confirmed, now);
    for trace in 1..=3 {
        buffer.send(span(1).of(trace).lasting(14, 23));
    }
    buffer.skip(11);
    // By this time the router has the new addresses.
    buffer.send(span(1).of(4).lasting(33, 34));
    let told = buffer.wait(5);
    assert_eq!(
        traces(&told),
        [trace_id(1), trace_id(2), trace_id(3), trace_id(4)]
    );
    assert_eq!(
        reasons(&told),
        [RootEnded, Incomplete, Incomplete, RootEnded],
        "what was open here before keeps its memory"
    );
}

#[test]
fn torn_traces_take_the_full_verdicts_of_their_service_away() {
    let mut buffer = with_peers();
    buffer.skip(20);
    for trace in 1..=5 {
        buffer.send(span(2).of(trace).under(1).local().lasting(20, 21));
    }
    buffer.send(span(1).of(9).lasting(20, 21));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded], "nobody knows yet");
    let told = buffer.wait(175);
    assert_eq!(
        reasons(&told),
        [Inactive, Inactive, Inactive, Inactive, Incomplete]
    );
    let torn = buffer.torn.as_mut().unwrap().take();
    assert_eq!(torn.n_traces, 5);
    assert_eq!((torn.changes.len(), torn.changes[0].is_torn), (1, true));

    buffer.send(span(1).of(10).lasting(200, 201));
    let mut other = span(1).of(11).lasting(200, 201);
    other.span.resource = Arc::new(Resource {
        service: "other".into(),
        ..(*other.span.resource).clone()
    });
    buffer.send(other);
    assert_eq!(reasons(&buffer.wait(5)), [Incomplete, RootEnded]);
}

#[test]
fn a_missing_caller_of_a_sender_without_flags_tears_nothing() {
    let mut buffer = with_peers();
    buffer.skip(20);
    for trace in 1..=9 {
        buffer.send(span(2).of(trace).under(1).lasting(20, 21));
        buffer.send(span(3).of(trace).under(1).lasting(20, 21));
    }
    for trace in 11..=13 {
        buffer.send(span(2).of(trace).under(1).lasting(20, 21));
        buffer.send(span(3).of(trace).under(4).lasting(20, 21));
    }
    buffer.wait(180);
    assert_eq!(
        buffer.torn.as_mut().unwrap().take().n_traces,
        3,
        "two missing parents cannot both be callers"
    );
}

/// After a change, the other spans of a trace may be at another replica. Such a trace does not show
/// that requests are spread over replicas.
#[test]
fn traces_that_a_change_of_the_replicas_splits_are_no_evidence_of_torn_ones() {
    let mut buffer = with_peers();
    buffer.skip(20);
    for trace in 1..=5 {
        buffer.send(span(2).of(trace).under(1).local().lasting(20, 21));
    }
    let before = buffer.now();
    buffer.skip(2);
    let now = buffer.now();
    buffer.buffer.begin_memory(before, now);
    for trace in 6..=9 {
        buffer.send(span(2).of(trace).under(1).local().lasting(22, 23));
    }
    assert_eq!(reasons(&buffer.wait(185)).len(), 9);
    assert_eq!(buffer.torn.as_mut().unwrap().take().n_traces, 0);
    // These traces were opened when the router had the new addresses.
    for trace in 10..=14 {
        buffer.send(span(2).of(trace).under(1).local().lasting(220, 221));
    }
    buffer.wait(185);
    assert_eq!(buffer.torn.as_mut().unwrap().take().n_traces, 5);
}
