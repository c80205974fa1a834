//! How a queue or log that refuses newcomers is shared among its senders. What it holds was
//! acknowledged and cannot be given up, so a sender that holds much is refused while there is still
//! room for one that holds little. Knows senders as numbers; knows nothing of requests.

use std::collections::BTreeMap;

use otlp::span::PeerId;

/// Most holders with shares of their own; all others share one. Holders are remembered while they
/// hold nothing, as long as there is space.
const MAX_HOLDERS: usize = 256;

/// Stands for all holders without a share of their own.
const FURTHER: PeerId = PeerId(u64::MAX);

/// Once there are several holders, each may hold at most this many times what it leaves free.
const TIMES_FREE: usize = 7;

/// How much each peer has of a queue.
#[derive(Debug, Default)]
pub(crate) struct HolderShares {
    by_holder: BTreeMap<PeerId, HolderShare>,
    n_requests: u64,
    /// How often bytes were released.
    n_releases: u64,
}

#[derive(Debug, Default)]
struct HolderShare {
    n_bytes: usize,
    /// The number of its last request.
    last_request: u64,
    /// When it was last refused while its share was nearly used up, counted in releases.
    refused_at: Option<u64>,
}

impl HolderShares {
    /// The peer whose share a request of this peer counts against. The peer is remembered, so
    /// that others leave room for it from now on.
    pub(crate) fn of(&mut self, peer: PeerId) -> PeerId {
        self.n_requests += 1;
        let mut counted = peer;
        if self.by_holder.len() >= MAX_HOLDERS && !self.by_holder.contains_key(&peer) {
            let shares = self.by_holder.iter();
            let forgettable = shares.filter(|(h, share)| **h != FURTHER && share.n_bytes == 0);
            let forgotten = forgettable.min_by_key(|(_, share)| share.last_request);
            match forgotten.map(|(peer, _)| *peer) {
                Some(forgotten) => {
                    self.by_holder.remove(&forgotten);
                }
                None => counted = FURTHER,
            }
        }
        self.by_holder.entry(counted).or_default().last_request = self.n_requests;
        counted
    }

    /// Bytes that may be added to this share while `n_free` bytes are free.
    pub(crate) fn room(&self, peer: PeerId, n_free: usize) -> usize {
        if self.is_sole() {
            return n_free;
        }
        let held = self.by_holder.get(&peer).map_or(0, |share| share.n_bytes);
        n_free.saturating_mul(TIMES_FREE).saturating_sub(held) / (TIMES_FREE + 1)
    }

    /// Whether no other peer needs room.
    pub(crate) fn is_sole(&self) -> bool {
        self.by_holder.len() < 2
    }

    /// Notes that a request was refused: until bytes are released, requests whose size is not known
    /// are refused, too.
    pub(crate) fn refused(&mut self, peer: PeerId) {
        if let Some(share) = self.by_holder.get_mut(&peer) {
            share.refused_at = Some(self.n_releases);
        }
    }

    /// Whether a request was refused since bytes were last released.
    pub(crate) fn is_full(&self, peer: PeerId) -> bool {
        let share = self.by_holder.get(&peer);
        share.is_some_and(|share| share.refused_at == Some(self.n_releases))
    }

    pub(crate) fn add(&mut self, peer: PeerId, n_bytes: usize) {
        self.by_holder.entry(peer).or_default().n_bytes += n_bytes;
    }

    pub(crate) fn release(&mut self, peer: PeerId, n_bytes: usize) {
        self.n_releases += 1;
        if let Some(share) = self.by_holder.get_mut(&peer) {
            share.n_bytes -= n_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: usize = 800;

    #[test]
    fn the_only_holder_may_take_all_and_one_of_several_leaves_an_eighth() {
        let mut shares = HolderShares::default();
        let [a, b] = [1, 2].map(PeerId);
        assert_eq!(shares.of(a), a);
        assert_eq!(shares.room(a, FREE), FREE);
        shares.of(b);
        assert_eq!([shares.room(a, FREE), shares.room(b, FREE)], [700, 700]);
        shares.add(a, 700);
        assert_eq!([shares.room(a, 100), shares.room(b, 100)], [0, 87]);
        // The second one that fills it leaves an eighth of what the first one left.
        shares.add(b, 87);
        assert_eq!(shares.room(PeerId(3), 13), 11);
        shares.release(a, 700);
        assert_eq!(shares.room(a, 713), 623);
    }

    #[test]
    fn what_was_refused_is_forgotten_when_bytes_leave() {
        let mut shares = HolderShares::default();
        let [a, b] = [1, 2].map(|number| shares.of(PeerId(number)));
        shares.add(a, 1);
        shares.refused(a);
        assert_eq!([shares.is_full(a), shares.is_full(b)], [true, false]);
        shares.release(a, 1);
        assert!(!shares.is_full(a));
    }

    #[test]
    fn holders_beyond_the_most_share_one_part_and_the_longest_silent_is_forgotten_first() {
        let mut shares = HolderShares::default();
        for number in 0..MAX_HOLDERS as u64 {
            let peer = shares.of(PeerId(number));
            shares.add(peer, 10);
        }
        let further = [1_000, 1_001].map(|number| shares.of(PeerId(number)));
        assert_eq!(further, [FURTHER; 2]);
        shares.release(PeerId(7), 10);
        shares.release(PeerId(5), 10);
        assert_eq!(shares.of(PeerId(1_002)), PeerId(1_002), "for 5");
        assert_eq!(shares.of(PeerId(5)), PeerId(5), "for 7");
        shares.add(PeerId(1_002), 10);
        shares.add(PeerId(5), 10);
        assert_eq!(shares.of(PeerId(7)), FURTHER);
        assert!(shares.by_holder.len() <= MAX_HOLDERS + 1);
    }
}
