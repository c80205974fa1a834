//! A scoring thread: receives batches from its queue, and runs the pipeline of its partition with
//! the clock whenever a batch or a deadline is due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{mem, thread};

use judge::assemble::{CloseReason, Stats, TornService, TornTraces};
use judge::extract::{HalfArrived, MissingHalf};
use judge::pipeline::{Judged, JudgementSink, Pipeline, Rules};
use otlp::span::Now;

use super::shared::{Arrived, ScoringState};
use super::shared_traces::{Round, SharedAccess};
use crate::heap;
use crate::sidecar::now;
use crate::sidecar::rebuild::KeptPartition;
use crate::telemetry::{
    AlarmsPostponed, Heartbeat, RevisionsLost, ServiceTorn, SessionsJudged, SpansLate, Telemetry,
    TraceHalfArrived, TracesClosed, TracesHeld, TracesJudged, TracesTorn,
};

/// Maximum number of batches that are inserted before due traces are closed again.
pub(super) const MAX_BATCHES_AT_ONCE: usize = 64;

/// Time for which batches collect while the thread keeps up. Waking the thread for each batch would
/// be a large share of the cost of a small request.
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
    pub(super) kept: Option<KeptPartition>,
    pub(super) heartbeat: Heartbeat,
}

/// A thread's entry in the shared state. When this value is dropped, even by a panic, the entry is
/// cleared and other threads stop waiting for the thread.
struct Place<'a> {
    shared: &'a ScoringState,
    index: usize,
}

impl Worker {
    /// Judges until the queue is closed and the open traces are judged.
    pub(super) fn run(self) {
        let Self {
            index,
            inbox,
            shared,
            mut pipeline,
            judge,
            mut kept,
            heartbeat,
        } = self;
        let place = Place {
            shared: &shared,
            index,
        };
        // The pipeline's time is never later than the arrival of a queued batch. Otherwise a trace
        // with spans in the queue would settle without them while the thread is behind.
        let mut time = now();
        let mut is_draining = false;
        let mut keeps_up = true;
        let mut sizes = None;
        let mut output = Output {
            judge,
            rules: shared.rules.load_full(),
            telemetry: &shared.telemetry,
            next_beat: time.instant,
            heartbeat,
            missing: Vec::new(),
        };
        if let Some(kept) = &mut kept {
            output.rebuild(kept, &mut pipeline, time);
        }
        loop {
            let first = wait(&inbox, pipeline.next_deadline());
            if first.is_ok() && keeps_up {
                thread::park_timeout(GATHER);
            }
            output.beat();
            let rules = shared.rules.load_full();
            output.rules = Arc::clone(&rules);
            if let Some(kept) = &mut kept {
                output.rebuild(kept, &mut pipeline, now());
            }
            if !is_draining && shared.draining.load(Ordering::Relaxed) {
                is_draining = true;
                pipeline.shorten_settle(DRAINING_SETTLE);
            }
            let sizes_now = shared.bounds.sizes();
            if let Some(changed) = sizes_now.filter(|now| sizes != Some(*now)) {
                sizes = Some(changed);
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
            let ended = matches!(first, Err(RecvTimeoutError::Disconnected));
            pipeline.cross_traces_mut().round = Round::IsBehind;
            // Read this number before the queue: then every lower record is in the queue or was
            // received from it.
            let offered_below = shared.offered_below.load(Ordering::Acquire);
            let mut taken_below = 0;
            let mut n_taken = 0;
            for arrived in first
                .into_iter()
                .chain(inbox.try_iter())
                .take(MAX_BATCHES_AT_ONCE)
            {
                let Arrived {
                    at,
                    waiting,
                    batch,
                    record,
                } = *arrived;
                n_taken += 1;
                heap::took(waiting.n_bytes());
                drop(waiting);
                time = later(time, at);
                let intake = match record {
                    Some(record) => {
                        taken_below = record + 1;
                        pipeline.take_record(&rules, batch, record, time, &mut output)
                    }
                    None => pipeline.take_into(&rules, batch, time, &mut output),
                };
                SpansLate {
                    n_taken: intake.n_late,
                    n_refused: intake.n_too_late,
                    n_forgotten: intake.n_forgotten,
                }
                .emit(&shared.telemetry);
            }
            keeps_up = n_taken < MAX_BATCHES_AT_ONCE;
            if keeps_up {
                time = later(time, now());
            }
            if ended {
                pipeline.cross_traces_mut().round = Round::Last;
                match &kept {
                    Some(kept) if kept.keeps_open_traces() => {
                        kept.keep_open(&pipeline);
                        // Judge sessions as they are, because the next start may be late, or may
                        // not have the requests of a turn.
                        pipeline.end_sessions(&rules, CloseReason::Shutdown, time, &mut output);
                    }
                    _ => pipeline.drain_into(&rules, time, &mut output),
                }
            } else {
                if keeps_up {
                    pipeline.cross_traces_mut().round = Round::KeepsUp;
                }
                pipeline.advance_into(&rules, time, &mut output);
            }
            if let Some(kept) = &mut kept {
                let below = if keeps_up { offered_below } else { taken_below };
                kept.need(&mut pipeline, below, now().instant);
            }
            report_torn(pipeline.take_torn(), &shared.telemetry);
            place.report_held(&pipeline);
            if ended {
                return output.heartbeat.finish();
            }
        }
    }
}

impl Place<'_> {
    /// Records the thread's memory use and its next due time, and reports the memory use of all
    /// threads.
    fn report_held(&self, pipeline: &Pipeline<SharedAccess>) {
        let Self { shared, index } = *self;
        let held = shared.hold(index, &pipeline.stats());
        let (cross_traces_size, sessions) =
            shared.traces.end_round(index, pipeline.next_deadline());
        TracesHeld {
            n_open: held.n_open,
            open_bytes: held.open_size,
            n_recent: held.n_recent,
            recent_bytes: held.recent_size + cross_traces_size,
            n_sessions: sessions.n_sessions,
            session_bytes: sessions.size,
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
    /// Traces of which only the spans or only the log records arrived. Each is reported once.
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
    /// Rebuilds the traces from the journal, if the journal was opened since the last call.
    fn rebuild(
        &mut self,
        kept: &mut KeptPartition,
        pipeline: &mut Pipeline<SharedAccess>,
        now: Now,
    ) {
        let (rules, telemetry) = (Arc::clone(&self.rules), self.telemetry);
        kept.rebuild(pipeline, &rules, now, telemetry, || self.beat());
    }

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
