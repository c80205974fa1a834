//! A queue of requests to deliver, bounded in bytes. A full queue either refuses the newcomer
//! ([`Queue::offer`]; original telemetry: the sender still has it) or drops the oldest request
//! ([`Queue::send`]; scores: there is no other copy). The queue accounts for every change before
//! other code can see the change.

mod keeping;
mod score_keeping;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use bytes::Bytes;
use otlp::span::{PeerId, TraceId};
use tokio::sync::Notify;

use crate::config::{Bound, Signal};
use crate::fair::FairBudget;
use crate::journal::{AppendError, Ticket};
use crate::sync::Mutex;
use crate::telemetry::{QueueOpened, QueueResized, QueueSize, Telemetry};

use super::kept::OnDisk;
use super::request::OVERHEAD;

pub use super::kept::KeptLane;
pub use super::request::{ApiTarget, OutboundRequest, Route};

/// Accounts for the requests of a queue.
pub trait Accounting: Debug + Send + Sync {
    /// A request was enqueued.
    fn queued(&self, signal: Signal, n_items: u64);
    /// Queued items were delivered.
    fn sent(&self, signal: Signal, n_items: u64);
    /// Queued items were dropped.
    fn dropped(&self, signal: Signal, n_items: u64, reason: &'static str);
}

/// The reason why a queue refused a request, which its sender still has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRefusal {
    /// The queue has no space; the sender should retry.
    Full,
    /// The request is larger than [`largest_request`], so it might never fit; retrying is useless.
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

/// A callback on the journal's thread, in the order of the requests, when a request is journaled or
/// refused. The value is the number of the record. If the journal had the request before the start,
/// the callback runs at once with `None`.
pub type KeepOutcome = Box<dyn FnOnce(Result<Option<u64>, QueueRefusal>) + Send>;

/// Returns the maximum bytes of one request that a refusing queue of this capacity accepts. A
/// larger request might wait forever for enough space.
pub fn largest_request(capacity: &Bound) -> Bound {
    capacity.share(2)
}

/// The stages of a queue's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum QueueStage {
    /// The queue accepts requests.
    #[default]
    Open,
    /// The sidecar stops. A queue that refuses newcomers accepts requests only while its
    /// destination is up.
    Draining,
    /// The queue rejects requests.
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
    /// The label of metrics and log lines: `forward`, `scores`, …
    name: &'static str,
    /// The bytes of all requests, queued and in flight.
    budget: Arc<FairBudget>,
    accounting: Arc<dyn Accounting>,
    size: QueueSize,
    state: Mutex<State>,
    /// Wakes the delivery, of which there is one.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Requests without an attempt, in order of arrival. The halves of a request that was too large
    /// come first, so that one request is done before the next is split.
    fresh: VecDeque<QueuedRequest>,
    /// Requests with a failed attempt, each with the time of its next attempt, or `None` if it is
    /// due. There are few: while a destination is down, one request is in flight as a probe.
    tried: Vec<(Option<Instant>, QueuedRequest)>,
    /// Traces with a request that is in flight or in `tried`, each with its later requests.
    busy_traces: BTreeMap<TraceId, VecDeque<QueuedRequest>>,
    next_seq: u64,
    stage: QueueStage,
    /// True if the last attempts failed.
    destination_is_down: bool,
    /// The requests that are only in the journal.
    on_disk: Option<OnDisk>,
    /// Cost of scores that the journal is writing.
    n_keeping: usize,
}

/// A request in the queue, or removed from the queue for an attempt.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    /// The request's position in the order in which requests were enqueued.
    seq: u64,
    pub(super) request: OutboundRequest,
    pub(super) n_failures: u32,
    /// Time of the peer's first answer that it does not have the span that the request is about,
    /// since the queue of the spans was last behind.
    pub(super) unknown_since: Option<Instant>,
    /// The ticket of the request, done when the request is delivered, refused or dropped.
    ticket: Ticket,
}

impl Queue {
    /// Creates an empty queue of `capacity` bytes.
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
                state: Mutex::default(),
                changed: Notify::new(),
            }),
        }
    }

    /// Returns an error if a request of at least `n_bytes` would be refused. Call it before reading
    /// the request, so that refusing is cheap; [`Self::offer`] decides.
    pub fn check_room(&self, peer: PeerId, n_bytes: usize) -> Result<(), QueueRefusal> {
        let state = self.state();
        if let Some(on_disk) = &state.on_disk {
            let room = on_disk.log.check_room(peer, n_bytes);
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

    /// Returns true if the queue is at most half full.
    pub fn is_half_empty(&self) -> bool {
        self.n_bytes() <= self.capacity() / 2
    }

    /// Charges a request to its sender, so that [`Self::offer`] will have space for the request.
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
        accounting.queued(request.signal, request.n_items);
        self.push(&mut state, request, Ticket::default());
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Enqueues scores in memory, and drops the oldest until they fit.
    fn enqueue(&self, request: OutboundRequest, ticket: Ticket) {
        let QueueShared {
            accounting, budget, ..
        } = &*self.shared;
        let (signal, n_items) = (request.signal, request.n_items);
        let mut state = self.state();
        let is_closed = matches!(state.stage, QueueStage::Closed { .. });
        let (cost, capacity) = (request.cost(), budget.max());
        while !is_closed
            && cost <= capacity
            && budget.n_bytes() + cost > capacity
            && let Some(oldest) = state.pop_oldest()
        {
            accounting.dropped(oldest.request.signal, oldest.request.n_items, "queue_full");
            oldest.ticket.done();
        }
        accounting.queued(signal, n_items);
        if is_closed {
            return accounting.dropped(signal, n_items, "shutdown");
        }
        if budget.n_bytes() + cost > capacity {
            accounting.dropped(signal, n_items, "queue_full");
            return ticket.done();
        }
        self.push(&mut state, request, ticket);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Starts the drain: acknowledged requests must be delivered soon, so a queue of telemetry
    /// refuses new requests while its destination is down.
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

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.shared.budget.max()
    }

    pub(super) fn name(&self) -> &'static str {
        self.shared.name
    }

    pub(super) fn accounting(&self) -> &dyn Accounting {
        &*self.shared.accounting
    }

    /// Waits for a new request, for [`Self::begin_drain`] or for [`Self::close`].
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    pub(super) fn stage(&self) -> QueueStage {
        self.state().stage
    }

    /// Sets whether the last attempts failed.
    pub(crate) fn set_destination_down(&self, is_down: bool) {
        self.state().destination_is_down = is_down;
    }

    /// Removes and returns the next request to try: a request that is due for a retry, else the
    /// first one without an attempt.
    pub(super) fn take(&self, now: Instant) -> Option<QueuedRequest> {
        let mut state = self.state();
        let due = state.earliest();
        match due.filter(|&idx| state.tried[idx].0.is_none_or(|due| due <= now)) {
            Some(idx) => Some(state.tried.swap_remove(idx).1),
            None => state.pop_fresh(),
        }
    }

    /// Removes and returns a request that probes whether the destination is up. Prefers requests
    /// without an attempt, because the failed request may be the cause.
    pub(super) fn take_probe(&self) -> Option<QueuedRequest> {
        let mut state = self.state();
        state
            .pop_fresh()
            .or_else(|| state.earliest().map(|idx| state.tried.swap_remove(idx).1))
    }

    /// Returns the time of the next retry, unless one is due.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let state = self.state();
        state.earliest().and_then(|idx| state.tried[idx].0)
    }

    /// Returns true if no request is queued; requests may be in flight.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        let is_read = state.on_disk.as_ref().is_none_or(OnDisk::is_empty);
        state.fresh.is_empty() && state.tried.is_empty() && is_read && state.n_keeping == 0
    }

    /// Puts a failed request back, to be retried at `due`.
    pub(super) fn put_back(&self, entry: QueuedRequest, due: Option<Instant>) {
        self.state().tried.push((due, entry));
    }

    /// Makes all failed requests due now, ahead of younger ones, because the destination is up.
    pub(super) fn retry_all(&self) {
        for (due, _) in &mut self.state().tried {
            *due = None;
        }
    }

    /// Releases the bytes of a request that is done.
    pub(super) fn finish(&self, entry: QueuedRequest) {
        let mut state = self.state();
        state.free_trace(&entry);
        entry.ticket.done();
        drop(entry.request);
        self.moved();
    }

    /// Puts the two halves of a request first in the queue. The halves share the request's charge.
    pub(super) fn replace(&self, entry: QueuedRequest, halves: [(Bytes, u64); 2]) {
        let QueuedRequest {
            seq,
            request: whole,
            ticket,
            ..
        } = entry;
        let tickets = [ticket.split(), ticket];
        let mut state = self.state();
        for ((body, n_items), ticket) in halves.into_iter().zip(tickets).rev() {
            state.fresh.push_front(QueuedRequest {
                seq,
                request: OutboundRequest {
                    body,
                    n_items,
                    ..whole.clone()
                },
                n_failures: 0,
                unknown_since: None,
                ticket,
            });
        }
    }

    /// Removes and returns all queued requests that are not in a journal.
    pub(super) fn drain(&self) -> Vec<QueuedRequest> {
        self.state().remove(|entry| !entry.is_kept())
    }

    /// Returns true if accepted requests may wait for long: the destination is down, or memory does
    /// not have all requests.
    pub(super) fn is_behind(&self) -> bool {
        let state = self.state();
        let is_read = state.on_disk.as_ref().is_none_or(OnDisk::is_empty);
        state.destination_is_down || !is_read
    }

    /// Enqueues a request, even without space.
    fn push(&self, state: &mut State, mut request: OutboundRequest, ticket: Ticket) {
        if request.charge.is_none() {
            let charge = self.shared.budget.charge_anyway(request.cost());
            request.charge = Some(Arc::new(charge));
        }
        let seq = state.next_seq;
        state.next_seq += 1;
        state.fresh.push_back(QueuedRequest {
            seq,
            request,
            n_failures: 0,
            unknown_since: None,
            ticket,
        });
        self.moved();
    }

    /// Reports the size of the queue. Call it under the lock: the last report is then the latest.
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

    fn earliest(&self) -> Option<usize> {
        (0..self.tried.len()).min_by_key(|&idx| (self.tried[idx].0, self.tried[idx].1.seq))
    }

    /// Removes and returns the first request without an attempt whose trace has no earlier request.
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

    /// Makes the next request of a trace due, because the earlier request, in flight or in `tried`,
    /// is done.
    fn free_trace(&mut self, entry: &QueuedRequest) {
        let Some(trace_id) = entry.request.trace_id() else {
            return;
        };
        let later = self.busy_traces.get_mut(&trace_id);
        match later.and_then(VecDeque::pop_front) {
            Some(next) => self.tried.push((None, next)),
            None => drop(self.busy_traces.remove(&trace_id)),
        }
    }

    fn pop_oldest(&mut self) -> Option<QueuedRequest> {
        let tried = self.tried.iter().map(|(_, entry)| entry);
        let later = self.busy_traces.values().filter_map(VecDeque::front);
        let waiting = tried.chain(self.fresh.front()).chain(later);
        let oldest = waiting.map(|entry| entry.seq).min()?;
        let is_oldest = |entry: &QueuedRequest| entry.seq == oldest;
        if self.fresh.front().is_some_and(is_oldest) {
            return self.fresh.pop_front();
        }
        if let Some(idx) = self.tried.iter().position(|(_, entry)| is_oldest(entry)) {
            let (_, entry) = self.tried.swap_remove(idx);
            self.free_trace(&entry);
            return Some(entry);
        }
        let mut later = self.busy_traces.values_mut();
        later.find_map(|later| later.pop_front_if(|entry| is_oldest(entry)))
    }

    /// Removes and returns the queued requests for which `is_gone` returns true.
    fn remove(&mut self, is_gone: impl Fn(&QueuedRequest) -> bool) -> Vec<QueuedRequest> {
        let mut gone = Vec::new();
        let mut left = VecDeque::new();
        for entry in std::mem::take(&mut self.fresh) {
            if is_gone(&entry) { gone.push(entry) } else { left.push_back(entry) }
        }
        self.fresh = left;
        for later in self.busy_traces.values_mut() {
            for entry in std::mem::take(later) {
                if is_gone(&entry) { gone.push(entry) } else { later.push_back(entry) }
            }
        }
        let tried: Vec<_> = self
            .tried
            .extract_if(.., |(_, entry)| is_gone(entry))
            .collect();
        for (_, entry) in tried {
            self.free_trace(&entry);
            gone.push(entry);
        }
        gone
    }
}

#[cfg(test)]
mod tests;
