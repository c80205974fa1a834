//! Shares a bounded number of connections among peers. Counts what a connection may hold before it
//! is served; when all is taken, the peer with the most connections gives one up. Knows addresses
//! and sizes; knows nothing of sockets or HTTP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{self, Instant};

use crate::config::Bound;
use crate::sync::Mutex;

/// What one connection may hold: hyper's state, and a read buffer or a frame of 64 KiB, or a window
/// of HTTP/2 of that size.
pub(super) const SLOT_SIZE: usize = 96 << 10;

/// What a connection of HTTP/2 with the larger windows may hold.
pub(super) const WIDE_SLOT_SIZE: usize = SLOT_SIZE + super::WIDE_WINDOW as usize;

/// What TLS may hold in addition: a handshake message or records that are read and written.
const TLS_SIZE: usize = 64 << 10;

/// How long a connection waits until another is idle, before it takes the place of a busy one.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a connection waits for a place.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Most connections that wait for a place.
const MAX_WAITING: usize = 64;

/// How much the connections of some ports may hold together.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// Bytes.
    pub memory: Bound,
    /// Connections, each of which takes a file descriptor.
    pub connections: usize,
    /// HTTP/2: concurrent requests of a connection.
    pub streams: u32,
}

/// The connections of the ports that share one limit.
#[derive(Debug)]
pub struct ConnectionSlots {
    pub(super) limits: ConnectionLimits,
    state: Mutex<State>,
    /// Connections that wait for a place, to be read without a lock.
    n_waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    next: u64,
    slots: BTreeMap<u64, Arc<ConnectionSlot>>,
    /// Connections that wait for a place, in the order in which they came.
    waiting: BTreeMap<u64, Waiter>,
}

/// A connection that waits for a place.
#[derive(Debug)]
struct Waiter {
    peer: IpAddr,
    /// It may be its turn, or it was turned away.
    called: Arc<Notify>,
}

/// One connection's place.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    peer: IpAddr,
    size: usize,
    activity: Mutex<Activity>,
    /// The connection is to end.
    evicted: Notify,
}

#[derive(Debug)]
struct Activity {
    /// Requests that are not yet answered in full.
    n_requests: usize,
    /// When it last became idle or busy.
    since: Instant,
    is_evicted: bool,
}

/// A connection's hold on its place, given back on drop.
#[derive(Debug)]
pub(super) struct SlotGuard {
    slots: Arc<ConnectionSlots>,
    number: u64,
    slot: Arc<ConnectionSlot>,
}

/// Held as long as a request of the connection is not answered in full.
#[derive(Debug)]
pub(super) struct RequestGuard {
    slots: Arc<ConnectionSlots>,
    slot: Arc<ConnectionSlot>,
}

// === impl ConnectionSlots ===

impl ConnectionSlots {
    /// Places within these limits; at least one, however little memory there is.
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::default(),
            n_waiting: AtomicUsize::new(0),
        })
    }

    /// A place for a connection of this peer. If all are taken, another connection is asked to end:
    /// an idle one of the peer that has the most, or a busy one if that peer has more than this
    /// one or none becomes idle. Of those that wait, the one whose peer has the fewest connections
    /// is first. `None` if too many wait, most of them of this peer, or none becomes free.
    pub(super) async fn admit(self: &Arc<Self>, peer: IpAddr, tls: bool) -> Option<SlotGuard> {
        let peer = origin(peer);
        let begun = Instant::now();
        if let Some(guard) = self.try_admit(peer, tls, begun, None) {
            return Some(guard);
        }
        let waiting = Waiting::try_new(self, peer)?;
        loop {
            let now = Instant::now();
            if let Some(guard) = self.try_admit(peer, tls, now, Some(waiting.number)) {
                return Some(guard);
            }
            let waited = now - begun;
            if waited >= LONGEST_WAIT || waiting.is_turned_away() {
                return None;
            }
            self.evict(peer, waited >= PATIENCE);
            let next = if waited < PATIENCE { PATIENCE } else { LONGEST_WAIT };
            // A notification that was sent before this is not lost.
            let _ = time::timeout_at(begun + next, waiting.called.notified()).await;
        }
    }

    /// A place, if one is free and no connection is ahead in the queue. `waiting` is the number of
    /// a connection that waits itself.
    fn try_admit(
        self: &Arc<Self>,
        peer: IpAddr,
        tls: bool,
        now: Instant,
        waiting: Option<u64>,
    ) -> Option<SlotGuard> {
        let (memory, connections) = (self.limits.memory.get(), self.limits.connections);
        let mut state = self.state.lock();
        if let Some((n_of_first, first)) = state.first_waiting()
            && (n_of_first, first) < (state.n_slots_of(peer), waiting.unwrap_or(u64::MAX))
        {
            return None;
        }
        let tls = if tls { TLS_SIZE } else { 0 };
        // Half of the memory is for those that come first: an agent opens a handful.
        let size = if state.taken + WIDE_SLOT_SIZE + tls <= memory / 2 {
            WIDE_SLOT_SIZE + tls
        } else {
            SLOT_SIZE + tls
        };
        let fits = state.taken + size <= memory && state.slots.len() < connections;
        if !fits && !state.slots.is_empty() {
            return None;
        }
        let slot = Arc::new(ConnectionSlot {
            peer,
            size,
            activity: Mutex::new(Activity {
                n_requests: 0,
                since: now,
                is_evicted: false,
            }),
            evicted: Notify::new(),
        });
        let number = state.next;
        state.next += 1;
        state.taken += size;
        state.slots.insert(number, slot.clone());
        Some(SlotGuard {
            slots: self.clone(),
            number,
            slot,
        })
    }

    /// Calls the connection whose turn it is.
    fn call_first(&self) {
        if self.n_waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let state = self.state.lock();
        if let Some(first) = state
            .first_waiting()
            .and_then(|(_, number)| state.waiting.get(&number))
        {
            first.called.notify_one();
        }
    }

    /// Asks one connection to end. Does nothing if one that was asked has not ended yet.
    fn evict(&self, newcomer: IpAddr, even_busy: bool) {
        let state = self.state.lock();
        let mut n_by_peer: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for slot in state.slots.values() {
            if slot.activity.lock().is_evicted {
                return;
            }
            *n_by_peer.entry(slot.peer).or_default() += 1;
        }
        let n_of_newcomer = n_by_peer.get(&newcomer).copied().unwrap_or_default();
        let Some((heaviest, n_most)) = n_by_peer
            .into_iter()
            .max_by_key(|(peer, n)| (*n, *peer == newcomer))
        else {
            return;
        };
        let even_busy = even_busy || n_most > n_of_newcomer + 1;
        let of_heaviest = state.slots.values().filter(|slot| slot.peer == heaviest);
        let candidates = of_heaviest.filter_map(|slot| {
            let activity = slot.activity.lock();
            let is_busy = activity.n_requests > 0;
            (even_busy || !is_busy).then_some((is_busy, activity.since, slot))
        });
        let victim = candidates.min_by_key(|(is_busy, since, _)| (*is_busy, *since));
        if let Some((_, _, slot)) = victim {
            slot.activity.lock().is_evicted = true;
            slot.evicted.notify_one();
        }
    }
}

/// The address that counts: a customer of IPv6 has a whole network of 64 bits, and chooses
/// addresses in it as it likes.
pub(super) fn origin(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)))
        }
        other => other,
    }
}

impl State {
    fn n_slots_of(&self, peer: IpAddr) -> usize {
        self.slots.values().filter(|slot| slot.peer == peer).count()
    }

    /// The waiting connection that is first, and the number of places that its peer has.
    fn first_waiting(&self) -> Option<(usize, u64)> {
        if self.waiting.is_empty() {
            return None;
        }
        let mut n_slots: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for slot in self.slots.values() {
            *n_slots.entry(slot.peer).or_default() += 1;
        }
        let places = |waiter: &Waiter| n_slots.get(&waiter.peer).copied().unwrap_or_default();
        let waiting = self.waiting.iter();
        waiting
            .map(|(number, waiter)| (places(waiter), *number))
            .min()
    }

    /// Turns away the last waiting connection of the peer of which the most wait, unless that is
    /// this one.
    fn turn_one_away(&mut self, newcomer: IpAddr) -> bool {
        let mut n_waiting: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for waiter in self.waiting.values() {
            *n_waiting.entry(waiter.peer).or_default() += 1;
        }
        let n_of_newcomer = n_waiting.get(&newcomer).copied().unwrap_or_default();
        let most = n_waiting.into_iter().max_by_key(|(_, n)| *n);
        let Some((heaviest, _)) = most.filter(|(_, n)| *n > n_of_newcomer + 1) else {
            return false;
        };
        let last = self
            .waiting
            .iter()
            .rfind(|(_, waiter)| waiter.peer == heaviest);
        let last = last.map(|(number, _)| *number);
        let turned_away = last.and_then(|number| self.waiting.remove(&number));
        turned_away.is_some_and(|waiter| {
            waiter.called.notify_one();
            true
        })
    }
}

/// One of the connections that wait for a place.
struct Waiting<'a> {
    slots: &'a ConnectionSlots,
    number: u64,
    called: Arc<Notify>,
}

impl<'a> Waiting<'a> {
    fn try_new(slots: &'a ConnectionSlots, peer: IpAddr) -> Option<Self> {
        let called = Arc::new(Notify::new());
        let mut state = slots.state.lock();
        if state.waiting.len() >= MAX_WAITING && !state.turn_one_away(peer) {
            return None;
        }
        let number = state.next;
        state.next += 1;
        let waiter = Waiter {
            peer,
            called: Arc::clone(&called),
        };
        state.waiting.insert(number, waiter);
        slots
            .n_waiting
            .store(state.waiting.len(), Ordering::Relaxed);
        Some(Self {
            slots,
            number,
            called,
        })
    }

    fn is_turned_away(&self) -> bool {
        !self.slots.state.lock().waiting.contains_key(&self.number)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        state.waiting.remove(&self.number);
        let n_waiting = state.waiting.len();
        self.slots.n_waiting.store(n_waiting, Ordering::Relaxed);
        drop(state);
        // It may have been called for more than it took.
        self.slots.call_first();
    }
}

// === impl SlotGuard, RequestGuard ===

impl SlotGuard {
    /// HTTP/2: whether the connection has the larger windows.
    pub(super) fn is_wide(&self) -> bool {
        self.slot.size >= WIDE_SLOT_SIZE
    }

    /// Returns when the connection is to end.
    pub(super) async fn evicted(&self) {
        self.slot.evicted.notified().await;
    }

    /// Counts a request until the guard is dropped.
    pub(super) fn request(&self) -> RequestGuard {
        let mut activity = self.slot.activity.lock();
        if activity.n_requests == 0 {
            activity.since = Instant::now();
        }
        activity.n_requests += 1;
        RequestGuard {
            slots: self.slots.clone(),
            slot: self.slot.clone(),
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        state.slots.remove(&self.number);
        state.taken -= self.slot.size;
        drop(state);
        self.slots.call_first();
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut activity = self.slot.activity.lock();
        activity.n_requests -= 1;
        if activity.n_requests > 0 {
            return;
        }
        activity.since = Instant::now();
        drop(activity);
        self.slots.call_first();
    }
}

#[cfg(test)]
mod tests;
