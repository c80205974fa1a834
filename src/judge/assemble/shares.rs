//! Counts each sender's share of a budget of traces, and finds the heaviest: a sender with many
//! traces evicts its own traces, not those of other senders.

use std::cmp::Reverse;

use otlp::span::PeerId;

/// Limits on separate shares; further peers share the last one. Senders choose their service names,
/// so each peer has a few service shares, and further services share the last. The tables for open
/// traces use at most 200 KiB, timers included; the tables for closed traces 110 KiB.
const MAX_PEERS: usize = 256;
const SERVICES: usize = 16;

/// Represents all peers without a separate share.
const FURTHER_PEERS: PeerId = PeerId(u64::MAX - 1);
const FURTHER_SERVICES: u32 = u32::MAX;

/// The sender of a trace's first span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TraceSender {
    pub(crate) peer: PeerId,
    /// A hash of the service name.
    pub(crate) service: u32,
}

impl TraceSender {
    /// The sender of restored traces: the journal only records that they were judged.
    pub(crate) const UNKNOWN: Self = Self {
        peer: PeerId(0),
        service: 0,
    };

    /// The sender of traces that have spans from several peers.
    pub(crate) const SEVERAL: Self = Self {
        peer: PeerId(u64::MAX),
        service: 0,
    };
}

/// The index of the share that a trace counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BudgetShare(u16);

impl BudgetShare {
    pub(crate) fn number(self) -> usize {
        self.0.into()
    }

    /// The index of the peer.
    pub(crate) fn peer(self) -> usize {
        self.number() / SERVICES
    }
}

/// The measure in which a budget is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excess {
    Traces,
    Size,
}

/// The shares of a budget.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    total: Held,
    peers: Vec<PeerShares>,
}

#[derive(Debug)]
struct PeerShares {
    peer: PeerId,
    services: [ServiceShare; SERVICES],
}

#[derive(Debug, Clone, Copy, Default)]
struct ServiceShare {
    service: u32,
    held: Held,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Held {
    n_traces: usize,
    size: usize,
}

impl Shares {
    pub(crate) fn n_traces(&self) -> usize {
        self.total.n_traces
    }

    /// Total bytes of the traces.
    pub(crate) fn size(&self) -> usize {
        self.total.size
    }

    /// Adds a trace of this size.
    pub(crate) fn open(&mut self, sender: TraceSender, size: usize) -> BudgetShare {
        let share = self.share_of(sender);
        for held in self.held(share) {
            held.n_traces += 1;
            held.size += size;
        }
        share
    }

    /// Removes a trace.
    pub(crate) fn close(&mut self, share: BudgetShare, size: usize) {
        for held in self.held(share) {
            held.n_traces -= 1;
            held.size -= size;
        }
    }

    /// Changes the size of a trace.
    #[inline]
    pub(crate) fn resize(&mut self, share: BudgetShare, before: usize, after: usize) {
        for held in self.held(share) {
            held.size = held.size - before + after;
        }
    }

    /// Returns the heaviest share of the heaviest peer. A peer below its equal part of an exceeded
    /// budget is never the heaviest.
    pub(crate) fn heaviest(&self, measure: Excess) -> BudgetShare {
        let peers = self.peers.iter().map(PeerShares::total);
        let peer = heaviest(peers, measure);
        let services = self.peers.get(peer).map(|peer| &peer.services);
        let held = services.into_iter().flatten().map(|share| share.held);
        BudgetShare((peer * SERVICES + heaviest(held, measure)) as u16)
    }

    /// Returns the peer of a share; `None` for the share of further peers.
    pub(crate) fn peer(&self, share: BudgetShare) -> Option<PeerId> {
        let place = share.peer();
        let shares = self.peers.get(place).filter(|_| place < MAX_PEERS - 1);
        shares.map(|shares| shares.peer)
    }

    /// Returns the share from which to evict while there are more than `max_traces` traces or
    /// `max_size` bytes.
    #[inline]
    pub(crate) fn to_give_way(&self, max_traces: usize, max_size: usize) -> Option<BudgetShare> {
        let Held { n_traces, size } = self.total;
        if n_traces > max_traces {
            Some(self.heaviest(Excess::Traces))
        } else if size > max_size {
            Some(self.heaviest(Excess::Size))
        } else {
            None
        }
    }

    /// Returns the sender's share, else an unused share, else the last share, which further senders
    /// use together.
    fn share_of(&mut self, sender: TraceSender) -> BudgetShare {
        let known = self
            .peers
            .iter()
            .position(|shares| shares.peer == sender.peer);
        let peer = known.unwrap_or_else(|| self.place_for(sender.peer));
        let services = &mut self.peers[peer].services;
        services[SERVICES - 1].service = FURTHER_SERVICES;
        let own = &mut services[..SERVICES - 1];
        let known = own
            .iter()
            .position(|share| share.held.n_traces > 0 && share.service == sender.service);
        let service = known.unwrap_or_else(|| {
            let unused = own.iter().position(|share| share.held.n_traces == 0);
            if let Some(unused) = unused {
                own[unused].service = sender.service;
            }
            unused.unwrap_or(SERVICES - 1)
        });
        BudgetShare((peer * SERVICES + service) as u16)
    }

    fn place_for(&mut self, peer: PeerId) -> usize {
        let own = self.peers.iter().take(MAX_PEERS - 1);
        let mut own = own.map(|shares| shares.total().n_traces);
        if let Some(unused) = own.position(|n_traces| n_traces == 0) {
            self.peers[unused].peer = peer;
            unused
        } else if self.peers.len() < MAX_PEERS {
            let is_last = self.peers.len() == MAX_PEERS - 1;
            self.peers.push(PeerShares {
                peer: if is_last { FURTHER_PEERS } else { peer },
                services: [ServiceShare::default(); SERVICES],
            });
            self.peers.len() - 1
        } else {
            MAX_PEERS - 1
        }
    }

    fn held(&mut self, share: BudgetShare) -> [&mut Held; 2] {
        let services = &mut self.peers[share.peer()].services;
        [
            &mut self.total,
            &mut services[share.number() % SERVICES].held,
        ]
    }
}

impl PeerShares {
    fn total(&self) -> Held {
        let mut total = Held::default();
        for share in &self.services {
            total.add(share.held);
        }
        total
    }
}

impl Held {
    fn add(&mut self, other: Self) {
        self.n_traces += other.n_traces;
        self.size += other.size;
    }

    fn by(self, measure: Excess) -> usize {
        match measure {
            Excess::Traces => self.n_traces,
            Excess::Size => self.size,
        }
    }
}

/// Returns the index of the largest amount, the first if several are equal.
fn heaviest(all: impl Iterator<Item = Held>, measure: Excess) -> usize {
    let held = all.map(|held| held.by(measure));
    let heaviest = held
        .enumerate()
        .max_by_key(|(place, held)| (*held, Reverse(*place)));
    heaviest.map_or(0, |(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(peer: u64, service: u32) -> TraceSender {
        let peer = PeerId(peer);
        TraceSender { peer, service }
    }

    /// The share from which to evict if one trace or one byte exceeds the budget.
    fn gives_way(shares: &Shares, measure: Excess) -> BudgetShare {
        let Held { n_traces, size } = shares.total;
        let gives_way = match measure {
            Excess::Traces => shares.to_give_way(n_traces - 1, size),
            Excess::Size => shares.to_give_way(n_traces, size - 1),
        };
        gives_way.unwrap()
    }

    #[test]
    fn the_heaviest_service_of_the_heaviest_peer_comes_first() {
        let mut shares = Shares::default();
        let agent = shares.open(sender(1, 7), 900);
        let crowd: Vec<BudgetShare> = [1, 2, 2, 3]
            .map(|service| shares.open(sender(2, service), 300))
            .to_vec();
        assert_eq!(shares.heaviest(Excess::Traces), crowd[1]);
        assert_eq!(shares.heaviest(Excess::Size), crowd[1]);
        assert_eq!(gives_way(&shares, Excess::Traces), crowd[1]);
        assert_eq!(gives_way(&shares, Excess::Size), crowd[1]);
        shares.close(crowd[1], 300);
        shares.close(crowd[2], 300);
        assert_eq!(gives_way(&shares, Excess::Traces), crowd[0]);
        assert_eq!(gives_way(&shares, Excess::Size), agent);
        shares.resize(crowd[3], 300, 700);
        assert_eq!(gives_way(&shares, Excess::Size), crowd[3]);
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
        assert_eq!(shares.peers.len(), MAX_PEERS);
        assert_eq!(peers[999], peers[MAX_PEERS - 2], "shared by the rest");
        shares.close(peers[5], 1);
        assert_eq!(shares.open(sender(2, 0), 1), peers[5]);
        assert_eq!((shares.n_traces(), shares.size()), (1_100, 1_100));
    }
}
