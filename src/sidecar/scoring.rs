//! The scoring thread: takes batches from a queue that is bounded in bytes, and runs the pipeline
//! with the clock whenever a batch or a deadline is due. It is a thread of its own because a huge
//! trace may take long to judge, and telemetry must not wait for that.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use arc_swap::ArcSwap;

use super::now;
use crate::assemble::{Settings, TornService, TornTraces, TraceIdFilter};
use crate::extract;
use crate::pipeline::{Judged, JudgementSink, Pipeline, Rules};
use crate::span::{Batch, Now, ScopeHash, Span, TraceId};
use crate::sync::Mutex;
use crate::telemetry::{
    Heartbeat, ServiceTorn, SpansLate, SpansUnscored, SpansWithoutIds, Telemetry, TracesClosed,
    TracesHeld, TracesJudged, TracesTorn,
};

/// Number of batches that may wait, whatever their size.
const MAX_BATCHES: usize = 4096;

/// Number of batches taken in before traces are closed again.
const MAX_BATCHES_AT_ONCE: usize = 64;

/// How long batches gather while the thread keeps up. Waking the thread for each batch would be a
/// large part of the cost of a small request.
const GATHER: Duration = Duration::from_millis(5);

/// Number of ids of unscored traces that may wait for the thread in a list: 1 MiB. Further ones go
/// into a filter.
const MAX_UNSCORED: usize = 65_536;

/// Settle time once a stop was announced.
const DRAINING_SETTLE: Duration = Duration::from_millis(500);

/// Shortest time between two beats: a beat takes a lock that probes take, too.
const BEAT_EVERY: Duration = Duration::from_millis(200);

/// Takes the thread's judgements: the exporter, the printer, the demo.
pub(super) type Judge = Box<dyn FnMut(&Judged, &Rules) + Send>;

/// The receivers' end of the scoring queue. Never waits.
#[derive(Debug, Clone)]
pub(super) struct ScoringQueue {
    sender: SyncSender<Box<Arrived>>,
    shared: Arc<Shared>,
}

/// A batch in the queue. Boxed, since the channel allocates all its places at once.
#[derive(Debug)]
struct Arrived {
    /// When it arrived: timers run on arrival, however long it waits here.
    at: Now,
    /// Its bytes.
    size: usize,
    batch: Batch,
}

#[derive(Debug)]
struct Shared {
    rules: Arc<ArcSwap<Rules>>,
    telemetry: Arc<Telemetry>,
    /// Bytes that wait in the channel.
    waiting: AtomicUsize,
    /// Most bytes that may wait.
    capacity: usize,
    unscored: Mutex<Unscored>,
    /// Since when replicas may have come or gone, and when that was noticed, until the thread has
    /// read it.
    peers_changed: Mutex<Option<(Now, Now)>>,
    /// Is the sidecar about to stop? Traces then close sooner.
    draining: AtomicBool,
}

/// Traces of which spans were forwarded unscored, for the thread to mark.
#[derive(Debug, Default)]
struct Unscored {
    trace_ids: Vec<TraceId>,
    /// Those for which the list has no room.
    others: TraceIdFilter,
}

impl ScoringQueue {
    /// Starts the thread. It ends when the last handle is dropped, after judging the open traces.
    pub(super) fn start(
        settings: Settings,
        capacity: usize,
        rules: Arc<ArcSwap<Rules>>,
        telemetry: Arc<Telemetry>,
        judge: Judge,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let (sender, inbox) = sync_channel(MAX_BATCHES);
        let shared = Arc::new(Shared {
            rules,
            telemetry,
            waiting: AtomicUsize::new(0),
            capacity,
            unscored: Mutex::default(),
            peers_changed: Mutex::default(),
            draining: AtomicBool::new(false),
        });
        // The pipeline's memory of traces begins here, before a port is open, and not when the
        // thread first runs: a trace that begins in between is complete.
        let started = now();
        let pipeline = Pipeline::new(settings, started);
        let heartbeat = shared.telemetry.heartbeat("scoring", started.instant);
        let thread = thread::Builder::new().name("scoring".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || run(&inbox, &shared, pipeline, judge, heartbeat)
        })?;
        Ok((Self { sender, shared }, thread))
    }

    /// Takes a batch to be scored, or counts it as unscored and remembers its traces.
    pub(super) fn offer(&self, batch: Batch) {
        if batch.n_without_ids > 0 {
            SpansWithoutIds {
                n_spans: batch.n_without_ids,
            }
            .emit(&self.shared.telemetry);
        }
        if batch.spans.is_empty() && batch.log_records.is_empty() {
            return;
        }
        let size = batch.size();
        // Compared before adding: a batch larger than the whole queue may pass an empty one.
        let waiting = self.shared.waiting.fetch_add(size, Ordering::Relaxed);
        if waiting > 0 && waiting + size > self.shared.capacity {
            self.shared.waiting.fetch_sub(size, Ordering::Relaxed);
            return self.mark_unscored(batch);
        }
        let at = now();
        let arrived = Box::new(Arrived { at, size, batch });
        if let Err(TrySendError::Full(arrived) | TrySendError::Disconnected(arrived)) =
            self.sender.try_send(arrived)
        {
            self.shared.waiting.fetch_sub(size, Ordering::Relaxed);
            self.mark_unscored(arrived.batch);
        }
    }

    /// Replicas came or went at some time after `since`.
    pub(super) fn peers_changed(&self, since: Now, noticed: Now) {
        let mut changed = self.shared.peers_changed.lock();
        // From before the first change that the thread has not read yet until after the last.
        changed.get_or_insert((since, noticed)).1 = noticed;
    }

    /// Closes traces sooner from now on (`spanscore drain`).
    pub(super) fn begin_drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    fn mark_unscored(&self, batch: Batch) {
        SpansUnscored {
            n_spans: batch.spans.len() + batch.log_records.len(),
        }
        .emit(&self.shared.telemetry);
        let placed = batch.log_records.into_iter().filter_map(extract::place);
        let of_records: Vec<TraceId> = placed.map(|placed| placed.trace_id).collect();
        let rules = self.shared.rules.load();
        let is_own_score = |span: &Span| {
            span.scope == ScopeHash::OWN
                && extract::is_own_score(span, extract::classify(span, &rules.recogniser))
        };
        let spans = batch.spans.iter().filter(|span| !is_own_score(span));
        let mut unscored = self.shared.unscored.lock();
        let mut last = None;
        for trace_id in spans.map(|span| span.trace_id).chain(of_records) {
            if last == Some(trace_id) {
                continue;
            }
            last = Some(trace_id);
            if unscored.trace_ids.len() < MAX_UNSCORED {
                unscored.trace_ids.push(trace_id);
            } else {
                unscored.others.insert(trace_id);
            }
        }
    }
}

fn run(
    inbox: &Receiver<Box<Arrived>>,
    shared: &Shared,
    mut pipeline: Pipeline,
    judge: Judge,
    heartbeat: Heartbeat,
) {
    // The pipeline's time: never later than the arrival of a waiting batch, so that a trace whose
    // spans are in the queue does not settle without them when we fall behind.
    let mut time = now();
    let mut is_draining = false;
    let mut keeps_up = true;
    let mut output = Output {
        judge,
        rules: shared.rules.load_full(),
        telemetry: &shared.telemetry,
        next_beat: time.instant,
        heartbeat,
    };
    loop {
        let first = wait(inbox, pipeline.next_deadline());
        if first.is_ok() && keeps_up {
            thread::park_timeout(GATHER);
        }
        output.beat();
        let rules = shared.rules.load_full();
        output.rules = Arc::clone(&rules);
        if !is_draining && shared.draining.load(Ordering::Relaxed) {
            is_draining = true;
            pipeline.shorten_settle(DRAINING_SETTLE);
        }
        if let Some((since, noticed)) = shared.peers_changed.lock().take() {
            pipeline.begin_memory(since, noticed);
        }
        let unscored = mem::take(&mut *shared.unscored.lock());
        if !unscored.others.is_empty() {
            pipeline.mark_many_unscored(unscored.others, time);
        }
        if !unscored.trace_ids.is_empty() {
            pipeline.mark_unscored(&unscored.trace_ids, time);
        }
        let ended = matches!(first, Err(RecvTimeoutError::Disconnected));
        let mut n_taken = 0;
        for arrived in first
            .into_iter()
            .chain(inbox.try_iter())
            .take(MAX_BATCHES_AT_ONCE)
        {
            let Arrived { at, size, batch } = *arrived;
            n_taken += 1;
            shared.waiting.fetch_sub(size, Ordering::Relaxed);
            time = later(time, at);
            let intake = pipeline.accept_into(&rules, batch, time, &mut output);
            // Log records that name no prompt and no session are forwarded and not assembled, like
            // spans without ids.
            SpansWithoutIds {
                n_spans: intake.n_ungrouped,
            }
            .emit(&shared.telemetry);
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
            pipeline.drain_into(&rules, time, &mut output);
        } else {
            pipeline.advance_into(&rules, time, &mut output);
        }
        report_torn(pipeline.take_torn(), &shared.telemetry);
        let stats = pipeline.stats();
        TracesHeld {
            n_open: stats.n_open,
            open_bytes: stats.open_size,
            n_recent: stats.n_recent,
            recent_bytes: stats.recent_size,
        }
        .emit(&shared.telemetry);
        if ended {
            return output.heartbeat.finish();
        }
    }
}

// === Output ===

/// Where the pipeline's results go while it works, and its signs of life.
struct Output<'a> {
    judge: Judge,
    rules: Arc<Rules>,
    telemetry: &'a Telemetry,
    heartbeat: Heartbeat,
    next_beat: Instant,
}

impl JudgementSink for Output<'_> {
    fn take(&mut self, slice: &mut Judged) {
        report(slice, self.telemetry);
        (self.judge)(slice, &self.rules);
    }

    fn beat(&mut self) {
        let now = now().instant;
        if now >= self.next_beat {
            self.next_beat = now + BEAT_EVERY;
            self.heartbeat.beat(now);
        }
    }
}

/// The next batch, unless the deadline or the next heartbeat is due first.
fn wait(
    inbox: &Receiver<Box<Arrived>>,
    deadline: Option<Instant>,
) -> Result<Box<Arrived>, RecvTimeoutError> {
    let until_deadline = deadline.map_or(Duration::MAX, |deadline| {
        deadline.saturating_duration_since(now().instant)
    });
    inbox.recv_timeout(until_deadline.min(Heartbeat::INTERVAL))
}

/// The later of two times: requests are stamped in parallel and may overtake each other on their
/// way into the queue.
fn later(time: Now, other: Now) -> Now {
    if other.instant > time.instant {
        other
    } else {
        time
    }
}

fn report(judged: &Judged, telemetry: &Telemetry) {
    let mut by_reason: BTreeMap<&str, u64> = BTreeMap::new();
    for reason in &judged.reasons {
        *by_reason.entry(reason.as_str()).or_default() += 1;
    }
    for (reason, n_traces) in by_reason {
        TracesClosed { reason, n_traces }.emit(telemetry);
    }
    let Judged {
        evaluations,
        n_unchanged,
        n_no_trajectory,
        ..
    } = judged;
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

#[cfg(test)]
mod tests;
