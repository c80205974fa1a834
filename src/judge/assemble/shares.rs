//! Counts each sender's share of a budget of traces, and finds the heaviest share. A sender with
//! many traces therefore evicts its own traces, not those of other senders.

use otlp::span::PeerId;

use super::accounts::{FairShares, ShareIdx, ShareMeasure, ShareUse};

/// Maximum number of shares of a peer: one for each service, and a last one for all further
/// services. The number is limited because senders choose their service names.
const SERVICES: usize = 16;

/// The sender of a trace's first span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TraceSender {
    pub(crate) peer: PeerId,
    /// A hash of the service name.
    pub(crate) service: u32,
}

/// The unknown peer, for example of restored traces of which the journal records only that they
/// were judged.
pub(crate) const UNKNOWN_PEER: PeerId = PeerId(0);

/// The peer of traces with spans from several peers.
pub(crate) const SEVERAL_PEERS: PeerId = PeerId(u64::MAX);

/// The index of the share that a trace counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BudgetShare {
    peer: ShareIdx,
    service: ShareIdx,
}

impl BudgetShare {
    pub(crate) fn number(self) -> usize {
        self.peer() * SERVICES + self.service.idx()
    }

    pub(crate) fn peer(self) -> usize {
        self.peer.idx()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Shares {
    peers: FairShares<PeerId>,
    /// For each peer, the shares of its services.
    services: Vec<FairShares<u32, SERVICES>>,
}

impl Shares {
    pub(crate) fn n_traces(&self) -> usize {
        self.peers.total().n_things
    }

    pub(crate) fn size(&self) -> usize {
        self.peers.total().n_bytes
    }

    /// Counts a trace and returns the share that it counts against.
    pub(crate) fn open(&mut self, sender: TraceSender, size: usize) -> BudgetShare {
        let peer = self.peers.share(sender.peer);
        if peer.idx() == self.services.len() {
            self.services.push(FairShares::default());
        }
        let service = self.services[peer.idx()].share(sender.service);
        let share = BudgetShare { peer, service };
        self.peers.add(peer, ShareUse::thing(size));
        self.services[peer.idx()].add(service, ShareUse::thing(size));
        share
    }

    pub(crate) fn close(&mut self, share: BudgetShare, size: usize) {
        self.peers.release(share.peer, ShareUse::thing(size));
        self.services[share.peer()].release(share.service, ShareUse::thing(size));
    }

    #[inline]
    pub(crate) fn resize(&mut self, share: BudgetShare, before: usize, after: usize) {
        self.peers.resize(share.peer, before, after);
        self.services[share.peer()].resize(share.service, before, after);
    }

    /// Returns the heaviest service of the heaviest peer.
    pub(crate) fn heaviest(&self, measure: ShareMeasure) -> BudgetShare {
        let peer = self.peers.heaviest(measure);
        let services = self.services.get(peer.idx());
        BudgetShare {
            peer,
            service: services.map_or_else(ShareIdx::default, |of_peer| of_peer.heaviest(measure)),
        }
    }

    /// Returns the share from which to evict; `None` if the traces fit the budget.
    #[inline]
    pub(crate) fn share_to_evict(&self, max_traces: usize, max_size: usize) -> Option<BudgetShare> {
        if self.n_traces() > max_traces {
            Some(self.heaviest(ShareMeasure::Things))
        } else if self.size() > max_size {
            Some(self.heaviest(ShareMeasure::Bytes))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assemble::accounts::MAX_SHARES;

    fn sender(peer: u64, service: u32) -> TraceSender {
        let peer = PeerId(peer);
        TraceSender { peer, service }
    }

    /// Returns the share from which to evict if one trace or one byte exceeds the budget.
    fn evicted_share(shares: &Shares, measure: ShareMeasure) -> BudgetShare {
        let (n_traces, size) = (shares.n_traces(), shares.size());
        let evicted_share = match measure {
            ShareMeasure::Things => shares.share_to_evict(n_traces - 1, size),
            ShareMeasure::Bytes => shares.share_to_evict(n_traces, size - 1),
        };
        evicted_share.unwrap()
    }

    #[test]
    fn the_heaviest_service_of_the_heaviest_peer_comes_first() {
        let mut shares = Shares::default();
        let agent = shares.open(sender(1, 7), 900);
        let crowd: Vec<BudgetShare> = [1, 2, 2, 3]
            .map(|service| shares.open(sender(2, service), 300))
            .to_vec();
        assert_eq!(shares.heaviest(ShareMeasure::Things), crowd[1]);
        assert_eq!(shares.heaviest(ShareMeasure::Bytes), crowd[1]);
        assert_eq!(evicted_share(&shares, ShareMeasure::Things), crowd[1]);
        assert_eq!(evicted_share(&shares, ShareMeasure::Bytes), crowd[1]);
        shares.close(crowd[1], 300);
        shares.close(crowd[2], 300);
        assert_eq!(evicted_share(&shares, ShareMeasure::Things), crowd[0]);
        assert_eq!(evicted_share(&shares, ShareMeasure::Bytes), agent);
        shares.resize(crowd[3], 300, 700);
        assert_eq!(evicted_share(&shares, ShareMeasure::Bytes), crowd[3]);
        assert_eq!((shares.n_traces(), shares.size()), (3, 1_900));
    }

    #[test]
    fn the_tables_are_bounded_and_unused_places_are_used_again() {
        let mut shares = Shares::default();
        let services: Vec<BudgetShare> = (0..100)
            .map(|service| shares.open(sender(1, service), 1))
            .collect();
        assert_eq!(services[99], services[SERVICES - 1], "shared by the rest");
        let peers: Vec<BudgetShare> = (0..1_000)
            .map(|n| shares.open(sender(1_000 + n, 0), 1))
            .collect();
        assert_eq!(shares.services.len(), MAX_SHARES);
        assert_eq!(peers[999], peers[MAX_SHARES - 2], "shared by the rest");
        shares.close(peers[5], 1);
        assert_eq!(shares.open(sender(2, 0), 1), peers[5]);
        assert_eq!((shares.n_traces(), shares.size()), (1_100, 1_100));
    }
}
