//! How much of a log each sender holds: its records that wait to be written, and those in
//! segments that are not delivered. Records found at a start count for no
//! sender. Knows nothing of files.

use std::collections::BTreeMap;

use otlp::span::PeerId;

use crate::holders::HolderShares;

/// How much of a log each sender holds.
#[derive(Debug)]
pub(super) struct Holdings {
    shares: HolderShares,
    /// Bytes of records that could be appended when the log last looked, less those appended since.
    n_free: usize,
    /// Bytes of records that wait to be appended.
    n_waiting: usize,
    /// Bytes that each sender holds in segments that are not delivered, by the segment's first
    /// record.
    by_segment: BTreeMap<u64, BTreeMap<PeerId, usize>>,
    /// Whether a sender was refused since a segment was last delivered or given up.
    is_refusing: bool,
}

/// The bytes that a record takes of its sender's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Charge {
    peer: PeerId,
    n_bytes: usize,
}

impl Default for Holdings {
    /// Refuses nobody: the log is not open.
    fn default() -> Self {
        Self {
            shares: HolderShares::default(),
            n_free: usize::MAX,
            n_waiting: 0,
            by_segment: BTreeMap::new(),
            is_refusing: false,
        }
    }
}

impl Holdings {
    /// Whether a record of at least this many bytes would be refused now, to leave room for others.
    pub(super) fn is_beyond(&mut self, peer: PeerId, n_bytes: usize) -> bool {
        let peer = self.shares.of(peer);
        let is_beyond = self.shares.is_full(peer) || self.takes_too_much(peer, n_bytes);
        self.is_refusing |= is_beyond;
        is_beyond
    }

    /// Takes a record that is to be appended, or `None` if its sender would hold too much with it.
    /// For a sole sender the log itself decides.
    pub(super) fn admit(&mut self, peer: PeerId, n_bytes: usize) -> Option<Charge> {
        let peer = self.shares.of(peer);
        if self.takes_too_much(peer, n_bytes) {
            // The next one, whose size is often not known before it is read, would not fit either.
            if self.shares.room(peer, self.room()) < self.room() / 8 {
                self.shares.refused(peer);
            }
            self.is_refusing = true;
            return None;
        }
        self.shares.add(peer, n_bytes);
        self.n_waiting += n_bytes;
        Some(Charge { peer, n_bytes })
    }

    /// Gives back the charge of a record that was not appended.
    pub(super) fn give_back(&mut self, charge: Charge) {
        self.n_waiting -= charge.n_bytes;
        self.shares.release(charge.peer, charge.n_bytes);
    }

    /// Moves the charge of a record to the segment that the record was appended to. Segments are
    /// named by their first record.
    pub(super) fn appended(&mut self, segment: u64, charge: Charge) {
        self.n_waiting -= charge.n_bytes;
        self.n_free = self.n_free.saturating_sub(charge.n_bytes);
        let holders = self.by_segment.entry(segment).or_default();
        *holders.entry(charge.peer).or_default() += charge.n_bytes;
    }

    /// Updates the free bytes of the log, and the segments that wait to be delivered.
    pub(super) fn update(&mut self, n_free: usize, waiting: &[u64]) {
        self.n_free = n_free;
        let gone = self
            .by_segment
            .extract_if(.., |segment, _| !waiting.contains(segment));
        for (_, holders) in gone {
            for (peer, n_bytes) in holders {
                self.shares.release(peer, n_bytes);
            }
            self.is_refusing = false;
        }
    }

    /// Whether a sender was refused to leave room for others since a segment was last delivered or
    /// given up.
    pub(super) fn is_refusing(&self) -> bool {
        self.is_refusing
    }

    fn takes_too_much(&self, peer: PeerId, n_bytes: usize) -> bool {
        !self.shares.is_sole() && n_bytes > self.shares.room(peer, self.room())
    }

    fn room(&self) -> usize {
        self.n_free.saturating_sub(self.n_waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    /// A log of 800 bytes that both know.
    fn shared() -> Holdings {
        let mut holdings = Holdings::default();
        holdings.update(800, &[]);
        assert!(!holdings.is_beyond(A, 0) && !holdings.is_beyond(B, 0));
        holdings
    }

    #[test]
    fn who_holds_most_is_refused_until_its_segment_is_delivered() {
        let mut holdings = shared();
        for _ in 0..7 {
            let charge = holdings.admit(A, 100).unwrap();
            holdings.appended(0, charge);
        }
        assert_eq!(holdings.admit(A, 1), None);
        assert!(holdings.is_beyond(A, 0), "of unknown size");
        assert!(holdings.is_refusing());
        let charge = holdings.admit(B, 80).unwrap();
        holdings.appended(1, charge);
        holdings.update(20, &[0, 1]);
        assert!(holdings.is_beyond(A, 0) && !holdings.is_beyond(B, 7));
        holdings.update(720, &[1]);
        assert!(!holdings.is_refusing() && !holdings.is_beyond(A, 600));
    }

    #[test]
    fn what_waits_to_be_written_counts_and_what_is_not_written_is_given_back() {
        let mut holdings = shared();
        let waiting = holdings.admit(A, 700).unwrap();
        assert_eq!(holdings.admit(A, 1), None);
        assert!(holdings.is_beyond(B, 88) && !holdings.is_beyond(B, 87));
        holdings.give_back(waiting);
        assert!(holdings.admit(A, 700).is_some());
    }

    #[test]
    fn a_sole_sender_is_left_to_the_log_and_what_nobody_holds_is_only_room_less() {
        let mut holdings = Holdings::default();
        assert!(holdings.admit(A, 1 << 40).is_some(), "not open yet");
        let mut holdings = Holdings::default();
        holdings.update(80, &[0, 1, 2]);
        assert!(holdings.admit(A, 1_000).is_some());
        let mut holdings = shared();
        holdings.update(80, &[0, 1, 2]);
        assert!(holdings.is_beyond(A, 71) && !holdings.is_beyond(A, 70));
    }
}
