//! A scoring thread: receives batches from its queue, and whenever a batch arrives or a deadline is
//! due, runs the pipeline of its partition.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem};

use judge::assemble::{CloseReason, Sizes, TornTraces};
use judge::pipeline::{JudgementSink as _, Pipeline, Rules};
use otlp::span::Now;

use super::shared::{Arrived, QueuedSpans, ScoringState};
use super::shared_traces::{Round, SharedAccess};
use crate::heap;
use crate::sidecar::judgements::JudgeSink;
use crate::sidecar::now;
use crate::sidecar::rebuild::JournaledPartition;
use crate::telemetry::{
    Heartbeat, JournaledSpansUnread, ServiceTorn, SpansLate, Telemetry, Throttled, TracesInMemory,
    TracesTorn,
};

/// Maximum number of batches that are inserted before due traces are closed again.
pub(super) const MAX_BATCHES_AT_ONCE: usize = 64;

/// Time during which batches collect while the thread keeps up. Waking the thread for each batch
/// would be a large share of the cost of a small request.
const GATHER: Duration = Duration::from_millis(5);

/// Settle time during a drain.
const DRAINING_SETTLE: Duration = Duration::from_millis(500);

/// A scoring thread.
pub(in crate::sidecar) struct Worker {
    /// The name of the thread and of its heartbeat.
    pub(super) name: String,
    pub(super) shared: Arc<ScoringState>,
    /// The index of the thread's partition.
    pub(super) index: usize,
    pub(super) inbox: Receiver<Box<Arrived>>,
    pub(super) pipeline: Pipeline<SharedAccess>,
    /// The thread's journal, if there is one.
    pub(super) kept: Option<JournaledPartition>,
    pub(super) sink: JudgeSink,
    /// The pipeline's time. It is never later than the arrival of a queued batch. Otherwise a trace
    /// with spans in the queue would settle without them while the thread is behind.
    pub(super) time: Now,
    pub(super) is_draining: bool,
    /// True if the last round emptied the queue.
    pub(super) keeps_up: bool,
    pub(super) sizes: Option<Sizes>,
    /// Limits the log lines about unreadable records.
    pub(super) unread: Throttled,
}

impl Worker {
    pub(in crate::sidecar) fn start(self) -> io::Result<JoinHandle<()>> {
        let thread = thread::Builder::new().name(self.name.clone());
        thread.spawn(move || self.run())
    }

    /// Judges until the last round, in which the queue is closed.
    pub(super) fn run(mut self) {
        self.rebuild();
        while self.run_round() {}
        self.sink.heartbeat.finish();
    }

    /// Waits for batches or a deadline, inserts the batches and judges what is due. Returns false
    /// after the last round.
    fn run_round(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let first = wait(&self.inbox, self.pipeline.next_deadline());
        if first.is_ok() && self.keeps_up {
            thread::park_timeout(GATHER);
        }
        self.sink.beat();
        self.sink.rules = shared.rules.load_full();
        self.rebuild();
        self.apply_changes();
        let is_last = matches!(first, Err(RecvTimeoutError::Disconnected));
        self.pipeline.cross_traces_mut().round = Round::IsBehind;
        // Read this number before the queue, so that every lower record is in the queue or was
        // already inserted.
        let offered_below = shared.offered_below.load(Ordering::Acquire);
        let taken_below = self.take_queued(first.ok());
        if is_last {
            self.judge_rest();
        } else {
            self.judge_due();
        }
        if let Some(kept) = &mut self.kept {
            let below = if self.keeps_up { offered_below } else { taken_below };
            kept.need(&mut self.pipeline, below, now().instant);
        }
        report_torn(self.pipeline.take_torn(), &shared.telemetry);
        self.report_use();
        !is_last
    }

    /// Rebuilds the traces from the journal, if it was opened since the last call.
    fn rebuild(&mut self) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| !kept.is_rebuilt()) {
            kept.rebuild(&mut self.pipeline, now(), &mut self.sink);
        }
    }

    /// Applies what other threads changed since the last round.
    fn apply_changes(&mut self) {
        let shared = &self.shared;
        let (pipeline, time) = (&mut self.pipeline, self.time);
        if !self.is_draining && shared.draining.load(Ordering::Relaxed) {
            self.is_draining = true;
            pipeline.shorten_settle(DRAINING_SETTLE);
        }
        let sizes = (shared.bounds.traces)();
        if self.sizes.replace(sizes) != Some(sizes) {
            pipeline.resize(sizes, time);
        }
        if shared.threads.len() > 1 {
            pipeline.reopen_changed(time);
        }
        let changes = mem::take(&mut *shared.threads[self.index].lock());
        if let Some((since, noticed)) = changes.peers_changed {
            pipeline.begin_memory(since, noticed);
        }
        if !changes.other_unscored.is_empty() {
            pipeline.mark_many_unscored(changes.other_unscored, time);
        }
        if !changes.unscored.is_empty() {
            pipeline.mark_unscored(&changes.unscored, time);
        }
    }

    /// Inserts queued batches, beginning with `first`. Returns one more than the number of the last
    /// journal record that was inserted; 0 if there was none.
    fn take_queued(&mut self, first: Option<Box<Arrived>>) -> u64 {
        let rules = Arc::clone(&self.sink.rules);
        let (mut taken_below, mut n_taken) = (0, 0);
        let mut next = first;
        while n_taken < MAX_BATCHES_AT_ONCE
            && let Some(arrived) = next.take().or_else(|| self.inbox.try_recv().ok())
        {
            n_taken += 1;
            if let Some(record) = arrived.record {
                taken_below = record + 1;
            }
            self.take(&rules, *arrived);
        }
        self.keeps_up = n_taken < MAX_BATCHES_AT_ONCE;
        if self.keeps_up {
            self.time = later(self.time, now());
        }
        taken_below
    }

    fn take(&mut self, rules: &Rules, arrived: Arrived) {
        // Restored spans of a trace must be inserted before queued ones.
        self.rebuild();
        let (at, record) = (arrived.at, arrived.record);
        let batch = match arrived.spans {
            QueuedSpans::InMemory(batch) => {
                heap::took(arrived.charge.n_bytes());
                batch
            }
            QueuedSpans::InJournal { peer, n_spans } => {
                let read = record.zip(self.kept.as_mut());
                let read = read.map(|(record, kept)| kept.read(record, peer, rules));
                match read.unwrap_or_else(|| Err("there is no journal".to_owned())) {
                    Ok(batch) => batch,
                    Err(why) => return self.miss(n_spans, why),
                }
            }
        };
        drop(arrived.charge);
        self.time = later(self.time, at);
        let (pipeline, sink) = (&mut self.pipeline, &mut self.sink);
        let taken = match record {
            Some(record) => pipeline.take_record(rules, batch, record, self.time, sink),
            None => pipeline.take_into(rules, batch, self.time, sink),
        };
        SpansLate {
            n_taken: taken.n_late,
            n_refused: taken.n_too_late,
            n_forgotten: taken.n_forgotten,
        }
        .emit(&sink.telemetry);
    }

    /// Marks all open traces as incomplete, because the journal lost spans of unknown traces.
    fn miss(&mut self, n_spans: usize, why: String) {
        let now = now();
        self.pipeline.restore_memory(now.unix_nanos);
        self.pipeline.mark_restored_incomplete(now);
        JournaledSpansUnread {
            n_spans,
            why,
            is_logged: self.unread.ready((), now.instant).is_some(),
        }
        .emit(&self.sink.telemetry);
    }

    fn judge_due(&mut self) {
        if self.keeps_up {
            self.pipeline.cross_traces_mut().round = Round::KeepsUp;
        }
        let rules = Arc::clone(&self.sink.rules);
        self.pipeline
            .advance_into(&rules, self.time, &mut self.sink);
    }

    /// Judges the open traces and sessions at the end of the process, except traces that stay in
    /// the journal.
    fn judge_rest(&mut self) {
        let (pipeline, sink) = (&mut self.pipeline, &mut self.sink);
        pipeline.cross_traces_mut().round = Round::Last;
        let rules = Arc::clone(&sink.rules);
        match &self.kept {
            Some(kept) if kept.keeps_open_traces() => {
                kept.keep_open(pipeline);
                // Sessions are judged as they are: the next start may be late, or lack a turn's
                // requests.
                pipeline.end_sessions(&rules, CloseReason::Shutdown, self.time, sink);
            }
            _ => pipeline.drain_into(&rules, self.time, sink),
        }
    }

    /// Records the thread's memory use and its next due time, and reports the memory use of all
    /// threads.
    fn report_use(&self) {
        let (shared, traces) = (&self.shared, &self.shared.traces);
        traces.end_round(self.index, self.pipeline.next_deadline());
        TracesInMemory {
            unread_bytes: shared.unread.as_ref().map_or(0, |it| it.n_bytes()),
            ..traces.in_memory(self.index, self.pipeline.stats())
        }
        .emit(&shared.telemetry);
    }
}

/// Waits for the next batch, the deadline or the next heartbeat.
fn wait(
    inbox: &Receiver<Box<Arrived>>,
    deadline: Option<Instant>,
) -> Result<Box<Arrived>, RecvTimeoutError> {
    let until_deadline = deadline.map_or(Duration::MAX, |deadline| {
        deadline.saturating_duration_since(now().instant)
    });
    inbox.recv_timeout(until_deadline.min(Heartbeat::INTERVAL))
}

/// Returns the later of two times. Requests get their times in parallel, so a later one can be
/// enqueued first.
fn later(time: Now, other: Now) -> Now {
    if other.instant > time.instant { other } else { time }
}

fn report_torn(torn: TornTraces, telemetry: &Telemetry) {
    let n_traces = torn.n_traces;
    if n_traces > 0 {
        TracesTorn { n_traces }.emit(telemetry);
    }
    for changed in &torn.changes {
        ServiceTorn {
            service: &changed.service,
            is_torn: changed.is_torn,
            n_torn: changed.n_torn,
            n_closed: changed.n_closed,
        }
        .emit(telemetry);
    }
}
