//! A scoring thread: receives batches from its queue, and whenever a batch arrives or a deadline is
//! due, runs the pipeline of its partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{mem, thread};

use judge::assemble::{CloseReason, Sizes, Stats, TornService, TornTraces};
use judge::extract::{HalfArrived, MissingHalf};
use judge::pipeline::{Judged, JudgementSink, Pipeline, Rules};
use otlp::span::Now;

use super::shared::{Arrived, QueuedSpans, ScoringState};
use super::shared_traces::{Round, SharedAccess};
use crate::heap;
use crate::sidecar::now;
use crate::sidecar::rebuild::JournaledPartition;
use crate::telemetry::{
    AlarmsPostponed, Heartbeat, JournaledSpansUnread, RevisionsLost, ServiceTorn, SessionsJudged,
    SpansLate, Telemetry, Throttled, TraceHalfArrived, TracesClosed, TracesInMemory, TracesJudged,
    TracesTorn,
};

/// Maximum number of batches that are inserted before due traces are closed again.
pub(super) const MAX_BATCHES_AT_ONCE: usize = 64;

/// Time during which batches collect while the thread keeps up. Waking the thread for each batch
/// would be a large share of the cost of a small request.
const GATHER: Duration = Duration::from_millis(5);

/// Settle time during a drain.
const DRAINING_SETTLE: Duration = Duration::from_millis(500);

/// Minimum time between two heartbeats, because a heartbeat takes a lock that probes take, too.
const BEAT_EVERY: Duration = Duration::from_millis(200);

/// A function that handles a thread's judgements, for example by exporting or printing them.
pub(crate) type Judge = Box<dyn FnMut(&Judged, &Rules) + Send>;

pub(super) struct Worker {
    /// The index of the thread's partition.
    pub(super) index: usize,
    pub(super) inbox: Receiver<Box<Arrived>>,
    pub(super) shared: Arc<ScoringState>,
    pub(super) pipeline: Pipeline<SharedAccess>,
    pub(super) judge: Judge,
    /// The thread's journal, if there is one.
    pub(super) kept: Option<JournaledPartition>,
    pub(super) heartbeat: Heartbeat,
}

/// A thread's entry in the shared state. When this value is dropped, even by a panic, the entry is
/// cleared and other threads stop waiting for the thread.
struct Place<'a> {
    shared: &'a ScoringState,
    index: usize,
}

impl Worker {
    /// Judges until the last round, in which the queue is closed.
    pub(super) fn run(self) {
        let shared = Arc::clone(&self.shared);
        let time = now();
        let mut running = Running {
            place: Place {
                shared: &shared,
                index: self.index,
            },
            inbox: self.inbox,
            pipeline: self.pipeline,
            kept: self.kept,
            output: Output {
                judge: self.judge,
                rules: shared.rules.load_full(),
                telemetry: &shared.telemetry,
                next_beat: time.instant,
                heartbeat: self.heartbeat,
                missing: Vec::new(),
            },
            time,
            is_draining: false,
            keeps_up: true,
            sizes: None,
            unread: Throttled::default(),
        };
        running.rebuild();
        while running.run_round() {}
        running.output.heartbeat.finish();
    }
}

struct Running<'a> {
    place: Place<'a>,
    inbox: Receiver<Box<Arrived>>,
    pipeline: Pipeline<SharedAccess>,
    kept: Option<JournaledPartition>,
    output: Output<'a>,
    /// The pipeline's time. It is never later than the arrival of a queued batch. Otherwise a trace
    /// with spans in the queue would settle without them while the thread is behind.
    time: Now,
    is_draining: bool,
    /// True if the last round emptied the queue.
    keeps_up: bool,
    sizes: Option<Sizes>,
    /// Limits the log lines about unreadable records.
    unread: Throttled,
}

impl Running<'_> {
    /// Waits for batches or a deadline, inserts the batches and judges what is due. Returns false
    /// after the last round.
    fn run_round(&mut self) -> bool {
        let shared = self.place.shared;
        let first = wait(&self.inbox, self.pipeline.next_deadline());
        if first.is_ok() && self.keeps_up {
            thread::park_timeout(GATHER);
        }
        self.output.beat();
        self.output.rules = shared.rules.load_full();
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
        self.place.report_use(&self.pipeline);
        !is_last
    }

    /// Rebuilds the traces from the journal, if it was opened since the last call.
    fn rebuild(&mut self) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| !kept.is_rebuilt()) {
            let (rules, telemetry) = (Arc::clone(&self.output.rules), self.output.telemetry);
            let output = &mut self.output;
            kept.rebuild(&mut self.pipeline, &rules, now(), telemetry, || {
                output.beat()
            });
        }
    }

    /// Applies what other threads changed since the last round.
    fn apply_changes(&mut self) {
        let Place { shared, index } = self.place;
        let (pipeline, time) = (&mut self.pipeline, self.time);
        if !self.is_draining && shared.draining.load(Ordering::Relaxed) {
            self.is_draining = true;
            pipeline.shorten_settle(DRAINING_SETTLE);
        }
        let sizes = shared.bounds.sizes();
        if let Some(changed) = sizes.filter(|sizes| self.sizes != Some(*sizes)) {
            self.sizes = Some(changed);
            pipeline.resize(changed, time);
        }
        if shared.threads.len() > 1 {
            pipeline.reopen_changed(time);
        }
        let of_thread = &shared.threads[index];
        if let Some((since, noticed)) = of_thread.peers_changed.lock().take() {
            pipeline.begin_memory(since, noticed);
        }
        let unscored = mem::take(&mut *of_thread.unscored.lock());
        if !unscored.others.is_empty() {
            pipeline.mark_many_unscored(unscored.others, time);
        }
        if !unscored.trace_ids.is_empty() {
            pipeline.mark_unscored(&unscored.trace_ids, time);
        }
    }

    /// Inserts queued batches, beginning with `first`. Returns one more than the number of the last
    /// journal record that was inserted; 0 if there was none.
    fn take_queued(&mut self, first: Option<Box<Arrived>>) -> u64 {
        let rules = Arc::clone(&self.output.rules);
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
        let Arrived {
            at,
            charge,
            record,
            spans,
        } = arrived;
        // Restored spans of a trace must be inserted before queued ones.
        self.rebuild();
        let batch = match spans {
            QueuedSpans::InMemory(batch) => {
                heap::took(charge.n_bytes());
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
        drop(charge);
        self.time = later(self.time, at);
        let (pipeline, output) = (&mut self.pipeline, &mut self.output);
        let taken = match record {
            Some(record) => pipeline.take_record(rules, batch, record, self.time, output),
            None => pipeline.take_into(rules, batch, self.time, output),
        };
        SpansLate {
            n_taken: taken.n_late,
            n_refused: taken.n_too_late,
            n_forgotten: taken.n_forgotten,
        }
        .emit(output.telemetry);
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
        .emit(self.output.telemetry);
    }

    fn judge_due(&mut self) {
        if self.keeps_up {
            self.pipeline.cross_traces_mut().round = Round::KeepsUp;
        }
        let rules = Arc::clone(&self.output.rules);
        self.pipeline
            .advance_into(&rules, self.time, &mut self.output);
    }

    /// Judges the open traces and sessions at the end of the process, except traces that stay in
    /// the journal.
    fn judge_rest(&mut self) {
        let (pipeline, output) = (&mut self.pipeline, &mut self.output);
        pipeline.cross_traces_mut().round = Round::Last;
        let rules = Arc::clone(&output.rules);
        match &self.kept {
            Some(kept) if kept.keeps_open_traces() => {
                kept.keep_open(pipeline);
                // Sessions are judged as they are: the next start may be late, or lack a turn's
                // requests.
                pipeline.end_sessions(&rules, CloseReason::Shutdown, self.time, output);
            }
            _ => pipeline.drain_into(&rules, self.time, output),
        }
    }
}

impl Place<'_> {
    /// Records the thread's memory use and its next due time, and reports the memory use of all
    /// threads.
    fn report_use(&self, pipeline: &Pipeline<SharedAccess>) {
        let Self { shared, index } = *self;
        let held = shared.hold(index, &pipeline.stats());
        let (cross_traces_size, sessions) =
            shared.traces.end_round(index, pipeline.next_deadline());
        TracesInMemory {
            n_open: held.n_open,
            open_bytes: held.open_size,
            n_recent: held.n_recent,
            recent_bytes: held.recent_size + cross_traces_size,
            n_sessions: sessions.n_sessions,
            session_bytes: sessions.size,
            unread_bytes: shared.unread.as_ref().map_or(0, |it| it.n_bytes()),
        }
        .emit(&shared.telemetry);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.hold(self.index, &Stats::default());
        self.shared.traces.leave(self.index);
    }
}

// === Output ===

/// Receives the pipeline's results, and sends heartbeats while the pipeline works.
struct Output<'a> {
    judge: Judge,
    rules: Arc<Rules>,
    telemetry: &'a Telemetry,
    heartbeat: Heartbeat,
    next_beat: Instant,
    /// The kinds of missing halves that were already logged; each kind is logged once.
    missing: Vec<MissingHalf>,
}

impl JudgementSink for Output<'_> {
    fn take(&mut self, slice: &mut Judged) {
        report(slice, self.telemetry);
        self.report_halves(&slice.half_arrived);
        (self.judge)(slice, &self.rules);
        heap::took(slice.size());
    }

    fn beat(&mut self) {
        let now = now().instant;
        if now >= self.next_beat {
            self.next_beat = now + BEAT_EVERY;
            self.heartbeat.beat(now);
        }
    }
}

impl Output<'_> {
    fn report_halves(&mut self, halves: &[HalfArrived]) {
        for HalfArrived { service, missing } in halves {
            let is_first = !self.missing.contains(missing);
            if is_first {
                self.missing.push(*missing);
            }
            TraceHalfArrived {
                service,
                missing: match missing {
                    MissingHalf::Spans => "spans",
                    MissingHalf::Calls => "calls",
                },
                is_first,
            }
            .emit(self.telemetry);
        }
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

fn counted(reasons: &[CloseReason]) -> BTreeMap<&'static str, u64> {
    let mut by_reason = BTreeMap::new();
    for reason in reasons {
        *by_reason.entry(reason.as_str()).or_default() += 1;
    }
    by_reason
}

pub(in crate::sidecar) fn report(judged: &Judged, telemetry: &Telemetry) {
    for (reason, n_traces) in counted(&judged.reasons) {
        TracesClosed { reason, n_traces }.emit(telemetry);
    }
    for (completeness, n_sessions) in counted(&judged.sessions) {
        SessionsJudged {
            completeness,
            n_sessions,
        }
        .emit(telemetry);
    }
    let Judged {
        evaluations,
        n_unchanged,
        n_no_trajectory,
        n_lost,
        n_postponed,
        ..
    } = judged;
    AlarmsPostponed {
        n_postponed: *n_postponed,
    }
    .emit(telemetry);
    RevisionsLost {
        n_revisions: *n_lost,
    }
    .emit(telemetry);
    TracesJudged {
        n_evaluations: evaluations.len(),
        n_unchanged: *n_unchanged,
        n_no_trajectory: *n_no_trajectory,
    }
    .emit(telemetry);
}

fn report_torn(torn: TornTraces, telemetry: &Telemetry) {
    let TornTraces { n_traces, changes } = torn;
    if n_traces > 0 {
        TracesTorn { n_traces }.emit(telemetry);
    }
    for TornService {
        service,
        is_torn,
        n_torn,
        n_closed,
    } in &changes
    {
        ServiceTorn {
            service,
            is_torn: *is_torn,
            n_torn: *n_torn,
            n_closed: *n_closed,
        }
        .emit(telemetry);
    }
}
