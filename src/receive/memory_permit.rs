//! Limits the bytes that all requests being received take together, and decides which request gives
//! way when they are all taken. Knows peers, sizes and times; knows nothing of what is received.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use otlp::span::PeerId;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::request_error::RequestError;
use crate::config::Bound;
use crate::heap;
use crate::sync::Mutex;

/// A request that has not advanced for this long gives way to one of the same peer.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// Bytes of all requests being received.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    max: Bound,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// Bytes beside them that requests which gave way still hold.
    ending: usize,
    next: u64,
    requests: BTreeMap<u64, Share>,
}

/// What one request takes.
#[derive(Debug)]
struct Share {
    peer: IpAddr,
    taken: usize,
    /// What it held when it gave way, unless it notices at once.
    ending: usize,
    /// When it last advanced.
    advanced: Instant,
    /// Still waits for bytes of its peer.
    is_arriving: bool,
    /// It gave way and is to end.
    is_revoked: bool,
    revoked: Arc<Notify>,
}

impl MemoryBudget {
    pub(super) fn new(max: impl Into<Bound>) -> Arc<Self> {
        Arc::new(Self {
            max: max.into(),
            state: Mutex::default(),
        })
    }

    /// Bytes taken, and most bytes that may be.
    pub(super) fn state(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.taken + state.ending, self.max.get())
    }

    /// A permit for no bytes yet, for no particular sender.
    pub(super) fn permit(self: &Arc<Self>) -> MemoryPermit {
        self.permit_of(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// A permit for no bytes yet.
    pub(super) fn permit_of(self: &Arc<Self>, peer: IpAddr) -> MemoryPermit {
        let revoked = Arc::new(Notify::new());
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.requests.insert(
            number,
            Share {
                peer,
                taken: 0,
                ending: 0,
                advanced: Instant::now(),
                is_arriving: true,
                is_revoked: false,
                revoked: Arc::clone(&revoked),
            },
        );
        drop(state);
        MemoryPermit {
            budget: Arc::clone(self),
            number,
            peer,
            fixed: 0,
            window: 0,
            revoked,
        }
    }
}

/// Bytes taken from a [`MemoryBudget`], returned on drop.
#[derive(Debug)]
pub(super) struct MemoryPermit {
    budget: Arc<MemoryBudget>,
    number: u64,
    peer: IpAddr,
    /// Bytes taken beside those of the message.
    fixed: usize,
    /// How many bytes of the message are held twice.
    window: usize,
    revoked: Arc<Notify>,
}

impl MemoryPermit {
    /// The sender of the request.
    pub(super) fn peer(&self) -> PeerId {
        peer_of(self.peer)
    }

    /// Most bytes of all requests together.
    pub(super) fn max(&self) -> usize {
        self.budget.max.get()
    }

    /// Takes bytes beside those of the message.
    pub(super) fn add_fixed(&mut self, n_bytes: usize) -> Result<(), RequestError> {
        let taken = self.taken();
        self.fixed += n_bytes;
        self.take(taken + n_bytes)
    }

    /// Returns what [`Self::add_fixed`] took.
    pub(super) fn remove_fixed(&mut self, n_bytes: usize) {
        self.fixed = self.fixed.saturating_sub(n_bytes);
    }

    /// Counts the first `n_bytes` of the message twice from now on.
    pub(super) fn set_window(&mut self, n_bytes: usize) {
        self.window = n_bytes;
    }

    /// Takes bytes up to this size of the message, or up to the whole budget if that is less. If
    /// the budget lacks them, slower requests give way; if that is not enough, the permit keeps its
    /// present size. Fails also once the request has given way itself.
    pub(super) fn grow_to(&mut self, message: usize) -> Result<(), RequestError> {
        self.take(message + message.min(self.window) + self.fixed)
    }

    fn take(&mut self, total: usize) -> Result<(), RequestError> {
        let max = self.budget.max.get();
        let mut guard = self.budget.state.lock();
        let state = &mut *guard;
        let Some(own) = state.requests.get(&self.number) else {
            return Err(RequestError::InFlightFull);
        };
        let (peer, more) = (own.peer, total.min(max).saturating_sub(own.taken));
        if own.is_revoked {
            return Err(RequestError::InFlightFull);
        }
        if more == 0 {
            return Ok(());
        }
        let ending = state.ending_of(peer);
        while state.taken + ending + more > max {
            let Some(victim) = state.slowest(self.number, peer, more) else {
                return Err(RequestError::InFlightFull);
            };
            state.revoke(victim);
        }
        if let Some(own) = state.requests.get_mut(&self.number) {
            own.taken += more;
            state.taken += more;
        }
        drop(guard);
        heap::took(more);
        Ok(())
    }

    pub(super) fn shrink_to(&mut self, message: usize) {
        let total = message + message.min(self.window) + self.fixed;
        let mut guard = self.budget.state.lock();
        let state = &mut *guard;
        if let Some(own) = state.requests.get_mut(&self.number) {
            let less = own.taken.saturating_sub(total);
            own.taken -= less;
            state.taken -= less;
        }
    }

    /// Notes that the request has advanced.
    pub(super) fn advanced(&self) {
        self.change(|share| share.advanced = Instant::now());
    }

    /// The message has arrived; from now on the request gives way only to other peers, and notices
    /// when it next takes bytes. Fails if it has given way.
    pub(super) fn arrived(&self) -> Result<(), RequestError> {
        let mut is_revoked = true;
        self.change(|share| {
            share.is_arriving = false;
            is_revoked = share.is_revoked;
        });
        if is_revoked { Err(RequestError::InFlightFull) } else { Ok(()) }
    }

    /// Returns when the request has given way and is to end.
    pub(super) async fn revoked(&self) {
        self.revoked.notified().await;
    }

    fn taken(&self) -> usize {
        let state = self.budget.state.lock();
        let own = state.requests.get(&self.number);
        own.map_or(0, |own| own.taken)
    }

    fn change(&self, change: impl FnOnce(&mut Share)) {
        if let Some(own) = self.budget.state.lock().requests.get_mut(&self.number) {
            change(own);
        }
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        if let Some(own) = state.requests.remove(&self.number) {
            state.taken -= own.taken;
            state.ending -= own.ending;
        }
    }
}

impl State {
    /// Bytes that this peer cannot take again yet, since requests of it that gave way hold them.
    fn ending_of(&self, peer: IpAddr) -> usize {
        if self.ending == 0 {
            return 0;
        }
        let requests = self.requests.values();
        let of_peer = requests.filter(|share| share.peer == peer);
        of_peer.map(|share| share.ending).sum()
    }

    /// The request that gives way to one of this peer: the slowest of the peer that takes the most,
    /// if that would still be more than this one's, one that still arrives before one that is being
    /// decompressed or read; else the slowest of all that are stalled.
    fn slowest(&self, number: u64, peer: IpAddr, more: usize) -> Option<u64> {
        let mut by_peer: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for share in self.requests.values() {
            *by_peer.entry(share.peer).or_default() += share.taken;
        }
        let own = by_peer.get(&peer).copied().unwrap_or_default() + more;
        let heaviest = by_peer.iter().max_by_key(|(_, taken)| **taken);
        let heavier = heaviest.filter(|(other, taken)| **other != peer && **taken > own);
        let now = Instant::now();
        let gives_way = |share: &Share| match heavier {
            Some((heavier, _)) => share.peer == *heavier,
            None => share.is_arriving && now - share.advanced >= STALLED_AFTER,
        };
        let candidates = self
            .requests
            .iter()
            .filter(|(other, share)| **other != number && share.taken > 0 && gives_way(share));
        candidates
            .min_by_key(|(number, share)| (!share.is_arriving, share.advanced, **number))
            .map(|(number, _)| *number)
    }

    /// Takes the bytes back at once. The request ends as soon as it notices: within a moment if it
    /// waits for bytes; else until then its own peer cannot take as many again.
    fn revoke(&mut self, number: u64) {
        if let Some(share) = self.requests.get_mut(&number) {
            let taken = std::mem::take(&mut share.taken);
            self.taken -= taken;
            if !share.is_arriving {
                share.ending = taken;
                self.ending += taken;
            }
            share.is_revoked = true;
            share.revoked.notify_one();
        }
    }
}

/// An IPv4 address, or a network of 64 bits of IPv6, as a number.
fn peer_of(address: IpAddr) -> PeerId {
    match address.to_canonical() {
        IpAddr::V4(address) => PeerId(address.to_bits().into()),
        // The upper half of the loopback address is 0; those of networks are not.
        IpAddr::V6(address) => match (address.to_bits() >> 64) as u64 {
            0 => PeerId(address.to_bits() as u64),
            network => PeerId(network),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_and_a_mapped_address_are_one_peer_each() {
        let peer = |address: &str| peer_of(address.parse().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("::1"), peer("127.0.0.1"));
        assert_ne!(peer("::1"), PeerId::default());
    }

    const AGENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const CROWD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn permit(budget: &Arc<MemoryBudget>, peer: IpAddr, n_bytes: usize) -> MemoryPermit {
        let mut permit = budget.permit_of(peer);
        permit.grow_to(n_bytes).unwrap();
        permit
    }

    fn is_revoked(permit: &MemoryPermit) -> bool {
        permit.budget.state.lock().requests[&permit.number].is_revoked
    }

    #[tokio::test(start_paused = true)]
    async fn the_peer_that_takes_the_most_gives_way_with_its_slowest_request() {
        let budget = MemoryBudget::new(100);
        let crowd: Vec<_> = (0..5).map(|_| permit(&budget, CROWD, 20)).collect();
        tokio::time::advance(Duration::from_millis(10)).await;
        crowd[0].advanced();
        crowd[1].arrived().unwrap();
        let _agent = permit(&budget, AGENT, 30);
        let revoked: Vec<_> = crowd.iter().map(is_revoked).collect();
        assert_eq!(revoked, [false, false, true, true, false]);
        assert_eq!(budget.state().0, 90);
        // One that takes less than half is the lighter one no more.
        let mut greedy = budget.permit_of(AGENT);
        assert_eq!(greedy.grow_to(60), Err(RequestError::InFlightFull));
        assert_eq!(crowd[3].arrived(), Err(RequestError::InFlightFull));
        let mut late = crowd;
        assert_eq!(late[2].grow_to(30), Err(RequestError::InFlightFull));
        drop((late, greedy, _agent));
        assert_eq!(budget.state().0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn among_requests_of_one_peer_only_stalled_ones_give_way() {
        let budget = MemoryBudget::new(100);
        let (stalled, steady) = (permit(&budget, AGENT, 50), permit(&budget, AGENT, 50));
        let mut next = budget.permit_of(AGENT);
        assert_eq!(next.grow_to(10), Err(RequestError::InFlightFull));
        tokio::time::advance(STALLED_AFTER).await;
        steady.advanced();
        next.grow_to(10).unwrap();
        assert_eq!((is_revoked(&stalled), is_revoked(&steady)), (true, false));
        stalled.revoked().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_decompressed_gives_way_to_another_peer_but_keeps_its_own_out() {
        let budget = MemoryBudget::new(100);
        let mut bomb = permit(&budget, CROWD, 95);
        bomb.arrived().unwrap();
        tokio::time::advance(STALLED_AFTER).await;
        let mut next = budget.permit_of(CROWD);
        assert_eq!(next.grow_to(10), Err(RequestError::InFlightFull));
        let agent = permit(&budget, AGENT, 10);
        assert!(is_revoked(&bomb));
        assert_eq!(next.grow_to(10), Err(RequestError::InFlightFull));
        assert_eq!(bomb.grow_to(96), Err(RequestError::InFlightFull));
        assert_eq!(budget.state().0, 105, "until it ends");
        drop(bomb);
        next.grow_to(90).unwrap();
        drop((next, agent));
        assert_eq!(budget.state().0, 0);
    }

    #[tokio::test]
    async fn what_is_held_beside_the_message_counts() {
        let budget = MemoryBudget::new(1_000);
        let mut permit = budget.permit();
        permit.add_fixed(100).unwrap();
        permit.set_window(50);
        permit.grow_to(200).unwrap();
        assert_eq!(budget.state().0, 350);
        permit.set_window(0);
        permit.remove_fixed(100);
        permit.shrink_to(200);
        assert_eq!(budget.state().0, 200);
        permit.grow_to(5_000).unwrap();
        assert_eq!(budget.state().0, 1_000, "at most the whole budget");
    }
}
