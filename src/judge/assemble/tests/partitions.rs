//! Tests that several buffers share one budget equally.

use otlp::span::PeerId;

use super::fixture::{Fixture, reasons, settings, span, trace_id, traces};
use crate::assemble::CloseReason::*;
use crate::assemble::{Partition, Settings};

#[test]
fn each_partition_has_an_equal_part() {
    let half = || {
        Fixture::new(Settings {
            partition: Partition::all(2).nth(1).unwrap(),
            max_open_traces: 10,
            max_recent_traces: 10,
            ..settings()
        })
    };
    let mut buffer = half();
    for trace in 1..=8 {
        buffer.send(span(2).of(trace).under(1));
    }
    let told = buffer.wait(0);
    assert_eq!(reasons(&told), [Evicted; 3]);
    assert_eq!(traces(&told), [1, 2, 3].map(trace_id));
    let mut buffer = half();
    for trace in 1..=8 {
        buffer.send(span(1).of(trace));
    }
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded; 8]);
    buffer.wait(0);
    let left = buffer.buffer.stats();
    assert_eq!((left.n_recent, left.n_recent_whole), (5, 5));
}

#[test]
fn a_trace_may_take_half_of_its_partitions_part() {
    let max_open_size = 1 << 20;
    for n_partitions in [1, 2, 8] {
        let mut buffer = Fixture::new(Settings {
            partition: Partition::all(n_partitions).next().unwrap(),
            max_open_size,
            ..settings()
        });
        let half = max_open_size / n_partitions / 2;
        let part = |id| span(id).under(1).named(&"x".repeat(half / 2));
        buffer.send(part(2));
        assert!(buffer.wait(0).is_empty(), "{n_partitions}");
        buffer.send(part(3));
        assert_eq!(reasons(&buffer.wait(0)), [SizeLimit], "{n_partitions}");
    }
}

/// The flood comes from another peer, or from another service behind the same peer (a gateway).
#[test]
fn a_flood_evicts_no_run_of_another_sender_on_any_number_of_partitions() {
    let max_open_size = 1 << 20;
    let (runs, gateway) = ([1, 2], PeerId(9));
    for (n_partitions, is_gateway) in [1, 2, 3, 4, 8]
        .into_iter()
        .flat_map(|n| [(n, false), (n, true)])
    {
        let mut partitions: Vec<Fixture> = Partition::all(n_partitions)
            .map(|partition| {
                Fixture::new(Settings {
                    partition,
                    max_open_size,
                    ..settings()
                })
            })
            .collect();
        let place = |trace: u64| Partition::index_of(trace_id(trace), n_partitions);
        // Each run's trace uses a fifth of a partition's share.
        let name = "x".repeat(max_open_size / n_partitions / 5 / 40);
        let (mut n_flood, mut most_open) = (0, 0);
        for id in 2..=40 {
            for run in runs {
                let peer = if is_gateway { gateway } else { PeerId(run) };
                let part = span(id).under(1).of(run).named(&name);
                let part = part.of_service(&format!("agent {run}"));
                partitions[place(run)].send_from(peer, part);
            }
            for _ in 0..20 {
                n_flood += 1;
                let flood = span(2).under(1).of(100 + n_flood);
                let flood = flood.named(&"f".repeat(2_000)).of_service("flood");
                let peer = if is_gateway { gateway } else { PeerId(100) };
                partitions[place(100 + n_flood)].send_from(peer, flood);
                let sizes = partitions.iter().map(|it| it.buffer.stats().open_size);
                most_open = most_open.max(sizes.sum());
            }
        }
        assert!(
            most_open > max_open_size / 10 * 9 && most_open <= max_open_size,
            "{most_open} on {n_partitions}"
        );
        for run in runs {
            let peer = if is_gateway { gateway } else { PeerId(run) };
            let root = span(1).of(run).of_service(&format!("agent {run}"));
            partitions[place(run)].send_from(peer, root);
        }
        let told = partitions.iter_mut().flat_map(|it| it.wait(5));
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
