//! The scoring thread: batches in through a queue bounded in bytes, judgements out. It waits for a
//! batch or the pipeline's deadline and hands the clock in. A thread of its own, since a huge trace
//! may take long to judge, and telemetry must not wait for that.

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
use crate::assemble::Settings;
use crate::extract;
use crate::pipeline::{Judged, Pipeline, Rules};
use crate::span::{Batch, Now, TraceId};
use crate::sync::Mutex;
use crate::telemetry::{
    Heartbeat, SpansLate, SpansUnscored, SpansWithoutIds, Telemetry, TracesClosed, TracesHeld,
    TracesJudged,
};

/// Batches that may wait, whatever their size.
const MAX_BATCHES: usize = 4096;

/// Batches taken in before traces are looked at again.
const MAX_BATCHES_AT_ONCE: usize = 64;

/// How long batches gather while the thread keeps up. Were it woken for each, that would be a large
/// part of what a small request costs.
const GATHER: Duration = Duration::from_millis(5);

/// Ids of missed traces that may wait for the thread to take notice: 1 MiB. Beyond that every open
/// trace is incomplete.
const MAX_MISSED: usize = 65_536;

/// Quiet time after a root's end once somebody has announced that we will be stopped.
const HURRIED_SETTLE: Duration = Duration::from_millis(500);

/// Takes what the thread judged: the exporter, the printer, the demo.
pub(super) type Judge = Box<dyn FnMut(&Judged, &Rules) + Send>;

/// Where receivers put what is to be scored. Never waits.
#[derive(Debug, Clone)]
pub(super) struct Scoring {
    sender: SyncSender<Arrived>,
    shared: Arc<Shared>,
}

/// A batch, the bytes it takes, and when it came: timers run on arrival, however long it waits
/// here. Boxed in the channel, whose places are all there from the beginning.
type Arrived = Box<(Now, usize, Batch)>;

#[derive(Debug)]
struct Shared {
    rules: Arc<ArcSwap<Rules>>,
    telemetry: Arc<Telemetry>,
    /// Bytes that wait in the channel, and how many may.
    waiting: AtomicUsize,
    capacity: usize,
    missed: Mutex<Missed>,
    /// Traces close sooner: the sidecar is about to be stopped.
    hurry: AtomicBool,
}

#[derive(Debug, Default)]
struct Missed {
    trace_ids: Vec<TraceId>,
    overflowed: bool,
}

impl Scoring {
    /// Starts the thread. It ends, after judging what is open, when the last handle is dropped.
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
            missed: Mutex::default(),
            hurry: AtomicBool::new(false),
        });
        // Its memory of traces begins here, before a door is open, and not whenever the thread gets
        // its first turn: a trace that begins in between is not one of which something was missed.
        let started = now();
        let pipeline = Pipeline::new(settings, started);
        let heartbeat = shared.telemetry.heartbeat("scoring", started.instant);
        let thread = thread::Builder::new().name("scoring".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || run(&inbox, &shared, pipeline, judge, heartbeat)
        })?;
        Ok((Self { sender, shared }, thread))
    }

    /// Takes a batch to be scored, or counts it as unscored and remembers whose spans they were.
    pub(super) fn offer(&self, batch: Batch) {
        if batch.n_without_ids > 0 {
            SpansWithoutIds {
                n_spans: batch.n_without_ids,
            }
            .emit(&self.shared.telemetry);
        }
        if batch.spans.is_empty() && batch.log_calls.is_empty() {
            return;
        }
        let size = batch.size();
        // Compared before adding: a batch larger than the whole queue may pass an empty one.
        let waiting = self.shared.waiting.fetch_add(size, Ordering::Relaxed);
        if waiting > 0 && waiting + size > self.shared.capacity {
            self.shared.waiting.fetch_sub(size, Ordering::Relaxed);
            return self.miss(batch);
        }
        let arrived = Box::new((now(), size, batch));
        if let Err(TrySendError::Full(arrived) | TrySendError::Disconnected(arrived)) =
            self.sender.try_send(arrived)
        {
            self.shared.waiting.fetch_sub(size, Ordering::Relaxed);
            self.miss(arrived.2);
        }
    }

    /// Close what can be closed sooner (`spanscore drain`).
    pub(super) fn hurry(&self) {
        self.shared.hurry.store(true, Ordering::Relaxed);
    }

    fn miss(&self, batch: Batch) {
        SpansUnscored {
            n_spans: batch.spans.len() + batch.log_calls.len(),
        }
        .emit(&self.shared.telemetry);
        let of_log_calls: Vec<TraceId> = batch
            .log_calls
            .into_iter()
            .filter_map(extract::log_call)
            .map(|span| span.trace_id)
            .collect();
        let mut missed = self.shared.missed.lock();
        let mut last = None;
        for trace_id in batch
            .spans
            .iter()
            .map(|span| span.trace_id)
            .chain(of_log_calls)
        {
            if last == Some(trace_id) {
                continue;
            }
            last = Some(trace_id);
            if missed.trace_ids.len() < MAX_MISSED {
                missed.trace_ids.push(trace_id);
            } else {
                missed.overflowed = true;
            }
        }
    }
}

fn run(
    inbox: &Receiver<Arrived>,
    shared: &Shared,
    mut pipeline: Pipeline,
    mut judge: Judge,
    heartbeat: Heartbeat,
) {
    // What the pipeline takes for now: never later than the arrival of what still waits, so that a
    // trace whose spans are in the queue does not settle without them when we fall behind.
    let mut time = now();
    let mut hurried = false;
    let mut keeps_up = true;
    loop {
        let first = wait(inbox, pipeline.next_deadline());
        if first.is_ok() && keeps_up {
            thread::park_timeout(GATHER);
        }
        heartbeat.beat(now().instant);
        let rules = shared.rules.load_full();
        if !hurried && shared.hurry.load(Ordering::Relaxed) {
            hurried = true;
            pipeline.hurry(HURRIED_SETTLE);
        }
        let missed = mem::take(&mut *shared.missed.lock());
        if missed.overflowed {
            pipeline.miss_all(time);
        }
        if !missed.trace_ids.is_empty() {
            pipeline.miss(&missed.trace_ids, time);
        }
        let ended = matches!(first, Err(RecvTimeoutError::Disconnected));
        let mut n_taken = 0;
        for taken in first
            .into_iter()
            .chain(inbox.try_iter())
            .take(MAX_BATCHES_AT_ONCE)
        {
            let (arrived, size, batch) = *taken;
            n_taken += 1;
            shared.waiting.fetch_sub(size, Ordering::Relaxed);
            time = later(time, arrived);
            let intake = pipeline.accept(&rules, batch, time);
            // Log records that name no prompt and no session: as spans without ids, they are
            // forwarded and not assembled.
            SpansWithoutIds {
                n_spans: intake.n_ungrouped,
            }
            .emit(&shared.telemetry);
            SpansLate {
                n_taken: intake.n_late,
                n_refused: intake.n_too_late,
            }
            .emit(&shared.telemetry);
        }
        keeps_up = n_taken < MAX_BATCHES_AT_ONCE;
        if keeps_up {
            time = later(time, now());
        }
        let judged = if ended {
            pipeline.drain(&rules, time)
        } else {
            pipeline.advance(&rules, time)
        };
        report(&judged, &shared.telemetry);
        let stats = pipeline.stats();
        TracesHeld {
            n_open: stats.n_open,
            open_bytes: stats.open_size,
            n_recent: stats.n_recent,
            recent_bytes: stats.recent_size,
        }
        .emit(&shared.telemetry);
        judge(&judged, &rules);
        if ended {
            return heartbeat.finish();
        }
    }
}

/// The next batch, unless the deadline or the next beat comes first.
fn wait(inbox: &Receiver<Arrived>, deadline: Option<Instant>) -> Result<Arrived, RecvTimeoutError> {
    let until_deadline = deadline.map_or(Duration::MAX, |deadline| {
        deadline.saturating_duration_since(now().instant)
    });
    inbox.recv_timeout(until_deadline.min(Heartbeat::INTERVAL))
}

/// Requests are stamped side by side, and may overtake each other on their way into the queue.
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

#[cfg(test)]
mod tests;
