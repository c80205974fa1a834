//! Rebuilds a pipeline from a journal's records and marks after a crash at any moment. It must
//! report what an undisturbed pipeline reports: every score once, with the same revisions. The
//! journal is a list here; `tests/it/durability.rs` kills the program with a real journal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::{now, shown};
use judge::assemble::{SessionSettings, Settings};
use judge::pipeline::{Judged, JudgementSink, Pipeline, Rebuilding, Rules, TraceMark};
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::scan::scan;
use otlp::span::{Batch, Now};
use serde_json::json;

use crate::support::records::rules_of;
use crate::support::spans::{SpanCall, request, spans_of_run};

const N_TRACES: u64 = 24;
const N_SESSIONS: u64 = 7;

/// A process: its state in memory, and the disk, which survives a crash.
struct Process {
    rules: Rules,
    start: Now,
    seconds: u64,
    pipeline: Pipeline,
    /// Judgements that are not durable yet.
    unsent: Vec<String>,
    unwritten: Vec<(Vec<u8>, u64)>,
    disk: Disk,
}

/// The judgements in order of delivery. A mark belongs to the scores of its slice.
#[derive(Default)]
struct Slices(Vec<Judged>);

impl JudgementSink for Slices {
    fn take(&mut self, slice: &mut Judged) {
        self.0.push(std::mem::take(slice));
    }

    fn beat(&mut self) {}
}

#[derive(Default)]
struct Disk {
    /// The number of the first record that scoring needs.
    needed: u64,
    /// The time at which the trace history starts.
    since: u64,
    records: BTreeMap<u64, Record>,
    next: u64,
    sent: Vec<String>,
    /// The verdict ids in the alarms.
    alarms: Vec<String>,
}

enum Record {
    Request(Vec<u8>),
    Marks(Vec<u8>),
}

fn rules() -> Rules {
    rules_of(json!([
        {
            "name": "no rm", "alarm": true,
            "evaluate": { "tool_calls": { "disallowed": ["^rm$"] } },
        },
        { "name": "one look", "evaluate": { "efficiency": { "max_duplicates": 0 } } },
        {
            "name": "order of each agent", "scope": "agent",
            "evaluate": { "tool_call_order": { "tool_calls_order": ["look", "rm"] } },
        },
        {
            "name": "no rm in a session", "scope": "session",
            "evaluate": { "tool_calls": { "disallowed": ["^rm$"] } },
        },
        {
            "name": "a look in a session", "scope": "session",
            "evaluate": { "tool_calls": { "required": ["^look$"] } },
        },
    ]))
}

const SESSION_ENDS_AFTER: u64 = 600;

fn settings() -> Settings {
    Settings {
        settle: Duration::from_secs(5),
        max_settle: Duration::from_secs(15),
        settle_remote: Duration::from_secs(15),
        restart_guard: Some(Duration::from_secs(120)),
        session: SessionSettings {
            inactive: Duration::from_secs(SESSION_ENDS_AFTER),
            ..Settings::replay().session
        },
        ..Settings::replay()
    }
}

impl Process {
    fn new() -> Self {
        let start = now();
        let mut pipeline = Pipeline::new(settings(), start);
        pipeline.mark_judged();
        pipeline.restore_memory(0);
        let rules = rules();
        Rebuilding::new(&mut pipeline, &rules, Vec::new(), start).restore_session_history(0);
        Self {
            rules,
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
        scan(body, Some(&self.rules)).unwrap().batch
    }

    fn receive(&mut self, body: Vec<u8>) {
        let record = self.disk.append(Record::Request(body.clone()));
        let (batch, now) = (self.batch(&body), self.now());
        let mut slices = Slices::default();
        self.pipeline
            .take_record(&self.rules, batch, record, now, &mut slices);
        self.take(slices);
    }

    fn wait(&mut self, seconds: u64) {
        self.seconds += seconds;
        let mut slices = Slices::default();
        let now = self.now();
        self.pipeline.advance_into(&self.rules, now, &mut slices);
        self.take(slices);
    }

    fn take(&mut self, slices: Slices) {
        slices.0.iter().for_each(|judged| self.take_slice(judged));
    }

    fn take_slice(&mut self, judged: &Judged) {
        self.unsent.extend(judged.evaluations.iter().map(shown));
        if judged.alarms.is_empty() {
            return self.unwritten.extend(judged.marks.encode());
        }
        // Alarms and their marks are written immediately, after the scores that precede them.
        self.disk.sent.append(&mut self.unsent);
        for (marks, _) in self.unwritten.drain(..) {
            self.disk.append(Record::Marks(marks));
        }
        let alarms = judged.alarms.iter();
        let ids = alarms.map(|alarm| alarm.verdict_id().unwrap());
        self.disk.alarms.extend(ids);
        let (marks, _) = judged.marks.encode().unwrap();
        self.disk.append(Record::Marks(marks));
    }

    fn flush(&mut self) {
        self.disk.sent.append(&mut self.unsent);
        for (marks, _) in self.unwritten.drain(..) {
            self.disk.append(Record::Marks(marks));
        }
        let needed = self.pipeline.oldest_record().unwrap_or(self.disk.next);
        self.disk.release(needed);
    }

    fn crash(&mut self) {
        let disk = std::mem::take(&mut self.disk);
        let rules = std::mem::replace(&mut self.rules, rules());
        *self = Self {
            rules,
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
        let records = self.disk.records.iter();
        let requests = records.filter_map(|(number, record)| match record {
            Record::Request(body) => Some((*number, self.batch(body))),
            _ => None,
        });
        let requests = requests.collect::<Vec<_>>();
        let now = self.now();
        self.pipeline.restore_memory(self.disk.since);
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

    fn release(&mut self, needed: u64) {
        self.needed = needed.max(self.needed);
        self.records = self.records.split_off(&self.needed);
    }
}

/// Returns requests in three phases: the first three spans of each run, and later spans that are
/// sent in the same phase or in one of the two later ones.
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
        let session = format!("session {}", trace % N_SESSIONS);
        let attributes = [("session.id", &*session)];
        for (idx, span) in spans_of_run(trace, &attributes, &calls.collect::<Vec<_>>())
            .into_iter()
            .enumerate()
        {
            // Some runs have late spans, in one later phase or in two.
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

/// Runs all phases. `crashes` decides at each step whether the process crashes.
fn run(seed: u64, mut crashes: impl FnMut() -> bool) -> (Disk, usize) {
    let phases = phases(&mut fastrand::Rng::with_seed(seed));
    let mut process = Process::new();
    let mut n_crashes = 0;
    let mut crashes = || {
        let is_one = crashes();
        n_crashes += usize::from(is_one);
        is_one
    };
    // In the last phase, each session gets one more turn after it has ended.
    let late = (1..=N_SESSIONS).map(|trace| {
        let session = format!("session {}", trace % N_SESSIONS);
        let spans = spans_of_run(
            N_TRACES + trace,
            &[("session.id", &session)],
            &[SpanCall {
                name: "rm".to_owned(),
                ..SpanCall::default()
            }],
        );
        request(spans)
    });
    let phases = phases.into_iter().chain([late.collect()]);
    for (phase, number) in phases.zip(0..) {
        for body in phase {
            if crashes() {
                // The process acknowledged the request and crashed before judging it.
                process.disk.append(Record::Request(body));
                process.crash();
            } else {
                process.receive(body);
            }
            if crashes() {
                process.crash();
            }
        }
        // Sessions end twice: before and after the late turns.
        let waits = if number < 2 { &[20][..] } else { &[20, SESSION_ENDS_AFTER + 1] };
        for wait in waits {
            process.wait(*wait);
            // A crash here loses a judgement that was already made.
            if crashes() {
                process.crash();
            }
            process.wait(*wait);
            process.flush();
            if crashes() {
                process.crash();
            }
        }
    }
    (process.disk, n_crashes)
}

#[test]
fn crashes_at_any_moment_change_no_score_and_repeat_none() {
    for seed in 0..6 {
        let (mut expected, _) = run(seed, || false);
        let n_revised = expected
            .sent
            .iter()
            .filter(|line| !line.contains("\"revision\":0"))
            .count();
        assert!(n_revised > 10, "{n_revised} of {}", expected.sent.len());
        for (label, revision) in [("pass", 0), ("fail", 0), ("fail", 1)] {
            let is_such = |line: &&String| {
                let of = [
                    "in a session",
                    label,
                    "silent",
                    &format!("revision\":{revision}"),
                ];
                of.iter().all(|part| line.contains(part))
            };
            let n_such = expected.sent.iter().filter(is_such).count();
            assert!(
                n_such > 1,
                "{n_such} of {label}, {revision}: {:?}",
                expected.sent
            );
        }
        assert!(
            expected.alarms.len() > 5,
            "{} alarms",
            expected.alarms.len()
        );
        expected.sent.sort();
        expected.alarms.sort();
        let mut rng = fastrand::Rng::with_seed(seed + 1_000);
        let mut n_all = 0;
        for share in [40, 10, 3, 1] {
            let (mut disk, n_crashes) = run(seed, || rng.u32(..share) == 0);
            disk.sent.sort();
            disk.alarms.sort();
            assert_eq!(disk.sent, expected.sent, "seed {seed}, {n_crashes} crashes");
            assert_eq!(
                disk.alarms, expected.alarms,
                "seed {seed}, {n_crashes} crashes"
            );
            n_all += n_crashes;
        }
        assert!(n_all > 40, "{n_all} crashes");
    }
}

/// Moves a run to shortly before the process starts. A run that began before the process's trace
/// history could lack spans.
fn at_present(spans: &mut [Span], start: Now) {
    const RECORDED: u64 = 1_700_000_000_000_000_000;
    let before = start.unix_nanos - 10_000_000_000;
    for span in spans {
        span.start_time_unix_nano += before - RECORDED;
        span.end_time_unix_nano += before - RECORDED;
    }
}

/// Judges a run whose root arrives last, after `leave` and a crash. Returns the run's completeness.
fn completeness(leave: impl FnOnce(&mut Process)) -> String {
    let mut process = Process::new();
    let mut spans = spans_of_run(1, &[], &vec![SpanCall::default(); 3]);
    at_present(&mut spans, process.start);
    let root = spans.remove(0);
    for span in spans {
        process.receive(request(vec![span]));
    }
    leave(&mut process);
    // The records of older traces are deleted, so the trace history starts now.
    process.disk.since = process.now().unix_nanos;
    process.crash();
    process.receive(request(vec![root]));
    process.wait(20);
    process.flush();
    let lines = process.disk.sent.iter().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["completeness"].as_str().unwrap().to_owned()
    });
    let seen: BTreeSet<String> = lines.collect();
    seen.into_iter().collect::<Vec<_>>().join(", ")
}

#[test]
fn a_trace_that_is_given_up_is_incomplete() {
    // The oldest segments, which contained the trace's first records, are deleted.
    assert_eq!(
        completeness(|process| process.disk.release(2)),
        "incomplete"
    );
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
    // The trace's request is lost, but its mark is not.
    process.disk.records.remove(&0);
    process.crash();
    process.receive(request(vec![late]));
    process.wait(20);
    process.flush();
    assert_eq!(process.disk.sent.len(), first, "nothing is judged anew");
}

#[test]
fn a_restart_without_the_criterion_withdraws_its_alarm() {
    let mut process = Process::new();
    let call = |name: &str| SpanCall {
        name: name.to_owned(),
        ..SpanCall::default()
    };
    let mut spans = spans_of_run(1, &[], &[call("rm"), call("look")]);
    let root = spans.remove(0);
    process.receive(request(spans));
    assert_eq!(process.disk.alarms.len(), 1);
    process.rules = rules_of(json!([]));
    // The second start reads records that the first start did not rewrite.
    process.crash();
    process.crash();
    process.receive(request(vec![root]));
    process.wait(20);
    assert_eq!(process.disk.alarms.len(), 2);
    assert_eq!(process.disk.alarms[1], process.disk.alarms[0]);
    process.wait(20);
    assert_eq!(process.disk.alarms.len(), 2, "once");
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
    let now = process.now();
    process.pipeline.mark_restored_incomplete(now);
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
