//! Several buffers share one budget: what each holds beside the others. Does not prove when a
//! buffer learns what the others hold.

use super::fixture::{Fixture, reasons, settings, span, trace_id, traces};
use crate::assemble::CloseReason::*;
use crate::assemble::{Partition, Settings, Stats};

fn half() -> Fixture {
    Fixture::new(Settings {
        partition: Partition::all(2).nth(1).unwrap(),
        max_open_traces: 10,
        max_recent_traces: 10,
        ..settings()
    })
}

fn others(n_open: usize, n_recent: usize) -> Stats {
    Stats {
        n_open,
        n_recent,
        ..Stats::default()
    }
}

#[test]
fn one_partition_may_take_all_that_the_others_leave() {
    let mut buffer = half();
    for trace in 1..=8 {
        buffer.send(span(2).of(trace).under(1));
    }
    let now = buffer.now();
    buffer.buffer.make_room(&others(2, 0), now);
    assert_eq!(reasons(&buffer.wait(0)), []);
    buffer.buffer.make_room(&others(4, 0), now);
    let told = buffer.wait(0);
    assert_eq!(reasons(&told), [Evicted, Evicted]);
    assert_eq!(traces(&told), [trace_id(1), trace_id(2)]);
}

#[test]
fn each_partition_may_hold_its_equal_share() {
    let mut buffer = half();
    for trace in 1..=8 {
        buffer.send(span(2).of(trace).under(1));
    }
    let now = buffer.now();
    buffer.buffer.make_room(&others(10, 0), now);
    assert_eq!(reasons(&buffer.wait(0)), [Evicted; 3]);
    buffer.send(span(2).of(9).under(1));
    assert_eq!(
        reasons(&buffer.wait(0)),
        [Evicted],
        "also for spans that come later"
    );
    assert_eq!(buffer.buffer.stats().n_open, 5);
}

#[test]
fn closed_traces_share_their_budget_like_open_ones() {
    let mut buffer = half();
    for trace in 1..=8 {
        buffer.send(span(1).of(trace));
    }
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded; 8]);
    let now = buffer.now();
    buffer.buffer.make_room(&others(0, 10), now);
    buffer.wait(0);
    let left = buffer.buffer.stats();
    assert_eq!((left.n_recent, left.n_recent_whole), (5, 5));
}

#[test]
fn positions_by_arrival_differ_between_partitions() {
    let arrivals = Partition::all(3).flat_map(|partition| {
        let mut buffer = Fixture::new(Settings {
            partition,
            ..settings()
        });
        for trace in 1..=3 {
            buffer.send(span(1).of(trace));
        }
        buffer.wait(5).into_iter().map(|told| told.arrival)
    });
    let mut arrivals: Vec<u64> = arrivals.collect();
    arrivals.sort_unstable();
    assert_eq!(arrivals, (0..9).collect::<Vec<u64>>());
}
