//! Divides a budget among its users: decides who is refused, and from whose share something is
//! evicted. A flood thus harms its own sender first.

use std::cmp::Reverse;

/// The default for the maximum number of shares.
pub const MAX_SHARES: usize = 256;

/// A share may be at most this many times as large as the free rest of the budget, so that a single
/// user gets at most seven eighths.
const TIMES_FREE: usize = 7;

/// The index of a share. A key retains its index while its share is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShareIdx(u16);

/// The measure that decides which share is the heaviest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareMeasure {
    /// The number of things: connections, traces, …
    Things,
    Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShareUse {
    pub n_things: usize,
    pub n_bytes: usize,
}

/// The amount that each user of a budget occupies. Up to `N` − 1 users have separate shares; all
/// further users have the last share in common.
#[derive(Debug)]
pub struct FairShares<K, const N: usize = MAX_SHARES> {
    total: ShareUse,
    shares: Vec<(K, ShareUse)>,
}

impl<K, const N: usize> Default for FairShares<K, N> {
    fn default() -> Self {
        Self {
            total: ShareUse::default(),
            shares: Vec::new(),
        }
    }
}

impl<K: Copy + PartialEq, const N: usize> FairShares<K, N> {
    pub fn total(&self) -> ShareUse {
        self.total
    }

    /// Returns the share of a key; a new key is assigned one.
    pub fn share(&mut self, key: K) -> ShareIdx {
        let own = &self.shares[..self.shares.len().min(N - 1)];
        let known = own.iter().position(|(other, _)| *other == key);
        let unused = || {
            own.iter()
                .position(|(_, held)| *held == ShareUse::default())
        };
        let idx = known.or_else(unused).unwrap_or(own.len());
        if idx == self.shares.len() {
            self.shares.push((key, ShareUse::default()));
        }
        if idx < N - 1 {
            self.shares[idx].0 = key;
        }
        ShareIdx(idx as u16)
    }

    pub fn add(&mut self, share: ShareIdx, more: ShareUse) {
        for held in self.held(share) {
            held.n_things += more.n_things;
            held.n_bytes += more.n_bytes;
        }
    }

    pub fn resize(&mut self, share: ShareIdx, before: usize, after: usize) {
        for held in self.held(share) {
            held.n_bytes = held.n_bytes - before + after;
        }
    }

    pub fn release(&mut self, share: ShareIdx, less: ShareUse) {
        for held in self.held(share) {
            held.n_things -= less.n_things;
            held.n_bytes -= less.n_bytes;
        }
    }

    /// Returns the heaviest share, the first of several equal ones.
    pub fn heaviest(&self, by: ShareMeasure) -> ShareIdx {
        let held = self.shares.iter().map(|(_, held)| held.by(by));
        let heaviest = held
            .enumerate()
            .max_by_key(|&(idx, held)| (held, Reverse(idx)));
        ShareIdx(heaviest.map_or(0, |(idx, _)| idx as u16))
    }

    /// Returns the key of a share; `None` for the common last share.
    pub fn key(&self, share: ShareIdx) -> Option<K> {
        let own = self.shares.get(share.idx()).filter(|_| share.idx() < N - 1);
        own.map(|(key, _)| *key)
    }

    /// Returns the bytes that a share may add while `n_free` bytes of the budget are free, so that
    /// some remain for other shares. Use this limit for memory that cannot be evicted.
    pub fn room(&self, share: ShareIdx, n_free: usize) -> usize {
        let held = self.shares[share.idx()].1.n_bytes;
        n_free.saturating_mul(TIMES_FREE).saturating_sub(held) / (TIMES_FREE + 1)
    }

    /// Returns the share from which to evict something when a newcomer adds `n_more` to its own
    /// share: the heaviest, if it is heavier than the newcomer's share would be, else the
    /// newcomer's.
    pub fn victim(&self, newcomer: ShareIdx, n_more: usize, by: ShareMeasure) -> ShareIdx {
        let own = self.shares[newcomer.idx()].1.by(by);
        let others = self.shares.iter().enumerate();
        let heaviest = others.max_by_key(|(_, (_, held))| held.by(by));
        match heaviest {
            Some((idx, (_, held))) if held.by(by) > own + n_more => ShareIdx(idx as u16),
            _ => newcomer,
        }
    }

    fn held(&mut self, share: ShareIdx) -> [&mut ShareUse; 2] {
        [&mut self.total, &mut self.shares[share.idx()].1]
    }
}

impl ShareIdx {
    pub fn idx(self) -> usize {
        self.0.into()
    }
}

impl ShareUse {
    /// Returns an amount of one thing of this size.
    pub fn thing(n_bytes: usize) -> Self {
        Self {
            n_things: 1,
            n_bytes,
        }
    }

    /// Returns an amount of bytes that belong to a thing counted earlier.
    pub fn bytes(n_bytes: usize) -> Self {
        Self {
            n_things: 0,
            n_bytes,
        }
    }

    pub fn by(self, measure: ShareMeasure) -> usize {
        match measure {
            ShareMeasure::Things => self.n_things,
            ShareMeasure::Bytes => self.n_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: usize = 800;

    fn held(n_things: usize, n_bytes: usize) -> ShareUse {
        ShareUse { n_things, n_bytes }
    }

    #[test]
    fn each_user_leaves_an_eighth_of_what_it_finds() {
        let mut shares: FairShares<_> = FairShares::default();
        let a = shares.share(1);
        assert_eq!(shares.room(a, FREE), 700);
        shares.add(a, held(1, 700));
        let b = shares.share(2);
        assert_eq!([shares.room(a, 100), shares.room(b, 100)], [0, 87]);
        shares.add(b, held(1, 87));
        let c = shares.share(3);
        assert_eq!(shares.room(c, 13), 11);
        shares.release(a, held(1, 700));
        assert_eq!(shares.room(b, 713), 613);
        assert_eq!(shares.total(), held(1, 87));
    }

    #[test]
    fn the_heaviest_yields_unless_the_newcomer_would_hold_as_much() {
        let mut shares: FairShares<_> = FairShares::default();
        let crowd = shares.share("crowd");
        shares.add(crowd, held(5, 100));
        let agent = shares.share("agent");
        shares.add(agent, held(1, 300));
        assert_eq!(shares.victim(agent, 3, ShareMeasure::Things), crowd);
        assert_eq!(shares.victim(agent, 4, ShareMeasure::Things), agent);
        assert_eq!(shares.victim(crowd, 199, ShareMeasure::Bytes), agent);
        assert_eq!(shares.victim(crowd, 200, ShareMeasure::Bytes), crowd);
        assert_eq!(shares.victim(agent, 0, ShareMeasure::Bytes), agent);
    }

    #[test]
    fn further_keys_use_one_share_and_empty_shares_are_used_again() {
        let mut shares: FairShares<_> = FairShares::default();
        let all: Vec<ShareIdx> = (0..1_000)
            .map(|key| {
                let share = shares.share(key);
                shares.add(share, held(1, 10));
                share
            })
            .collect();
        assert_eq!(shares.shares.len(), MAX_SHARES);
        assert_eq!(all[MAX_SHARES - 1], all[999]);
        assert_ne!(all[MAX_SHARES - 2], all[999]);
        assert_eq!(shares.share(7), all[7]);
        shares.release(all[7], held(1, 10));
        assert_eq!(shares.share(999), all[7]);
    }
}
