//! A queue of requests to deliver, bounded in bytes. When full, the queue of original telemetry
//! refuses a new request, because the sender still has it ([`Queue::offer`]). A queue of scores, of
//! which there is no other copy, drops its oldest request ([`Queue::send`]). The queue accounts for
//! every change before other code can observe the change.

mod journaled;
mod journaled_scores;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::iter;
use std::mem;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use otlp::span::{PeerId, TraceId};
use tokio::sync::Notify;

use crate::config::{Bound, Signal};
use crate::fair::FairBudget;
use crate::journal::{AppendError, Ledger, SignalCounts, Ticket};
use crate::sync::Mutex;
use crate::telemetry::{ItemEvent, QueueOpened, QueueResized, QueueSize, Telemetry};

use super::backlog::Backlog;
use super::request::OVERHEAD;

pub use super::request::{ApiTarget, OutboundRequest, Route};

pub trait Accounting: Debug + Send + Sync {
    fn count(&self, signal: Signal, n_items: u64, event: ItemEvent);
    /// Counts items that were found in the journal.
    fn count_all(&self, counts: SignalCounts, event: ItemEvent) {
        for (signal, n_items) in Signal::ALL.into_iter().zip(counts) {
            if n_items > 0 {
                self.count(signal, n_items, event);
            }
        }
    }
}

/// The reason why a queue refused a request. The sender still has the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRefusal {
    /// The queue has no space; the sender should retry.
    Full,
    /// The request is larger than [`largest_request`], so there might never be space for it;
    /// retrying is useless.
    TooLarge {
        /// Maximum bytes of one request.
        limit: usize,
    },
    /// The sidecar stops, or drains while its destination is down; the sender should retry.
    Draining,
    /// The journal is full; the sender should retry.
    JournalFull,
    /// The journal's disk is full; the sender should retry.
    DiskFull,
    /// The journal's disk failed; the sender should retry.
    DiskFailed,
}

impl From<AppendError> for QueueRefusal {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full => Self::JournalFull,
            AppendError::DiskFull => Self::DiskFull,
            AppendError::DiskFailed => Self::DiskFailed,
        }
    }
}

/// A callback that gets the number of a request's record once the request is journaled, or the
/// reason for the refusal. It runs on the journal's thread, for journaled requests in the order of
/// their records. In three cases it runs immediately, on the caller's thread: if the queue is
/// closed, if the journal refuses immediately, and, with `None`, if the journal already had the
/// request when the process started.
pub type JournalOutcome = Box<dyn FnOnce(Result<Option<u64>, QueueRefusal>) + Send>;

/// Returns the maximum bytes of one request in a queue of this capacity that refuses requests when
/// full. A larger request might wait forever for enough space.
pub fn largest_request(capacity: &Bound) -> Bound {
    capacity.share(2)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum QueueStage {
    #[default]
    Open,
    /// The sidecar stops. A queue of telemetry without a journal now accepts requests only while
    /// its destination is up.
    Draining,
    Closed {
        /// Queued requests may be delivered until this time.
        deadline: Instant,
    },
}

/// A bounded queue. Clones share it.
#[derive(Debug, Clone)]
pub struct Queue {
    shared: Arc<QueueShared>,
}

#[derive(Debug)]
struct QueueShared {
    /// The label in metrics and log lines: `forward`, `scores`, …
    name: &'static str,
    /// The bytes of all requests, queued and in flight.
    budget: Arc<FairBudget>,
    accounting: Arc<dyn Accounting>,
    size: QueueSize,
    /// Issues the tickets of requests from [`Queue::offer`], which no journal stores.
    ledger: Arc<Ledger>,
    state: Mutex<State>,
    /// Wakes the only delivery of the queue.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Requests without an attempt, in order of arrival. The halves of a request that was too large
    /// come first, so that they are finished before another request is split.
    fresh: VecDeque<QueuedRequest>,
    /// Requests for another attempt, and the next request of each trace whose earlier request is
    /// done, by the time of the attempt, or `None` if they are due.
    tried: BTreeMap<(Option<Instant>, EntryOrder), QueuedRequest>,
    /// Traces with a request that is in flight or in `tried`, each with its later requests.
    busy_traces: BTreeMap<TraceId, VecDeque<QueuedRequest>>,
    /// Requests, each about a trace, that the journal refused while older requests were only on
    /// disk. Each waits until all records below its number were read.
    held: Vec<(u64, QueuedRequest)>,
    next_order: EntryOrder,
    stage: QueueStage,
    destination_is_down: bool,
    backlog: Option<Backlog>,
    /// Cost of the scores that the journal is currently writing.
    n_appending: usize,
}

/// The position of a request in the order of arrival, and a number that distinguishes the halves of
/// a split request.
type EntryOrder = (u64, u64);

/// A request in the queue, or removed from the queue for an attempt.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    order: EntryOrder,
    pub(super) request: OutboundRequest,
    pub(super) n_failures: u32,
    /// One more than the number of the last request that the queue of spans had when the peer first
    /// answered that it does not have the request's span.
    spans_end: Option<u64>,
    /// Time of the first such answer after all requests below `spans_end` were delivered or
    /// dropped.
    unknown_since: Option<Instant>,
    /// The ticket of the request. It is done when the request is delivered, refused or dropped, but
    /// not at a shutdown or if the log evicted its record.
    ticket: Ticket,
}

impl Queue {
    pub fn new(
        name: &'static str,
        capacity: impl Into<Bound>,
        accounting: Arc<dyn Accounting>,
        telemetry: &Telemetry,
    ) -> Self {
        let budget = FairBudget::new(capacity);
        let size = QueueOpened {
            queue: name,
            capacity: budget.max(),
        }
        .emit(telemetry);
        Self {
            shared: Arc::new(QueueShared {
                name,
                budget,
                accounting,
                size,
                ledger: Arc::default(),
                state: Mutex::default(),
                changed: Notify::new(),
            }),
        }
    }

    /// Returns an error if a request of at least `n_bytes` would be refused. Call it before reading
    /// the request, so that refusing is cheap; [`Self::offer`] decides.
    pub fn check_room(&self, peer: PeerId, n_bytes: usize) -> Result<(), QueueRefusal> {
        let state = self.state();
        if let Some(backlog) = &state.backlog {
            let room = backlog.log.check_room(peer, n_bytes);
            return room.map_err(QueueRefusal::from);
        }
        if state.must_not_acknowledge() {
            return Err(QueueRefusal::Draining);
        }
        let has_room = self
            .shared
            .budget
            .has_room(peer, n_bytes.saturating_add(OVERHEAD));
        if has_room { Ok(()) } else { Err(QueueRefusal::Full) }
    }

    pub fn is_half_empty(&self) -> bool {
        self.n_bytes() <= self.capacity() / 2
    }

    /// Charges a request to its sender, so that a later [`Self::offer`] has space for the request.
    pub fn charge(&self, request: OutboundRequest) -> Result<OutboundRequest, QueueRefusal> {
        let limit = self.capacity() / 2;
        if request.body.len() > limit {
            return Err(QueueRefusal::TooLarge { limit });
        }
        if self.state().must_not_acknowledge() {
            return Err(QueueRefusal::Draining);
        }
        let charge = self.shared.budget.charge(request.peer, request.cost());
        let charge = Some(Arc::new(charge.ok_or(QueueRefusal::Full)?));
        Ok(OutboundRequest { charge, ..request })
    }

    /// Enqueues or refuses a request. Never waits.
    pub fn offer(&self, request: OutboundRequest) -> Result<(), QueueRefusal> {
        let request = if request.charge.is_some() { request } else { self.charge(request)? };
        let mut state = self.state();
        if matches!(state.stage, QueueStage::Closed { .. }) {
            return Err(QueueRefusal::Draining);
        }
        let accounting = &self.shared.accounting;
        accounting.count(request.signal, request.n_items, ItemEvent::Queued);
        self.push(&mut state, request, self.shared.ledger.issue());
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Enqueues scores in memory, after dropping the oldest requests until they fit. Drops the
    /// scores themselves if the queue is closed, or if they still do not fit.
    fn enqueue(&self, request: OutboundRequest, ticket: Ticket) {
        let (accounting, budget) = (&self.shared.accounting, &self.shared.budget);
        let (signal, n_items) = (request.signal, request.n_items);
        let mut state = self.state();
        let is_closed = matches!(state.stage, QueueStage::Closed { .. });
        // The disk may have an older request about the same trace although it refuses this one.
        let backlog = state.backlog.as_ref().filter(|it| !it.is_empty());
        let held_until = backlog.filter(|_| request.trace_id().is_some());
        let held_until = held_until.map(Backlog::end);
        let (cost, capacity) = (request.cost(), budget.max());
        while !is_closed
            && cost <= capacity
            && budget.n_bytes() + cost > capacity
            && let Some(oldest) = state.pop_oldest()
        {
            self.drop_for_room(oldest);
        }
        accounting.count(signal, n_items, ItemEvent::Queued);
        if is_closed {
            return accounting.count(signal, n_items, ItemEvent::Dropped("shutdown"));
        }
        if budget.n_bytes() + cost > capacity {
            accounting.count(signal, n_items, ItemEvent::Dropped("queue_full"));
            return ticket.done();
        }
        self.push(&mut state, request, ticket);
        if let Some(end) = held_until
            && let Some(entry) = state.fresh.pop_back()
        {
            state.held.push((end, entry));
            let costs = state.held.iter().map(|(_, entry)| entry.request.cost());
            // The other half of the memory is for the requests on the disk.
            if costs.sum::<usize>() > capacity / 2 {
                self.drop_for_room(state.held.remove(0).1);
            }
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    fn drop_for_room(&self, entry: QueuedRequest) {
        let (signal, n_items) = (entry.request.signal, entry.request.n_items);
        let event = ItemEvent::Dropped("queue_full");
        self.shared.accounting.count(signal, n_items, event);
        entry.ticket.done();
        drop(entry.request);
        self.moved();
    }

    /// Starts the drain. Acknowledged requests must be delivered soon, so a queue of telemetry
    /// without a journal refuses new requests while its destination is down.
    pub fn begin_drain(&self) {
        let mut state = self.state();
        if state.stage == QueueStage::Open {
            state.stage = QueueStage::Draining;
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Rejects further requests. Queued requests may be delivered until `deadline`.
    pub fn close(&self, deadline: Instant) {
        self.state().stage = QueueStage::Closed { deadline };
        self.shared.changed.notify_one();
    }

    /// Returns the bytes in the queue, including requests in flight.
    pub fn n_bytes(&self) -> usize {
        self.shared.budget.n_bytes()
    }

    pub fn capacity(&self) -> usize {
        self.shared.budget.max()
    }

    pub(super) fn name(&self) -> &'static str {
        self.shared.name
    }

    pub(super) fn accounting(&self) -> &dyn Accounting {
        &*self.shared.accounting
    }

    /// Waits for a change, for example a new request or [`Self::close`].
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    pub(super) fn stage(&self) -> QueueStage {
        self.state().stage
    }

    pub(super) fn set_destination_down(&self, is_down: bool) {
        self.state().destination_is_down = is_down;
    }

    /// Removes and returns the next request to try: a request that is due for a retry, else the
    /// first one without an attempt.
    pub(super) fn take(&self, now: Instant) -> Option<QueuedRequest> {
        let mut state = self.state();
        let first = state.tried.first_entry();
        match first.filter(|first| first.key().0.is_none_or(|due| due <= now)) {
            Some(first) => Some(first.remove()),
            None => state.pop_fresh(),
        }
    }

    /// Removes and returns a request that probes whether the destination is up. Prefers requests
    /// without an attempt, because a failed request may itself be the cause.
    pub(super) fn take_probe(&self) -> Option<QueuedRequest> {
        let mut state = self.state();
        let fresh = state.pop_fresh();
        fresh.or_else(|| state.tried.pop_first().map(|(_, entry)| entry))
    }

    /// Returns the time of the next retry; `None` if there is no retry, or if the next one is due
    /// now.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let state = self.state();
        let ((due, _), _) = state.tried.first_key_value()?;
        *due
    }

    /// Returns true if no request is queued; requests may be in flight.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        let is_read = state.backlog.as_ref().is_none_or(Backlog::is_empty);
        state.fresh.is_empty() && state.tried.is_empty() && is_read && state.n_appending == 0
    }

    /// Returns a request to the queue. It is tried again at `due`, or as soon as possible.
    pub(super) fn put_back(&self, entry: QueuedRequest, due: Option<Instant>) {
        self.state().tried.insert((due, entry.order), entry);
    }

    /// Makes all failed requests due now, before younger ones, because the destination is up.
    pub(super) fn retry_all(&self) {
        let tried = &mut self.state().tried;
        let due = mem::take(tried).into_values();
        tried.extend(due.map(|entry| ((None, entry.order), entry)));
    }

    /// Ends a delivered, refused or dropped request: its ticket is done, its bytes are released,
    /// and the next request of its trace is due.
    pub(super) fn finish(&self, entry: QueuedRequest) {
        let mut state = self.state();
        state.free_trace(&entry);
        entry.ticket.done();
        drop(entry.request);
        self.moved();
    }

    /// Enqueues the two halves of a request before all other requests without an attempt. The
    /// halves share the request's charge.
    pub(super) fn replace(&self, entry: QueuedRequest, halves: [(Bytes, u64); 2]) {
        let tickets = [entry.ticket.split(), entry.ticket];
        let mut state = self.state();
        for ((body, n_items), ticket) in halves.into_iter().zip(tickets).rev() {
            state.next_order.1 += 1;
            let order = (entry.order.0, state.next_order.1);
            let request = OutboundRequest {
                body,
                n_items,
                ..entry.request.clone()
            };
            let half = QueuedRequest::new(order, request, ticket);
            state.fresh.push_front(half);
        }
    }

    /// Removes and returns all queued requests that are not in a journal.
    pub(super) fn drain(&self) -> Vec<QueuedRequest> {
        self.state().remove(|entry| !entry.is_journaled())
    }

    /// Returns one more than the number of the last enqueued request.
    fn end(&self) -> u64 {
        let backlog = self.state().backlog.as_ref().map(Backlog::end);
        backlog.unwrap_or_else(|| self.shared.ledger.next())
    }

    /// Returns true if all requests below this number are delivered or dropped.
    fn has_finished(&self, end: u64) -> bool {
        let log_low = (self.state().backlog.as_ref()).map(|it| it.log.low(it.outlet));
        log_low.unwrap_or_else(|| self.shared.ledger.low()) >= end
    }

    /// Enqueues a request, even without space.
    fn push(&self, state: &mut State, mut request: OutboundRequest, ticket: Ticket) {
        if request.charge.is_none() {
            let charge = self.shared.budget.charge_anyway(request.cost());
            request.charge = Some(Arc::new(charge));
        }
        state.next_order.0 += 1;
        let entry = QueuedRequest::new(state.next_order, request, ticket);
        state.fresh.push_back(entry);
        self.moved();
    }

    /// Reports the size of the queue. Call it under the lock, so that the last report is the latest
    /// size.
    pub(super) fn moved(&self) {
        QueueResized {
            n_bytes: self.n_bytes(),
            capacity: self.capacity(),
        }
        .emit(&self.shared.size);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }
}

impl State {
    /// Returns true if a request that is enqueued now might be acknowledged and then dropped.
    fn must_not_acknowledge(&self) -> bool {
        match self.stage {
            QueueStage::Open => false,
            QueueStage::Draining => self.destination_is_down,
            QueueStage::Closed { .. } => true,
        }
    }

    /// Removes and returns the first request without an attempt whose trace is not busy. Moves the
    /// requests before it to `busy_traces`.
    fn pop_fresh(&mut self) -> Option<QueuedRequest> {
        while let Some(entry) = self.fresh.pop_front() {
            let Some(trace_id) = entry.request.trace_id() else {
                return Some(entry);
            };
            match self.busy_traces.get_mut(&trace_id) {
                Some(later) => later.push_back(entry),
                None => {
                    self.busy_traces.insert(trace_id, VecDeque::new());
                    return Some(entry);
                }
            }
        }
        None
    }

    /// Makes the next request of a trace due, because its earlier request is delivered, refused or
    /// dropped.
    fn free_trace(&mut self, entry: &QueuedRequest) {
        let Some(trace_id) = entry.request.trace_id() else {
            return;
        };
        let later = self.busy_traces.get_mut(&trace_id);
        match later.and_then(VecDeque::pop_front) {
            Some(next) => drop(self.tried.insert((None, next.order), next)),
            None => drop(self.busy_traces.remove(&trace_id)),
        }
    }

    /// Records that the disk was read up to `next`, and enqueues the requests in `held` that waited
    /// for this.
    fn read_up_to(&mut self, next: u64) {
        if let Some(backlog) = &mut self.backlog {
            let next = backlog.read_up_to(next);
            let is_free = |(end, _): &mut (u64, QueuedRequest)| *end <= next;
            let free = self.held.extract_if(.., is_free);
            self.fresh.extend(free.map(|(_, entry)| entry));
        }
    }

    fn pop_oldest(&mut self) -> Option<QueuedRequest> {
        let held = self.held.first().map(|(_, entry)| entry);
        let later = self.busy_traces.values().filter_map(VecDeque::front);
        let waiting = self.fresh.front().into_iter().chain(held).chain(later);
        let oldest = waiting.map(|entry| entry.order).min();
        let tried = self.tried.keys().min_by_key(|(_, order)| *order).copied();
        if let Some(key) = tried.filter(|(_, order)| oldest.is_none_or(|it| *order < it)) {
            let entry = self.tried.remove(&key)?;
            self.free_trace(&entry);
            return Some(entry);
        }
        let is_oldest = |entry: &QueuedRequest| Some(entry.order) == oldest;
        if self.fresh.front().is_some_and(is_oldest) {
            return self.fresh.pop_front();
        }
        if held.is_some_and(is_oldest) {
            return Some(self.held.remove(0).1);
        }
        let mut later = self.busy_traces.values_mut();
        later.find_map(|later| later.pop_front_if(|entry| is_oldest(entry)))
    }

    fn remove(&mut self, is_gone: impl Fn(&QueuedRequest) -> bool) -> Vec<QueuedRequest> {
        let mut gone = Vec::new();
        for queue in iter::once(&mut self.fresh).chain(self.busy_traces.values_mut()) {
            let (removed, left): (VecDeque<_>, _) =
                mem::take(queue).into_iter().partition(&is_gone);
            gone.extend(removed);
            *queue = left;
        }
        let held = self.held.extract_if(.., |(_, entry)| is_gone(entry));
        gone.extend(held.map(|(_, entry)| entry));
        let tried = self.tried.extract_if(.., |_, entry| is_gone(entry));
        for (_, entry) in tried.collect::<Vec<_>>() {
            self.free_trace(&entry);
            gone.push(entry);
        }
        gone
    }
}

impl QueuedRequest {
    fn new(order: EntryOrder, request: OutboundRequest, ticket: Ticket) -> Self {
        Self {
            order,
            request,
            n_failures: 0,
            spans_end: None,
            unknown_since: None,
            ticket,
        }
    }

    /// Records an answer that the peer does not have the request's span. Returns the time since the
    /// first such answer after `spans`, the queue of spans, had delivered the span.
    pub(super) fn unknown_for(&mut self, spans: Option<&Queue>, now: Instant) -> Duration {
        if let Some(spans) = spans
            && !spans.has_finished(*self.spans_end.get_or_insert_with(|| spans.end()))
        {
            return Duration::ZERO;
        }
        now.duration_since(*self.unknown_since.get_or_insert(now))
    }
}

#[cfg(test)]
mod tests;
