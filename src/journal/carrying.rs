//! How a log asks that the spans of open traces be carried out of its oldest segments, into new
//! records, before these segments are removed.

use std::sync::atomic::{AtomicU64, Ordering};

use super::format::RECORDS_AT;
use super::segment::Segment;

/// A log's request to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CarryRequest {
    /// The segments with the records below this number are about to be removed; 0 if none are.
    pub below: u64,
    /// Bytes of these records that may be written again: 0 if it is not worth it.
    pub max_bytes: u64,
}

impl CarryRequest {
    /// Adds a segment that is about to be removed. Half of it may be written again, or else little
    /// would be gained; nothing of it if it is removed so early that most traces in it are still to
    /// end.
    pub(super) fn add(&mut self, segment: &Segment, is_early: bool) {
        self.below = self.below.max(segment.next);
        if !is_early {
            self.max_bytes += (segment.end - RECORDS_AT) / 2;
        }
    }
}

/// State that a log publishes for the thread that rewrites open traces. Read without a lock, since
/// the journal's thread may hold its own for as long as the disk takes.
#[derive(Debug)]
pub(super) struct Carrying {
    /// Records below this number may be removed at any moment.
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

    /// Notes that records below this number may be removed from now on.
    pub(super) fn begin_at(&self, begin: u64) {
        self.begin.store(begin, Ordering::Release);
    }

    pub(super) fn request(&self, request: CarryRequest) {
        self.max_bytes.store(request.max_bytes, Ordering::Relaxed);
        self.below.store(request.below, Ordering::Release);
    }

    /// The log's current request.
    pub(super) fn requested(&self) -> Option<CarryRequest> {
        let below = self.below.load(Ordering::Acquire);
        let max_bytes = self.max_bytes.load(Ordering::Relaxed);
        (below > 0).then_some(CarryRequest { below, max_bytes })
    }

    pub(super) fn begin(&self) -> u64 {
        self.begin.load(Ordering::Acquire)
    }
}
