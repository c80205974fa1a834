//! The buffer's support for a journal: which records traces need, and how traces are rebuilt from
//! records after a restart.

use std::hash::BuildHasher;

use otlp::span::{Now, TraceId};

use super::TraceBuffer;
use crate::assemble::shares::UNKNOWN_PEER;
use crate::assemble::slab::Slot;
use crate::assemble::{CloseReason, Closed, Memo};

impl<M: Memo> TraceBuffer<M> {
    /// Sets the journal record of the spans that are inserted next.
    pub fn set_record(&mut self, record: u64) {
        self.record = record;
    }

    /// Returns the oldest journal record that an open or remembered trace needs.
    pub fn oldest_record(&self) -> Option<u64> {
        let open = self.oldest_open_record().into_iter();
        open.chain(self.recent.needed_records()).min()
    }

    pub fn oldest_open_record(&self) -> Option<u64> {
        self.open.iter().map(|(_, trace)| trace.first_record).min()
    }

    /// Closes the open traces that begin before a record and drops their spans, also late ones.
    pub fn forget_open_below(&mut self, record: u64, now: Now) {
        let tick = self.tick(now);
        let open = self.open.iter();
        let older = open.filter(|(_, trace)| trace.first_record < record);
        let older: Vec<Slot> = older.map(|(slot, _)| slot).collect();
        for slot in older {
            drop(self.close(slot, CloseReason::Incomplete, tick));
        }
    }

    pub fn memory_unix_nanos(&self) -> u64 {
        self.memory_unix_nanos
    }

    /// Sets the start of the trace history, because the journal proves that every later trace was
    /// seen.
    pub fn set_memory(&mut self, since_unix_nanos: u64) {
        self.memory_unix_nanos = since_unix_nanos;
    }

    /// Closes a trace that was reported before the restart, if it is open. A trace that was
    /// reported only because it had been open for too long (`Expired`) remains open. Pass the
    /// result to [`Self::remember`].
    pub fn close_reported(
        &mut self,
        trace_id: &TraceId,
        reason: CloseReason,
        now: Now,
    ) -> Option<Closed<M>> {
        let tick = self.tick(now);
        let slot = *self.index.get(trace_id)?;
        match reason {
            CloseReason::Expired => {
                let trace = self.open.get_mut(slot)?;
                trace.reported = true;
                Some(trace.expired(&self.hasher))
            }
            _ => self.close(slot, reason, tick),
        }
    }

    /// Remembers a reported trace whose spans are gone, so that a late span cannot revise it.
    pub fn remember_without_spans(&mut self, trace_id: &TraceId, now: Now) {
        let tick = self.tick(now);
        let hash = self.hasher.hash_one(trace_id);
        if !self.index.contains_key(trace_id) && self.recent.find(hash, trace_id).is_none() {
            self.recent.insert(hash, UNKNOWN_PEER, tick);
            self.forget(now);
        }
    }

    /// Marks all open traces as incomplete, because some of their spans may have been lost.
    pub fn mark_all_unscored(&mut self) {
        self.open
            .values_mut()
            .for_each(|trace| trace.unscored = true);
    }
}
