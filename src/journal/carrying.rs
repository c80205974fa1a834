//! What the oldest segments have of open traces is carried into new records before they go: here
//! the log asks for it. Knows nothing of what the records hold.

use std::sync::atomic::{AtomicU64, Ordering};

use super::format::RECORDS_AT;
use super::segment::Segment;

/// What a log asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CarryRequest {
    /// The segments with the records below are about to go; 0 if none are.
    pub below: u64,
    /// Bytes of these records that may be written again: 0 if it is not worth it.
    pub max_bytes: u64,
}

impl CarryRequest {
    /// Another segment is about to go. Half of it may be written again, or else little would be
    /// gained; nothing if it goes so early that most traces in it are still to end.
    pub(super) fn add(&mut self, segment: &Segment, is_early: bool) {
        self.below = self.below.max(segment.next);
        if !is_early {
            self.max_bytes += (segment.end - RECORDS_AT) / 2;
        }
    }
}

/// What the log says to whoever carries. Read without a lock: the journal's thread may hold its own
/// for as long as the disk takes.
#[derive(Debug)]
pub(super) struct Carrying {
    /// Records below are gone.
    begin: AtomicU64,
    below: AtomicU64,
    max_bytes: AtomicU64,
}

impl Carrying {
    pub(super) fn new(begin: u64) -> Self {
        Self {
            begin: AtomicU64::new(begin),
            below: AtomicU64::new(0),
            max_bytes: AtomicU64::new(0),
        }
    }

    /// Records below are about to be removed.
    pub(super) fn begin_at(&self, begin: u64) {
        self.begin.store(begin, Ordering::Release);
    }

    pub(super) fn request(&self, request: CarryRequest) {
        self.max_bytes.store(request.max_bytes, Ordering::Relaxed);
        self.below.store(request.below, Ordering::Release);
    }

    /// What the log asks for now.
    pub(super) fn requested(&self) -> Option<CarryRequest> {
        let below = self.below.load(Ordering::Acquire);
        let max_bytes = self.max_bytes.load(Ordering::Relaxed);
        (below > 0).then_some(CarryRequest { below, max_bytes })
    }

    pub(super) fn begin(&self) -> u64 {
        self.begin.load(Ordering::Acquire)
    }
}
