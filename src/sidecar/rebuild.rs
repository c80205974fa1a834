//! The scoring threads' use of the journal. At the start, each thread rebuilds the open traces of
//! its partition. Then the threads report which records they still need. At a stop, they can retain
//! open traces in the journal.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use judge::pipeline::{
    self, CrossTraceAccess, JudgementSink as _, Pipeline, Rebuilding, Rules, TraceMark,
};
use otlp::span::{Batch, Now, PeerId};
use otlp::{scan, scan_logs};

use super::judgements::JudgeSink;
use super::now;
use crate::config::Signal;
use crate::heap;
use crate::journal::{JournalLog, JudgedMarks, LogReader, Needed, Past, Stored};
use crate::sync::Mutex;
use crate::telemetry::{
    DowntimeTooLong, JournalTracesUnread, OpenTracesJournaled, Telemetry, TracesRestored,
};

/// If the time without a running process was at most this long, senders are still retrying after
/// the start, and complete the traces. The default timeout of OTLP exporters is 10 s.
const SENDERS_PATIENCE: Duration = Duration::from_secs(10);

/// Interval at which the threads report to the journal which records they need.
const NEED_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum bytes of records that a thread reads at a time.
const MAX_READ: usize = 4 << 20;

/// Interval between the heartbeats of a thread that waits for other threads.
const BEAT: Duration = Duration::from_millis(200);

/// The journal, shared by all scoring threads.
#[derive(Debug)]
pub(super) struct JournaledTraces {
    pub(super) log: JournalLog,
    pub(super) marks: Arc<JudgedMarks>,
    /// True if other replicas may have received spans while no process ran.
    pub(super) has_peers: bool,
    /// True if a stop retains open traces in the journal, unjudged.
    pub(super) keeps_open: bool,
    /// Maximum bytes of requests that wait in the journal to be scored.
    pub(super) max_unread: usize,
}

/// The journal of one scoring thread. When this value is dropped, even by a panic, other threads
/// stop waiting for this thread, and the journal retains the records that this thread still needed.
#[derive(Debug)]
pub(super) struct JournaledPartition {
    index: usize,
    all: Arc<SharedJournal>,
    /// Reads requests that did not fit into memory. `None` until the thread has rebuilt its traces.
    /// Only then does the thread report needed records.
    reader: Option<LogReader>,
    need_at: Option<Instant>,
}

#[derive(Debug)]
struct SharedJournal {
    kept: JournaledTraces,
    n_threads: usize,
    /// The records that the journal had when it was opened, and the time of the opening.
    past: OnceLock<(Past, Instant)>,
    state: Mutex<State>,
    progress: Condvar,
}

#[derive(Debug)]
struct State {
    /// The needed records of each thread.
    needs: Vec<Option<Needed>>,
    last_need: Needed,
    /// Number of threads that have not rebuilt their traces.
    n_rebuilding: usize,
    /// Totals of the threads that have rebuilt their traces: open traces, marks and spans.
    rebuilt: [usize; 3],
    /// Number of threads that have not stopped.
    n_running: usize,
    n_kept_open: usize,
}

impl JournaledTraces {
    /// Returns the journals of `n_threads` threads, in the order of their partitions.
    pub(super) fn divide(self, n_threads: usize) -> Vec<JournaledPartition> {
        let log = self.log.clone();
        let all = Arc::new(SharedJournal {
            kept: self,
            n_threads,
            past: OnceLock::new(),
            state: Mutex::new(State {
                needs: vec![None; n_threads],
                last_need: Needed::default(),
                n_rebuilding: n_threads,
                rebuilt: [0; 3],
                n_running: n_threads,
                n_kept_open: 0,
            }),
            progress: Condvar::new(),
        });
        let opening = Arc::clone(&all);
        log.when_open(Box::new(move |opened| {
            let past = || (opened.past.clone(), now().instant);
            opening.past.get_or_init(past);
        }));
        let partition = |index| JournaledPartition {
            index,
            all: Arc::clone(&all),
            reader: None,
            need_at: None,
        };
        (0..n_threads).map(partition).collect()
    }
}

impl JournaledPartition {
    /// Rebuilds the open traces of this thread, once the journal is open. Then waits for the other
    /// threads, because one thread's trace may have results for another thread's trace. Traces
    /// settle as if their spans had arrived now. No request is accepted before the journal is open,
    /// so every new span arrives after the rebuilt ones.
    pub(super) fn rebuild<C: CrossTraceAccess>(
        &mut self,
        pipeline: &mut Pipeline<C>,
        started: Now,
        sink: &mut JudgeSink,
    ) {
        let all = Arc::clone(&self.all);
        let Some((mut past, _)) = all.past.get().cloned() else {
            return;
        };
        pipeline.mark_judged();
        // The time without a running process ends when the journal is opened, even if this thread
        // reads the journal later.
        let silence = past.silence;
        let is_whole = is_patient(silence);
        if is_whole && !all.kept.has_peers {
            pipeline.restore_memory(past.needed.since_unix_nanos);
        }
        let restored = restore(&mut past, pipeline, started, sink);
        let ((n_judged, n_spans), is_damaged) = restored.unwrap_or_else(|error| {
            let why = error.to_string();
            JournalTracesUnread { why }.emit();
            ((0, 0), true)
        });
        if !is_whole || is_damaged {
            pipeline.restore_memory(past.opened_unix_nanos);
            pipeline.mark_restored_incomplete(started);
        }
        self.reader = Some(past.requests);
        let n_open = pipeline.stats().n_open;
        all.rebuilt([n_open, n_judged, n_spans], &sink.telemetry);
        // If the process is killed soon, the next start needs the time from which traces are
        // remembered.
        let needed = Needed {
            from: past.needed.from,
            since_unix_nanos: pipeline.memory_unix_nanos(),
        };
        all.need(self.index, needed);
        all.wait_for_others(sink);
    }

    pub(super) fn is_rebuilt(&self) -> bool {
        self.reader.is_some()
    }

    /// Reads the spans of this partition from a request's record.
    ///
    /// # Errors
    /// Returns an error if the record is damaged, cannot be read, or was removed.
    pub(super) fn read(
        &mut self,
        record: u64,
        peer: PeerId,
        rules: &Rules,
    ) -> Result<Batch, String> {
        let reader = self.reader.as_mut().ok_or("the journal is not open")?;
        let read = reader.read(record, record + 1, 1);
        let mut records = read.map_err(|error| error.to_string())?.records;
        let stored = records
            .pop()
            .ok_or("the record is damaged or was removed")?;
        heap::took(stored.body.len());
        let batch = Batch {
            peer,
            ..batch_of(stored, rules)
        };
        let parts = pipeline::split(batch, self.all.n_threads);
        let own = parts.into_iter().find(|(index, _)| *index == self.index);
        Ok(own.map(|(_, part)| part).unwrap_or_default())
    }

    /// Reports the needed records to the journal. The pipeline has received every record below
    /// `taken_below`.
    pub(super) fn need<C: CrossTraceAccess>(
        &mut self,
        pipeline: &mut Pipeline<C>,
        taken_below: u64,
        now: Instant,
    ) {
        if !self.is_rebuilt() || self.need_at.is_some_and(|at| now < at) {
            return;
        }
        self.need_at = Some(now + NEED_INTERVAL);
        let needed = Needed {
            from: (pipeline.oldest_record()).map_or(taken_below, |it| it.min(taken_below)),
            since_unix_nanos: pipeline.memory_unix_nanos(),
        };
        self.all.need(self.index, needed);
    }

    pub(super) fn keeps_open_traces(&self) -> bool {
        self.all.kept.keeps_open
    }

    /// Counts the open traces, which are retained in the journal.
    pub(super) fn keep_open<C: CrossTraceAccess>(&self, pipeline: &Pipeline<C>) {
        self.all.state.lock().n_kept_open += pipeline.stats().n_open;
    }
}

impl Drop for JournaledPartition {
    fn drop(&mut self) {
        let mut state = self.all.state.lock();
        if !self.is_rebuilt() {
            state.n_rebuilding -= 1;
        }
        state.n_running -= 1;
        let n_traces = state.n_kept_open;
        let is_last = state.n_running == 0;
        drop(state);
        self.all.progress.notify_all();
        if is_last && self.all.kept.keeps_open {
            OpenTracesJournaled { n_traces }.emit();
        }
    }
}

impl SharedJournal {
    /// Adds a thread's numbers of open traces, marks and spans. The last thread reports the totals.
    fn rebuilt(&self, counts: [usize; 3], telemetry: &Telemetry) {
        let Some((past, opened)) = self.past.get() else {
            return;
        };
        let mut state = self.state.lock();
        let sums = state.rebuilt.iter_mut();
        sums.zip(counts).for_each(|(sum, count)| *sum += count);
        state.n_rebuilding -= 1;
        if state.n_rebuilding > 0 {
            return;
        }
        let [n_open, n_judged, n_spans] = state.rebuilt;
        drop(state);
        self.progress.notify_all();
        if let Some(silence) = past.silence.filter(|silence| *silence > SENDERS_PATIENCE)
            && n_open > 0
        {
            DowntimeTooLong { silence, n_open }.emit();
        }
        TracesRestored {
            n_open,
            n_judged,
            n_spans,
            took: now().instant.saturating_duration_since(*opened),
        }
        .emit(telemetry);
    }

    fn wait_for_others(&self, sink: &mut JudgeSink) {
        let mut state = self.state.lock();
        while state.n_rebuilding > 0 {
            let waited = self.progress.wait_timeout(state, BEAT);
            drop(waited.unwrap_or_else(PoisonError::into_inner).0);
            sink.beat();
            state = self.state.lock();
        }
    }

    fn need(&self, index: usize, need: Needed) {
        let mut state = self.state.lock();
        state.needs[index] = Some(need);
        let Some(mut need) = needed_by_any(&state.needs) else {
            return;
        };
        // Read the marks after the threads' needs, because a thread adds the mark of a judged trace
        // before it stops needing the trace.
        if let Some(oldest) = self.kept.marks.oldest() {
            need.from = oldest.min(need.from);
        }
        if need != state.last_need {
            state.last_need = need;
            self.kept.log.need(need);
        }
    }
}

/// Returns the records that any thread needs; `None` until all threads have rebuilt their traces.
fn needed_by_any(needs: &[Option<Needed>]) -> Option<Needed> {
    let all: Option<Vec<Needed>> = needs.iter().copied().collect();
    all?.into_iter().reduce(|one, other| Needed {
        from: one.from.min(other.from),
        since_unix_nanos: one.since_unix_nanos.max(other.since_unix_nanos),
    })
}

/// Returns true if senders were still retrying when the journal was opened.
fn is_patient(silence: Option<Duration>) -> bool {
    silence.is_some_and(|silence| silence <= SENDERS_PATIENCE)
}

/// Rebuilds the open traces in the pipeline from the requests and the marks in the journal. Returns
/// the numbers of marks and spans, and true if records were damaged.
fn restore<C: CrossTraceAccess>(
    past: &mut Past,
    pipeline: &mut Pipeline<C>,
    started: Now,
    sink: &mut JudgeSink,
) -> io::Result<((usize, usize), bool)> {
    let rules = &*Arc::clone(&sink.rules);
    let (needed, records) = (past.needed, past.needed.from..past.end);
    let mut judged = Vec::new();
    let are_marks_damaged = read(&mut past.marks, records.clone(), |record| {
        sink.beat();
        judged.extend(TraceMark::decode_all(&record.body, rules));
    })?;
    let mut rebuilding = Rebuilding::new(pipeline, rules, judged, started);
    let (n_marks, mut n_spans) = (rebuilding.n_marks(), 0);
    let mut is_first = is_patient(past.silence);
    let are_requests_damaged = read(&mut past.requests, records, |record| {
        sink.beat();
        if std::mem::take(&mut is_first) {
            let since = record.arrived.max(needed.since_unix_nanos);
            rebuilding.restore_session_history(since);
        }
        let sequence = record.sequence;
        n_spans += rebuilding.take(batch_of(record, rules), sequence);
    })?;
    rebuilding.finish();
    Ok((
        (n_marks, n_spans),
        are_marks_damaged || are_requests_damaged,
    ))
}

/// Returns true if records were damaged.
fn read(
    reader: &mut LogReader,
    records: Range<u64>,
    mut take: impl FnMut(Stored),
) -> io::Result<bool> {
    let (mut from, mut is_damaged) = (records.start, false);
    while from < records.end {
        let stretch = reader.read(from, records.end, MAX_READ)?;
        is_damaged |= !stretch.damage.is_empty();
        from = stretch.next;
        stretch.records.into_iter().for_each(&mut take);
    }
    Ok(is_damaged)
}

/// Scans the spans and log records of a request, as the receivers do.
fn batch_of(record: Stored, rules: &Rules) -> Batch {
    let body = &record.body;
    let batch = match Signal::of_number(record.signal) {
        Signal::Traces => scan::scan(body, Some(rules)).map(|scanned| scanned.batch),
        Signal::Logs => scan_logs::scan(body, Some(rules)).map(|scanned| scanned.batch),
        Signal::Metrics => Ok(Batch::default()),
    };
    // The request was valid when it was acknowledged.
    batch.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_slowest_thread_needs_is_kept_and_all_must_have_said_so() {
        let needed = |from, since_unix_nanos| Needed {
            from,
            since_unix_nanos,
        };
        let mut needs = [Some(needed(7, 20)), None, Some(needed(5, 10))];
        assert_eq!(
            needed_by_any(&needs),
            None,
            "one has not rebuilt its traces"
        );
        needs[1] = Some(needed(9, 30));
        assert_eq!(needed_by_any(&needs), Some(needed(5, 30)));
        needs[2] = Some(needed(11, 10));
        assert_eq!(needed_by_any(&needs), Some(needed(7, 30)));
    }
}
