//! Pure. Recently closed traces, remembered so that late spans are recognised. The oldest traces
//! lose their spans first, which leaves a hash and a time, and are then forgotten. Knows how much
//! to remember and for how long; knows nothing of why a trace was closed.

use hashbrown::HashTable;

use super::buffered_trace::BufferedTrace;
use super::fifo_timers::{FifoTimers, Tick};
use super::slab::{Slab, Slot};
use super::{Memo, Stats};
use crate::span::TraceId;

/// Recently closed traces.
#[derive(Debug)]
pub(super) struct RecentlyClosed<M> {
    entries: Slab<ClosedTrace<M>>,
    index: HashTable<Slot>,
    /// All entries, by the time of closing.
    order: FifoTimers,
    /// The entries that have their spans, by the time of closing.
    whole: FifoTimers,
    n_whole: usize,
    size: usize,
    max_traces: usize,
    max_size: usize,
    ttl: Tick,
}

#[derive(Debug)]
struct ClosedTrace<M> {
    hash: u64,
    /// `None` while it is judged, and after its spans were dropped.
    trace: Option<Box<BufferedTrace<M>>>,
    /// Its spans were dropped because memory was full.
    is_forgotten: bool,
}

impl<M: Memo> RecentlyClosed<M> {
    pub(super) fn new(max_traces: usize, max_size: usize, ttl: Tick) -> Self {
        Self {
            entries: Slab::new(),
            index: HashTable::new(),
            order: FifoTimers::new(1),
            whole: FifoTimers::new(1),
            n_whole: 0,
            size: 0,
            max_traces,
            max_size,
            ttl,
        }
    }

    /// Adds a trace that was closed and is being judged.
    pub(super) fn insert(&mut self, hash: u64, now: Tick) {
        let slot = self.entries.insert(ClosedTrace {
            hash,
            trace: None,
            is_forgotten: false,
        });
        let entries = &self.entries;
        self.index.insert_unique(hash, slot, |&slot| {
            entries.get(slot).map_or(0, |entry| entry.hash)
        });
        self.order.start(0, slot, now);
    }

    /// Puts a judged trace back. If it is no longer remembered, it is dropped.
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
        self.size += trace.size();
        self.n_whole += 1;
        entry.trace = Some(trace);
        self.whole.start(0, slot, now);
        self.forget_spans();
    }

    /// Remembers so much from now on. Whole traces that are too many are forgotten with the next
    /// [`Self::forget`].
    pub(super) fn make_room(&mut self, max_traces: usize, max_size: usize) {
        self.max_traces = max_traces;
        self.max_size = max_size;
        self.forget_spans();
    }

    /// Were the spans of a remembered trace dropped because memory was full?
    pub(super) fn is_forgotten(&self, slot: Slot) -> bool {
        self.entries
            .get(slot)
            .is_some_and(|entry| entry.is_forgotten)
    }

    /// Finds a remembered trace. Without its spans only the hash is compared.
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

    /// A remembered trace, if it still has its spans.
    pub(super) fn get(&self, slot: Slot) -> Option<&BufferedTrace<M>> {
        self.entries.get(slot)?.trace.as_deref()
    }

    /// For each trace that has its spans, the first record of the journal that has one.
    pub(super) fn first_records(&self) -> impl Iterator<Item = u64> {
        let slots = self.entries.slots();
        slots.filter_map(|slot| Some(self.get(slot)?.first_record))
    }

    /// Remembers a trace for longer: a late span arrived after its own spans were dropped.
    pub(super) fn touch(&mut self, slot: Slot, now: Tick) {
        self.order.start(0, slot, now);
    }

    /// Removes a trace, to open it again.
    pub(super) fn take(&mut self, slot: Slot) -> Option<Box<BufferedTrace<M>>> {
        let trace = self.drop_spans(slot);
        self.remove(slot);
        trace
    }

    /// Forgets traces that are too many or too old. Returns when the last forgotten one was closed.
    pub(super) fn forget(&mut self, now: Tick) -> Option<Tick> {
        let mut forgotten = None;
        while let Some((oldest, closed)) = self.order.first(0)
            && (self.entries.len() > self.max_traces || closed.saturating_add(self.ttl) <= now)
        {
            self.drop_spans(oldest);
            self.remove(oldest);
            forgotten = Some(closed);
        }
        forgotten
    }

    /// Adds the remembered traces to the statistics.
    pub(super) fn add_to(&self, stats: &mut Stats) {
        stats.n_recent = self.entries.len();
        stats.n_recent_whole = self.n_whole;
        stats.recent_size = self.size;
    }

    /// Drops the spans of the oldest traces until the others have room.
    fn forget_spans(&mut self) {
        while self.size > self.max_size
            && let Some((oldest, _)) = self.whole.first(0)
        {
            self.drop_spans(oldest);
            if let Some(entry) = self.entries.get_mut(oldest) {
                entry.is_forgotten = true;
            }
        }
    }

    fn drop_spans(&mut self, slot: Slot) -> Option<Box<BufferedTrace<M>>> {
        let trace = self.entries.get_mut(slot)?.trace.take()?;
        self.whole.cancel(slot);
        self.n_whole -= 1;
        self.size -= trace.size();
        Some(trace)
    }

    fn remove(&mut self, slot: Slot) {
        let Some(entry) = self.entries.remove(slot) else {
            return;
        };
        self.order.cancel(slot);
        if let Ok(found) = self.index.find_entry(entry.hash, |&other| other == slot) {
            found.remove();
        }
    }
}
