//! A pipeline that is rebuilt from a journal's records and marks, after a crash at any moment, says
//! what an undisturbed one says: every score once, with the same revisions. The journal is a list
//! here; `tests/it/durability.rs` kills the program with a real one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use spanscore::assemble::Settings;
use spanscore::export::score_line;
use spanscore::pipeline::{Judged, Pipeline, Rebuilding, Rules, TraceMark};
use spanscore::receive::scan::scan;
use spanscore::sidecar;
use spanscore::span::{Batch, Now};

use crate::support::records::rules_of;
use crate::support::spans::{SpanCall, request, spans_of_run};

const N_TRACES: u64 = 24;

/// A process: what it has in memory, and what a crash leaves.
struct Process {
    rules: Rules,
    start: Now,
    seconds: u64,
    pipeline: Pipeline,
    /// Judged, and not yet durable.
    unsent: Vec<String>,
    unwritten: Vec<(Vec<u8>, u64)>,
    disk: Disk,
}

#[derive(Default)]
struct Disk {
    /// From this record on the score plane needs them.
    needed: u64,
    records: BTreeMap<u64, Record>,
    next: u64,
    sent: Vec<String>,
}

enum Record {
    Request(Vec<u8>),
    Marks(Vec<u8>),
}

fn rules() -> Rules {
    rules_of(json!([
        { "name": "no rm", "evaluate": { "tool_calls": { "disallowed": ["^rm$"] } } },
        { "name": "one look", "evaluate": { "efficiency": { "max_duplicates": 0 } } },
        {
            "name": "order of each agent", "scope": "agent",
            "evaluate": { "tool_call_order": { "tool_calls_order": ["look", "rm"] } },
        },
    ]))
}

fn settings() -> Settings {
    Settings {
        settle: Duration::from_secs(5),
        max_settle: Duration::from_secs(15),
        settle_remote: Duration::from_secs(15),
        restart_guard: Some(Duration::from_secs(120)),
        ..Settings::replay()
    }
}

impl Process {
    fn new() -> Self {
        let start = sidecar::now();
        let mut pipeline = Pipeline::new(settings(), start);
        pipeline.mark_judged();
        pipeline.restore_memory(0);
        Self {
            rules: rules(),
            start,
            seconds: 0,
            pipeline,
            unsent: Vec::new(),
            unwritten: Vec::new(),
            disk: Disk::default(),
        }
    }

    fn now(&self) -> Now {
        Now {
            instant: self.start.instant + Duration::from_secs(self.seconds),
            unix_nanos: self.start.unix_nanos + self.seconds * 1_000_000_000,
        }
    }

    fn batch(&self, body: &[u8]) -> Batch {
        scan(body, Some(self.rules.keys())).unwrap().batch
    }

    fn receive(&mut self, body: Vec<u8>) {
        let record = self.disk.append(Record::Request(body.clone()));
        let (batch, now) = (self.batch(&body), self.now());
        let mut judged = Judged::default();
        self.pipeline
            .accept_record(&self.rules, batch, record, now, &mut judged);
        self.take(&judged);
    }

    fn wait(&mut self, seconds: u64) {
        self.seconds += seconds;
        let judged = self.pipeline.advance(&self.rules, self.now());
        self.take(&judged);
    }

    fn take(&mut self, judged: &Judged) {
        self.unsent
            .extend(judged.evaluations.iter().map(score_line::json_text));
        self.unwritten.extend(judged.marks.encode());
    }

    /// Scores leave, marks are written, and what is no longer needed goes.
    fn flush(&mut self) {
        self.disk.sent.append(&mut self.unsent);
        for (marks, _) in self.unwritten.drain(..) {
            self.disk.append(Record::Marks(marks));
        }
        let needed = self.pipeline.oldest_record().unwrap_or(self.disk.next);
        self.disk.needed = needed;
        self.disk.records = self.disk.records.split_off(&needed);
    }

    fn crash(&mut self) {
        let disk = std::mem::take(&mut self.disk);
        *self = Self {
            seconds: self.seconds + 1,
            start: self.start,
            disk,
            ..Self::new()
        };
        let mut marks = Vec::new();
        for record in self.disk.records.values() {
            if let Record::Marks(bytes) = record {
                marks.extend(TraceMark::decode_all(bytes, &self.rules));
            }
        }
        let requests: Vec<(u64, Batch)> = self
            .disk
            .records
            .iter()
            .filter_map(|(number, record)| match record {
                Record::Request(body) => Some((*number, self.batch(body))),
                Record::Marks(_) => None,
            })
            .collect();
        let now = self.now();
        let mut rebuilding = Rebuilding::new(&mut self.pipeline, &self.rules, marks, now);
        for (number, batch) in requests {
            rebuilding.take(batch, number);
        }
        rebuilding.finish();
    }
}

impl Disk {
    fn append(&mut self, record: Record) -> u64 {
        let number = self.next;
        self.next += 1;
        self.records.insert(number, record);
        number
    }
}

/// Requests of three phases: the runs, then late spans of some, then further ones.
fn phases(rng: &mut fastrand::Rng) -> [Vec<Vec<u8>>; 3] {
    let mut phases: [Vec<_>; 3] = Default::default();
    for trace in 1..=N_TRACES {
        let names = ["look", "look", "rm", "write", "list", "rm"];
        let calls = names
            .iter()
            .take(3 + (trace % 4) as usize)
            .map(|name| SpanCall {
                name: (*name).to_owned(),
                ..SpanCall::default()
            });
        for (idx, span) in spans_of_run(trace, &[], &calls.collect::<Vec<_>>())
            .into_iter()
            .enumerate()
        {
            // Some runs have late spans, and of those some have them twice.
            let phase = match idx {
                0..3 => 0,
                3 => (trace % 2) as usize,
                _ => (trace % 3) as usize,
            };
            phases[phase].push(span);
        }
    }
    phases.map(|mut spans| {
        rng.shuffle(&mut spans);
        spans
            .chunks(5)
            .map(|spans| request(spans.to_vec()))
            .collect()
    })
}

/// Runs all phases. `crashes` decides at each step whether the process crashes there.
fn run(seed: u64, mut crashes: impl FnMut() -> bool) -> (Vec<String>, usize) {
    let phases = phases(&mut fastrand::Rng::with_seed(seed));
    let mut process = Process::new();
    let mut n_crashes = 0;
    let mut step = |process: &mut Process| {
        if crashes() {
            n_crashes += 1;
            process.crash();
        }
    };
    for phase in phases {
        for body in phase {
            process.receive(body);
            step(&mut process);
        }
        process.wait(20);
        // Judged, and lost again if it crashes here.
        step(&mut process);
        process.wait(20);
        process.flush();
        step(&mut process);
    }
    (process.disk.sent, n_crashes)
}

#[test]
fn crashes_at_any_moment_change_no_score_and_repeat_none() {
    for seed in 0..6 {
        let (expected, _) = run(seed, || false);
        let n_revised = expected
            .iter()
            .filter(|line| !line.contains("\"revision\":0"))
            .count();
        assert!(n_revised > 10, "{n_revised} of {}", expected.len());
        let mut expected = expected;
        expected.sort();
        let mut rng = fastrand::Rng::with_seed(seed + 1_000);
        let mut n_all = 0;
        for share in [40, 10, 3, 1] {
            let (mut sent, n_crashes) = run(seed, || rng.u32(..share) == 0);
            sent.sort();
            assert_eq!(sent, expected, "seed {seed}, {n_crashes} crashes");
            n_all += n_crashes;
        }
        assert!(n_all > 40, "{n_all} crashes");
    }
}

#[test]
fn a_trace_whose_spans_are_gone_takes_no_late_span() {
    let mut process = Process::new();
    let mut spans = spans_of_run(
        1,
        &[],
        &vec![
            SpanCall {
                name: "rm".to_owned(),
                ..SpanCall::default()
            };
            3
        ],
    );
    let late = spans.pop().unwrap();
    process.receive(request(spans));
    process.wait(20);
    process.flush();
    let first = process.disk.sent.len();
    assert_eq!(first, 3);
    // Its request was given up, its mark was not.
    process.disk.records.remove(&0);
    process.crash();
    process.receive(request(vec![late]));
    process.wait(20);
    process.flush();
    assert_eq!(process.disk.sent.len(), first, "nothing is judged anew");
}

#[test]
fn a_trace_that_may_have_lost_spans_is_incomplete() {
    let mut process = Process::new();
    let spans = spans_of_run(
        1,
        &[],
        &vec![
            SpanCall {
                name: "rm".to_owned(),
                ..SpanCall::default()
            };
            3
        ],
    );
    process.receive(request(spans));
    process.crash();
    process.pipeline.mark_restored_incomplete();
    process.wait(20);
    process.flush();
    assert!(
        process
            .disk
            .sent
            .iter()
            .all(|line| line.contains("\"completeness\":\"incomplete\"")),
        "{:?}",
        process.disk.sent
    );
}
