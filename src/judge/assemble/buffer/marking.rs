//! Marks traces as incomplete if some of their spans were forwarded unscored.

use std::hash::BuildHasher;

use otlp::span::{Now, TraceId};

use super::TraceBuffer;
use crate::assemble::Memo;
use crate::assemble::trace_id_filter::TraceIdFilter;

impl<M: Memo> TraceBuffer<M> {
    /// Marks traces, also those that are not open yet, as incomplete, because some of their spans
    /// were forwarded unscored. A closed trace that has its spans is reopened, because its reported
    /// results may be wrong.
    pub fn mark_unscored(&mut self, trace_ids: &[TraceId], now: Now) {
        let tick = self.tick(now);
        self.forget(now);
        for trace_id in trace_ids {
            if let Some(trace) = self
                .index
                .get(trace_id)
                .and_then(|&slot| self.open.get_mut(slot))
            {
                trace.unscored = true;
                continue;
            }
            let Some(recent) = self.recent.find(self.hasher.hash_one(trace_id), trace_id) else {
                self.unscored.insert(*trace_id, tick);
                continue;
            };
            if self.recent.get(recent).is_some_and(|trace| !trace.unscored)
                && let Some(mut trace) = self.recent.take(recent)
            {
                trace.unscored = true;
                self.open(trace, tick);
            }
        }
        self.evict(tick);
    }

    /// Like [`Self::mark_unscored`], for more traces than can be listed. May mark further traces;
    /// reopens no closed trace.
    pub fn mark_many_unscored(&mut self, trace_ids: TraceIdFilter, now: Now) {
        let tick = self.tick(now);
        self.forget(now);
        for trace in self.open.values_mut() {
            trace.unscored |= trace_ids.contains(trace.trace_id);
        }
        self.unscored.insert_all(trace_ids, tick);
    }
}
