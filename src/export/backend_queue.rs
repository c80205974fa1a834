//! The scores that wait for one backend, in the order in which the backend may receive them.
//!
//! A request waits here until its score spans are delivered and every earlier request about its
//! trace is done; then it moves to a queue of `transport`. Each of the two queues may use half of
//! the backend's share of memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use otlp::span::TraceId;
use tokio::sync::Notify;

use super::lanes::decode_meta;
use super::queues::ScoreAccounting;
use crate::config::{Bound, Signal, Writer};
use crate::journal::{AppendError, JournalLog, LogReader, LostRecord, OpenedLog, Stretch};
use crate::sync::Mutex;
use crate::transport::queue::{Accounting, CompletionGuard, OutboundRequest, Queue, Route};
use crate::transport::{OnDisk, ToRead};

/// A guard of an open batch of score spans, dropped when all requests of the batch are delivered or
/// dropped.
#[derive(Debug, Default)]
pub(super) struct BatchGuard {
    pub(super) wakeup: Arc<Wakeup>,
}

/// Wakes the dispatcher when waiting scores may have become ready. Code that locks this value must
/// lock nothing else: callers hold the lock of a queue.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    /// Traces whose request is done, each with the position of its backend.
    pub(super) finished: Mutex<Vec<(usize, TraceId)>>,
    /// True if a batch of score spans is done.
    pub(super) is_batch_done: AtomicBool,
    pub(super) notify: Notify,
}

/// The scores for one backend.
#[derive(Debug)]
pub(super) struct BackendQueue {
    pub(super) writer: Writer,
    /// The name of the queue, and the label of its metrics.
    pub(super) name: &'static str,
    pub(super) backend_idx: usize,
    /// Maximum bytes of waiting requests.
    pub(super) capacity: Bound,
    pub(super) queue: Queue,
    pub(super) accounting: Arc<WaitingAccounting>,
    pub(super) waiting: Mutex<WaitingScores>,
    /// With a journal: the log that stores the requests.
    pub(super) kept: Option<JournalLog>,
}

#[derive(Debug, Default)]
pub(super) struct WaitingScores {
    /// Requests whose score spans are not delivered, in order of arrival.
    for_spans: VecDeque<WaitingRequest>,
    /// Traces with a request in the transport queue, and the later requests of each trace.
    for_trace: HashMap<TraceId, VecDeque<HeldRequest>>,
    /// Cost of all waiting requests.
    n_bytes: usize,
    /// With a journal: the requests that do not fit into memory.
    pub(super) on_disk: Option<OnDisk>,
    /// Cost of requests that the journal is writing.
    n_keeping: usize,
    /// With a journal: true if a request is ready but the transport queue was full.
    is_blocked: bool,
}

/// A request, and the number of its journal record.
#[derive(Debug)]
pub(super) struct HeldRequest {
    pub(super) request: OutboundRequest,
    pub(super) record: Option<u64>,
}

/// A request whose score spans are not delivered yet.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) trace_id: TraceId,
    /// The batches that contain the request's score spans.
    pub(super) batches: Batches,
    pub(super) held: HeldRequest,
}

/// The batches of score spans that a request waits for.
pub(super) type Batches = Arc<[Weak<BatchGuard>]>;

/// Reports, when it is dropped, that a trace's request is done.
struct TraceGuard {
    backend_idx: usize,
    trace_id: TraceId,
    wakeup: Arc<Wakeup>,
    /// Dropped when the request is done.
    _completion: Option<CompletionGuard>,
}

/// Counts a backend's scores by outcome. The scores were counted as queued when they began to wait,
/// so the move to the transport queue is not counted.
#[derive(Debug)]
pub(super) struct WaitingAccounting(pub(super) ScoreAccounting);

// === impl BackendQueue ===

impl BackendQueue {
    /// Enqueues a request, dropping the oldest until it fits.
    pub(super) fn hold(&self, waiting_request: WaitingRequest) {
        let mut waiting = self.waiting();
        let request = &waiting_request.held.request;
        let (cost, n_items) = (request.cost(), request.n_items);
        self.accounting.0.queued(Signal::Traces, n_items);
        let capacity = self.capacity.get();
        while cost <= capacity
            && waiting.n_bytes + cost > capacity
            && let Some(oldest) = waiting.for_spans.pop_front()
        {
            waiting.n_bytes -= oldest.held.request.cost();
            self.count_dropped(oldest.held.request.n_items, "queue_full");
            if let (Some(log), Some(record)) = (&self.kept, oldest.held.record) {
                log.consume([record]);
            }
        }
        if waiting.n_bytes + cost > capacity {
            return self.count_dropped(n_items, "queue_full");
        }
        waiting.n_bytes += cost;
        waiting.for_spans.push_back(waiting_request);
    }

    /// Sends the next request of each finished trace and, if `is_batch_done`, every request whose
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
                Some(held) => {
                    waiting.n_bytes -= held.request.cost();
                    self.send(trace_id, held, wakeup);
                }
                None => {
                    waiting.for_trace.remove(&trace_id);
                }
            }
        }
        if !is_batch_done && !std::mem::take(&mut waiting.is_blocked) {
            return;
        }
        // Earlier requests of a trace go first, even if their batch takes longer.
        let mut blocked_traces = HashSet::new();
        let mut rest = VecDeque::with_capacity(waiting.for_spans.len());
        for waiting_request in std::mem::take(&mut waiting.for_spans) {
            let trace_id = waiting_request.trace_id;
            let cost = waiting_request.held.request.cost();
            let is_blocked = self.kept.is_some() && !self.queue.has_room(cost);
            waiting.is_blocked |= is_blocked;
            if is_blocked
                || !are_done(&waiting_request.batches)
                || blocked_traces.contains(&trace_id)
            {
                blocked_traces.insert(trace_id);
                rest.push_back(waiting_request);
            } else if let Some(behind) = waiting.for_trace.get_mut(&trace_id) {
                behind.push_back(waiting_request.held);
            } else {
                waiting.for_trace.insert(trace_id, VecDeque::new());
                waiting.n_bytes -= cost;
                self.send(trace_id, waiting_request.held, wakeup);
            }
        }
        waiting.for_spans = rest;
    }

    /// Moves a request to the transport queue, which drops its oldest requests when full.
    fn send(&self, trace_id: TraceId, held: HeldRequest, wakeup: &Arc<Wakeup>) {
        let HeldRequest { request, record } = held;
        let guard = TraceGuard {
            backend_idx: self.backend_idx,
            trace_id,
            wakeup: wakeup.clone(),
            _completion: request.completion,
        };
        let request = OutboundRequest {
            completion: Some(CompletionGuard(Arc::new(guard))),
            ..request
        };
        match record {
            Some(record) => self.queue.take_recorded(record, request),
            // `offer` never fails for a queue that drops its oldest; the queue counts a request
            // that cannot fit.
            None => drop(self.queue.offer(request)),
        }
    }

    /// Drops all waiting requests that are not in a journal, and returns their number of scores.
    pub(super) fn abandon(&self) -> u64 {
        let mut waiting = self.waiting();
        // The journal may still be writing requests; `written` subtracts their cost.
        let n_keeping = waiting.n_keeping;
        let abandoned = std::mem::take(&mut *waiting);
        waiting.n_keeping = n_keeping;
        drop(waiting);
        let unkept = abandoned.held().filter(|held| held.record.is_none());
        let n_items = unkept.map(|held| held.request.n_items).sum();
        if n_items > 0 {
            self.count_dropped(n_items, "shutdown");
        }
        n_items
    }

    /// Returns true if the waiting requests and the transport queue each use at most half of their
    /// limit.
    pub(super) fn is_half_empty(&self) -> bool {
        self.waiting().n_bytes <= self.capacity.get() / 2 && self.queue.is_half_empty()
    }

    /// Returns true if no request waits here or for the journal.
    pub(super) fn is_empty(&self) -> bool {
        let waiting = self.waiting();
        waiting.held().next().is_none() && waiting.n_keeping == 0
    }

    fn count_dropped(&self, n_items: u64, reason: &'static str) {
        self.accounting.dropped(Signal::Traces, n_items, reason);
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingScores> {
        self.waiting.lock()
    }
}

impl WaitingScores {
    fn held(&self) -> impl Iterator<Item = &HeldRequest> {
        let for_spans = self.for_spans.iter().map(|waiting| &waiting.held);
        for_spans.chain(self.for_trace.values().flatten())
    }
}

// === with a journal ===

impl BackendQueue {
    /// Reserves memory for a request that the journal will write. If the budget is used up, because
    /// the disk is slower than scoring, drops and counts the request's scores.
    pub(super) fn reserve(&self, request: &OutboundRequest) -> bool {
        let mut waiting = self.waiting();
        let has_room = waiting.n_keeping + request.cost() <= self.capacity.get();
        if has_room {
            waiting.n_keeping += request.cost()
        } else {
            self.accounting.0.queued(Signal::Traces, request.n_items);
            self.count_dropped(request.n_items, "queue_full");
        }
        has_room
    }

    /// Enqueues a request that the journal has, or that the journal rejected, so that only memory
    /// has it. `leaving` is dropped once the journal has the request, or else when the request is
    /// done.
    pub(super) fn written(
        &self,
        appended: Result<u64, AppendError>,
        waiting_request: WaitingRequest,
        leaving: Option<CompletionGuard>,
    ) {
        let mut waiting = self.waiting();
        let cost = waiting_request.held.request.cost();
        waiting.n_keeping -= cost;
        let mut held = waiting_request.held;
        let Ok(record) = appended else {
            drop(waiting);
            held.request.completion = leaving;
            return self.hold(WaitingRequest {
                held,
                ..waiting_request
            });
        };
        self.accounting
            .0
            .queued(Signal::Traces, held.request.n_items);
        held.record = Some(record);
        let has_room = waiting.n_bytes == 0 || waiting.n_bytes + cost <= self.capacity.get();
        let on_disk = waiting.on_disk.as_mut();
        if on_disk.is_some_and(|on_disk| on_disk.appended(record, has_room)) {
            waiting.n_bytes += cost;
            waiting.for_spans.push_back(WaitingRequest {
                held,
                ..waiting_request
            });
        }
    }

    /// Returns the next records to read from the journal, if memory has space.
    pub(super) fn to_read(&self) -> Option<ToRead> {
        let mut waiting = self.waiting();
        let n_bytes = waiting.n_bytes;
        let on_disk = waiting.on_disk.as_mut()?;
        on_disk.begin_read(n_bytes, self.capacity.get())
    }

    /// Enqueues the requests that were read. Their score spans are in `batches`.
    pub(super) fn take_read(&self, stretch: Stretch, batches: &Batches) {
        let mut waiting = self.waiting();
        let waiting = &mut *waiting;
        let (Some(on_disk), Some(log)) = (&mut waiting.on_disk, &self.kept) else {
            return;
        };
        for (lost, _) in stretch.damage {
            log.consume(lost);
        }
        for record in stretch.records {
            // The log may have evicted the record since.
            if !on_disk.has(record.sequence) {
                continue;
            }
            let Some((trace_id, targets)) = decode_meta(record.meta) else {
                log.consume([record.sequence]);
                self.count_dropped(record.n_items, "damaged");
                continue;
            };
            let request = OutboundRequest {
                route: Route::Api { targets },
                ..OutboundRequest::otlp(Signal::Traces, record.body, record.n_items)
            };
            waiting.n_bytes += request.cost();
            waiting.for_spans.push_back(WaitingRequest {
                trace_id,
                batches: Arc::clone(batches),
                held: HeldRequest {
                    request,
                    record: Some(record.sequence),
                },
            });
        }
        on_disk.read_up_to(stretch.next);
    }

    /// Returns the reader that [`Self::to_read`] lent.
    pub(super) fn return_reader(&self, reader: LogReader) {
        if let Some(on_disk) = &mut self.waiting().on_disk {
            on_disk.return_reader(reader);
        }
    }

    /// Counts the `n_items` undelivered scores of a journal that was opened.
    pub(super) fn opened(&self, log: &OpenedLog, n_items: u64) {
        if n_items > 0 {
            self.accounting.0.queued(Signal::Traces, n_items);
        }
        if let Some(on_disk) = &mut self.waiting().on_disk {
            on_disk.opened(log);
        }
    }

    /// Drops requests whose records the journal has evicted, unless the requests are in flight.
    pub(super) fn lose(&self, lost: &[LostRecord], lane: u8) {
        let lost: Vec<&LostRecord> = lost.iter().filter(|record| record.lane == lane).collect();
        let Some(last) = lost.last().map(|last| last.sequence) else {
            return;
        };
        let mut n_items = 0;
        let mut gone = Vec::new();
        let mut waiting = self.waiting();
        if let Some(on_disk) = &mut waiting.on_disk {
            let unread = lost.iter().filter(|record| on_disk.has(record.sequence));
            n_items += unread.map(|record| record.n_items).sum::<u64>();
            on_disk.give_up(last);
        }
        let is_gone = |held: &HeldRequest| held.record.is_some_and(|record| record <= last);
        for waiting_request in std::mem::take(&mut waiting.for_spans) {
            if is_gone(&waiting_request.held) {
                gone.push(waiting_request.held)
            } else {
                waiting.for_spans.push_back(waiting_request)
            }
        }
        // The order does not matter: the requests are only counted.
        waiting.for_trace.retain(|_, behind| {
            for held in std::mem::take(behind) {
                if is_gone(&held) { gone.push(held) } else { behind.push_back(held) }
            }
            true
        });
        for held in &gone {
            waiting.n_bytes -= held.request.cost();
            n_items += held.request.n_items;
        }
        drop(waiting);
        if n_items > 0 {
            self.count_dropped(n_items, "queue_full");
        }
    }
}

/// Returns true if all `batches` are delivered or dropped.
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
