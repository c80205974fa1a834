//! Replicas that share the traces, as real processes: one is added, one is taken away, requests are
//! spread without regard to traces. No verdict contradicts the whole trace once the state is
//! noticed. Does not prove how long a router takes: here the spans are sent by hand.

use std::collections::BTreeMap;
use std::path::Path;

use opentelemetry_proto::tonic::trace::v1::Span;
use rustix::process::Signal;
use serde_json::Value;
use spanscore::sidecar;

use crate::support::program::{Running, http};
use crate::support::spans::{attribute, request};

const CRITERIA: &str = r#"criteria=[{
    "name": "order",
    "evaluate": { "tool_call_order": { "tool_calls_order": ["first", "second"] } }
}]"#;
const SECOND: u64 = 1_000_000_000;
/// The parent is known to be in the same process.
const LOCAL: u32 = 0x101;

struct Replica {
    running: Running,
    otlp: String,
    admin: String,
}

impl Replica {
    fn start(peers: &Path, inactive: &str) -> Self {
        let peers = format!("assemble.peers={}", peers.display());
        let inactive = format!("assemble.inactive={inactive}");
        let mut running = Running::start(&[
            "--set",
            CRITERIA,
            "--set",
            &peers,
            "--set",
            &inactive,
            "--set",
            "assemble.settle=50ms",
            "--set",
            "assemble.settle_remote=50ms",
            "--set",
            "assemble.warm_up=1s",
        ]);
        let [otlp, admin] = running.addresses();
        Self {
            running,
            otlp,
            admin,
        }
    }

    fn take(&self, spans: Vec<Span>) {
        let answer = http(&self.otlp, "POST /v1/traces", &request(spans));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn metric(&self, series: &str) -> Option<u64> {
        let page = http(&self.admin, "GET /metrics", &[]);
        let prefix = format!("{series} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&prefix))?;
        Some(line.parse().unwrap())
    }

    /// Asks until a metric has a value.
    fn until(&self, series: &str, value: u64) {
        while self.metric(series) != Some(value) {
            std::thread::yield_now();
        }
    }

    /// Waits until the peers were asked for after this moment, and were the same.
    fn confirm(&self) {
        const ANSWERS: &str = "spanscore_peers_answers_total";
        let answers = self.metric(ANSWERS).unwrap();
        // The next answer may be to a question of before.
        while self.metric(ANSWERS) < Some(answers + 2) {
            std::thread::yield_now();
        }
    }

    /// Ends it. Label and completeness of the last judgement of each trace.
    fn verdicts(self) -> BTreeMap<String, (String, String)> {
        self.running.signal(Signal::TERM);
        let (code, lines) = self.running.ended();
        assert_eq!(code, 0);
        let line = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let text = |key: &str| line[key].as_str().unwrap().to_owned();
            (text("trace_id"), (text("label"), text("completeness")))
        };
        lines.lines().map(line).collect()
    }
}

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

/// What an SDK exports while a run goes on, and what it exports at its end.
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

fn peers(file: &Path, names: &[&str]) {
    // Replaced in one step, as a mounted ConfigMap is.
    let fresh = file.with_extension("fresh");
    std::fs::write(&fresh, names.join("\n")).unwrap();
    std::fs::rename(fresh, file).unwrap();
}

fn verdict(label: &str, completeness: &str) -> (String, String) {
    (label.to_owned(), completeness.to_owned())
}

#[test]
fn traces_that_a_change_of_the_replicas_splits_are_incomplete() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers");
    peers(&file, &["a", "b"]);
    let [a, b] = [(); 2].map(|()| Replica::start(&file, "60s"));
    for replica in [&a, &b] {
        replica.until("spanscore_peers", 2);
    }
    // Both have warmed up when these begin, by the agents' clock.
    let from = sidecar::now().unix_nanos + SECOND;
    let [[begun_9, ended_9], [begun_1, ended_1]] = [9, 1].map(|trace| run(trace, from));

    // A third one comes: the router hands it a part of the traces.
    a.take(begun_9);
    a.take(begun_1);
    a.confirm();
    peers(&file, &["a", "b", "c"]);
    let c = Replica::start(&file, "60s");
    for replica in [&a, &b, &c] {
        replica.until("spanscore_peers", 3);
    }
    c.take(ended_9);
    a.take(ended_1);
    // The second one goes: the others get the rest of its traces.
    let from = sidecar::now().unix_nanos + SECOND;
    let [[begun_2, ended_2], [begun_3, ended_3]] = [2, 3].map(|trace| run(trace, from));
    b.take(begun_2);
    c.take(begun_3);
    c.confirm();
    peers(&file, &["a", "c"]);
    for replica in [&a, &c] {
        replica.until("spanscore_peers", 2);
        assert_eq!(replica.metric("spanscore_peers_unresolved"), Some(0));
    }
    drop(b);
    a.take(ended_2);
    c.take(ended_3);
    // Runs that begin after both.
    let from = sidecar::now().unix_nanos + 30 * SECOND;
    for (trace, replica) in [(6, &a), (7, &c)] {
        let [begun, ended] = run(trace, from);
        replica.take(begun);
        replica.take(ended);
    }

    let (a, c) = (a.verdicts(), c.verdicts());
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
fn behind_a_balancer_that_spreads_requests_no_verdict_is_wrong_once_that_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers");
    peers(&file, &["a", "b", "c"]);
    let replicas = [(); 3].map(|()| Replica::start(&file, "1s"));
    let spread = |traces: std::ops::Range<u8>| {
        let from = sidecar::now().unix_nanos + 20 * SECOND;
        for trace in traces {
            for (part, spans) in run(trace, from).into_iter().enumerate() {
                replicas[(usize::from(trace) + part) % 3].take(spans);
            }
        }
    };
    spread(1..19);
    for replica in &replicas {
        replica.until("spanscore_services_torn", 1);
    }
    spread(19..37);
    let (mut n_wrong, mut n_wrong_later, mut n_later) = (0, 0, 0);
    for replica in replicas {
        for (trace, (label, _)) in replica.verdicts() {
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
fn a_name_that_does_not_resolve_is_reported_and_judging_continues() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("missing");
    let mut replica = Replica::start(&file, "60s");
    let line = loop {
        let line = replica.running.line();
        if line["peers"].is_string() {
            break line;
        }
    };
    assert_eq!(line["peers"], file.to_str().unwrap());
    assert_eq!(replica.metric("spanscore_peers_unresolved"), Some(1));
    let from = sidecar::now().unix_nanos + 11 * SECOND;
    run(1, from)
        .into_iter()
        .for_each(|spans| replica.take(spans));
    assert_eq!(replica.verdicts()[&id(1)], verdict("pass", "root_ended"));
}
