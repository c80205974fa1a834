//! Copies open traces into new records before the segments with their spans are removed. A separate
//! thread copies, because a disk may take any time to read.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use judge::pipeline::{CarriedTracesNote, OpenTrace, Rules, TraceMark};
use otlp::span::TraceId;
use otlp::{scan_logs, scan_pick};

use super::now;
use crate::config::Signal;
use crate::journal::{
    AppendError, CarriedRecords, CarryRequest, JournalLog, Record, RecordKind, Stored,
};
use crate::telemetry::{Telemetry, TracesCarried, TracesGivenUp};

/// Maximum bytes of records that are read at once.
const MAX_READ: usize = 1 << 20;

/// Maximum number of queued jobs. There is at most one for each scoring thread.
const MAX_JOBS: usize = 64;

/// Maximum number of traces in one record.
const MAX_TRACES: usize = 16_384;

/// Interval between log lines about traces that were not copied.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// A handle to the copying thread, which ends when all handles are dropped.
#[derive(Debug, Clone)]
pub(super) struct Carrier(SyncSender<CarryJob>);

/// Open traces of one scoring thread, to be copied into new records.
#[derive(Debug)]
pub(super) struct CarryJob {
    pub(super) records: CarriedRecords,
    pub(super) request: CarryRequest,
    pub(super) traces: Vec<OpenTrace>,
    pub(super) rules: Arc<Rules>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) outcome: SyncSender<CarryOutcome>,
}

/// The outcome of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CarryOutcome {
    pub(super) below: u64,
    /// Traces that the journal has in full in the records from `below` on.
    pub(super) carried: Vec<TraceId>,
    /// Traces that the journal does not have in full.
    pub(super) given_up: Vec<TraceId>,
    /// End of the job in Unix nanoseconds.
    pub(super) ended: u64,
}

/// A job in progress.
#[derive(Debug)]
pub(super) struct Underway {
    /// The oldest record that the job reads.
    pub(super) from: u64,
    receiver: Receiver<CarryOutcome>,
    /// `Some(None)` if the job failed and may be retried.
    outcome: Option<Option<CarryOutcome>>,
}

impl Carrier {
    pub(super) fn start(log: JournalLog) -> io::Result<Self> {
        let (sender, jobs) = sync_channel::<CarryJob>(MAX_JOBS);
        thread::Builder::new()
            .name("journal-carry".to_owned())
            .spawn(move || {
                let (mut n_unsaid, mut say_at) = (0, now().instant);
                for job in jobs {
                    n_unsaid += job.run(&log);
                    let time = now().instant;
                    if n_unsaid > 0 && time >= say_at {
                        TracesGivenUp { n_traces: n_unsaid }.emit();
                        (n_unsaid, say_at) = (0, time + REPEAT_AFTER);
                    }
                }
            })?;
        Ok(Self(sender))
    }

    /// Enqueues a job, unless the thread is busy.
    pub(super) fn begin(
        &self,
        job: impl FnOnce(SyncSender<CarryOutcome>) -> CarryJob,
    ) -> Option<Underway> {
        let (tell, receiver) = sync_channel(1);
        let job = job(tell);
        let from = job.traces.iter().map(|trace| trace.needed_from).min()?;
        self.0.try_send(job).ok()?;
        Some(Underway {
            from,
            receiver,
            outcome: None,
        })
    }
}

impl Underway {
    pub(super) fn has_ended(&mut self) -> bool {
        if self.outcome.is_none() {
            self.outcome = match self.receiver.try_recv() {
                Ok(outcome) => Some(Some(outcome)),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(None),
            };
        }
        self.outcome.is_some()
    }

    /// Returns the outcome; `None` if the job failed and may be retried.
    pub(super) fn into_outcome(self) -> Option<CarryOutcome> {
        self.outcome.flatten()
    }
}

impl CarryJob {
    /// Runs the job. Returns the number of traces that were not copied.
    fn run(self, log: &JournalLog) -> usize {
        let mut carried = CarriedTraces::new(&self.traces, self.request.max_bytes);
        let copied = self.copy(log, &mut carried);
        let n_bytes = carried.n_written;
        let outcome = copied.and_then(|()| self.finish(log, &carried));
        let n_given_up = outcome.as_ref().map_or(0, |outcome| outcome.given_up.len());
        TracesCarried {
            n_bytes,
            n_given_up,
        }
        .emit(&self.telemetry);
        if let Ok(outcome) = outcome {
            // The receiver is gone at the end of the process.
            let _ = self.outcome.try_send(outcome);
        }
        n_given_up
    }

    /// Copies the traces' spans out of the records.
    ///
    /// # Errors
    /// The log refused a record; earlier records may have been appended. The job may be retried.
    fn copy(&self, log: &JournalLog, carried: &mut CarriedTraces) -> Result<(), AppendError> {
        let mut reader = self.records.reader();
        let needed = self.traces.iter().map(|trace| trace.needed_from);
        let (mut from, below) = (needed.min().unwrap_or(u64::MAX), self.request.below);
        while from < below && !carried.traces.is_empty() {
            let stretch = match reader.read(from, below, MAX_READ) {
                Ok(stretch) if stretch.damage.is_empty() => stretch,
                // An unreadable record may belong to any trace.
                _ => {
                    carried.traces.clear();
                    break;
                }
            };
            from = stretch.next;
            let records = stretch.records.into_iter();
            append(
                log,
                records.filter_map(|record| carried.pick(record, &self.rules)),
            )?;
        }
        Ok(())
    }

    /// Appends the marks of the traces that were copied in full.
    fn finish(
        &self,
        log: &JournalLog,
        carried: &CarriedTraces,
    ) -> Result<CarryOutcome, AppendError> {
        // Read `begin` after the records: a trace that needs nothing before `begin` was read in
        // full.
        let begin = self.records.begin();
        let is_whole = |trace: &OpenTrace| {
            trace.needed_from >= begin && carried.traces.contains_key(&trace.trace_id)
        };
        let traces = self.traces.iter().cloned();
        let (whole, given_up): (Vec<_>, Vec<_>) = traces.partition(is_whole);
        let below = self.request.below;
        let notes = whole.chunks(MAX_TRACES).map(|traces| {
            let traces = CarriedTracesNote::encode(below, traces);
            Record::open(log.unix_nanos(), Bytes::from(traces))
        });
        append(log, notes)?;
        let ids = |traces: Vec<OpenTrace>| traces.iter().map(|trace| trace.trace_id).collect();
        Ok(CarryOutcome {
            below,
            carried: ids(whole),
            given_up: ids(given_up),
            ended: log.unix_nanos(),
        })
    }
}

/// Appends records and waits until they are durable.
fn append(log: &JournalLog, records: impl Iterator<Item = Record>) -> Result<(), AppendError> {
    let records: Vec<Record> = records.collect();
    let (tell, told) = sync_channel(records.len());
    for record in records {
        let (tell, appended_to) = (tell.clone(), log.clone());
        log.append(
            record,
            Box::new(move |appended| {
                // These records need no delivery.
                appended_to.consume(appended.ok());
                let _ = tell.send(appended);
            }),
        );
    }
    drop(tell);
    told.iter().try_for_each(|appended| appended.map(drop))
}

/// The traces of a job.
#[derive(Debug)]
struct CarriedTraces {
    /// The traces, each with its copied bytes.
    traces: HashMap<TraceId, u64>,
    /// Copied bytes of these traces.
    n_bytes: u64,
    max_bytes: u64,
    /// All copied bytes.
    n_written: u64,
    /// Hashes of copied spans: an aborted job may have copied the same spans before.
    seen: HashSet<u64>,
    hasher: RandomState,
}

impl CarriedTraces {
    fn new(traces: &[OpenTrace], max_bytes: u64) -> Self {
        // With a budget of zero, read nothing.
        let traces = traces.iter().filter(|_| max_bytes > 0);
        Self {
            traces: traces.map(|trace| (trace.trace_id, 0)).collect(),
            n_bytes: 0,
            max_bytes,
            n_written: 0,
            seen: HashSet::new(),
            hasher: RandomState::new(),
        }
    }

    /// Returns a record with the traces' spans in `record`, or `None` if it has none.
    fn pick(&mut self, record: Stored, rules: &Rules) -> Option<Record> {
        let keeps = |trace_id: &TraceId| self.traces.contains_key(trace_id);
        if record.kind == RecordKind::Judged {
            let marks = TraceMark::pick(&record.body, |trace_id| keeps(&trace_id));
            self.n_written += marks.len() as u64;
            let marks = (!marks.is_empty()).then(|| Bytes::from(marks));
            return marks.map(|marks| Record::judged(record.arrived, marks));
        }
        let mut of_traces = Vec::new();
        let body = match Signal::of_number(record.signal) {
            Signal::Traces => {
                let picked = scan_pick::pick(&record.body, |trace_id| {
                    let is_kept = keeps(&trace_id);
                    if is_kept && of_traces.last() != Some(&trace_id) {
                        of_traces.push(trace_id);
                    }
                    is_kept
                });
                Bytes::from(picked?)
            }
            Signal::Logs => {
                let scanned = scan_logs::scan(&record.body, Some(rules)).ok()?;
                let records = scanned.batch.spans.iter();
                of_traces.extend(records.map(|record| record.trace_id).filter(keeps));
                // Keep the whole request: a rebuild finds the log records of these traces in it.
                record.body.clone()
            }
            Signal::Metrics => return None,
        };
        let origin = record.origin();
        let hash = self.hasher.hash_one((origin, record.signal, &body));
        if of_traces.is_empty() || !self.seen.insert(hash) {
            return None;
        }
        let n_bytes = body.len() as u64;
        self.n_written += n_bytes;
        for trace_id in &of_traces {
            if let Some(of_trace) = self.traces.get_mut(trace_id) {
                let share = n_bytes / of_traces.len() as u64;
                *of_trace += share;
                self.n_bytes += share;
            }
        }
        self.keep_within();
        Some(Record::carried(record.signal, record.arrived, origin, body))
    }

    /// Drops the largest traces until the rest fit into the budget.
    fn keep_within(&mut self) {
        while self.n_bytes > self.max_bytes {
            let largest = self.traces.iter().max_by_key(|(_, n_bytes)| **n_bytes);
            let Some((trace_id, n_bytes)) = largest.map(|(id, n_bytes)| (*id, *n_bytes)) else {
                return;
            };
            self.traces.remove(&trace_id);
            self.n_bytes -= n_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use otlp::wire::write;

    fn field(number: u64, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write::delimited(&mut out, number, content);
        out
    }

    /// Returns a request with a span of `n_bytes` for each trace.
    fn stored(sequence: u64, spans: &[(u8, usize)]) -> Stored {
        let span = |(trace, n_bytes): &(u8, usize)| {
            let name = vec![b'x'; *n_bytes];
            field(2, &[field(1, &[*trace; 16]), field(5, &name)].concat())
        };
        let spans: Vec<u8> = spans.iter().flat_map(span).collect();
        Stored {
            sequence,
            kind: RecordKind::Request,
            signal: 0,
            n_items: 1,
            arrived: sequence,
            meta: Bytes::new(),
            body: Bytes::from(field(1, &field(2, &spans))),
        }
    }

    fn open_trace(trace: u8) -> OpenTrace {
        OpenTrace {
            trace_id: TraceId::try_new(&[trace; 16]).unwrap(),
            first_record: 0,
            needed_from: 0,
            memory_unix_nanos: 0,
            is_unscored: false,
        }
    }

    #[test]
    fn where_there_is_not_room_for_all_the_largest_trace_gives_way() {
        let rules = Rules::new(Vec::new());
        let mut carried = CarriedTraces::new(&[1, 2, 3].map(open_trace), 1_100);
        let twice = stored(3, &[(2, 500)]);
        let requests = [
            stored(1, &[(9, 5_000)]),
            stored(2, &[(1, 100), (9, 5_000), (2, 100)]),
            twice.clone(),
            twice,
            stored(4, &[(3, 200)]),
            stored(5, &[(2, 300)]),
            stored(6, &[(2, 300)]),
            stored(7, &[(1, 100), (2, 300)]),
        ];
        let copies = requests.map(|request| carried.pick(request, &rules).is_some());
        assert_eq!(copies, [false, true, true, false, true, true, false, true]);
        let mut left: Vec<u8> = carried.traces.keys().map(|id| id.as_bytes()[0]).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 3], "the others are there in full");
        assert!(carried.n_written < 2_000, "{}", carried.n_written);
        let without_room = CarriedTraces::new(&[open_trace(1)], 0);
        assert!(without_room.traces.is_empty(), "nothing need be read");
    }
}
