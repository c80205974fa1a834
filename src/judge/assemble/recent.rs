//! Recently closed traces, remembered so that late spans are recognised. If memory is short, the
//! heaviest peer's oldest traces are first reduced to a hash and a time, and then forgotten.

use hashbrown::HashTable;
use otlp::span::{PeerId, TraceId};

use super::accounts::{FairShares, ShareIdx, ShareMeasure, ShareUse};
use super::beginnings::Beginnings;
use super::buffered_trace::BufferedTrace;
use super::fifo_timers::{FifoTimers, Tick};
use super::forgotten::ForgottenTraces;
use super::shares::{SEVERAL_PEERS, UNKNOWN_PEER};
use super::slab::{Slab, Slot};
use super::{Memo, Stats};

/// Bytes of an entry without its spans, in the slab, both queues and the index, including their
/// spare capacity.
const ENTRY_SIZE: usize = 128;

/// The number of entries that every memory limit allows.
const MIN_ENTRIES: usize = 1_024;

#[derive(Debug)]
pub(super) struct RecentlyClosed<M> {
    entries: Slab<ClosedTrace<M>>,
    index: HashTable<Slot>,
    /// The shares of the peers: all entries, and the bytes of their spans.
    shares: FairShares<PeerId>,
    /// All entries, in the order of their closing times, with a queue for each peer. An entry
    /// without spans moves to the end when a late span arrives.
    order: FifoTimers,
    /// The entries that have their spans, in the order of their judgements, with a queue for each
    /// peer.
    whole: FifoTimers,
    n_whole: usize,
    /// A lower bound of the next expiry.
    none_expires_before: Tick,
    /// Entries that were evicted early.
    forgotten: ForgottenTraces,
    /// Separate starts of the trace history, for peers with too many forgotten traces to list: the
    /// closing time of the peer's last forgotten trace.
    beginnings: Beginnings<PeerId>,
    max_traces: usize,
    max_size: usize,
    ttl: Tick,
}

#[derive(Debug)]
struct ClosedTrace<M> {
    hash: u64,
    /// `None` while the trace is judged, and after its spans were dropped.
    trace: Option<Box<BufferedTrace<M>>>,
    /// The peer's share that the entry counts against.
    share: ShareIdx,
    /// True if the spans were dropped because memory was full.
    is_forgotten: bool,
}

impl<M: Memo> RecentlyClosed<M> {
    pub(super) fn new(max_traces: usize, max_size: usize, ttl: Tick) -> Self {
        Self {
            entries: Slab::new(),
            index: HashTable::new(),
            shares: FairShares::default(),
            order: FifoTimers::new(1),
            whole: FifoTimers::new(1),
            n_whole: 0,
            none_expires_before: Tick::MAX,
            forgotten: ForgottenTraces::new(max_size / 8, ttl),
            beginnings: Beginnings::default(),
            max_traces,
            max_size,
            ttl,
        }
    }

    /// Inserts an entry for a closed trace, without its spans.
    pub(super) fn insert(&mut self, hash: u64, peer: PeerId, now: Tick) {
        // Shares belong to peers and not to services, because senders choose their service names.
        let share = self.shares.share(peer);
        self.shares.add(share, ShareUse::thing(0));
        let slot = self.entries.insert(ClosedTrace {
            hash,
            trace: None,
            share,
            is_forgotten: false,
        });
        let entries = &self.entries;
        self.index.insert_unique(hash, slot, |&slot| {
            entries.get(slot).map_or(0, |entry| entry.hash)
        });
        self.order.grow(share.idx() + 1);
        self.whole.grow(share.idx() + 1);
        self.order.start(share.idx(), slot, now);
        self.none_expires_before = self.none_expires_before.min(now.saturating_add(self.ttl));
    }

    pub(super) fn fill(&mut self, hash: u64, trace: Box<BufferedTrace<M>>, now: Tick) {
        let Some(slot) = self.find(hash, &trace.trace_id) else {
            return;
        };
        let Some(entry) = self
            .entries
            .get_mut(slot)
            .filter(|entry| entry.trace.is_none())
        else {
            return;
        };
        self.shares.resize(entry.share, 0, trace.size());
        self.n_whole += 1;
        self.whole.start(entry.share.idx(), slot, now);
        entry.trace = Some(trace);
        self.forget_spans();
    }

    pub(super) fn resize(&mut self, max_size: usize) {
        self.max_size = max_size;
        self.forget_spans();
    }

    pub(super) fn is_forgotten(&self, slot: Slot) -> bool {
        self.entries
            .get(slot)
            .is_some_and(|entry| entry.is_forgotten)
    }

    /// If the spans of a remembered trace are gone, only its hash is compared.
    pub(super) fn find(&self, hash: u64, trace_id: &TraceId) -> Option<Slot> {
        let is_it = |entry: &ClosedTrace<M>| {
            entry.hash == hash
                && entry
                    .trace
                    .as_ref()
                    .is_none_or(|trace| trace.trace_id == *trace_id)
        };
        self.index
            .find(hash, |&slot| self.entries.get(slot).is_some_and(is_it))
            .copied()
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&BufferedTrace<M>> {
        self.entries.get(slot)?.trace.as_deref()
    }

    pub(super) fn needed_records(&self) -> impl Iterator<Item = u64> {
        let entries = self.entries.iter();
        entries.filter_map(|(_, entry)| Some(entry.trace.as_ref()?.first_record))
    }

    /// Remembers a trace for longer, because a late span arrived after the trace's spans were
    /// dropped.
    pub(super) fn touch(&mut self, slot: Slot, now: Tick) {
        if let Some(entry) = self.entries.get(slot) {
            self.order.start(entry.share.idx(), slot, now);
        }
    }

    pub(super) fn take(&mut self, slot: Slot) -> Option<Box<BufferedTrace<M>>> {
        let trace = self.drop_spans(slot);
        self.remove(slot);
        trace
    }

    /// Returns true if a trace with this hash was forgotten early, and rarely for other traces.
    /// If so, earlier spans of the trace may have been seen and dropped.
    pub(super) fn was_forgotten(&self, hash: u64) -> bool {
        self.forgotten.contains(hash)
    }

    /// Returns the closing time of the peer's last trace that was forgotten early, but whose hash
    /// did not fit into `forgotten`.
    pub(super) fn beginning_of(&self, peer: PeerId) -> Option<Tick> {
        self.beginnings.of(peer)
    }

    /// Forgets traces that are too old or beyond the limit. Returns the new start of the trace
    /// history of all peers, if it moves.
    pub(super) fn forget(&mut self, now: Tick) -> Option<Tick> {
        let mut forgotten = self.forget_expired(now);
        while self.entries.len() > self.max_entries() {
            let heaviest = self.shares.heaviest(ShareMeasure::Things);
            let Some((oldest, closed)) = self.order.first(heaviest.idx()) else {
                break;
            };
            self.drop_spans(oldest);
            // With a limit of 0 closed traces, the history would start now, and every trace would
            // be incomplete.
            if let Some(hash) = self.remove(oldest)
                && self.max_traces > 0
                && !self.forgotten.insert(hash, closed, now)
            {
                // Restored traces, whose sender is unknown, and traces of several senders belong to
                // no single peer.
                let unnamed = [UNKNOWN_PEER, SEVERAL_PEERS];
                let peer = self.shares.key(heaviest);
                let peer = peer.filter(|peer| !unnamed.contains(peer));
                forgotten = forgotten.max(self.beginnings.begin(peer, closed));
            }
        }
        // The filter of forgotten traces may have grown, which leaves fewer bytes for spans.
        self.forget_spans();
        forgotten
    }

    pub(super) fn add_to(&self, stats: &mut Stats) {
        stats.n_recent = self.entries.len();
        stats.n_recent_whole = self.n_whole;
        stats.recent_size = self.size();
    }

    fn size(&self) -> usize {
        self.shares.total().n_bytes + self.entries.len() * ENTRY_SIZE + self.forgotten.size()
    }

    fn max_entries(&self) -> usize {
        let with_room = (self.max_size / 2 / ENTRY_SIZE).max(MIN_ENTRIES);
        self.max_traces.min(with_room)
    }

    fn forget_expired(&mut self, now: Tick) -> Option<Tick> {
        let is_recent = |beginning: Tick| beginning.saturating_add(self.ttl) > now;
        let dropped = self.beginnings.expire(is_recent);
        let mut forgotten = self.forgotten.expire(now).max(dropped);
        if self.none_expires_before > now {
            return forgotten;
        }
        self.none_expires_before = Tick::MAX;
        for peer in 0..self.order.n_queues() {
            while let Some((oldest, closed)) = self.order.first(peer) {
                let expires = closed.saturating_add(self.ttl);
                if expires > now {
                    self.none_expires_before = self.none_expires_before.min(expires);
                    break;
                }
                self.drop_spans(oldest);
                self.remove(oldest);
                forgotten = forgotten.max(Some(closed));
            }
        }
        forgotten
    }

    /// Drops spans, the heaviest peer's oldest first, until the buffer is within its size limit.
    fn forget_spans(&mut self) {
        while self.n_whole > 0 && self.size() > self.max_size {
            let heaviest = self.shares.heaviest(ShareMeasure::Bytes);
            let Some((oldest, _)) = self.whole.first(heaviest.idx()) else {
                break;
            };
            self.drop_spans(oldest);
            if let Some(entry) = self.entries.get_mut(oldest) {
                entry.is_forgotten = true;
            }
        }
    }

    fn drop_spans(&mut self, slot: Slot) -> Option<Box<BufferedTrace<M>>> {
        let entry = self.entries.get_mut(slot)?;
        let trace = entry.trace.take()?;
        self.shares.resize(entry.share, trace.size(), 0);
        self.whole.cancel(slot);
        self.n_whole -= 1;
        Some(trace)
    }

    /// Removes an entry whose spans were taken; returns its hash.
    fn remove(&mut self, slot: Slot) -> Option<u64> {
        let entry = self.entries.remove(slot)?;
        self.shares.release(entry.share, ShareUse::thing(0));
        self.order.cancel(slot);
        if let Ok(found) = self.index.find_entry(entry.hash, |&other| other == slot) {
            found.remove();
        }
        Some(entry.hash)
    }
}
