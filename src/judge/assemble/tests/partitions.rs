//! Several buffers share one budget: what each holds beside the others, and whose traces give way.
//! Does not prove when a buffer learns what the others hold.

use otlp::span::PeerId;

use super::fixture::{Fixture, Sent, reasons, settings, span, trace_id, traces};
use crate::assemble::CloseReason::*;
use crate::assemble::{Partition, SenderHeld, Settings, Stats};

fn half() -> Fixture {
    Fixture::new(Settings {
        partition: Partition::all(2).nth(1).unwrap(),
        max_open_traces: 10,
        max_recent_traces: 10,
        ..settings()
    })
}

fn others(n_recent: usize) -> Stats {
    Stats {
        n_recent,
        ..Stats::default()
    }
}

/// As many open traces in the other half, of the same sender.
fn open_elsewhere(n_open: u64) -> Vec<SenderHeld> {
    let mut other = Fixture::new(settings());
    for trace in 1..=n_open {
        other.send(span(2).of(trace).under(1));
    }
    other.buffer.senders().collect()
}

#[test]
fn one_partition_may_take_all_that_the_others_leave() {
    let mut buffer = half();
    for trace in 1..=8 {
        buffer.send(span(2).of(trace).under(1));
    }
    let now = buffer.now();
    buffer.buffer.make_room(&others(0), open_elsewhere(2), now);
    assert_eq!(reasons(&buffer.wait(0)), []);
    buffer.buffer.make_room(&others(0), open_elsewhere(4), now);
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
    buffer.buffer.make_room(&others(0), open_elsewhere(10), now);
    assert_eq!(reasons(&buffer.wait(0)), [Evicted; 3]);
    buffer.send(span(2).of(9).under(1));
    assert_eq!(
        reasons(&buffer.wait(0)),
        [Evicted],
        "also for spans that come later"
    );
    assert_eq!(buffer.buffer.stats().n_open, 5);
}

/// Some partitions of one budget; after each span, all learn what the others hold.
struct Partitions {
    buffers: Vec<Fixture>,
}

impl Partitions {
    fn new(n_partitions: usize, max_open_size: usize) -> Self {
        let buffers = Partition::all(n_partitions).map(|partition| {
            Fixture::new(Settings {
                partition,
                max_open_size,
                size_limit: max_open_size / 4,
                ..settings()
            })
        });
        Self {
            buffers: buffers.collect(),
        }
    }

    fn send(&mut self, peer: PeerId, sent: Sent) {
        let place = Partition::index_of(sent.span.trace_id, self.buffers.len());
        self.buffers[place].send_from(peer, sent);
        for place in 0..self.buffers.len() {
            let others = self.buffers.iter().enumerate();
            let others = others.filter(|(other, _)| *other != place);
            let senders: Vec<SenderHeld> = others
                .flat_map(|(_, fixture)| fixture.buffer.senders())
                .collect();
            let now = self.buffers[place].now();
            let buffer = &mut self.buffers[place].buffer;
            buffer.make_room(&Stats::default(), senders, now);
        }
    }

    fn open_size(&self) -> usize {
        let sizes = self.buffers.iter().map(|it| it.buffer.stats().open_size);
        sizes.sum()
    }
}

/// A run may take a quarter of the budget, which is more than the equal part of one of eight
/// partitions. The flood is another peer's, or another service's of the same peer (a gateway).
#[test]
fn a_flood_evicts_no_run_of_another_sender_on_any_number_of_partitions() {
    let max_open_size = 1 << 20;
    let (runs, gateway) = ([1, 2], PeerId(9));
    for (n_partitions, is_gateway) in [1, 2, 3, 4, 8]
        .into_iter()
        .flat_map(|n| [(n, false), (n, true)])
    {
        let mut partitions = Partitions::new(n_partitions, max_open_size);
        let (mut n_flood, mut most_open) = (0, 0);
        for id in 2..=40 {
            for run in runs {
                let peer = if is_gateway { gateway } else { PeerId(run) };
                let part = span(id).under(1).of(run).named(&"x".repeat(5_500));
                partitions.send(peer, part.of_service(&format!("agent {run}")));
            }
            for _ in 0..20 {
                n_flood += 1;
                let flood = span(2).under(1).of(100 + n_flood);
                let flood = flood.named(&"f".repeat(2_000)).of_service("flood");
                let peer = if is_gateway { gateway } else { PeerId(100) };
                partitions.send(peer, flood);
                most_open = most_open.max(partitions.open_size());
            }
        }
        assert!(
            most_open > max_open_size / 10 * 9 && most_open < max_open_size / 10 * 11,
            "{most_open} on {n_partitions}"
        );
        for run in runs {
            let peer = if is_gateway { gateway } else { PeerId(run) };
            let root = span(1).of(run).of_service(&format!("agent {run}"));
            partitions.send(peer, root);
        }
        let told = partitions.buffers.iter_mut().flat_map(|it| it.wait(5));
        let of_runs = |id| runs.map(trace_id).contains(&id);
        let told: Vec<_> = told.filter(|told| of_runs(told.trace_id)).collect();
        let n_spans: Vec<usize> = told.iter().map(|told| told.spans.len()).collect();
        assert_eq!(
            (reasons(&told), n_spans),
            (vec![RootEnded; 2], vec![40; 2]),
            "on {n_partitions}, from one peer: {is_gateway}"
        );
    }
}

/// The partition that has the flood is stuck in a large trace: the others cannot take more and
/// more meanwhile.
#[test]
fn a_partition_that_makes_no_room_is_not_waited_for_without_bounds() {
    let max_open_size = 1 << 20;
    let mut flooded = Fixture::new(settings());
    for trace in 1..=70 {
        let flood = span(2).under(1).of(trace).named(&"f".repeat(8_000));
        flooded.send_from(PeerId(1), flood);
    }
    let stuck: Vec<SenderHeld> = flooded.buffer.senders().collect();
    let mut buffer = Fixture::new(Settings {
        partition: Partition::all(2).next().unwrap(),
        max_open_size,
        ..settings()
    });
    let now = buffer.now();
    buffer.buffer.make_room(&Stats::default(), stuck, now);
    for trace in 1..=200 {
        let agent = span(2).under(1).of(trace).named(&"x".repeat(8_000));
        buffer.send_from(PeerId(100 + trace), agent);
    }
    let here = buffer.buffer.stats().open_size;
    let all = here + flooded.buffer.stats().open_size;
    assert!(here >= max_open_size / 2, "its equal part: {here}");
    assert!(all <= max_open_size / 4 * 5, "{all}");
}

#[test]
fn closed_traces_share_their_budget_like_open_ones() {
    let mut buffer = half();
    for trace in 1..=8 {
        buffer.send(span(1).of(trace));
    }
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded; 8]);
    let now = buffer.now();
    buffer.buffer.make_room(&others(10), [], now);
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
