//! Remembers traces that had spans forwarded unscored before they were opened: a trace that is
//! opened with a remembered id is incomplete. An id expires like a closed trace; the trace history
//! then starts after the time at which the id was marked.

use std::collections::VecDeque;

use hashbrown::HashMap;
use otlp::span::TraceId;

use super::fifo_timers::Tick;
use super::forgotten::ForgottenTraces;
use super::trace_id_filter::{self, TraceIdFilter};

/// A bounded set of traces that are not open and had spans forwarded unscored.
#[derive(Debug)]
pub(super) struct UnscoredTraces {
    /// The time at which each id was last marked.
    last: HashMap<TraceId, Tick>,
    /// At least one entry for each id, in the order of the first marks. An entry whose id was
    /// removed or marked again is corrected when it reaches the front.
    order: VecDeque<(TraceId, Tick)>,
    max_traces: usize,
    ttl: Tick,
    /// Ids beyond the limit or marked by a filter. They are dropped once every trace that was open
    /// when they were marked must have been closed as inactive. The trace history then starts after
    /// that time, so that the restart guard catches older traces.
    overflow: ForgottenTraces,
}

impl UnscoredTraces {
    pub(super) fn new(max_traces: usize, ttl: Tick, overflow_ttl: Tick) -> Self {
        Self {
            last: HashMap::new(),
            order: VecDeque::new(),
            max_traces,
            ttl,
            overflow: ForgottenTraces::unlimited(overflow_ttl),
        }
    }

    /// Marks a trace that is not open.
    pub(super) fn insert(&mut self, trace_id: TraceId, now: Tick) {
        if let Some(last) = self.last.get_mut(&trace_id) {
            *last = now;
        } else if self.order.len() < self.max_traces {
            self.last.insert(trace_id, now);
            self.order.push_back((trace_id, now));
        } else {
            self.overflow
                .insert(trace_id_filter::hash(trace_id), now, now);
        }
    }

    pub(super) fn insert_all(&mut self, trace_ids: TraceIdFilter, now: Tick) {
        self.overflow.insert_all(trace_ids, now);
    }

    /// Removes a trace that is being opened. Returns true if some of its spans were, or may have
    /// been, forwarded unscored.
    pub(super) fn take(&mut self, trace_id: &TraceId) -> bool {
        let is_known = self.last.remove(trace_id).is_some();
        is_known || self.overflow.contains(trace_id_filter::hash(*trace_id))
    }

    /// Forgets marks that are too old. Returns the time of the last forgotten mark.
    pub(super) fn forget(&mut self, now: Tick) -> Option<Tick> {
        let mut forgotten = None;
        while let Some(&(trace_id, since)) = self.order.front() {
            if since.saturating_add(self.ttl) > now {
                break;
            }
            self.order.pop_front();
            match self.last.get(&trace_id) {
                Some(&last) if last.saturating_add(self.ttl) > now => {
                    self.order.push_back((trace_id, last))
                }
                Some(&last) => {
                    self.last.remove(&trace_id);
                    forgotten = forgotten.max(Some(last));
                }
                None => {}
            }
        }
        forgotten.max(self.overflow.expire(now))
    }

    pub(super) fn len(&self) -> usize {
        self.last.len()
    }
}
