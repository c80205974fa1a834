//! What the receivers' end of the scoring queue and its threads share: what waits, what was missed,
//! and how much each thread holds. Knows nothing of how traces are judged.

use std::fmt::{self, Debug};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use judge::assemble::{Sizes, Stats, TraceIdFilter};
use judge::pipeline::Rules;
use otlp::span::{Batch, Now, TraceId};

use super::shared_traces::SharedTraces;
use crate::config::Bound;
use crate::fair::{Charge, FairBudget};
use crate::sync::Mutex;
use crate::telemetry::Telemetry;

/// Number of ids of unscored traces that may wait for a thread in a list: 1 MiB. Further ones go
/// into a filter.
const MAX_UNSCORED: usize = 65_536;

/// The bounds that follow the memory limit.
pub(in crate::sidecar) struct ScoringBounds {
    /// Most bytes that may wait to be scored.
    pub(in crate::sidecar) queue: Bound,
    /// The bounds of the memory for traces, if they can change.
    pub(in crate::sidecar) traces: Option<SizesNow>,
}

/// Returns how much memory traces may take now.
pub(in crate::sidecar) type SizesNow = Box<dyn Fn() -> Sizes + Send + Sync>;

impl ScoringBounds {
    /// How much memory traces may take now, if that can change.
    pub(in crate::sidecar) fn sizes(&self) -> Option<Sizes> {
        self.traces.as_ref().map(|now| now())
    }
}

impl Debug for ScoringBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScoringBounds")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl From<usize> for ScoringBounds {
    /// Bounds that never change.
    fn from(queue: usize) -> Self {
        Self {
            queue: queue.into(),
            traces: None,
        }
    }
}

/// What the receivers and the threads share.
#[derive(Debug)]
pub(super) struct ScoringState {
    pub(super) rules: Arc<ArcSwap<Rules>>,
    pub(super) telemetry: Arc<Telemetry>,
    /// Bytes that wait in the queues of all threads.
    pub(super) waiting: Arc<FairBudget>,
    pub(super) bounds: ScoringBounds,
    /// Is the sidecar about to stop? Traces then close sooner.
    pub(super) draining: AtomicBool,
    /// One more than the number of the last record of the journal that was offered.
    pub(super) offered_below: AtomicU64,
    pub(super) traces: Arc<SharedTraces>,
    pub(super) threads: Vec<OfThread>,
}

/// What concerns one thread.
#[derive(Debug, Default)]
pub(super) struct OfThread {
    pub(super) unscored: Mutex<Unscored>,
    /// Since when replicas may have come or gone, and when that was noticed, until the thread has
    /// read it.
    pub(super) peers_changed: Mutex<Option<(Now, Now)>>,
    held: Held,
}

/// How much a thread held after its last round.
#[derive(Debug, Default)]
struct Held {
    n_open: AtomicUsize,
    open_size: AtomicUsize,
    n_recent: AtomicUsize,
    recent_size: AtomicUsize,
}

/// Traces of which spans were forwarded unscored, for the thread to mark.
#[derive(Debug, Default)]
pub(super) struct Unscored {
    pub(super) trace_ids: Vec<TraceId>,
    /// Those for which the list has no room.
    pub(super) others: TraceIdFilter,
}

/// The part of a request that waits for one thread. Boxed, since a channel allocates all its places
/// at once.
#[derive(Debug)]
pub(super) struct Arrived {
    /// When it arrived: timers run on arrival, however long it waits here.
    pub(super) at: Now,
    /// Its request waits as long as one part does: the parts share memory.
    pub(super) waiting: Arc<Charge>,
    pub(super) batch: Batch,
    /// The record of the journal that has its request.
    pub(super) record: Option<u64>,
}

// === impl ScoringState ===

impl ScoringState {
    pub(super) fn new(
        bounds: ScoringBounds,
        rules: Arc<ArcSwap<Rules>>,
        telemetry: Arc<Telemetry>,
        traces: SharedTraces,
        n_threads: usize,
    ) -> Self {
        Self {
            rules,
            telemetry,
            waiting: FairBudget::new(bounds.queue.clone()),
            bounds,
            draining: AtomicBool::new(false),
            offered_below: AtomicU64::new(0),
            traces: Arc::new(traces),
            threads: iter::repeat_with(OfThread::default)
                .take(n_threads)
                .collect(),
        }
    }

    /// Notes how much a thread holds. Returns how much all of them do.
    pub(super) fn hold(&self, index: usize, stats: &Stats) -> Stats {
        self.threads[index].held.set(stats);
        let threads = self.threads.iter();
        threads.fold(Stats::default(), |sum, thread| thread.held.add_to(sum))
    }
}

// === impl Held ===

impl Held {
    fn set(&self, stats: &Stats) {
        self.n_open.store(stats.n_open, Ordering::Relaxed);
        self.open_size.store(stats.open_size, Ordering::Relaxed);
        self.n_recent.store(stats.n_recent, Ordering::Relaxed);
        self.recent_size.store(stats.recent_size, Ordering::Relaxed);
    }

    fn add_to(&self, sum: Stats) -> Stats {
        Stats {
            n_open: sum.n_open + self.n_open.load(Ordering::Relaxed),
            open_size: sum.open_size + self.open_size.load(Ordering::Relaxed),
            n_recent: sum.n_recent + self.n_recent.load(Ordering::Relaxed),
            recent_size: sum.recent_size + self.recent_size.load(Ordering::Relaxed),
            ..sum
        }
    }
}

// === impl Unscored ===

impl Unscored {
    pub(super) fn mark(&mut self, trace_id: TraceId) {
        if self.trace_ids.len() < MAX_UNSCORED {
            self.trace_ids.push(trace_id);
        } else {
            self.others.insert(trace_id);
        }
    }
}
