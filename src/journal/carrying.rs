//! A log's request to copy the spans of open traces out of its oldest segments, into new records,
//! before it removes the segments.

use std::sync::atomic::{AtomicU64, Ordering};

use super::format::RECORDS_AT;
use super::segment::Segment;

/// A log's request to rewrite records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CarryRequest {
    /// The log is about to remove segments with records below this number; 0 if it is not.
    pub below: u64,
    /// Maximum bytes of rewritten records; 0 if rewriting does not pay.
    pub max_bytes: u64,
}

impl CarryRequest {
    /// Adds a segment that is about to be removed. At most half of its bytes may be rewritten,
    /// because more would free little; none if it is removed so early that most of its traces are
    /// still open.
    pub(super) fn add(&mut self, segment: &Segment, is_early: bool) {
        self.below = self.below.max(segment.next);
        if !is_early {
            self.max_bytes += (segment.end - RECORDS_AT) / 2;
        }
    }
}

/// State that a log publishes for the thread that rewrites open traces. Read without a lock,
/// because the journal's thread may hold its lock as long as the disk takes.
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

    /// Sets the number below which records may be removed.
    pub(super) fn begin_at(&self, begin: u64) {
        self.begin.store(begin, Ordering::Release);
    }

    pub(super) fn request(&self, request: CarryRequest) {
        self.max_bytes.store(request.max_bytes, Ordering::Relaxed);
        self.below.store(request.below, Ordering::Release);
    }

    /// Returns the log's current request.
    pub(super) fn requested(&self) -> Option<CarryRequest> {
        let below = self.below.load(Ordering::Acquire);
        let max_bytes = self.max_bytes.load(Ordering::Relaxed);
        (below > 0).then_some(CarryRequest { below, max_bytes })
    }

    pub(super) fn begin(&self) -> u64 {
        self.begin.load(Ordering::Acquire)
    }
}
