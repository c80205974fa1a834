//! Decides who is refused when a queue, the journal or the scoring queue is full.
//! One rule: a peer may add bytes if it then holds at most seven times what is then free, so that a
//! flood leaves room for others.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use judge::assemble::accounts::{Held, ShareIdx, Shares};
use otlp::span::PeerId;

use crate::config::Bound;
use crate::sync::Mutex;

/// Bytes that were acknowledged and cannot be taken back: a peer that holds much of them is refused
/// while there is room for others.
#[derive(Debug)]
pub(crate) struct FairBudget {
    max: Bound,
    /// Bytes that no peer holds.
    n_other: AtomicUsize,
    shares: Mutex<Shares<PeerId>>,
}

/// Bytes of a [`FairBudget`], released on drop.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<FairBudget>,
    share: ShareIdx,
    n_bytes: usize,
}

impl FairBudget {
    /// An empty budget.
    pub(crate) fn new(max: impl Into<Bound>) -> Arc<Self> {
        Arc::new(Self {
            max: max.into(),
            n_other: AtomicUsize::new(0),
            shares: Mutex::default(),
        })
    }

    /// Most bytes.
    pub(crate) fn max(&self) -> usize {
        self.max.get()
    }

    /// Bytes that all peers hold.
    pub(crate) fn n_bytes(&self) -> usize {
        self.shares.lock().total().n_bytes
    }

    /// Whether [`Self::charge`] would succeed.
    pub(crate) fn has_room(&self, peer: PeerId, n_bytes: usize) -> bool {
        let mut shares = self.shares.lock();
        let share = shares.share(peer);
        self.fits(&shares, share, n_bytes)
    }

    /// Charges bytes to a peer, or `None` if it has to leave them to others. An empty budget has
    /// room for any request.
    pub(crate) fn charge(self: &Arc<Self>, peer: PeerId, n_bytes: usize) -> Option<Charge> {
        let mut shares = self.shares.lock();
        let share = shares.share(peer);
        let fits = self.fits(&shares, share, n_bytes);
        fits.then(|| self.hold(&mut shares, share, n_bytes))
    }

    /// Charges bytes to no peer in particular, even if there is no room.
    pub(crate) fn charge_anyway(self: &Arc<Self>, n_bytes: usize) -> Charge {
        let mut shares = self.shares.lock();
        let share = shares.share(PeerId::default());
        self.hold(&mut shares, share, n_bytes)
    }

    /// Notes how many bytes no peer holds.
    pub(crate) fn set_other(&self, n_bytes: usize) {
        self.n_other.store(n_bytes, Relaxed);
    }

    fn fits(&self, shares: &Shares<PeerId>, share: ShareIdx, n_bytes: usize) -> bool {
        let held = shares.total().n_bytes + self.n_other.load(Relaxed);
        held == 0 || n_bytes <= shares.room(share, self.max().saturating_sub(held))
    }

    fn hold(
        self: &Arc<Self>,
        shares: &mut Shares<PeerId>,
        share: ShareIdx,
        n_bytes: usize,
    ) -> Charge {
        shares.add(
            share,
            Held {
                n_things: 1,
                n_bytes,
            },
        );
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

    /// Whether both are of one peer, and of one budget.
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
        let held = Held {
            n_things: 1,
            n_bytes: self.n_bytes,
        };
        self.budget.shares.lock().release(self.share, held);
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
}
