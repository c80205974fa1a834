//! Implements timers of constant length as queues. Waits of equal length end in the order in which
//! they began, so a linked list is enough. Starting, cancelling and reading the first wait are
//! O(1); no stale entries remain.

use super::slab::Slot;

/// Nanoseconds since a fixed moment, such as the creation of the buffer.
pub(crate) type Tick = u64;

const NONE: Slot = Slot::MAX;
const NO_QUEUE: u16 = u16::MAX;

/// Queues of waiting slots, numbered from 0. A slot waits in at most one queue.
#[derive(Debug)]
pub(crate) struct FifoTimers {
    ends: Vec<Ends>,
    links: Vec<Link>,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    first: Slot,
    last: Slot,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    since: Tick,
    prev: Slot,
    next: Slot,
    queue: u16,
}

impl FifoTimers {
    pub(crate) fn new(n_queues: usize) -> Self {
        let mut timers = Self {
            ends: Vec::new(),
            links: Vec::new(),
        };
        timers.grow(n_queues);
        timers
    }

    /// Adds empty queues until there are `n_queues`, at most 65,535.
    pub(crate) fn grow(&mut self, n_queues: usize) {
        let empty = Ends {
            first: NONE,
            last: NONE,
        };
        if n_queues > self.ends.len() {
            self.ends.resize(n_queues.min(NO_QUEUE as usize), empty);
        }
    }

    pub(crate) fn n_queues(&self) -> usize {
        self.ends.len()
    }

    /// Starts a wait at the end of a queue, and cancels the slot's previous wait.
    pub(crate) fn start(&mut self, queue: usize, slot: Slot, now: Tick) {
        let at = slot as usize;
        // The last slot of a queue only needs a new start. A slot whose wait began at this tick
        // need not move; a batch often has many spans of one trace.
        if let Some(link) = self.links.get_mut(at)
            && usize::from(link.queue) == queue
            && (link.since == now || self.ends[queue].last == slot)
        {
            link.since = now;
            return;
        }
        self.cancel(slot);
        if at >= self.links.len() {
            self.links.resize(
                at + 1,
                Link {
                    since: 0,
                    prev: NONE,
                    next: NONE,
                    queue: NO_QUEUE,
                },
            );
        }
        let last = std::mem::replace(&mut self.ends[queue].last, slot);
        match last {
            NONE => self.ends[queue].first = slot,
            last => self.links[last as usize].next = slot,
        }
        self.links[at] = Link {
            since: now,
            prev: last,
            next: NONE,
            queue: queue as u16,
        };
    }

    #[inline]
    pub(crate) fn cancel(&mut self, slot: Slot) {
        let Some(link) = self
            .links
            .get_mut(slot as usize)
            .filter(|link| link.queue != NO_QUEUE)
        else {
            return;
        };
        let Link {
            prev, next, queue, ..
        } = *link;
        link.queue = NO_QUEUE;
        match prev {
            NONE => self.ends[queue as usize].first = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => self.ends[queue as usize].last = prev,
            next => self.links[next as usize].prev = prev,
        }
    }

    /// Returns the slot that has waited longest, and the start of its wait.
    pub(crate) fn first(&self, queue: usize) -> Option<(Slot, Tick)> {
        let first = self.ends[queue].first;
        (first != NONE).then(|| (first, self.links[first as usize].since))
    }
}
