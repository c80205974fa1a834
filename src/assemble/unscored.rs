//! Pure. Ids of traces of which spans were forwarded unscored before any span was taken: a trace
//! that is opened under such an id is incomplete. An id is kept for as long as a closed trace is
//! remembered; our memory of traces then begins after it.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::fifo_timers::Tick;
use crate::span::TraceId;

/// A bounded set of traces that are not open and of which spans went unscored.
#[derive(Debug)]
pub(super) struct UnscoredTraces {
    /// When each id was last marked.
    last: HashMap<TraceId, Tick>,
    /// One entry per id, in the order in which they were first marked. An entry whose id is gone or
    /// was marked again is put right when it reaches the front.
    order: VecDeque<(TraceId, Tick)>,
    max_traces: usize,
    ttl: Tick,
    /// When there was last no room for an id. From then on any trace may be incomplete, until those
    /// that were running have had the time to be closed as inactive. An hour without scores would
    /// be too high a price for a peak of load; the restart guard still catches traces that began
    /// before it.
    overflowed: Option<Tick>,
    overflow_ttl: Tick,
}

impl UnscoredTraces {
    pub(super) fn new(max_traces: usize, ttl: Tick, overflow_ttl: Tick) -> Self {
        Self {
            last: HashMap::new(),
            order: VecDeque::new(),
            max_traces,
            ttl,
            overflowed: None,
            overflow_ttl,
        }
    }

    /// Marks a trace that is not open: spans of it went unscored.
    pub(super) fn insert(&mut self, trace_id: TraceId, now: Tick) {
        if let Some(last) = self.last.get_mut(&trace_id) {
            *last = now;
        } else if self.order.len() < self.max_traces {
            self.last.insert(trace_id, now);
            self.order.push_back((trace_id, now));
        } else {
            self.overflowed = Some(now);
        }
    }

    /// Marks every trace: spans went unscored whose traces are not known.
    pub(super) fn overflow(&mut self, now: Tick) {
        self.overflowed = Some(now);
    }

    /// Removes a trace that is being opened. Returns whether spans of it went, or may have gone,
    /// unscored.
    pub(super) fn take(&mut self, trace_id: &TraceId) -> bool {
        self.last.remove(trace_id).is_some() || self.overflowed.is_some()
    }

    /// Forgets what is too old. Returns when the last forgotten mark was made, if one was
    /// forgotten.
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
        if self
            .overflowed
            .is_some_and(|last| last.saturating_add(self.overflow_ttl) <= now)
        {
            forgotten = forgotten.max(self.overflowed.take());
        }
        forgotten
    }

    pub(super) fn len(&self) -> usize {
        self.last.len()
    }
}
