//! A queue of requests to deliver, bounded in bytes. When it is full it either refuses the newcomer
//! (original telemetry: its sender still has it) or drops the oldest (scores: there is no other
//! copy). Accounts for every change before anything else can see it. Knows nothing of sockets or
//! clocks.

mod keeping;
mod score_keeping;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderMap;
use tokio::sync::Notify;

use crate::config::{Bound, Signal};
use crate::holders::HolderShares;
use crate::journal::AppendError;
use crate::sync::Mutex;
use crate::telemetry::{QueueOpened, QueueResized, QueueSize, Telemetry};

use super::kept::{KeptRecord, OnDisk};

pub use super::completion::CompletionGuard;
pub use super::kept::KeptLane;
pub use crate::holders::Holder;

/// Bytes that a request costs beyond its body and route.
const OVERHEAD: usize = 256;

/// A request to deliver.
#[derive(Debug, Clone)]
pub struct OutboundRequest {
    /// The signal of its items.
    pub signal: Signal,
    /// The request, not compressed.
    pub body: Bytes,
    /// Spans, log records or data points in it.
    pub n_items: u64,
    /// Its place at the destination.
    pub route: Route,
    /// The sender whose share it counts against.
    pub holder: Holder,
    /// Dropped when the request is done.
    pub completion: Option<CompletionGuard>,
}

/// Where a request goes at its destination.
#[derive(Debug, Clone)]
pub enum Route {
    /// To OTLP's service for the signal; the body is protobuf.
    Otlp {
        /// The request's own headers.
        headers: HeaderMap,
    },
    /// To the backend's own API; the body is JSON.
    Api {
        /// Tried in this order until one does not answer "unknown".
        targets: Arc<[ApiTarget]>,
    },
}

/// A method and path of a backend's own API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiTarget {
    /// `POST`, `PATCH`, …
    pub method: Method,
    /// Path and query, below the endpoint's base path; begins with `/`.
    pub path: String,
}

impl OutboundRequest {
    /// An OTLP request without headers of its own.
    pub fn otlp(signal: Signal, body: Bytes, n_items: u64) -> Self {
        Self {
            signal,
            body,
            n_items,
            route: Route::Otlp {
                headers: HeaderMap::new(),
            },
            holder: Holder::default(),
            completion: None,
        }
    }

    /// The bytes it takes of a queue.
    pub fn cost(&self) -> usize {
        let route: usize = match &self.route {
            Route::Otlp { headers } => headers
                .iter()
                .map(|(name, value)| name.as_str().len() + value.len())
                .sum(),
            Route::Api { targets } => targets.iter().map(|target| target.path.len()).sum(),
        };
        self.body.len() + route + OVERHEAD
    }
}

/// Accounts for the requests of a queue.
pub trait Accounting: Debug + Send + Sync {
    /// The queue took a request.
    fn queued(&self, signal: Signal, n_items: u64);
    /// Queued items were delivered.
    fn sent(&self, signal: Signal, n_items: u64);
    /// Queued items were given up.
    fn dropped(&self, signal: Signal, n_items: u64, reason: &'static str);
}

/// The policy for a request that does not fit into a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Refuses it, so that its sender keeps it.
    RefuseNewcomer,
    /// Drops the oldest waiting requests, counted as `queue_full`.
    DropOldest,
}

/// Why a queue did not take a request; its sender keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRefusal {
    /// It does not fit now; the sender should retry.
    Full,
    /// It is larger than [`largest_request`], so it might never fit; retrying is useless.
    TooLarge {
        /// Most bytes of one request.
        limit: usize,
    },
    /// The sidecar is stopping, or is about to and its destination is down; the sender should
    /// retry.
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

/// Called on the journal's thread, in the order of the requests, when a request is kept or refused:
/// with the number of its record, or at once with `None` if the journal had it before the start.
pub type KeepOutcome = Box<dyn FnOnce(Result<Option<u64>, QueueRefusal>) + Send>;

/// Most bytes of one request that a refusing queue of this capacity takes. A larger one might wait
/// forever for the queue to become empty enough.
pub fn largest_request(capacity: &Bound) -> Bound {
    capacity.share(2)
}

/// How far a queue is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum QueueStage {
    /// Takes requests.
    #[default]
    Open,
    /// The sidecar is stopping. A queue that refuses newcomers takes requests only while its
    /// destination is up.
    Draining,
    /// Takes no more requests.
    Closed {
        /// Until then, queued requests may be delivered.
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
    /// Label of its metrics and log lines: `forward`, `scores`, …
    name: &'static str,
    capacity: Bound,
    when_full: WhenFull,
    accounting: Arc<dyn Accounting>,
    size: QueueSize,
    state: Mutex<State>,
    /// Wakes the one delivery.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Not tried yet, in order of arrival. In front are halves of a request that was too large, so
    /// that one request is done before the next is split.
    fresh: VecDeque<QueuedRequest>,
    /// Failed at least once, and when each may be retried. Few: while a destination is down it gets
    /// one probe at a time.
    tried: Vec<(Instant, QueuedRequest)>,
    /// Cost of all waiting requests and of those in flight.
    n_bytes: usize,
    /// How much of them each holder has.
    shares: HolderShares,
    next_seq: u64,
    stage: QueueStage,
    /// The last attempts failed.
    destination_is_down: bool,
    /// The rest of a queue that is kept in a journal.
    on_disk: Option<OnDisk>,
    /// Cost of scores that the journal is writing.
    n_keeping: usize,
}

/// A request in the queue, or taken from it for an attempt.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    /// Order of arrival.
    seq: u64,
    cost: usize,
    /// Whose share it counts against.
    holder: Holder,
    pub(super) request: OutboundRequest,
    pub(super) n_failures: u32,
    /// When the peer first answered that it does not know the request's subject.
    pub(super) unknown_since: Option<Instant>,
    /// Its record in the journal.
    kept: Option<KeptRecord>,
}

impl Queue {
    /// An empty queue of `capacity` bytes.
    pub fn new(
        name: &'static str,
        capacity: impl Into<Bound>,
        when_full: WhenFull,
        accounting: Arc<dyn Accounting>,
        telemetry: &Telemetry,
    ) -> Self {
        let capacity = capacity.into();
        let size = QueueOpened {
            queue: name,
            capacity: capacity.get(),
        }
        .emit(telemetry);
        Self {
            shared: Arc::new(QueueShared {
                name,
                capacity,
                when_full,
                accounting,
                size,
                state: Mutex::default(),
                changed: Notify::new(),
            }),
        }
    }

    /// Whether a request of at least `n_bytes` would be refused now. Asked before the request is
    /// read, so that refusing it is cheap; [`Self::offer`] decides.
    pub fn check_room(&self, holder: Holder, n_bytes: usize) -> Result<(), QueueRefusal> {
        let mut state = self.state();
        if self.shared.when_full == WhenFull::DropOldest {
            return Ok(());
        }
        if let Some(on_disk) = &state.on_disk {
            let room = on_disk.log.check_room(holder, n_bytes);
            return room.map_err(QueueRefusal::from);
        }
        if state.must_not_acknowledge() {
            return Err(QueueRefusal::Draining);
        }
        let holder = state.shares.of(holder);
        let cost = n_bytes.saturating_add(OVERHEAD);
        if state.shares.is_full(holder) || cost > state.room(holder, self.capacity()) {
            Err(QueueRefusal::Full)
        } else {
            Ok(())
        }
    }

    /// Whether it is at most half full.
    pub fn is_half_empty(&self) -> bool {
        self.state().n_bytes <= self.capacity() / 2
    }

    /// Takes a request or refuses it. Never waits. A queue that drops the oldest refuses nothing:
    /// it accounts for a request that it cannot take as dropped.
    pub fn offer(&self, request: OutboundRequest) -> Result<(), QueueRefusal> {
        let QueueShared {
            when_full,
            accounting,
            capacity,
            ..
        } = &*self.shared;
        let limit = largest_request(capacity).get();
        let capacity = capacity.get();
        if *when_full == WhenFull::RefuseNewcomer && request.body.len() > limit {
            return Err(QueueRefusal::TooLarge { limit });
        }
        let cost = request.cost();
        let mut state = self.state();
        let holder = state.shares.of(request.holder);
        let is_closed = matches!(state.stage, QueueStage::Closed { .. });
        let is_refusing = *when_full == WhenFull::RefuseNewcomer && state.must_not_acknowledge();
        let refusal = if is_closed || is_refusing {
            Some((QueueRefusal::Draining, "shutdown"))
        } else {
            if *when_full == WhenFull::DropOldest && cost <= capacity {
                while state.n_bytes + cost > capacity
                    && let Some(oldest) = state.pop_oldest()
                {
                    accounting.dropped(oldest.request.signal, oldest.request.n_items, "queue_full");
                    state.consume(&oldest);
                }
            }
            let room = state.room(holder, capacity);
            (cost > room).then_some((QueueRefusal::Full, "queue_full"))
        };
        if let Some((refusal, reason)) = refusal {
            if *when_full == WhenFull::RefuseNewcomer {
                // The next one, whose size is often not known before it is read, would not fit
                // either.
                if refusal == QueueRefusal::Full && state.room(holder, capacity) < capacity / 8 {
                    state.shares.refused(holder);
                }
                return Err(refusal);
            }
            accounting.queued(request.signal, request.n_items);
            accounting.dropped(request.signal, request.n_items, reason);
            return Ok(());
        }
        accounting.queued(request.signal, request.n_items);
        let seq = state.next_seq;
        state.next_seq += 1;
        state.push(seq, request, None);
        self.moved(&state);
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Notes that the sidecar is stopping: what is acknowledged from now on must be delivered soon.
    /// A queue that refuses newcomers does so from now on whenever its destination is down, so that
    /// their senders keep them.
    pub fn begin_drain(&self) {
        let mut state = self.state();
        if state.stage == QueueStage::Open {
            state.stage = QueueStage::Draining;
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Takes no more requests. Queued ones may be delivered until `deadline`.
    pub fn close(&self, deadline: Instant) {
        self.state().stage = QueueStage::Closed { deadline };
        self.shared.changed.notify_one();
    }

    /// Bytes in it, including requests in flight.
    pub fn n_bytes(&self) -> usize {
        self.state().n_bytes
    }

    /// Most bytes in it.
    pub fn capacity(&self) -> usize {
        self.shared.capacity.get()
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

    /// Records whether the last attempts failed.
    pub(super) fn set_destination_down(&self, is_down: bool) {
        self.state().destination_is_down = is_down;
    }

    /// The next request to try: one that is due for a retry, else the first untried one.
    pub(super) fn take(&self, now: Instant) -> Option<QueuedRequest> {
        let mut state = self.state();
        let due = state.earliest().filter(|&idx| state.tried[idx].0 <= now);
        match due {
            Some(idx) => Some(state.tried.swap_remove(idx).1),
            None => state.fresh.pop_front(),
        }
    }

    /// A request that probes whether the destination is back: preferably not the one that has just
    /// failed, since it may be the cause.
    pub(super) fn take_probe(&self) -> Option<QueuedRequest> {
        let mut state = self.state();
        state
            .fresh
            .pop_front()
            .or_else(|| state.earliest().map(|idx| state.tried.swap_remove(idx).1))
    }

    /// When the next retry is due.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let state = self.state();
        state.earliest().map(|idx| state.tried[idx].0)
    }

    /// Nothing waits; requests may still be in flight.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        let is_read = state.on_disk.as_ref().is_none_or(OnDisk::is_empty);
        state.fresh.is_empty() && state.tried.is_empty() && is_read && state.n_keeping == 0
    }

    /// Returns a failed request, to be retried at `due`.
    pub(super) fn put_back(&self, entry: QueuedRequest, due: Instant) {
        self.state().tried.push((due, entry));
    }

    /// The destination is back: requests that have failed are retried now, before younger ones.
    pub(super) fn retry_all(&self, now: Instant) {
        for (due, _) in &mut self.state().tried {
            *due = now;
        }
    }

    /// Releases the bytes of a request that is done.
    pub(super) fn finish(&self, entry: &QueuedRequest) {
        let mut state = self.state();
        state.release(entry);
        state.consume(entry);
        self.moved(&state);
    }

    /// Puts the two halves of a request in front of the queue in its place.
    pub(super) fn replace(&self, entry: QueuedRequest, halves: [(Bytes, u64); 2]) {
        let mut state = self.state();
        state.release(&entry);
        let QueuedRequest {
            seq,
            holder,
            request: whole,
            kept,
            ..
        } = entry;
        if let Some(kept) = &kept {
            kept.split();
        }
        for (body, n_items) in halves.into_iter().rev() {
            let request = OutboundRequest {
                body,
                n_items,
                ..whole.clone()
            };
            let cost = request.cost();
            state.n_bytes += cost;
            state.shares.add(holder, cost);
            state.fresh.push_front(QueuedRequest {
                seq,
                cost,
                holder,
                request,
                n_failures: 0,
                unknown_since: None,
                kept: kept.clone(),
            });
        }
        self.moved(&state);
    }

    /// Removes and returns everything that waits.
    pub(super) fn drain(&self) -> Vec<QueuedRequest> {
        let mut state = self.state();
        let mut entries: Vec<QueuedRequest> = std::mem::take(&mut state.fresh).into();
        entries.extend(
            std::mem::take(&mut state.tried)
                .into_iter()
                .map(|(_, entry)| entry),
        );
        entries.iter().for_each(|entry| state.release(entry));
        self.moved(&state);
        entries
    }

    fn moved(&self, state: &State) {
        QueueResized {
            n_bytes: state.n_bytes,
            capacity: self.capacity(),
        }
        .emit(&self.shared.size);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }
}

impl State {
    fn push(&mut self, seq: u64, request: OutboundRequest, kept: Option<KeptRecord>) {
        let cost = request.cost();
        let holder = self.shares.of(request.holder);
        self.n_bytes += cost;
        self.shares.add(holder, cost);
        self.fresh.push_back(QueuedRequest {
            seq,
            cost,
            holder,
            request,
            n_failures: 0,
            unknown_since: None,
            kept,
        });
    }

    /// Tells the journal that a request is done and need not be kept.
    fn consume(&self, entry: &QueuedRequest) {
        if let (Some(kept), Some(on_disk)) = (&entry.kept, &self.on_disk) {
            on_disk.log.consume(kept.finish());
        }
    }

    /// Whether memory has room for a request. An empty queue has room for any.
    fn has_room(&self, cost: usize, capacity: usize) -> bool {
        self.n_bytes == 0 || self.n_bytes + cost <= capacity
    }

    /// A request taken now might be acknowledged and then dropped.
    fn must_not_acknowledge(&self) -> bool {
        match self.stage {
            QueueStage::Open => false,
            QueueStage::Draining => self.destination_is_down,
            QueueStage::Closed { .. } => true,
        }
    }

    /// Bytes that this holder may add.
    fn room(&self, holder: Holder, capacity: usize) -> usize {
        let n_free = capacity.saturating_sub(self.n_bytes);
        self.shares.room(holder, n_free)
    }

    fn release(&mut self, entry: &QueuedRequest) {
        self.n_bytes -= entry.cost;
        self.shares.release(entry.holder, entry.cost);
    }

    fn earliest(&self) -> Option<usize> {
        (0..self.tried.len()).min_by_key(|&idx| (self.tried[idx].0, self.tried[idx].1.seq))
    }

    fn pop_oldest(&mut self) -> Option<QueuedRequest> {
        let oldest_tried = (0..self.tried.len()).min_by_key(|&idx| self.tried[idx].1.seq);
        let entry = match (oldest_tried, self.fresh.front()) {
            (Some(idx), fresh) if fresh.is_none_or(|fresh| self.tried[idx].1.seq < fresh.seq) => {
                self.tried.swap_remove(idx).1
            }
            _ => self.fresh.pop_front()?,
        };
        self.release(&entry);
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
