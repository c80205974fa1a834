//! Decides whose bytes or connections are refused or evicted when a budget is full, so that a flood
//! costs its own sender first.
//!
//! 1. **[`FairBudget`]**, for acknowledged requests: a peer may add bytes if its total stays at
//!    most seven times the bytes that remain free.
//! 2. **[`EvictingBudget`]**, for connections and unacknowledged requests: if the budget is full, a
//!    new or growing reservation evicts a reservation of the peer that uses most, provided that
//!    this peer uses more than the newcomer's peer would then use. Otherwise only an idle
//!    reservation of the newcomer's peer can be evicted.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use judge::assemble::accounts::{FairShares, ShareIdx, ShareMeasure, ShareUse};
use otlp::span::PeerId;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::Bound;
use crate::sync::Mutex;

/// Idle time after which a reservation may be evicted for a new or growing one of the same peer.
const PAUSED_AFTER: Duration = Duration::from_secs(1);

/// Idle time after which a reservation may be evicted for a brief request of the same peer. A
/// request that advances receives bytes more often than this; a request that lacks only its last
/// byte does not.
const PAUSES_AFTER: Duration = Duration::from_millis(50);

/// A budget for acknowledged bytes. Unlike reservations, charged bytes cannot be evicted.
#[derive(Debug)]
pub(crate) struct FairBudget {
    max: Bound,
    /// Bytes that belong to no peer.
    n_other: AtomicUsize,
    shares: Mutex<FairShares<PeerId>>,
}

/// Bytes of a [`FairBudget`], released on drop.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<FairBudget>,
    share: ShareIdx,
    n_bytes: usize,
}

/// A budget whose reservations can be evicted. It limits connections, or requests that are being
/// received.
#[derive(Debug)]
pub(crate) struct EvictingBudget {
    max: Bound,
    /// Maximum number of reservations. If it is set, peers are compared by the number of their
    /// reservations, else by bytes.
    max_things: Option<usize>,
    state: Mutex<Reservations>,
}

#[derive(Debug, Default)]
struct Reservations {
    shares: FairShares<PeerId>,
    next: u64,
    by_number: BTreeMap<u64, Reserved>,
    /// Bytes of evicted busy reservations that were not dropped yet, in addition to the bytes of
    /// the shares. Always 0 if the budget has `max_things`.
    n_ending: usize,
}

#[derive(Debug)]
struct Reserved {
    peer: PeerId,
    share: ShareIdx,
    n_bytes: usize,
    /// True while we work on the request and its peer waits.
    is_busy: bool,
    moved: Instant,
    is_evicted: bool,
    evicted: Arc<Notify>,
}

/// A reservation in an [`EvictingBudget`], released on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<EvictingBudget>,
    number: u64,
    evicted: Arc<Notify>,
}

/// A new reservation, or one that grows.
struct Newcomer {
    number: u64,
    peer: PeerId,
    share: ShareIdx,
    more: ShareUse,
    /// True if the request will be finished within a moment: then other reservations of its peer
    /// can be evicted after a short pause.
    is_brief: bool,
}

// === impl FairBudget, Charge ===

impl FairBudget {
    pub(crate) fn new(max: impl Into<Bound>) -> Arc<Self> {
        Arc::new(Self {
            max: max.into(),
            n_other: AtomicUsize::new(0),
            shares: Mutex::default(),
        })
    }

    pub(crate) fn max(&self) -> usize {
        self.max.get()
    }

    pub(crate) fn n_bytes(&self) -> usize {
        self.shares.lock().total().n_bytes
    }

    /// Returns true if [`Self::charge`] would succeed for these bytes.
    pub(crate) fn has_room(&self, peer: PeerId, n_bytes: usize) -> bool {
        let mut shares = self.shares.lock();
        let share = shares.share(peer);
        self.fits(&shares, share, n_bytes)
    }

    /// Charges bytes to a peer; returns `None` if they exceed what the peer may add. An empty
    /// budget accepts any request.
    pub(crate) fn charge(self: &Arc<Self>, peer: PeerId, n_bytes: usize) -> Option<Charge> {
        let mut shares = self.shares.lock();
        let share = shares.share(peer);
        let fits = self.fits(&shares, share, n_bytes);
        fits.then(|| self.hold(&mut shares, share, n_bytes))
    }

    /// Charges bytes to no particular peer, even if the budget is full.
    pub(crate) fn charge_anyway(self: &Arc<Self>, n_bytes: usize) -> Charge {
        let mut shares = self.shares.lock();
        let share = shares.share(PeerId::default());
        self.hold(&mut shares, share, n_bytes)
    }

    /// Sets the number of bytes that belong to no peer.
    pub(crate) fn set_other(&self, n_bytes: usize) {
        self.n_other.store(n_bytes, Relaxed);
    }

    fn fits(&self, shares: &FairShares<PeerId>, share: ShareIdx, n_bytes: usize) -> bool {
        let held = shares.total().n_bytes + self.n_other.load(Relaxed);
        held == 0 || n_bytes <= shares.room(share, self.max().saturating_sub(held))
    }

    fn hold(
        self: &Arc<Self>,
        shares: &mut FairShares<PeerId>,
        share: ShareIdx,
        n_bytes: usize,
    ) -> Charge {
        shares.add(share, ShareUse::thing(n_bytes));
        Charge {
            budget: Arc::clone(self),
            share,
            n_bytes,
        }
    }
}

impl Charge {
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    pub(crate) fn is_of_peer_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.budget, &other.budget) && self.share == other.share
    }

    /// Adds another charge of the same peer to this one.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.n_bytes += mem::take(&mut other.n_bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let held = ShareUse::thing(self.n_bytes);
        self.budget.shares.lock().release(self.share, held);
    }
}

// === impl EvictingBudget, Reservation ===

impl EvictingBudget {
    pub(crate) fn new(max: impl Into<Bound>, max_things: Option<usize>) -> Arc<Self> {
        Arc::new(Self {
            max: max.into(),
            max_things,
            state: Mutex::default(),
        })
    }

    pub(crate) fn max(&self) -> usize {
        self.max.get()
    }

    /// Returns the reserved bytes, including those of evicted busy reservations that were not
    /// dropped yet (unless the budget has `max_things`).
    pub(crate) fn n_bytes(&self) -> usize {
        let state = self.state.lock();
        state.shares.total().n_bytes + state.n_ending
    }

    /// Reserves bytes for a peer, but no more than the whole budget. If the budget is full, evicts
    /// other reservations, or returns `None` if too few may be evicted. `is_brief` is true for a
    /// request that will be finished within a moment.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        peer: PeerId,
        n_bytes: usize,
        is_brief: bool,
    ) -> Option<Reservation> {
        let mut state = self.state.lock();
        let (number, share) = (state.next, state.shares.share(peer));
        state.next += 1;
        let more = ShareUse::thing(n_bytes.min(self.max()));
        let newcomer = Newcomer {
            number,
            peer,
            share,
            more,
            is_brief,
        };
        if !self.make_room(&mut state, &newcomer) {
            return None;
        }
        state.shares.add(share, more);
        let evicted = Arc::new(Notify::new());
        let reserved = Reserved {
            peer,
            share,
            n_bytes: more.n_bytes,
            is_busy: false,
            moved: Instant::now(),
            is_evicted: false,
            evicted: Arc::clone(&evicted),
        };
        state.by_number.insert(number, reserved);
        Some(Reservation {
            budget: Arc::clone(self),
            number,
            evicted,
        })
    }

    fn make_room(&self, state: &mut Reservations, newcomer: &Newcomer) -> bool {
        loop {
            let (held, more) = (state.shares.total(), newcomer.more);
            let n_bytes = held.n_bytes + more.n_bytes + state.n_ending_of(newcomer.peer);
            let has_place = |most| held.n_things + more.n_things <= most;
            if n_bytes <= self.max() && self.max_things.is_none_or(has_place) {
                return true;
            }
            let of_things = self.max_things.map(|_| ShareMeasure::Things);
            let by = of_things.unwrap_or(ShareMeasure::Bytes);
            let Some(victim) = state.victim(newcomer, by) else {
                return false;
            };
            state.evict(victim, by);
        }
    }
}

impl Reservations {
    /// Returns the bytes of this peer's evicted busy reservations that were not dropped yet. Until
    /// they are dropped, the peer cannot reserve these bytes again.
    fn n_ending_of(&self, peer: PeerId) -> usize {
        if self.n_ending == 0 {
            return 0;
        }
        let reserved = self.by_number.values();
        let ending = reserved.filter(|it| it.is_evicted && it.peer == peer);
        ending.map(|it| it.n_bytes).sum()
    }

    /// Returns the reservation to evict for a newcomer: the longest idle one of the share that
    /// `FairShares::victim` selects. Reservations that wait for their peer are evicted before busy
    /// ones.
    fn victim(&self, newcomer: &Newcomer, by: ShareMeasure) -> Option<u64> {
        // Bytes of an evicted busy reservation count for its peer until the reservation is dropped.
        let n_more = newcomer.more.by(by) + self.n_ending_of(newcomer.peer);
        let share = self.shares.victim(newcomer.share, n_more, by);
        let now = Instant::now();
        let yields = |it: &Reserved| {
            let paused_for = now - it.moved;
            let has_paused = paused_for >= PAUSED_AFTER;
            // In a budget of bytes, evicting a busy reservation of the same peer would not help:
            // until it is dropped, its bytes count for that peer.
            share != newcomer.share
                || (by == ShareMeasure::Things && has_paused)
                || (!it.is_busy && (has_paused || newcomer.is_brief && paused_for >= PAUSES_AFTER))
        };
        let others = self.by_number.iter().filter(|(number, it)| {
            let is_other = **number != newcomer.number && it.share == share && !it.is_evicted;
            is_other && it.n_bytes > 0 && yields(it)
        });
        others
            .min_by_key(|(number, it)| (it.is_busy, it.moved, **number))
            .map(|(number, _)| *number)
    }

    /// Evicts a reservation and immediately releases its bytes, because most evicted reservations
    /// are dropped within a moment. Without `max_things`, the bytes of a busy reservation count for
    /// its peer until it is dropped.
    fn evict(&mut self, number: u64, by: ShareMeasure) {
        let Some(it) = self.by_number.get_mut(&number) else {
            return;
        };
        self.shares.release(it.share, ShareUse::thing(it.n_bytes));
        if it.is_busy && by == ShareMeasure::Bytes {
            self.n_ending += it.n_bytes;
        } else {
            it.n_bytes = 0;
        }
        it.is_evicted = true;
        it.evicted.notify_one();
    }
}

impl Reservation {
    /// Grows to `n_bytes`, or to the whole budget if the budget is smaller. Returns the number of
    /// added bytes, or `None` if the budget is full or the reservation was evicted.
    pub(crate) fn grow_to(&self, n_bytes: usize, is_brief: bool) -> Option<usize> {
        let mut guard = self.budget.state.lock();
        let state = &mut *guard;
        let own = state.by_number.get(&self.number)?;
        let n_more = n_bytes.min(self.budget.max()).saturating_sub(own.n_bytes);
        let newcomer = Newcomer {
            number: self.number,
            peer: own.peer,
            share: own.share,
            more: ShareUse::bytes(n_more),
            is_brief,
        };
        if own.is_evicted || n_more > 0 && !self.budget.make_room(state, &newcomer) {
            return None;
        }
        state.by_number.get_mut(&self.number)?.n_bytes += n_more;
        state.shares.add(newcomer.share, newcomer.more);
        Some(n_more)
    }

    pub(crate) fn shrink_to(&self, n_bytes: usize) {
        let mut guard = self.budget.state.lock();
        let state = &mut *guard;
        let own = state.by_number.get_mut(&self.number);
        if let Some(own) = own.filter(|own| !own.is_evicted && own.n_bytes > n_bytes) {
            let less = ShareUse::bytes(own.n_bytes - n_bytes);
            own.n_bytes = n_bytes;
            state.shares.release(own.share, less);
        }
    }

    /// Records progress. `is_busy` is true while we work on the request. Returns `false` if the
    /// reservation was evicted.
    pub(crate) fn moved(&self, is_busy: bool) -> bool {
        let mut state = self.budget.state.lock();
        let own = state.by_number.get_mut(&self.number);
        own.is_some_and(|own| {
            own.moved = Instant::now();
            own.is_busy = is_busy;
            !own.is_evicted
        })
    }

    /// Waits until the reservation is evicted; the caller must then drop it.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut guard = self.budget.state.lock();
        let state = &mut *guard;
        let Some(own) = state.by_number.remove(&self.number) else {
            return;
        };
        if own.is_evicted {
            state.n_ending -= own.n_bytes;
        } else {
            state
                .shares
                .release(own.share, ShareUse::thing(own.n_bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOD: PeerId = PeerId(1);
    const AGENT: PeerId = PeerId(2);

    #[test]
    fn a_flood_is_refused_while_others_find_room_until_bytes_are_released() {
        let budget = FairBudget::new(800);
        let mut flood: Vec<Charge> = (0..7).map(|_| budget.charge(FLOOD, 100).unwrap()).collect();
        assert!(budget.charge(FLOOD, 1).is_none());
        assert_eq!(
            [87, 88].map(|n_bytes| budget.has_room(AGENT, n_bytes)),
            [true, false]
        );
        let agent = budget.charge(AGENT, 87).unwrap();
        assert_eq!(budget.n_bytes(), 787);
        flood.truncate(1);
        assert!(budget.has_room(FLOOD, 523) && !budget.has_room(FLOOD, 524));
        drop((flood, agent));
        assert_eq!(budget.n_bytes(), 0);
    }

    #[test]
    fn bytes_of_nobody_leave_less_room() {
        let budget = FairBudget::new(800);
        budget.set_other(720);
        assert!(budget.has_room(AGENT, 70) && !budget.has_room(AGENT, 71));
        let mut charge = budget.charge(AGENT, 10).unwrap();
        charge.merge(budget.charge(AGENT, 20).unwrap());
        assert_eq!((charge.n_bytes(), budget.n_bytes()), (30, 30));
        drop(charge);
        assert!(budget.has_room(AGENT, 70));
    }

    #[test]
    fn an_empty_budget_accepts_a_request_of_any_size() {
        let budget = FairBudget::new(800);
        let large = budget.charge(AGENT, 10_000).unwrap();
        assert!(!budget.has_room(FLOOD, 1));
        drop(large);
        assert!(budget.has_room(FLOOD, 10_000));
    }

    fn reserve(budget: &Arc<EvictingBudget>, peer: PeerId, n_bytes: usize) -> Option<Reservation> {
        budget.reserve(peer, n_bytes, false)
    }

    /// Makes each reservation at a later time than the one before.
    async fn reserve_all<const N: usize>(
        budget: &Arc<EvictingBudget>,
        peer: PeerId,
        n_bytes: usize,
    ) -> [Reservation; N] {
        let mut all = Vec::new();
        for _ in 0..N {
            tokio::time::advance(Duration::from_millis(1)).await;
            all.push(reserve(budget, peer, n_bytes).unwrap());
        }
        all.try_into().unwrap()
    }

    fn is_evicted(reservation: &Reservation) -> bool {
        let state = reservation.budget.state.lock();
        state.by_number[&reservation.number].is_evicted
    }

    #[tokio::test(start_paused = true)]
    async fn the_heaviest_peer_yields_with_what_waits_longest() {
        let budget = EvictingBudget::new(100, None);
        let flood: [_; 5] = reserve_all(&budget, FLOOD, 20).await;
        flood[0].moved(true);
        flood[1].moved(false);
        let agent = reserve(&budget, AGENT, 30).unwrap();
        let evicted = [0, 1, 2, 3, 4].map(|idx| is_evicted(&flood[idx]));
        assert_eq!(evicted, [false, false, true, true, false]);
        assert_eq!(budget.n_bytes(), 90);
        assert!(!flood[3].moved(true) && flood[2].grow_to(30, true).is_none());
        // With this many bytes, the agent's share would equal the flood's.
        assert_eq!(agent.grow_to(60, true), None);
        drop((flood, agent));
        assert_eq!(budget.n_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn of_its_own_a_peer_gives_up_what_stands_still() {
        let budget = EvictingBudget::new(100, None);
        let [still, moving] = reserve_all(&budget, AGENT, 50).await;
        assert!(reserve(&budget, AGENT, 10).is_none());
        tokio::time::advance(PAUSED_AFTER).await;
        moving.moved(false);
        let _next = reserve(&budget, AGENT, 10).unwrap();
        assert_eq!([is_evicted(&still), is_evicted(&moving)], [true, false]);
        still.evicted().await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_pauses_yields_to_a_brief_request_of_its_peer() {
        let budget = EvictingBudget::new(100, None);
        let [first, second] = reserve_all(&budget, AGENT, 50).await;
        let advancing = budget.reserve(AGENT, 10, true);
        assert!(advancing.is_none(), "both are advancing");
        tokio::time::advance(PAUSES_AFTER).await;
        first.moved(false);
        let brief = budget.reserve(AGENT, 10, true).unwrap();
        assert_eq!([is_evicted(&first), is_evicted(&second)], [false, true]);
        brief.moved(true);
        first.moved(true);
        let refused = budget.reserve(AGENT, 50, true);
        assert!(refused.is_none(), "all others are busy");
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_request_yields_to_another_peer_and_counts_against_its_own_until_it_ends() {
        let budget = EvictingBudget::new(100, None);
        let bomb = reserve(&budget, FLOOD, 95).unwrap();
        bomb.moved(true);
        tokio::time::advance(PAUSED_AFTER).await;
        assert!(reserve(&budget, FLOOD, 10).is_none());
        let agent = reserve(&budget, AGENT, 10).unwrap();
        assert!(is_evicted(&bomb));
        assert!(reserve(&budget, FLOOD, 10).is_none() && reserve(&budget, FLOOD, 1).is_none());
        assert!(!is_evicted(&agent));
        assert_eq!(bomb.grow_to(96, true), None);
        assert_eq!(budget.n_bytes(), 105, "until it ends");
        drop(bomb);
        let next = reserve(&budget, FLOOD, 90).unwrap();
        next.shrink_to(40);
        assert_eq!(budget.n_bytes(), 50);
        drop((next, agent));
        assert_eq!(budget.n_bytes(), 0);
    }
}
