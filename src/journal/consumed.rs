//! The records of a log that need no delivery.

use std::collections::BTreeMap;
use std::ops::Range;

/// Number of outlets whose progress differs. The lanes of a log share one progress, because each
/// record is for a single lane.
pub(super) const N_OUTLETS: usize = 2;

/// The records that an outlet does not need: those that were delivered to it, and those between
/// them that it does not get.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Consumed {
    /// Every record below this number is consumed.
    pub(super) low: u64,
    /// Consumed records above `low`: start → end. Ranges are not empty, and at least one record
    /// lies between two ranges.
    ranges: BTreeMap<u64, u64>,
}

impl Consumed {
    pub(super) fn below(low: u64) -> Self {
        Self {
            low,
            ranges: BTreeMap::new(),
        }
    }

    pub(super) fn insert(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start.max(self.low), range.end);
        if start >= end {
            return;
        }
        if let Some((&before, &its_end)) = self.ranges.range(..=start).next_back()
            && its_end >= start
        {
            start = before;
            end = end.max(its_end);
        }
        while let Some((&next, &its_end)) = self.ranges.range(start..=end).next() {
            end = end.max(its_end);
            self.ranges.remove(&next);
        }
        if start == self.low {
            self.low = end;
        } else {
            self.ranges.insert(start, end);
        }
    }

    /// Returns true if the whole range is consumed.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        let before = self.ranges.range(..=range.start).next_back();
        range.end <= self.low || before.is_some_and(|(_, end)| range.end <= *end)
    }

    pub(super) fn contains(&self, sequence: u64) -> bool {
        self.covers(&(sequence..sequence + 1))
    }

    /// Returns the parts of `range` that are not consumed.
    pub(super) fn rest_of(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut rest = Vec::new();
        let mut at = range.start.max(self.low);
        if at >= range.end {
            return rest;
        }
        let before = self.ranges.range(..=at).next_back();
        for (&start, &end) in before.into_iter().chain(self.ranges.range(at + 1..)) {
            if start >= range.end {
                break;
            }
            if at < start {
                rest.push(at..start);
            }
            at = at.max(end);
        }
        if at < range.end {
            rest.push(at..range.end);
        }
        rest
    }

    fn truncated(&self, max_ranges: usize, written: &Self) -> Self {
        // A range that was written has only grown since.
        let known = written.ranges.keys().filter_map(|start| {
            let (from, to) = self.ranges.range(..=start).next_back()?;
            (to > start).then_some((*from, *to))
        });
        let mut ranges: BTreeMap<u64, u64> = known.collect();
        for (from, to) in &self.ranges {
            if ranges.len() >= max_ranges {
                break;
            }
            ranges.insert(*from, *to);
        }
        Self {
            low: self.low,
            ranges,
        }
    }

    /// Returns the consumed ranges above `low`, oldest first.
    pub(super) fn above(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }
}

/// The consumed records of each outlet, by [`Outlet::index`](super::format::Outlet::index).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Delivered(pub(super) [Consumed; N_OUTLETS]);

/// Stands for the lowest number of an outlet that the log does not have, which needs no record.
const ABSENT: u64 = u64::MAX;

impl Delivered {
    /// Creates a progress in which every record below `low` is consumed.
    pub(super) fn below(low: u64) -> Self {
        Self([low, low].map(Consumed::below))
    }

    /// Changes the progress to the outlets that the log has now. Returns true if an outlet that is
    /// gone may still have needed records below `end`. A new outlet gets the records from `end` on.
    /// A log without outlets retains what waits.
    pub(super) fn set_outlets(&mut self, are_present: [bool; N_OUTLETS], end: u64) -> bool {
        let mut is_abandoned = false;
        if are_present.contains(&true) {
            for (outlet, is_present) in self.0.iter_mut().zip(are_present) {
                if !is_present {
                    is_abandoned |= outlet.low < end;
                    *outlet = Consumed::below(ABSENT);
                } else if outlet.low == ABSENT {
                    *outlet = Consumed::below(end);
                }
            }
        }
        is_abandoned
    }

    /// Returns a progress with at most `max_ranges` ranges: those that `written` has, which may be
    /// of removed segments, and then the oldest.
    pub(super) fn truncated(&self, max_ranges: usize, written: &Self) -> Self {
        let [first, topic] = &self.0;
        let for_topic = topic.ranges.len().min(max_ranges / N_OUTLETS);
        let for_topic = for_topic.max(written.0[1].ranges.len());
        let first = first.truncated(max_ranges - for_topic, &written.0[0]);
        let topic = topic.truncated(max_ranges - first.ranges.len(), &written.0[1]);
        Self([first, topic])
    }

    pub(super) fn consume_everywhere(&mut self, range: Range<u64>) {
        for outlet in &mut self.0 {
            outlet.insert(range.clone());
        }
    }

    /// Returns the number below which all outlets have consumed every record.
    pub(super) fn low(&self) -> u64 {
        self.0[0].low.min(self.0[1].low)
    }

    /// Returns true if all outlets have consumed the whole range.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        self.0.iter().all(|outlet| outlet.covers(range))
    }

    pub(super) fn contains(&self, sequence: u64) -> bool {
        self.covers(&(sequence..sequence + 1))
    }

    /// Returns the parts of `range` that an outlet has not consumed.
    pub(super) fn rest_of(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut rest = Consumed::default();
        for part in self.0.iter().flat_map(|outlet| outlet.rest_of(range)) {
            rest.insert(part);
        }
        let first = (rest.low > 0).then_some(0..rest.low);
        first.into_iter().chain(rest.above()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_room_for_its_ranges_and_keeps_those_that_were_written() {
        const MAX: usize = 9;
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut progress = Delivered::below(0);
            let mut written = progress.clone();
            for _ in 0..60 {
                for _ in 0..rng.u8(..4) {
                    let from = rng.u64(..200);
                    // Sometimes one outlet has nearly all ranges.
                    let outlet_idx = usize::from(rng.u64(..10) < seed % 11);
                    progress.0[outlet_idx].insert(from..from + rng.u64(1..4));
                }
                let slot = progress.truncated(MAX, &written);
                let n_ranges = slot.0.each_ref().map(|outlet| outlet.ranges.len());
                assert!(
                    n_ranges.iter().sum::<usize>() <= MAX,
                    "{seed}: {n_ranges:?}"
                );
                for (before, after) in written.0.iter().zip(&slot.0) {
                    assert!(before.above().all(|range| after.rest_of(&range).is_empty()));
                }
                written = slot;
            }
        }
    }
}
