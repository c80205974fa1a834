//! The bytes that are charged to senders for their records in a log, until the segment of the
//! records is delivered or evicted. Records from before the start are charged to no sender.

use std::collections::BTreeMap;
use std::mem;

use crate::fair::Charge;

#[derive(Debug, Default)]
pub(super) struct SegmentCharges {
    /// One charge for each peer, by the segment's first record.
    by_segment: BTreeMap<u64, Vec<Charge>>,
    n_bytes: usize,
    /// Number of undelivered segments at the last call of [`Self::release_all_but`], including
    /// segments from earlier processes.
    n_waiting: usize,
}

impl SegmentCharges {
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    pub(super) fn hold(&mut self, segment: u64, charge: Charge) {
        self.n_bytes += charge.n_bytes();
        let charges = self.by_segment.entry(segment).or_default();
        let same = charges.iter_mut().find(|it| it.is_of_peer_of(&charge));
        match same {
            Some(same) => same.merge(charge),
            None => charges.push(charge),
        }
    }

    /// Releases the charges of all segments except `waiting`. Returns true if a segment was
    /// delivered or evicted.
    pub(super) fn release_all_but(&mut self, waiting: &[u64]) -> bool {
        let n_before = mem::replace(&mut self.n_waiting, waiting.len());
        let gone = self
            .by_segment
            .extract_if(.., |segment, _| !waiting.contains(segment));
        let charges: Vec<Charge> = gone.flat_map(|(_, charges)| charges).collect();
        self.n_bytes -= charges.iter().map(Charge::n_bytes).sum::<usize>();
        !charges.is_empty() || waiting.len() < n_before
    }
}
