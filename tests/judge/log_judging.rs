//! Tests judging from a log. The judgements and their times must be a function of the log. A
//! successor that takes over at any moment must continue without a missing, partial or wrong score,
//! and must mark every score that it repeats. The log is a list here; `tests/kafka/run` uses a real
//! broker.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{now, shown};
use judge::assemble::Settings;
use judge::pipeline::{
    Judged, LogBatch, LogJudge, LogLimits, LogMark, LogProgress, LogStart, Rules,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::scan::scan;
use serde_json::{Value, json};

use crate::support::records::rules_of;
use crate::support::repetitions::number;
use crate::support::spans::{SpanCall, request, spans_of_run};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const BEGIN: u64 = 1_700_000_000 * SECOND;
const N_TRACES: u64 = 24;

const LIMITS: LogLimits = LogLimits {
    overlap: Duration::from_secs(120),
    max_replay: Duration::from_secs(600),
};

fn rules() -> Rules {
    rules_of(json!([
        { "name": "no rm", "evaluate": { "tool_calls": { "disallowed": ["^rm$"] } } },
        { "name": "one look", "evaluate": { "efficiency": { "max_duplicates": 0 } } },
    ]))
}

fn settings() -> Settings {
    Settings {
        settle: Duration::from_secs(5),
        max_settle: Duration::from_secs(15),
        settle_remote: Duration::from_secs(15),
        inactive: Duration::from_secs(180),
        restart_guard: Some(Duration::from_secs(120)),
        recent_ttl: Duration::from_secs(3_600),
        ..Settings::replay()
    }
}

/// A record: its arrival time and its request.
type Record = (u64, Vec<u8>);

/// Returns the spans of a run with their arrival times. In a short run, the agent's span precedes
/// the last span, which may be late.
fn run_of(trace: u64, begin: u64, step: u64, late_by: u64) -> Vec<(u64, Span)> {
    let names = ["look", "look", "rm", "write", "list", "rm"];
    let calls = names.iter().take(3 + (trace % 4) as usize);
    let calls = calls.map(|name| SpanCall {
        name: (*name).to_owned(),
        ..SpanCall::default()
    });
    let mut spans = spans_of_run(trace, &[], &calls.collect::<Vec<_>>());
    let root = spans.remove(0);
    let last = spans.len() as u64;
    // A run longer than `overlap` has no late span.
    let has_late = step <= SECOND;
    spans.insert(spans.len() - usize::from(has_late), root);
    let arrival = |idx: u64| begin + idx * step + if idx == last { late_by } else { 0 };
    let timed = spans.into_iter().enumerate().map(|(idx, mut span)| {
        let (idx, at) = (idx as u64, arrival(idx as u64));
        span.start_time_unix_nano = if span.parent_span_id.is_empty() {
            begin - SECOND / 2
        } else {
            begin + idx * step - SECOND / 4
        };
        span.end_time_unix_nano = if span.parent_span_id.is_empty() {
            begin + last * step
        } else {
            begin + idx * step - MILLI
        };
        (at, span)
    });
    timed.collect()
}

/// Returns a log of runs that overlap. Some last several minutes, some have a late span, and some
/// send a span each millisecond.
fn log(seed: u64) -> Vec<Record> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut arrivals = Vec::new();
    for trace in 1..=N_TRACES {
        let begin = BEGIN + rng.u64(..1_500) * SECOND;
        let step = [MILLI, SECOND, 40 * SECOND][rng.usize(..3)];
        // A late span finds its trace only if the trace began at most `overlap` before it.
        let late_by = if step > SECOND {
            0
        } else {
            [0, 0, 30 * SECOND, 100 * SECOND][rng.usize(..4)]
        };
        arrivals.extend(run_of(trace, begin, step, late_by));
    }
    arrivals.sort_by_key(|(at, _)| *at);
    let mut records: Vec<Record> = Vec::new();
    for chunk in arrivals.chunk_by(|left, right| left.0 == right.0 && rng.bool()) {
        let spans = chunk.iter().map(|(_, span)| span.clone()).collect();
        records.push((chunk[0].0, request(spans)));
    }
    records
}

/// A process that judges the log, and the scores that it has sent.
struct Owner {
    judge: LogJudge,
    rules: Rules,
    sent: Vec<Sent>,
    /// Some of the marks, each with the number of scores sent before it.
    marks: Vec<(usize, LogMark)>,
}

#[derive(Debug, Clone, PartialEq)]
struct Sent {
    line: String,
    is_replayed: bool,
}

impl Sent {
    /// Returns the key under which a backend stores one score.
    fn key(&self) -> (String, String, u64) {
        let line: Value = serde_json::from_str(&self.line).unwrap();
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        (
            text("trace_id"),
            text("criterion"),
            line["revision"].as_u64().unwrap(),
        )
    }
}

impl Owner {
    fn new(offset: u64, inherited: Option<LogProgress>) -> Self {
        let start = LogStart {
            offset,
            is_beginning: offset == 0,
            inherited,
        };
        Self {
            judge: LogJudge::new(settings(), LIMITS, start, now().instant),
            rules: rules(),
            sent: Vec::new(),
            marks: Vec::new(),
        }
    }

    fn keep(&mut self, judged: &Judged) {
        self.sent
            .extend(judged.evaluations.iter().map(|evaluation| Sent {
                line: shown(evaluation),
                is_replayed: evaluation.replayed,
            }));
        let mark = self.judge.mark();
        self.marks.extend(mark.map(|mark| (self.sent.len(), mark)));
    }

    fn take(&mut self, offset: usize, (at, body): &Record) {
        let batch = scan(body, Some(&self.rules)).unwrap().batch;
        let record = LogBatch {
            offset: offset as u64,
            unix_nanos: *at,
            batch,
            torn: Vec::new(),
        };
        let mut judged = Judged::default();
        self.judge.take(record, &self.rules, &mut judged);
        self.keep(&judged);
    }

    fn advance(&mut self, at: u64) {
        let mut judged = Judged::default();
        self.judge.advance(at, &self.rules, &mut judged);
        self.keep(&judged);
    }

    /// Reads the log up to `end`. At the end of the log, waits until everything is judged.
    fn read(&mut self, log: &[Record], end: usize) {
        let from = self.judge.next_offset() as usize;
        for (offset, record) in log.iter().enumerate().take(end).skip(from) {
            self.take(offset, record);
        }
        if end == log.len() {
            self.advance(log[end - 1].0 + 3_600 * SECOND);
        }
    }
}

fn undisturbed(log: &[Record]) -> Vec<Sent> {
    let mut owner = Owner::new(0, None);
    owner.read(log, log.len());
    assert!(owner.sent.iter().all(|sent| !sent.is_replayed));
    owner.sent
}

#[test]
fn what_is_judged_does_not_depend_on_when_the_time_is_told() {
    for seed in 0..4 {
        let log = log(seed);
        let expected = undisturbed(&log);
        let n_revised = expected.iter().filter(|sent| sent.key().2 > 0).count();
        assert!(n_revised > 10, "{n_revised} of {}", expected.len());
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut owner = Owner::new(0, None);
        for (offset, record) in log.iter().enumerate() {
            if offset > 0 {
                let since = log[offset - 1].0;
                owner.advance(since + rng.u64(..=record.0 - since));
            }
            owner.take(offset, record);
        }
        owner.read(&log, log.len());
        assert!(owner.sent == expected, "seed {seed}");
    }
}

/// A second owner takes over after `n_read` records, from the mark `n_left` marks before the last
/// one. Compares the scores of both owners with those of a single owner that was never interrupted.
fn take_over(log: &[Record], expected: &[Sent], n_read: usize, n_left: usize, waits: u64) {
    let mut first = Owner::new(0, None);
    first.read(log, n_read);
    if n_read < log.len() && waits > 0 {
        let until = (log[n_read - 1].0 + waits).min(log[n_read].0);
        first.advance(until);
    }
    let (n_sent, left) = first.marks[first.marks.len().saturating_sub(n_left + 1)];
    let progress = first.judge.progress(Some(left), first.judge.clock());
    assert!(progress.mark.replay <= progress.mark.open && progress.mark.open <= n_read as u64);
    let mut second = Owner::new(progress.mark.replay, Some(progress));
    second.read(log, log.len());

    let case = format!("after {n_read} records, {n_left} marks before, {waits}");
    let expected: BTreeMap<_, _> = expected.iter().map(|it| (it.key(), &it.line)).collect();
    // The last scores that the first owner sent may or may not have arrived.
    for n_arrived in [n_sent, first.sent.len()] {
        let mut sent: BTreeMap<_, &String> = BTreeMap::new();
        for it in &first.sent[..n_arrived] {
            assert!(sent.insert(it.key(), &it.line).is_none(), "{case}: {it:?}");
        }
        for it in &second.sent {
            if let Some(before) = sent.insert(it.key(), &it.line) {
                assert!(it.is_replayed, "{case}: comes twice unmarked: {it:?}");
                assert_eq!(before, &it.line, "{case}: is another");
            }
        }
        for (key, line) in &expected {
            assert_eq!(sent.get(key), Some(line), "{case}");
        }
        assert_eq!(sent.len(), expected.len(), "{case}: more than expected");
    }
}

#[test]
fn a_takeover_after_any_record_changes_no_score() {
    let log = log(1);
    let expected = undisturbed(&log);
    // Takes over after every second record; `.ci/extended properties` does so after every record.
    let step = if number("SPANSCORE_TEST_ROUNDS", 1) == 1 { 2 } else { 1 };
    for n_read in (1..=log.len()).step_by(step) {
        let n_left = [0, n_read % 9][n_read / step % 2];
        take_over(
            &log,
            &expected,
            n_read,
            n_left,
            SECOND * (n_read as u64 % 8),
        );
    }
}

#[test]
fn a_clean_handover_repeats_nothing() {
    let log = log(7);
    let expected = undisturbed(&log);
    for n_read in (1..log.len()).step_by(3) {
        let (mut owner, mut sent) = (Owner::new(0, None), Vec::new());
        for end in [n_read, n_read + (log.len() - n_read) / 2, log.len()] {
            owner.read(&log, end);
            let (_, left) = *owner.marks.last().unwrap();
            let progress = owner.judge.progress(Some(left), owner.judge.clock());
            let next = Owner::new(progress.mark.replay, Some(progress));
            sent.extend(std::mem::replace(&mut owner, next).sent);
        }
        assert!(sent == expected, "after {n_read} records");
    }
}

#[test]
fn a_trace_that_is_open_for_longer_than_is_read_again_is_incomplete_and_not_missing() {
    let minute = 60 * SECOND;
    // This run sends a span every two and a half minutes, for a quarter of an hour.
    let long = run_of(3, BEGIN, 5 * minute / 2, 0);
    let beside = (0..200).flat_map(|n| run_of(100 + 4 * n, BEGIN + n * 5 * SECOND, MILLI, 0));
    let mut arrivals: Vec<_> = long.into_iter().chain(beside).collect();
    arrivals.sort_by_key(|(at, _)| *at);
    let log: Vec<Record> = arrivals
        .into_iter()
        .map(|(at, span)| (at, request(vec![span])))
        .collect();
    let n_read = log.partition_point(|(at, _)| *at < BEGIN + 12 * minute);
    let mut first = Owner::new(0, None);
    first.read(&log, n_read);
    let (_, left) = *first.marks.last().unwrap();
    assert!(left.replay > 0 && left.replay == left.open, "{left:?}");
    let progress = first.judge.progress(Some(left), first.judge.clock());
    let mut second = Owner::new(progress.mark.replay, Some(progress));
    second.read(&log, log.len());
    let of_long = |sent: &&Sent| sent.key().0.ends_with("0000000000000003");
    assert_eq!(first.sent.iter().filter(of_long).count(), 0);
    let of_long: Vec<&Sent> = second.sent.iter().filter(of_long).collect();
    assert!(!of_long.is_empty());
    for sent in of_long {
        assert!(
            sent.line.contains("\"completeness\":\"incomplete\""),
            "{sent:?}"
        );
    }
}
