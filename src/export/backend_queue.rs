//! The scores that wait for one backend, in the order in which it may receive them. Must not know
//! what a request says.
//!
//! A request waits here until its score spans are delivered and every earlier request about its
//! trace is done; then it moves to a queue of `transport`. Each of the two holds at most half of
//! the backend's share of memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use tokio::sync::Notify;

use super::queues::ScoreAccounting;
use crate::config::{Bound, Signal, Writer};
use crate::span::TraceId;
use crate::sync::Mutex;
use crate::transport::queue::{Accounting, CompletionGuard, OutboundRequest, Queue};

/// Stands for an open batch of score spans, and is dropped when all parts of the batch are
/// delivered or dropped.
#[derive(Debug)]
pub(super) struct BatchGuard {
    pub(super) wakeup: Arc<Wakeup>,
}

/// Wakes the dispatcher when waiting scores may have become ready. A leaf among locks: it is used
/// while a queue holds its own.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    /// Traces whose request is done, by the position of their backend.
    pub(super) finished: Mutex<Vec<(usize, TraceId)>>,
    /// A batch of score spans is done.
    pub(super) is_batch_done: AtomicBool,
    pub(super) notify: Notify,
}

/// The scores for one backend.
#[derive(Debug)]
pub(super) struct BackendQueue {
    pub(super) writer: Writer,
    /// Label of its metrics, name of its queue.
    pub(super) name: &'static str,
    pub(super) backend_idx: usize,
    /// Most bytes that wait here.
    pub(super) capacity: Bound,
    pub(super) queue: Queue,
    pub(super) accounting: Arc<WaitingAccounting>,
    pub(super) waiting: Mutex<WaitingScores>,
}

#[derive(Debug, Default)]
pub(super) struct WaitingScores {
    /// In order of arrival; their score spans are not delivered yet.
    for_spans: VecDeque<WaitingRequest>,
    /// Traces with a request in the queue, and the requests that wait behind it.
    for_trace: HashMap<TraceId, VecDeque<OutboundRequest>>,
    /// Cost of all waiting requests.
    n_bytes: usize,
}

/// A request whose score spans are not delivered yet.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) trace_id: TraceId,
    /// The batches that contain its score spans.
    pub(super) batches: Vec<Weak<BatchGuard>>,
    pub(super) request: OutboundRequest,
}

/// Reports that a trace's request is done.
struct TraceGuard {
    backend_idx: usize,
    trace_id: TraceId,
    wakeup: Arc<Wakeup>,
    /// What else waits for the request.
    _completion: Option<CompletionGuard>,
}

/// Counts the fate of a backend's scores. They were counted as queued when they began to wait, so
/// their way into the queue is not counted again.
#[derive(Debug)]
pub(super) struct WaitingAccounting(pub(super) ScoreAccounting);

// === impl BackendQueue ===

impl BackendQueue {
    /// Lets a request wait; drops the oldest ones if there is no room for it.
    pub(super) fn hold(&self, waiting_request: WaitingRequest) {
        let mut waiting = self.waiting();
        let request = &waiting_request.request;
        let (cost, n_items) = (request.cost(), request.n_items);
        self.accounting.0.queued(Signal::Traces, n_items);
        let capacity = self.capacity.get();
        while cost <= capacity
            && waiting.n_bytes + cost > capacity
            && let Some(oldest) = waiting.for_spans.pop_front()
        {
            waiting.n_bytes -= oldest.request.cost();
            self.count_dropped(oldest.request.n_items, "queue_full");
        }
        if waiting.n_bytes + cost > capacity {
            return self.count_dropped(n_items, "queue_full");
        }
        waiting.n_bytes += cost;
        waiting.for_spans.push_back(waiting_request);
    }

    /// Queues the next request of each finished trace, and, if `is_batch_done`, every request whose
    /// score spans are delivered.
    pub(super) fn advance(
        &self,
        finished: impl Iterator<Item = TraceId>,
        is_batch_done: bool,
        wakeup: &Arc<Wakeup>,
    ) {
        let mut waiting = self.waiting();
        for trace_id in finished {
            let behind = waiting.for_trace.get_mut(&trace_id);
            match behind.and_then(VecDeque::pop_front) {
                Some(request) => {
                    waiting.n_bytes -= request.cost();
                    self.send(trace_id, request, wakeup);
                }
                None => {
                    waiting.for_trace.remove(&trace_id);
                }
            }
        }
        if !is_batch_done {
            return;
        }
        // Earlier requests about a trace go first, even if their batch takes longer.
        let mut blocked_traces = HashSet::new();
        let mut rest = VecDeque::with_capacity(waiting.for_spans.len());
        for waiting_request in std::mem::take(&mut waiting.for_spans) {
            let trace_id = waiting_request.trace_id;
            if !are_done(&waiting_request.batches) || blocked_traces.contains(&trace_id) {
                blocked_traces.insert(trace_id);
                rest.push_back(waiting_request);
            } else if let Some(behind) = waiting.for_trace.get_mut(&trace_id) {
                behind.push_back(waiting_request.request);
            } else {
                waiting.for_trace.insert(trace_id, VecDeque::new());
                waiting.n_bytes -= waiting_request.request.cost();
                self.send(trace_id, waiting_request.request, wakeup);
            }
        }
        waiting.for_spans = rest;
    }

    /// Moves a request to the queue, which drops its oldest when it is full.
    fn send(&self, trace_id: TraceId, request: OutboundRequest, wakeup: &Arc<Wakeup>) {
        let guard = TraceGuard {
            backend_idx: self.backend_idx,
            trace_id,
            wakeup: wakeup.clone(),
            _completion: request.completion,
        };
        // A queue that drops its oldest refuses nothing, and counts a request that cannot fit.
        let _ = self.queue.offer(OutboundRequest {
            completion: Some(CompletionGuard(Arc::new(guard))),
            ..request
        });
    }

    /// Drops all waiting requests.
    pub(super) fn abandon(&self) {
        let abandoned = std::mem::take(&mut *self.waiting());
        let n_items = abandoned.n_items();
        if n_items > 0 {
            self.count_dropped(n_items, "shutdown");
        }
    }

    /// How many scores wait.
    pub(super) fn n_waiting(&self) -> u64 {
        self.waiting().n_items()
    }

    fn count_dropped(&self, n_items: u64, reason: &'static str) {
        self.accounting.dropped(Signal::Traces, n_items, reason);
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingScores> {
        self.waiting.lock()
    }
}

impl WaitingScores {
    fn n_items(&self) -> u64 {
        let for_spans = self.for_spans.iter().map(|waiting| &waiting.request);
        for_spans
            .chain(self.for_trace.values().flatten())
            .map(|request| request.n_items)
            .sum()
    }
}

/// Whether all these batches are delivered or dropped.
pub(super) fn are_done(batches: &[Weak<BatchGuard>]) -> bool {
    batches.iter().all(|batch| batch.strong_count() == 0)
}

// === impl BatchGuard, impl TraceGuard, impl WaitingAccounting ===

impl Drop for BatchGuard {
    fn drop(&mut self) {
        self.wakeup.is_batch_done.store(true, Ordering::Release);
        self.wakeup.notify.notify_one();
    }
}

impl Drop for TraceGuard {
    fn drop(&mut self) {
        let finished = (self.backend_idx, self.trace_id);
        self.wakeup.finished.lock().push(finished);
        self.wakeup.notify.notify_one();
    }
}

impl Accounting for WaitingAccounting {
    fn queued(&self, _: Signal, _: u64) {}

    fn sent(&self, signal: Signal, n_items: u64) {
        self.0.sent(signal, n_items);
    }

    fn dropped(&self, signal: Signal, n_items: u64, reason: &'static str) {
        self.0.dropped(signal, n_items, reason);
    }
}
