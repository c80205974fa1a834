//! Remembers traces that had spans forwarded unscored before they were opened: a trace that is
//! opened with a remembered id is incomplete. An id expires like a closed trace; the trace history
//! then starts after the time at which the id was marked.

use std::collections::VecDeque;

use hashbrown::HashMap;
use otlp::span::TraceId;

use super::fifo_timers::Tick;
use super::trace_id_filter::TraceIdFilter;

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
    /// Ids beyond the limit or marked by a filter, in two filters: one since `overflow_began`, and
    /// one for the period before. A filter is dropped once every trace that was open in its period
    /// must have been closed as inactive. The trace history then starts after that period, so that
    /// the restart guard catches older traces.
    overflow: TraceIdFilter,
    earlier_overflow: TraceIdFilter,
    overflow_began: Tick,
    overflow_ttl: Tick,
}

impl UnscoredTraces {
    pub(super) fn new(max_traces: usize, ttl: Tick, overflow_ttl: Tick) -> Self {
        Self {
            last: HashMap::new(),
            order: VecDeque::new(),
            max_traces,
            ttl,
            overflow: TraceIdFilter::default(),
            earlier_overflow: TraceIdFilter::default(),
            overflow_began: 0,
            overflow_ttl,
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
            self.begin_overflow(now);
            self.overflow.insert(trace_id);
        }
    }

    pub(super) fn insert_all(&mut self, trace_ids: TraceIdFilter, now: Tick) {
        self.begin_overflow(now);
        self.overflow.merge(trace_ids);
    }

    fn begin_overflow(&mut self, now: Tick) {
        if self.overflow.is_empty() && self.earlier_overflow.is_empty() {
            self.overflow_began = now;
        }
    }

    /// Removes a trace that is being opened. Returns true if some of its spans were, or may have
    /// been, forwarded unscored.
    pub(super) fn take(&mut self, trace_id: &TraceId) -> bool {
        self.last.remove(trace_id).is_some()
            || self.overflow.contains(*trace_id)
            || self.earlier_overflow.contains(*trace_id)
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
        while !self.overflow.is_empty() || !self.earlier_overflow.is_empty() {
            let turns_at = self.overflow_began.saturating_add(self.overflow_ttl);
            if turns_at > now {
                break;
            }
            if !self.earlier_overflow.is_empty() {
                forgotten = forgotten.max(Some(self.overflow_began));
            }
            self.earlier_overflow = std::mem::take(&mut self.overflow);
            self.overflow_began = turns_at;
        }
        forgotten
    }

    pub(super) fn len(&self) -> usize {
        self.last.len()
    }
}
