//! Requests that are to be delivered in, the next one to try out. Bounded in bytes; when it is full
//! it either refuses the newcomer (original telemetry: its sender still has it) or drops the oldest
//! (scores: nobody else has them). Knows nothing of sockets or clocks; every change is entered into
//! the books of its owner before anybody can see it.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderMap;
use tokio::sync::Notify;

use crate::config::Signal;
use crate::sync::Mutex;
use crate::telemetry::{QueueMoved, QueueOpened, QueueSize, Telemetry};

/// What a request costs beyond its body and headers.
const OVERHEAD: usize = 256;

/// One request to deliver.
#[derive(Debug, Clone)]
pub struct Parcel {
    /// Which service it is for.
    pub signal: Signal,
    /// The request, protobuf, not compressed.
    pub body: Bytes,
    /// Spans, log records or metric points in it.
    pub n_items: u64,
    /// Headers of its own.
    pub headers: HeaderMap,
    /// For a backend's own API instead of OTLP: the body is JSON, and goes to the first of these
    /// that knows what it is about.
    pub targets: Arc<[Target]>,
    /// Let go of when the request is done with.
    pub token: Option<Token>,
}

/// A place in a backend's own API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `POST`, `PATCH`, …
    pub method: Method,
    /// Path and query, below the endpoint's base path; begins with `/`.
    pub path: String,
}

/// Something that is let go of once the request is done with, delivered or not, and with it
/// everything that it was split into.
#[derive(Clone)]
pub struct Token(pub Arc<dyn Any + Send + Sync>);

impl Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Parcel {
    /// A request of OTLP's.
    pub fn otlp(signal: Signal, body: Bytes, n_items: u64) -> Self {
        Self {
            signal,
            body,
            n_items,
            headers: HeaderMap::new(),
            targets: Arc::default(),
            token: None,
        }
    }

    /// The bytes it takes of a queue.
    pub fn cost(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum();
        let targets: usize = self.targets.iter().map(|target| target.path.len()).sum();
        self.body.len() + headers + targets + OVERHEAD
    }
}

/// Whose books a queue's requests stand in.
pub trait Ledger: Debug + Send + Sync {
    /// A request was taken into the queue.
    fn queued(&self, signal: Signal, n_items: u64);
    /// Queued items were delivered.
    fn sent(&self, signal: Signal, n_items: u64);
    /// Queued items were given up.
    fn dropped(&self, signal: Signal, n_items: u64, reason: &'static str);
}

/// What to do with a request that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It stays with its sender.
    RefuseNewcomer,
    /// The oldest that wait make room, counted `queue_full`.
    DropOldest,
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// There is no room now.
    Full,
    /// We are stopping.
    Closed,
}

/// A bounded queue. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Label of its metrics and log lines: `forward`, `scores`, …
    name: &'static str,
    capacity: usize,
    when_full: WhenFull,
    ledger: Arc<dyn Ledger>,
    size: QueueSize,
    state: Mutex<State>,
    /// Wakes the one delivery.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Never tried, in order of arrival; before them halves of what was too large, so that one
    /// request is done with before the next is cut up.
    fresh: VecDeque<Entry>,
    /// Tried in vain, and when each may be tried again. Few: while a destination is down it gets
    /// one probe at a time.
    tried: Vec<(Instant, Entry)>,
    /// Cost of these and of those under way.
    n_bytes: usize,
    next_seq: u64,
    deadline: Option<Instant>,
}

/// A request on its way through the queue.
#[derive(Debug)]
pub(super) struct Entry {
    /// Order of arrival.
    seq: u64,
    cost: usize,
    pub(super) parcel: Parcel,
    pub(super) n_failures: u32,
    /// When the peer first said that it does not know what this is about.
    pub(super) unknown_since: Option<Instant>,
}

impl Queue {
    /// An empty queue of `capacity` bytes.
    pub fn new(
        name: &'static str,
        capacity: usize,
        when_full: WhenFull,
        ledger: Arc<dyn Ledger>,
        telemetry: &Telemetry,
    ) -> Self {
        let size = QueueOpened {
            queue: name,
            capacity,
        }
        .emit(telemetry);
        Self {
            shared: Arc::new(Shared {
                name,
                capacity,
                when_full,
                ledger,
                size,
                state: Mutex::default(),
                changed: Notify::new(),
            }),
        }
    }

    /// Takes a request, or says why not. Never waits. A queue that drops the oldest refuses
    /// nothing: what it cannot take is entered as dropped.
    pub fn offer(&self, parcel: Parcel) -> Result<(), Full> {
        let Shared {
            when_full,
            ledger,
            capacity,
            ..
        } = &*self.shared;
        let cost = parcel.cost();
        let mut state = self.state();
        let refusal = if state.deadline.is_some() {
            Some((Full::Closed, "shutdown"))
        } else {
            if *when_full == WhenFull::DropOldest && cost <= *capacity {
                while state.n_bytes + cost > *capacity
                    && let Some(oldest) = state.pop_oldest()
                {
                    ledger.dropped(oldest.parcel.signal, oldest.parcel.n_items, "queue_full");
                }
            }
            (state.n_bytes + cost > *capacity).then_some((Full::Full, "queue_full"))
        };
        if let Some((full, reason)) = refusal {
            if *when_full == WhenFull::RefuseNewcomer {
                return Err(full);
            }
            ledger.queued(parcel.signal, parcel.n_items);
            ledger.dropped(parcel.signal, parcel.n_items, reason);
            return Ok(());
        }
        ledger.queued(parcel.signal, parcel.n_items);
        let seq = state.next_seq;
        state.next_seq += 1;
        state.n_bytes += cost;
        state.fresh.push_back(Entry {
            seq,
            cost,
            parcel,
            n_failures: 0,
            unknown_since: None,
        });
        self.moved(&state);
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Takes nothing more; what is in it may be delivered until `deadline`.
    pub fn close(&self, deadline: Instant) {
        self.state().deadline = Some(deadline);
        self.shared.changed.notify_one();
    }

    /// Bytes in it, those under way included.
    pub fn n_bytes(&self) -> usize {
        self.state().n_bytes
    }

    /// Most bytes in it.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    pub(super) fn name(&self) -> &'static str {
        self.shared.name
    }

    pub(super) fn ledger(&self) -> &dyn Ledger {
        &*self.shared.ledger
    }

    /// Waits for a newcomer or for [`Self::close`].
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.state().deadline
    }

    /// The next one to try: one that is due again, else the first of the others.
    pub(super) fn take(&self, now: Instant) -> Option<Entry> {
        let mut state = self.state();
        let due = state.earliest().filter(|&idx| state.tried[idx].0 <= now);
        match due {
            Some(idx) => Some(state.tried.swap_remove(idx).1),
            None => state.fresh.pop_front(),
        }
    }

    /// One to find out with whether the destination is back: not the one that has just failed, as
    /// it may be the cause.
    pub(super) fn take_probe(&self) -> Option<Entry> {
        let mut state = self.state();
        state
            .fresh
            .pop_front()
            .or_else(|| state.earliest().map(|idx| state.tried.swap_remove(idx).1))
    }

    /// When one of those tried is due again.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let state = self.state();
        state.earliest().map(|idx| state.tried[idx].0)
    }

    /// Nothing waits; something may still be under way.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        state.fresh.is_empty() && state.tried.is_empty()
    }

    /// It failed and is due again at `due`.
    pub(super) fn put_back(&self, entry: Entry, due: Instant) {
        self.state().tried.push((due, entry));
    }

    /// It is done with.
    pub(super) fn finish(&self, entry: &Entry) {
        let mut state = self.state();
        state.n_bytes -= entry.cost;
        self.moved(&state);
    }

    /// These stand for it now, and are next.
    pub(super) fn replace(&self, entry: Entry, halves: [(Bytes, u64); 2]) {
        let mut state = self.state();
        state.n_bytes -= entry.cost;
        let Entry {
            seq, parcel: whole, ..
        } = entry;
        for (body, n_items) in halves.into_iter().rev() {
            let parcel = Parcel {
                body,
                n_items,
                ..whole.clone()
            };
            let cost = parcel.cost();
            state.n_bytes += cost;
            state.fresh.push_front(Entry {
                seq,
                cost,
                parcel,
                n_failures: 0,
                unknown_since: None,
            });
        }
        self.moved(&state);
    }

    /// Everything that waits, taken out for good.
    pub(super) fn drain(&self) -> Vec<Entry> {
        let mut state = self.state();
        let mut entries: Vec<Entry> = std::mem::take(&mut state.fresh).into();
        entries.extend(
            std::mem::take(&mut state.tried)
                .into_iter()
                .map(|(_, entry)| entry),
        );
        state.n_bytes -= entries.iter().map(|entry| entry.cost).sum::<usize>();
        self.moved(&state);
        entries
    }

    fn moved(&self, state: &State) {
        QueueMoved {
            n_bytes: state.n_bytes,
        }
        .emit(&self.shared.size);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }
}

impl State {
    fn earliest(&self) -> Option<usize> {
        (0..self.tried.len()).min_by_key(|&idx| (self.tried[idx].0, self.tried[idx].1.seq))
    }

    fn pop_oldest(&mut self) -> Option<Entry> {
        let oldest_tried = (0..self.tried.len()).min_by_key(|&idx| self.tried[idx].1.seq);
        let entry = match (oldest_tried, self.fresh.front()) {
            (Some(idx), fresh) if fresh.is_none_or(|fresh| self.tried[idx].1.seq < fresh.seq) => {
                self.tried.swap_remove(idx).1
            }
            _ => self.fresh.pop_front()?,
        };
        self.n_bytes -= entry.cost;
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
