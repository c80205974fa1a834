//! Divides a budget among its users, so that a flood costs its own sender first. Decides who is
//! refused, and whose holdings are evicted.

/// Most keys with a share of their own; further keys use the last share together.
pub const MAX_SHARES: usize = 256;

/// A user that adds to a budget may then hold at most this many times what is left free.
const TIMES_FREE: usize = 7;

/// The number of a share. It stays its key's while the share holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareIdx(u16);

/// The measure by which the heaviest share is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareMeasure {
    /// Connections, traces, …
    Things,
    /// Bytes.
    Bytes,
}

/// An amount of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Number of things.
    pub n_things: usize,
    /// Bytes of all of them.
    pub n_bytes: usize,
}

/// How much each user holds of a budget.
#[derive(Debug)]
pub struct FairShares<K> {
    total: Held,
    shares: Vec<(K, Held)>,
}

impl<K> Default for FairShares<K> {
    fn default() -> Self {
        Self {
            total: Held::default(),
            shares: Vec::new(),
        }
    }
}

impl<K: Copy + PartialEq> FairShares<K> {
    /// What all shares hold together.
    pub fn total(&self) -> Held {
        self.total
    }

    /// The share of this key.
    pub fn share(&mut self, key: K) -> ShareIdx {
        let own = &self.shares[..self.shares.len().min(MAX_SHARES - 1)];
        let known = own.iter().position(|(other, _)| *other == key);
        let unused = || own.iter().position(|(_, held)| *held == Held::default());
        let idx = known.or_else(unused).unwrap_or(own.len());
        if idx == self.shares.len() {
            self.shares.push((key, Held::default()));
        }
        if idx < MAX_SHARES - 1 {
            self.shares[idx].0 = key;
        }
        ShareIdx(idx as u16)
    }

    /// Adds to a share.
    pub fn add(&mut self, share: ShareIdx, more: Held) {
        for held in self.held(share) {
            held.n_things += more.n_things;
            held.n_bytes += more.n_bytes;
        }
    }

    /// Releases a part of a share.
    pub fn release(&mut self, share: ShareIdx, less: Held) {
        for held in self.held(share) {
            held.n_things -= less.n_things;
            held.n_bytes -= less.n_bytes;
        }
    }

    /// Bytes that a share may add while `n_free` bytes of the budget are free, so that others find
    /// room. For holdings that cannot be taken back.
    pub fn room(&self, share: ShareIdx, n_free: usize) -> usize {
        let held = self.shares[share.idx()].1.n_bytes;
        n_free.saturating_mul(TIMES_FREE).saturating_sub(held) / (TIMES_FREE + 1)
    }

    /// The share from which to evict something for a newcomer that adds `n_more` to its own: the
    /// heaviest, if it would still hold more than the newcomer's, else the newcomer's.
    pub fn victim(&self, newcomer: ShareIdx, n_more: usize, by: ShareMeasure) -> ShareIdx {
        let own = self.shares[newcomer.idx()].1.by(by);
        let others = self.shares.iter().enumerate();
        let heaviest = others.max_by_key(|(_, (_, held))| held.by(by));
        match heaviest {
            Some((idx, (_, held))) if held.by(by) > own + n_more => ShareIdx(idx as u16),
            _ => newcomer,
        }
    }

    fn held(&mut self, share: ShareIdx) -> [&mut Held; 2] {
        [&mut self.total, &mut self.shares[share.idx()].1]
    }
}

impl ShareIdx {
    fn idx(self) -> usize {
        self.0.into()
    }
}

impl Held {
    /// One thing of this size.
    pub fn thing(n_bytes: usize) -> Self {
        Self {
            n_things: 1,
            n_bytes,
        }
    }

    /// Bytes of a thing that is counted already.
    pub fn bytes(n_bytes: usize) -> Self {
        Self {
            n_things: 0,
            n_bytes,
        }
    }

    /// The amount by this measure.
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

    fn held(n_things: usize, n_bytes: usize) -> Held {
        Held { n_things, n_bytes }
    }

    #[test]
    fn each_user_leaves_an_eighth_of_what_it_finds() {
        let mut shares = FairShares::default();
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
        let mut shares = FairShares::default();
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
        let mut shares = FairShares::default();
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
