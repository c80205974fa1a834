//! How much of a budget of traces each sender holds, and who holds the most: a sender with
//! many traces makes its own give way, not those of others. Knows peers, services and sizes; knows
//! nothing of traces.

use std::cmp::Reverse;

use hashbrown::HashMap;
use otlp::span::PeerId;

/// Peers that have shares of their own, further ones share the last. Senders choose their
/// services, so each peer has its own few, of which the last is for all further ones. The tables
/// for open traces take at most 200 KiB, timers included, and as much again for each other
/// partition; those for closed ones take 110 KiB.
const MAX_PEERS: usize = 256;
const SERVICES: usize = 16;

/// Stands for all peers without a share of their own. All partitions give it the same name.
const FURTHER_PEERS: PeerId = PeerId(u64::MAX - 1);
const FURTHER_SERVICES: u32 = u32::MAX;

/// The part of the budget by which all partitions together may exceed it until the one that has to
/// make room has noticed: as much as one trace may take.
const TOLERATED_PART: usize = 4;

/// The sender of a trace's first span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TraceSender {
    pub(super) peer: PeerId,
    /// A hash of the service's name, the same in all partitions.
    pub(super) service: u32,
}

impl TraceSender {
    /// For traces of which a journal only knows that they were judged.
    pub(super) const UNKNOWN: Self = Self {
        peer: PeerId(0),
        service: 0,
    };

    /// For traces of which several peers have sent spans.
    pub(super) const SEVERAL: Self = Self {
        peer: PeerId(u64::MAX),
        service: 0,
    };
}

/// How much a sender holds in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderHeld {
    sender: TraceSender,
    held: Held,
}

/// The number of the share that a trace counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BudgetShare(u16);

impl BudgetShare {
    pub(super) fn number(self) -> usize {
        self.0.into()
    }

    /// The number of the peer's shares.
    pub(super) fn peer(self) -> usize {
        self.number() / SERVICES
    }
}

/// Most open traces that all partitions together may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenBudget {
    pub(super) n_traces: usize,
    pub(super) size: usize,
    pub(super) n_partitions: usize,
}

/// Which budget is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    Traces,
    Size,
}

/// What is held of the budget.
#[derive(Debug, Default)]
pub(super) struct Shares {
    total: Held,
    peers: Vec<PeerShares>,
    elsewhere: Elsewhere,
}

/// What the other partitions hold.
#[derive(Debug, Default)]
struct Elsewhere {
    total: Held,
    by_peer: HashMap<PeerId, Held>,
    by_sender: HashMap<TraceSender, Held>,
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

/// The service of a peer that holds the most.
#[derive(Debug)]
struct HeaviestService {
    place: usize,
    here: usize,
    everywhere: usize,
    /// Does no service of the peer that has nothing here hold more?
    is_heaviest: bool,
}

impl Shares {
    /// Number of traces.
    pub(super) fn n_traces(&self) -> usize {
        self.total.n_traces
    }

    /// Bytes of all traces.
    pub(super) fn size(&self) -> usize {
        self.total.size
    }

    /// How much each sender holds here.
    pub(super) fn senders(&self) -> impl Iterator<Item = SenderHeld> {
        self.peers.iter().flat_map(|shares| {
            let services = shares.services.iter();
            let used = services.filter(|share| share.held.n_traces > 0);
            used.map(|share| SenderHeld {
                sender: shares.sender(share),
                held: share.held,
            })
        })
    }

    /// Notes how much the senders hold in the other partitions.
    pub(super) fn note_others(&mut self, senders: impl IntoIterator<Item = SenderHeld>) {
        let Elsewhere {
            total,
            by_peer,
            by_sender,
        } = &mut self.elsewhere;
        *total = Held::default();
        by_peer.clear();
        by_sender.clear();
        for SenderHeld { sender, held } in senders {
            total.add(held);
            by_peer.entry(sender.peer).or_default().add(held);
            by_sender.entry(sender).or_default().add(held);
        }
    }

    /// Counts a trace of this size.
    pub(super) fn open(&mut self, sender: TraceSender, size: usize) -> BudgetShare {
        let share = self.share_of(sender);
        for held in self.held(share) {
            held.n_traces += 1;
            held.size += size;
        }
        share
    }

    /// Stops counting a trace.
    pub(super) fn close(&mut self, share: BudgetShare, size: usize) {
        for held in self.held(share) {
            held.n_traces -= 1;
            held.size -= size;
        }
    }

    /// Counts the new size of a trace.
    #[inline]
    pub(super) fn resize(&mut self, share: BudgetShare, before: usize, after: usize) {
        for held in self.held(share) {
            held.size = held.size - before + after;
        }
    }

    /// The share that holds the most here of the peer that does. A peer that holds less than its
    /// equal part of an exceeded budget is never the one.
    pub(super) fn heaviest(&self, measure: Excess) -> BudgetShare {
        let peers = self.peers.iter().map(PeerShares::total);
        let peer = heaviest(peers, measure);
        let services = self.peers.get(peer).map(|peer| &peer.services);
        let held = services.into_iter().flatten().map(|share| share.held);
        BudgetShare((peer * SERVICES + heaviest(held, measure)) as u16)
    }

    /// The peer of a share, unless further ones share it.
    pub(super) fn peer(&self, share: BudgetShare) -> Option<PeerId> {
        let place = share.peer();
        let shares = self.peers.get(place).filter(|_| place < MAX_PEERS - 1);
        shares.map(|shares| shares.peer)
    }

    /// The share that must give way here while the budget is exceeded: of the peer that holds the
    /// most in all partitions together, the service that does. A peer that holds less than its
    /// equal part of an exceeded budget is never the one.
    ///
    /// Every partition makes room that holds more than its equal part of what this service may
    /// keep. The others leave it to them, up to a bound: one of them may be busy with a large
    /// trace.
    #[inline]
    pub(super) fn to_give_way(&self, budget: &OpenBudget) -> Option<BudgetShare> {
        let Held { n_traces, size } = self.total.plus(self.elsewhere.total);
        if n_traces > budget.n_traces {
            self.give_way(Excess::Traces, n_traces, budget.n_traces, budget)
        } else if size > budget.size {
            self.give_way(Excess::Size, size, budget.size, budget)
        } else {
            None
        }
    }

    fn give_way(
        &self,
        measure: Excess,
        all: usize,
        most: usize,
        budget: &OpenBudget,
    ) -> Option<BudgetShare> {
        let of_peer = |shares: &PeerShares| {
            let elsewhere = self.elsewhere.by_peer.get(&shares.peer);
            shares.total().plus(elsewhere.copied().unwrap_or_default())
        };
        let peers = self.peers.iter().enumerate();
        let peers = peers.filter(|(_, shares)| shares.total().by(measure) > 0);
        let (peer, shares) =
            peers.max_by_key(|(_, it)| (of_peer(it).by(measure), Reverse(it.peer)))?;
        let others = self.elsewhere.by_peer.values().map(|held| held.by(measure));
        let is_heaviest = others.max().unwrap_or_default() <= of_peer(shares).by(measure);
        let service = self.heaviest_service(shares, measure)?;
        let share = BudgetShare((peer * SERVICES + service.place) as u16);

        let excess = all - most;
        let may_keep = service.everywhere.saturating_sub(excess) / budget.n_partitions;
        let is_ours = is_heaviest && service.is_heaviest && service.here > may_keep;
        let is_beyond =
            excess > most / TOLERATED_PART && self.total.by(measure) > most / budget.n_partitions;
        (is_ours || is_beyond).then_some(share)
    }

    /// Of the services of a peer that hold something here, the one that holds the most in all.
    fn heaviest_service(&self, shares: &PeerShares, measure: Excess) -> Option<HeaviestService> {
        let by_sender = &self.elsewhere.by_sender;
        let everywhere = |share: &ServiceShare| {
            let elsewhere = by_sender.get(&shares.sender(share));
            let held = share.held.plus(elsewhere.copied().unwrap_or_default());
            held.by(measure)
        };
        let services = shares.services.iter().enumerate();
        let services = services.filter(|(_, share)| share.held.by(measure) > 0);
        let (place, share) =
            services.max_by_key(|(_, it)| (everywhere(it), Reverse(it.service)))?;
        let of_peer = by_sender.iter();
        let of_peer = of_peer.filter(|(sender, _)| sender.peer == shares.peer);
        let heaviest_elsewhere = of_peer.map(|(_, held)| held.by(measure)).max();
        Some(HeaviestService {
            place,
            here: share.held.by(measure),
            everywhere: everywhere(share),
            is_heaviest: heaviest_elsewhere.unwrap_or_default() <= everywhere(share),
        })
    }

    /// The sender's share, or one that nobody uses, or the last, which further senders share.
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

    fn sender(&self, share: &ServiceShare) -> TraceSender {
        TraceSender {
            peer: self.peer,
            service: share.service,
        }
    }
}

impl Held {
    fn add(&mut self, other: Self) {
        *self = self.plus(other);
    }

    fn plus(self, other: Self) -> Self {
        Self {
            n_traces: self.n_traces + other.n_traces,
            size: self.size + other.size,
        }
    }

    fn by(self, measure: Excess) -> usize {
        match measure {
            Excess::Traces => self.n_traces,
            Excess::Size => self.size,
        }
    }
}

/// The place of the most that is held, the first of several.
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

    /// A budget that is exceeded by one trace, or by one byte.
    fn exceeded(shares: &Shares, measure: Excess) -> OpenBudget {
        let all = shares.total.plus(shares.elsewhere.total);
        OpenBudget {
            n_traces: all.n_traces - usize::from(measure == Excess::Traces),
            size: all.size - usize::from(measure == Excess::Size),
            n_partitions: if all == shares.total { 1 } else { 2 },
        }
    }

    fn gives_way(shares: &Shares, measure: Excess) -> BudgetShare {
        shares.to_give_way(&exceeded(shares, measure)).unwrap()
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
    fn what_a_sender_holds_elsewhere_counts_too() {
        // From peers of their own, and as services of one peer that sends for all.
        for agent in [sender(1, 7), sender(2, 7)] {
            let flood = sender(2, 1);
            let mut shares = Shares::default();
            let of_agent = shares.open(agent, 750);
            let of_flood = shares.open(flood, 700);
            assert_eq!(gives_way(&shares, Excess::Size), of_agent);
            let mut others = Shares::default();
            others.open(flood, 100);
            shares.note_others(others.senders());
            assert_eq!(gives_way(&shares, Excess::Size), of_flood);

            // The flood has nothing here any more: the others make room.
            shares.close(of_flood, 700);
            others.open(flood, 1_000);
            shares.note_others(others.senders());
            let budget = exceeded(&shares, Excess::Size);
            assert_eq!(shares.to_give_way(&budget), None);
            // They do not, for too long.
            let half = OpenBudget {
                size: 1_000,
                ..budget
            };
            assert_eq!(shares.to_give_way(&half), Some(of_agent));
        }
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
