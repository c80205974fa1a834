//! Pure. Recently closed traces, remembered so that a late span is known to be late. KeptAttributes go
//! first, oldest first, and leave a hash and a time; then those go too. Knows how much to remember
//! and for how long; knows nothing of why a trace was closed.

use hashbrown::HashTable;

use super::Memo;
use super::lanes::{Lanes, Slab, Slot, Tick};
use super::trace::Held;
use crate::span::TraceId;

/// Recently closed traces.
#[derive(Debug)]
pub(super) struct RecentlyClosed<M> {
    entries: Slab<Entry<M>>,
    index: HashTable<Slot>,
    /// All entries, by closing.
    order: Lanes<1>,
    /// Those that have facts, by closing.
    whole: Lanes<1>,
    n_whole: usize,
    size: usize,
    max_traces: usize,
    max_size: usize,
    ttl: Tick,
}

#[derive(Debug)]
struct Entry<M> {
    hash: u64,
    held: Option<Box<Held<M>>>,
}

impl<M: Memo> RecentlyClosed<M> {
    pub(super) fn new(max_traces: usize, max_size: usize, ttl: Tick) -> Self {
        Self {
            entries: Slab::new(),
            index: HashTable::new(),
            order: Lanes::new(),
            whole: Lanes::new(),
            n_whole: 0,
            size: 0,
            max_traces,
            max_size,
            ttl,
        }
    }

    /// A trace was closed; its facts are out being judged.
    pub(super) fn insert(&mut self, hash: u64, now: Tick) {
        let slot = self.entries.insert(Entry { hash, held: None });
        let entries = &self.entries;
        self.index.insert_unique(hash, slot, |&slot| {
            entries.get(slot).map_or(0, |entry| entry.hash)
        });
        self.order.join(0, slot, now);
    }

    /// Its facts are back. Where the trace is no longer remembered they are let go.
    pub(super) fn fill(&mut self, hash: u64, held: Box<Held<M>>, now: Tick) {
        let Some(slot) = self.find(hash, &held.trace_id) else {
            return;
        };
        let Some(entry) = self
            .entries
            .get_mut(slot)
            .filter(|entry| entry.held.is_none())
        else {
            return;
        };
        self.size += held.size();
        self.n_whole += 1;
        entry.held = Some(held);
        self.whole.join(0, slot, now);
        while self.size > self.max_size
            && let Some((oldest, _)) = self.whole.first(0)
        {
            self.drop_facts(oldest);
        }
    }

    /// Where this trace is remembered. Without its facts the hash alone must do.
    pub(super) fn find(&self, hash: u64, trace_id: &TraceId) -> Option<Slot> {
        let is_it = |entry: &Entry<M>| {
            entry.hash == hash
                && entry
                    .held
                    .as_ref()
                    .is_none_or(|held| held.trace_id == *trace_id)
        };
        self.index
            .find(hash, |&slot| self.entries.get(slot).is_some_and(is_it))
            .copied()
    }

    /// The facts of a remembered trace.
    pub(super) fn held(&self, slot: Slot) -> Option<&Held<M>> {
        self.entries.get(slot)?.held.as_deref()
    }

    /// A late span came to a trace without facts: it lives, so it is remembered for longer.
    pub(super) fn touch(&mut self, slot: Slot, now: Tick) {
        self.order.join(0, slot, now);
    }

    /// Take a trace out, to open it again.
    pub(super) fn take(&mut self, slot: Slot) -> Option<Box<Held<M>>> {
        let held = self.drop_facts(slot);
        self.remove(slot);
        held
    }

    /// Forget what is too much or too old. When the last of the forgotten was closed, if any was.
    pub(super) fn forget(&mut self, now: Tick) -> Option<Tick> {
        let mut forgotten = None;
        while let Some((oldest, closed)) = self.order.first(0)
            && (self.entries.len() > self.max_traces || closed.saturating_add(self.ttl) <= now)
        {
            self.drop_facts(oldest);
            self.remove(oldest);
            forgotten = Some(closed);
        }
        forgotten
    }

    /// How many are remembered, how many of them with their facts, and how many bytes these are.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.entries.len(), self.n_whole, self.size)
    }

    fn drop_facts(&mut self, slot: Slot) -> Option<Box<Held<M>>> {
        let held = self.entries.get_mut(slot)?.held.take()?;
        self.whole.leave(slot);
        self.n_whole -= 1;
        self.size -= held.size();
        Some(held)
    }

    fn remove(&mut self, slot: Slot) {
        let Some(entry) = self.entries.remove(slot) else {
            return;
        };
        self.order.leave(slot);
        if let Ok(found) = self.index.find_entry(entry.hash, |&other| other == slot) {
            found.remove();
        }
    }
}
