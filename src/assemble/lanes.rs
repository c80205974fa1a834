//! Pure. Waiting lines of slots, and a slab to number what waits. Knows the order in which slots
//! joined; knows nothing of what they wait for. A wait of a constant length ends in the order in
//! which it began, so that a line is all the timer such a wait needs: joining, leaving and asking
//! who is first are all O(1), and nothing stale is left behind.

/// Nanoseconds since the buffer was made.
pub(super) type Tick = u64;

/// A place in a slab.
pub(super) type Slot = u32;

const NONE: Slot = Slot::MAX;
const NO_LANE: u8 = u8::MAX;

/// `N` waiting lines; a slot stands in one of them at most.
#[derive(Debug)]
pub(super) struct Lanes<const N: usize> {
    ends: [Ends; N],
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
    lane: u8,
}

impl<const N: usize> Lanes<N> {
    pub(super) fn new() -> Self {
        Self {
            ends: [Ends {
                first: NONE,
                last: NONE,
            }; N],
            links: Vec::new(),
        }
    }

    /// Stand at the end of a line, leaving the one where it stood.
    pub(super) fn join(&mut self, lane: usize, slot: Slot, now: Tick) {
        let at = slot as usize;
        // Who stands there already, as a trace does whose spans come one after the other, only
        // waits anew.
        if self.ends[lane].last == slot
            && let Some(link) = self.links.get_mut(at)
        {
            link.since = now;
            return;
        }
        self.leave(slot);
        if at >= self.links.len() {
            self.links.resize(
                at + 1,
                Link {
                    since: 0,
                    prev: NONE,
                    next: NONE,
                    lane: NO_LANE,
                },
            );
        }
        let last = std::mem::replace(&mut self.ends[lane].last, slot);
        match last {
            NONE => self.ends[lane].first = slot,
            last => self.links[last as usize].next = slot,
        }
        self.links[at] = Link {
            since: now,
            prev: last,
            next: NONE,
            lane: lane as u8,
        };
    }

    /// Stand in no line.
    #[inline]
    pub(super) fn leave(&mut self, slot: Slot) {
        let Some(link) = self
            .links
            .get_mut(slot as usize)
            .filter(|link| link.lane != NO_LANE)
        else {
            return;
        };
        let Link {
            prev, next, lane, ..
        } = *link;
        link.lane = NO_LANE;
        match prev {
            NONE => self.ends[lane as usize].first = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => self.ends[lane as usize].last = prev,
            next => self.links[next as usize].prev = prev,
        }
    }

    /// Who has waited longest in a line, and since when.
    pub(super) fn first(&self, lane: usize) -> Option<(Slot, Tick)> {
        let first = self.ends[lane].first;
        (first != NONE).then(|| (first, self.links[first as usize].since))
    }
}

/// Numbered places; a freed number is used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<Slot>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, value: T) -> Slot {
        match self.free.pop() {
            Some(slot) => {
                self.places[slot as usize] = Some(value);
                slot
            }
            None => {
                self.places.push(Some(value));
                (self.places.len() - 1) as Slot
            }
        }
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<T> {
        let value = self.places.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&T> {
        self.places.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.places.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The numbers in use, in ascending order.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        (0..)
            .zip(&self.places)
            .filter(|(_, place)| place.is_some())
            .map(|(slot, _)| slot)
    }
}
