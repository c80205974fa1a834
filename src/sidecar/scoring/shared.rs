//! State that the receivers and the scoring threads share: queued bytes, unscored traces, and each
//! thread's memory use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use arc_swap::ArcSwap;
use judge::assemble::{Sizes, TraceIdFilter};
use judge::pipeline::Rules;
use otlp::span::{Batch, Now, PeerId, TraceId};

use super::shared_traces::SharedTraces;
use crate::config::Bound;
use crate::fair::{Charge, FairBudget};
use crate::sync::Mutex;
use crate::telemetry::Telemetry;

/// Maximum number of ids in a thread's list of unscored traces: 1 MiB. Further ids are added to a
/// filter.
const MAX_UNSCORED: usize = 65_536;

/// Limits that follow the memory limit.
pub(in crate::sidecar) struct ScoringBounds {
    /// Maximum bytes in the scoring queues.
    pub(in crate::sidecar) queue: Bound,
    /// Returns the current limits on the memory for traces.
    pub(in crate::sidecar) traces: Box<dyn Fn() -> Sizes + Send + Sync>,
}

pub(super) struct ScoringState {
    pub(super) rules: Arc<ArcSwap<Rules>>,
    pub(super) telemetry: Arc<Telemetry>,
    /// Budget of the bytes in all threads' queues.
    pub(super) waiting: Arc<FairBudget>,
    /// Budget of the journal's bytes that the threads have yet to read, if there is a journal.
    pub(super) unread: Option<Arc<FairBudget>>,
    pub(super) bounds: ScoringBounds,
    /// True if the sidecar drains; traces then close sooner.
    pub(super) draining: AtomicBool,
    /// One more than the number of the last journal record that was offered.
    pub(super) offered_below: AtomicU64,
    pub(super) traces: Arc<SharedTraces>,
    pub(super) threads: Vec<Mutex<OfThread>>,
}

/// What receivers and other threads tell one thread, and the thread has not read yet.
#[derive(Debug, Default)]
pub(super) struct OfThread {
    /// Traces with spans that were forwarded unscored. The thread must mark them.
    pub(super) unscored: Vec<TraceId>,
    /// Unscored traces that do not fit into the list.
    pub(super) other_unscored: TraceIdFilter,
    /// The changes of the replicas: the earliest time at which the first can have happened, and the
    /// time at which the last was detected.
    pub(super) peers_changed: Option<(Now, Now)>,
}

/// The spans of a request for one thread. They are boxed, because a channel allocates all its slots
/// in advance.
#[derive(Debug)]
pub(super) struct Arrived {
    /// Time of arrival. Timers count from the arrival, not from the end of the wait in the queue.
    pub(super) at: Now,
    /// The charge of the request, shared by all its batches, because they share memory.
    pub(super) charge: Arc<Charge>,
    /// The number of the request's journal record.
    pub(super) record: Option<u64>,
    pub(super) spans: QueuedSpans,
}

/// The spans themselves, or where to read them.
#[derive(Debug)]
pub(super) enum QueuedSpans {
    InMemory(Batch),
    /// The queue's memory was full, so the thread reads the spans from the request's record.
    InJournal {
        peer: PeerId,
        n_spans: usize,
    },
}

// === impl OfThread ===

impl OfThread {
    pub(super) fn mark_unscored(&mut self, trace_id: TraceId) {
        if self.unscored.len() < MAX_UNSCORED {
            self.unscored.push(trace_id);
        } else {
            self.other_unscored.insert(trace_id);
        }
    }
}
