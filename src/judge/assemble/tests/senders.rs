//! Tests eviction when the buffer is full: traces of the heaviest service of the heaviest peer are
//! closed. The receiver's tests check how a peer's address is found.

use otlp::span::PeerId;

use super::fixture::{Fixture, Sent, Told, reasons, settings, span, trace_id, traces};
use crate::assemble::CloseReason::*;
use crate::assemble::{Inserted, Settings};

/// Returns a span whose parent has not arrived, so that its trace remains open.
fn open(trace: u64) -> Sent {
    span(2).under(1).of(trace)
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
    for id in 2..=20 {
        for large in [100, 101, 102] {
            let large = span(id).under(1).of(large).named(&"x".repeat(4_000));
            buffer.send_from(PeerId(2), large);
        }
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
    buffer.send(open(1).of_service("shop"));
    buffer.send(open(2).of_service("flood"));
    buffer.send(open(3).of_service("flood"));
    buffer.send(span(1).of(4).of_service("flood"));
    buffer.send(open(5).of_service("shop"));
    let told = buffer.wait(0);
    assert_eq!(
        (traces(&told), reasons(&told)),
        (vec![trace_id(4)], vec![RootEnded]),
        "its settling trace first"
    );
    buffer.send(open(6).of_service("flood"));
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

// === closed traces ===

/// Returns a buffer with as much memory for closed traces as in a container of 128 MiB.
fn remembering() -> Fixture {
    Fixture::new(Settings {
        max_recent_size: 4 << 20,
        ..settings()
    })
}

/// Sends traces of one span each from a peer, and lets them close.
fn flood(buffer: &mut Fixture, peer: PeerId, traces: std::ops::Range<u64>) {
    let last = traces.end - 1;
    for n in traces {
        buffer.send_from(peer, span(1).of(n));
        if n % 10_000 == 0 || n == last {
            buffer.skip(6);
            let now = buffer.now();
            for closed in buffer.buffer.close_due(now, usize::MAX) {
                buffer.buffer.remember(closed, now);
            }
            assert!(buffer.buffer.stats().recent_size <= 4 << 20);
        }
    }
}

#[test]
fn a_flood_of_closing_traces_spoils_no_run_of_another_peer() {
    let mut buffer = remembering();
    let (agent, attacker) = (PeerId(1), PeerId(2));
    for run in 1..=50 {
        buffer.send_from(agent, span(1).of(run));
        buffer.send_from(agent, span(2).under(1).of(run).tool());
    }
    assert_eq!(buffer.wait(6).len(), 50);
    flood(&mut buffer, attacker, 1_000..401_000);
    let stats = buffer.buffer.stats();
    assert!(stats.n_recent < 20_000 && stats.n_recent_whole > 1_000);

    // Runs that were closed before the flood are revised.
    for run in 1..=50 {
        let late = span(3).under(1).of(run).tool();
        assert_eq!(buffer.send_from(agent, late), Inserted::Late);
    }
    // Runs that began before the flood are complete, although they exported nothing until they
    // ended.
    for run in 51..=100 {
        buffer.send_from(agent, span(1).of(run).lasting(2, 250));
    }
    let told = buffer.wait(5);
    assert_eq!(reasons(&told), [RootEnded].repeat(100));
    for told in told {
        let is_revised = told.trace_id <= trace_id(50);
        let expected = if is_revised { (1, 3) } else { (0, 1) };
        assert_eq!((told.revision, told.spans.len()), expected);
    }

    // The flood's own traces, which may have lost spans, are incomplete.
    buffer.send_from(attacker, span(2).of(1_000).lasting(2, 250));
    buffer.send_from(attacker, span(2).of(300_000).lasting(2, 250));
    buffer.send_from(attacker, span(2).of(500_000).lasting(2, 250));
    assert_eq!(reasons(&buffer.wait(5)), [Incomplete].repeat(3));
}

#[test]
fn a_part_of_a_run_that_another_peer_made_us_forget_is_missed_in_it() {
    let mut buffer = remembering();
    buffer.send_from(PeerId(2), span(1).of(7));
    flood(&mut buffer, PeerId(2), 1_000..60_000);
    buffer.send_from(PeerId(1), span(2).of(7).lasting(30, 40));
    buffer.send_from(PeerId(1), span(2).of(8).lasting(1, 40));
    let told = buffer.wait(5);
    assert_eq!(traces(&told), [trace_id(7), trace_id(8)]);
    assert_eq!(reasons(&told), [Incomplete, RootEnded]);
}

#[test]
fn a_run_of_several_peers_does_not_give_way_to_the_flood_of_one_of_them() {
    let mut buffer = remembering();
    buffer.send_from(PeerId(2), span(2).under(1).of(7).tool());
    buffer.send_from(PeerId(1), span(1).of(7));
    buffer.wait(6);
    flood(&mut buffer, PeerId(2), 1_000..60_000);
    let late = span(3).under(1).of(7).tool();
    assert_eq!(buffer.send_from(PeerId(1), late), Inserted::Late);
    let told = buffer.wait(5);
    assert_eq!((told[0].reason, told[0].spans.len()), (RootEnded, 3));
}

#[test]
fn the_spans_of_the_peer_with_the_most_bytes_are_forgotten_first() {
    let mut buffer = remembering();
    for trace in 1..=100 {
        buffer.send_from(PeerId(1), span(1).of(trace));
    }
    buffer.wait(6);
    for trace in 1_000..1_100 {
        let large = span(1).of(trace).named(&"x".repeat(100_000));
        buffer.send_from(PeerId(2), large);
    }
    buffer.wait(6);
    let late = |trace: u64| span(2).under(1).of(trace);
    assert_eq!(buffer.send_from(PeerId(1), late(1)), Inserted::Late);
    assert_eq!(
        buffer.send_from(PeerId(2), late(1_000)),
        Inserted::Forgotten
    );
    assert_eq!(buffer.send_from(PeerId(2), late(1_099)), Inserted::Late);
}
