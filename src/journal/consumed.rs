//! The records of a log that need no delivery.

use std::collections::BTreeMap;
use std::ops::Range;

/// Number of outlets whose progress differs. The lanes of a log share one progress, because each
/// record is for a single lane.
pub(super) const N_OUTLETS: usize = 2;

/// The records that an outlet does not need.
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

    pub(super) fn contains(&self, sequence: u64) -> bool {
        self.rest_of(&(sequence..sequence + 1)).is_empty()
    }

    /// Returns the parts of `range` that are not consumed.
    pub(super) fn rest_of(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut rest = Vec::new();
        let mut at = range.start.max(self.low);
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

    /// Returns true if `range` is not empty and none of its records is consumed.
    pub(super) fn is_clear_of(&self, range: &Range<u64>) -> bool {
        self.rest_of(range).first() == Some(range)
    }

    /// Returns the consumed ranges above `low`, oldest first.
    pub(super) fn above(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }
}

/// The consumed records of each outlet, by [`Outlet::index`](super::format::Outlet::index). An
/// outlet that the log does not have needs no record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Delivered(pub(super) [Option<Consumed>; N_OUTLETS]);

impl Delivered {
    /// Creates the progress of a log in which every record below `low` is consumed.
    pub(super) fn below(low: u64) -> Self {
        Self([Some(Consumed::below(low)), None])
    }

    /// Returns the progress for the outlets that the log has now, and the number of records that an
    /// earlier outlet still needed. The reader of a new outlet skips the older records. A log
    /// without outlets retains what waits.
    pub(super) fn for_outlets(self, are_present: [bool; N_OUTLETS], end: u64) -> (Self, u64) {
        if are_present == [false; N_OUTLETS] {
            return (self, 0);
        }
        let any = self.0.iter().flatten().next().cloned().unwrap_or_default();
        let mut n_abandoned = 0;
        let mut outlets = self.0;
        for (outlet, is_present) in outlets.iter_mut().zip(are_present) {
            if is_present {
                outlet.get_or_insert_with(|| any.clone());
            } else if let Some(gone) = outlet.take() {
                n_abandoned += n_records(&gone.rest_of(&(0..end)));
            }
        }
        (Self(outlets), n_abandoned)
    }

    pub(super) fn to(&self, outlet_idx: usize) -> Option<&Consumed> {
        self.0[outlet_idx].as_ref()
    }

    pub(super) fn consume(&mut self, outlet_idx: usize, range: Range<u64>) {
        if let Some(outlet) = &mut self.0[outlet_idx] {
            outlet.insert(range);
        }
    }

    pub(super) fn consume_everywhere(&mut self, range: Range<u64>) {
        for outlet in self.0.iter_mut().flatten() {
            outlet.insert(range.clone());
        }
    }

    /// Returns the number below which all outlets have consumed every record.
    pub(super) fn low(&self) -> u64 {
        let lows = self.0.iter().flatten().map(|outlet| outlet.low);
        lows.min().unwrap_or_default()
    }

    /// Returns true if all outlets have consumed a record.
    pub(super) fn contains(&self, sequence: u64) -> bool {
        let mut outlets = self.0.iter().flatten();
        outlets.all(|outlet| outlet.contains(sequence))
    }

    /// Returns the parts of `range` that an outlet has not consumed.
    pub(super) fn rest_of(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let outlets = self.0.iter().flatten();
        let mut rest = Consumed::default();
        for part in outlets.flat_map(|outlet| outlet.rest_of(range)) {
            rest.insert(part);
        }
        let first = (rest.low > 0).then_some(0..rest.low);
        first.into_iter().chain(rest.above()).collect()
    }
}

pub(super) fn n_records(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}
