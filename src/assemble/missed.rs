//! Pure. Ids of traces whose spans went by unread before any span of theirs was taken: should one
//! be opened, it is incomplete. An id is kept for as long as a closed trace is remembered; then our
//! memory of traces begins after it.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::lanes::Tick;
use crate::span::TraceId;

/// A bounded set of missed traces.
#[derive(Debug)]
pub(super) struct Missed {
    last: HashMap<TraceId, Tick>,
    /// One entry per id, by its first miss; an entry whose id is gone or was missed again is
    /// settled when it comes to the front.
    order: VecDeque<(TraceId, Tick)>,
    max_traces: usize,
    ttl: Tick,
    /// When an id last found no room: from then on any trace may be the one, until those that were
    /// under way have had the time to be closed as inactive. An hour without scores would be too
    /// high a price for a peak of load; what began before it is still caught by the guard.
    overflowed: Option<Tick>,
    overflow_ttl: Tick,
}

impl Missed {
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

    /// Spans of this trace, which is not open, went by unread.
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

    /// Spans of traces that nobody could note went by unread.
    pub(super) fn overflow(&mut self, now: Tick) {
        self.overflowed = Some(now);
    }

    /// Were, or may, spans of this trace have been missed? It is being opened, and remembers that
    /// itself from now on.
    pub(super) fn take(&mut self, trace_id: &TraceId) -> bool {
        self.last.remove(trace_id).is_some() || self.overflowed.is_some()
    }

    /// Forget what is too old. The last miss that was forgotten, if any was.
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
