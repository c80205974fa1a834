//! Whose traces give way when there is no room for all: those of the peer that holds the most, and
//! of its service that does. Does not prove how a peer's address is found: the receiver's tests do.

use super::fixture::{Fixture, Sent, Told, reasons, settings, span, trace_id, traces};
use crate::assemble::CloseReason::*;
use crate::assemble::Settings;
use crate::span::PeerId;

/// A span whose parent has not arrived, so that its trace stays open.
fn open(trace: u64) -> Sent {
    span(2).under(1).of(trace)
}

fn of_service(service: &str, mut sent: Sent) -> Sent {
    let mut resource = (*sent.span.resource).clone();
    resource.service = service.into();
    sent.span.resource = resource.into();
    sent
}

#[test]
fn a_flood_of_open_traces_evicts_no_long_run_of_another_peer() {
    let mut buffer = Fixture::new(Settings {
        max_open_traces: 5_000,
        ..settings()
    });
    let (agent, attacker) = (PeerId(1), PeerId(2));
    for run in 1..=50 {
        buffer.send_from(agent, open(run));
    }
    let told: Vec<Told> = (0..60_000)
        .flat_map(|n| {
            buffer.send_from(attacker, open(1_000 + n));
            match n % 1_000 {
                999 => buffer.wait(0),
                _ => Vec::new(),
            }
        })
        .collect();
    assert_eq!(told.len(), 60_000 - (5_000 - 50));
    assert_eq!(
        traces(&told)[..2],
        [trace_id(1_000), trace_id(1_001)],
        "the flood's own, the one that was idle longest first"
    );
    for run in 1..=50 {
        buffer.send_from(agent, span(1).of(run));
    }
    let told = buffer.wait(5);
    let expected: Vec<_> = (1..=50).map(trace_id).collect();
    assert_eq!(traces(&told), expected);
    assert_eq!(reasons(&told), [RootEnded].repeat(50));
}

#[test]
fn a_peer_that_holds_many_bytes_gives_way_before_one_with_many_traces() {
    let mut buffer = Fixture::new(Settings {
        max_open_size: 200_000,
        ..settings()
    });
    for trace in 1..=20 {
        buffer.send_from(PeerId(1), open(trace));
    }
    for id in 2..=30 {
        let large = span(id).under(1).of(100).named(&"x".repeat(10_000));
        buffer.send_from(PeerId(2), large);
    }
    let told = buffer.wait(0);
    assert_eq!(
        (traces(&told), reasons(&told)),
        (vec![trace_id(100)], vec![Evicted])
    );
}

#[test]
fn of_the_services_of_one_peer_the_one_that_holds_the_most_gives_way() {
    let mut buffer = Fixture::new(Settings {
        max_open_traces: 4,
        ..settings()
    });
    buffer.send(of_service("shop", open(1)));
    buffer.send(of_service("flood", open(2)));
    buffer.send(of_service("flood", open(3)));
    buffer.send(of_service("flood", span(1).of(4)));
    buffer.send(of_service("shop", open(5)));
    let told = buffer.wait(0);
    assert_eq!(
        (traces(&told), reasons(&told)),
        (vec![trace_id(4)], vec![RootEnded]),
        "its settling trace first"
    );
    buffer.send(of_service("flood", open(6)));
    let told = buffer.wait(0);
    assert_eq!(
        (traces(&told), reasons(&told)),
        (vec![trace_id(2)], vec![Evicted]),
        "then the one that was idle longest"
    );
}

#[test]
fn a_trace_that_is_opened_again_counts_for_its_first_sender() {
    let mut buffer = Fixture::new(Settings {
        max_open_traces: 3,
        ..settings()
    });
    buffer.send_from(PeerId(1), span(1).of(1));
    buffer.wait(5);
    buffer.send_from(PeerId(1), open(2));
    buffer.send_from(PeerId(2), span(3).under(9).of(1));
    buffer.send_from(PeerId(2), open(3));
    buffer.send_from(PeerId(2), open(4));
    let told = buffer.wait(0);
    assert_eq!(
        traces(&told),
        [trace_id(2)],
        "of two peers that hold two each, the first"
    );
}
