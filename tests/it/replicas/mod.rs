//! Tests replicas that share the traces. A replica is added, a replica is removed, or requests are
//! distributed regardless of traces. Once the replicas have noticed the change, no verdict
//! contradicts the verdict on the whole trace. Most tests simulate the replicas, with time as an
//! argument; three run real processes with a list of peers. Does not test how long a router takes,
//! because the tests send each span to a replica directly.

mod recorded;
mod replica;
mod sessions;
mod simulated;

use std::path::Path;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use spanscore::sidecar;

use crate::support::spans::attribute;
use replica::{Replica, Told, peers};
use simulated::Cluster;

const CRITERIA: &str = r#"criteria=[{
    "name": "order",
    "evaluate": { "tool_call_order": { "tool_calls_order": ["first", "second"] } }
}]"#;
const SECOND: u64 = 1_000_000_000;
/// The OTLP flags of a span whose parent is known to be in the same process.
const LOCAL: u32 = 0x101;

fn span(trace: u8, id: u8, name: &str, from: u64, to: u64) -> Span {
    let tool = [
        attribute("gen_ai.operation.name", "execute_tool"),
        attribute("gen_ai.tool.name", name),
    ];
    let run = [
        attribute("gen_ai.operation.name", "invoke_agent"),
        attribute("gen_ai.agent.name", name),
    ];
    Span {
        trace_id: vec![trace; 16],
        span_id: vec![id; 8],
        parent_span_id: if id == 1 { Vec::new() } else { vec![1; 8] },
        name: name.to_owned(),
        flags: LOCAL,
        start_time_unix_nano: from,
        end_time_unix_nano: to,
        attributes: if id == 1 { run } else { tool }.to_vec(),
        ..Span::default()
    }
}

/// Returns the spans that an SDK exports during a run, and the spans that it exports at the end.
fn run(trace: u8, from: u64) -> [Vec<Span>; 2] {
    let at = |millis: u64| from + millis * 1_000_000;
    [
        vec![span(trace, 2, "first", at(10), at(20))],
        vec![
            span(trace, 3, "second", at(30), at(40)),
            span(trace, 1, "agent", at(0), at(50)),
        ],
    ]
}

fn id(trace: u8) -> String {
    format!("{trace:02x}").repeat(16)
}

/// Starts a real replica with short waits.
fn start(peers: &Path, inactive: &str, warm_up: &str) -> Replica {
    let inactive = format!("assemble.inactive={inactive}");
    let warm_up = format!("assemble.warm_up={warm_up}");
    let settings = [
        CRITERIA,
        &inactive,
        "assemble.settle=50ms",
        "assemble.settle_remote=50ms",
        &warm_up,
    ];
    Replica::start(peers, &settings)
}

/// Returns a simulated cluster in which no replica has started yet, with short waits.
fn cluster(peers: &[&str]) -> Cluster {
    let quick = Duration::from_millis(50);
    let settings = simulated::settings(quick, Duration::from_secs(60), Duration::from_secs(1));
    Cluster::new(CRITERIA, settings, peers)
}

/// The label and completeness of each trace's judgement.
type Verdicts = std::collections::BTreeMap<String, (String, String)>;

fn verdicts(told: Vec<Told>) -> Verdicts {
    let told = told.into_iter();
    told.map(|told| (told.trace_id, (told.label, told.completeness)))
        .collect()
}

fn verdict(label: &str, completeness: &str) -> (String, String) {
    (label.to_owned(), completeness.to_owned())
}

#[test]
fn traces_that_a_change_of_the_replicas_splits_are_incomplete() {
    let mut cluster = cluster(&["a", "b"]);
    for name in ["a", "b"] {
        cluster.start(name);
    }
    // These runs begin after both replicas have warmed up.
    let from = cluster.now.unix_nanos + SECOND;
    let [[begun_9, ended_9], [begun_1, ended_1]] = [9, 1].map(|trace| run(trace, from));

    // A third replica is added, and the router sends it some of the traces.
    cluster.take_spans("a", begun_9);
    cluster.take_spans("a", begun_1);
    cluster.confirm();
    cluster.set_peers(&["a", "b", "c"]);
    cluster.start("c");
    cluster.notice();
    cluster.take_spans("c", ended_9);
    cluster.take_spans("a", ended_1);
    // The second replica is removed, and the first gets the rest of its trace.
    let from = cluster.now.unix_nanos + SECOND;
    let [[begun_2, ended_2], [begun_3, ended_3]] = [2, 3].map(|trace| run(trace, from));
    cluster.take_spans("b", begun_2);
    cluster.take_spans("c", begun_3);
    cluster.confirm();
    cluster.set_peers(&["a", "c"]);
    let of_b = cluster.killed("b");
    cluster.notice();
    cluster.take_spans("a", ended_2);
    cluster.take_spans("c", ended_3);
    // These runs begin after both changes.
    let from = cluster.now.unix_nanos + 30 * SECOND;
    for (trace, name) in [(6, "a"), (7, "c")] {
        for spans in run(trace, from) {
            cluster.take_spans(name, spans);
        }
    }

    assert!(of_b.is_empty(), "{of_b:?}");
    let [a, c] = ["a", "c"].map(|name| verdicts(cluster.ended(name)));
    let of_a: Vec<_> = [9, 1, 2, 6].map(|trace| a[&id(trace)].clone()).into();
    assert_eq!(
        of_a,
        [
            verdict("not_evaluated", "shutdown"),
            verdict("pass", "root_ended"),
            verdict("not_evaluated", "incomplete"),
            verdict("pass", "root_ended"),
        ],
        "the rest went elsewhere; open all the time; begun elsewhere; whole"
    );
    let of_c: Vec<_> = [9, 3, 7].map(|trace| c[&id(trace)].clone()).into();
    assert_eq!(
        of_c,
        [
            verdict("not_evaluated", "incomplete"),
            verdict("pass", "root_ended"),
            verdict("pass", "root_ended"),
        ],
        "begun elsewhere; open all the time; whole"
    );
}

#[test]
fn real_replicas_notice_a_change_and_call_what_it_splits_incomplete() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers");
    peers(&file, &["a", "b"]);
    let [a, b] = [(); 2].map(|()| start(&file, "60s", "1s"));
    for replica in [&a, &b] {
        replica.until("spanscore_peers", 2);
    }
    let [begun, ended] = run(9, sidecar::now().unix_nanos + SECOND);
    a.take_spans(begun);
    peers(&file, &["a", "b", "c"]);
    let c = start(&file, "60s", "1s");
    for replica in [&a, &b, &c] {
        replica.until("spanscore_peers", 3);
        assert_eq!(replica.metric("spanscore_peers_unresolved"), Some(0));
    }
    c.take_spans(ended);
    // These runs begin after the change.
    let from = sidecar::now().unix_nanos + 30 * SECOND;
    for (trace, replica) in [(6, &a), (7, &c)] {
        for spans in run(trace, from) {
            replica.take_spans(spans);
        }
    }
    let [a, c] = [a, c].map(|replica| verdicts(replica.ended()));
    let whole = verdict("pass", "root_ended");
    assert_eq!(a[&id(9)], verdict("not_evaluated", "shutdown"), "its half");
    assert_eq!(c[&id(9)], verdict("not_evaluated", "incomplete"));
    assert_eq!([&a[&id(6)], &c[&id(7)]], [&whole, &whole]);
}

#[test]
fn behind_a_balancer_that_spreads_requests_no_verdict_is_wrong_once_that_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers");
    peers(&file, &["a", "b", "c"]);
    // Without a warm-up, even the first spans count as evidence of torn traces.
    let replicas = [(); 3].map(|()| start(&file, "1s", "0s"));
    let spread = |traces: std::ops::Range<u8>| {
        let from = sidecar::now().unix_nanos + 20 * SECOND;
        for trace in traces {
            for (part, spans) in run(trace, from).into_iter().enumerate() {
                replicas[(usize::from(trace) + part) % 3].take_spans(spans);
            }
        }
    };
    for replica in &replicas {
        replica.until("spanscore_peers", 3);
    }
    spread(1..19);
    for replica in &replicas {
        replica.until("spanscore_services_torn", 1);
    }
    spread(19..37);
    let (mut n_wrong, mut n_wrong_later, mut n_later) = (0, 0, 0);
    for replica in replicas {
        for (trace, (label, _)) in verdicts(replica.ended()) {
            let is_later = (19..37).any(|later| id(later) == trace);
            n_later += usize::from(is_later);
            n_wrong += usize::from(label == "fail");
            n_wrong_later += usize::from(is_later && label == "fail");
        }
    }
    assert!(n_wrong > 0, "half a trace is judged as if it were whole");
    assert_eq!((n_wrong_later, n_later), (0, 36), "each half is reported");
}

#[test]
fn peers_that_cannot_be_found_are_reported_and_judging_continues() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("missing");
    let replica = start(&file, "60s", "1s");
    // Do not rely on the log, whose line may precede the lines about ports.
    replica.until("spanscore_peers_unresolved", 1);
    let from = sidecar::now().unix_nanos + 11 * SECOND;
    run(1, from)
        .into_iter()
        .for_each(|spans| replica.take_spans(spans));
    assert_eq!(
        verdicts(replica.ended())[&id(1)],
        verdict("pass", "root_ended")
    );
}

/// Every lookup returns another thousand addresses. In this state no trace counts as complete.
#[test]
fn a_thousand_peers_that_change_all_the_time_make_traces_incomplete_until_they_stay() {
    let thousand = |generation: u64| -> Vec<String> {
        (0..1_000)
            .map(|n| format!("10.{generation}.{}.{}", n / 250, n % 250))
            .collect()
    };
    let mut cluster = cluster(&[]);
    cluster.set_peers(&thousand(0));
    cluster.start("a");
    for generation in 1..=3 {
        for spans in run(generation as u8, cluster.now.unix_nanos) {
            cluster.take_spans("a", spans);
        }
        cluster.set_peers(&thousand(generation));
        cluster.notice();
    }
    cluster.confirm();
    // The run begins after the start of the replica's trace history.
    for spans in run(9, cluster.now.unix_nanos + SECOND) {
        cluster.take_spans("a", spans);
    }
    let told = verdicts(cluster.ended("a"));
    for trace in 2..=3 {
        // The pass is certain because both calls were seen.
        assert_eq!(told[&id(trace)], verdict("pass", "incomplete"), "{trace}");
    }
    assert_eq!(told[&id(9)], verdict("pass", "root_ended"));
}
