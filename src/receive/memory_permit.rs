//! Limits the bytes that all requests being received take together. Knows nothing of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::request_error::RequestError;

/// Bytes of all requests being received.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    max: usize,
    taken: AtomicUsize,
}

impl MemoryBudget {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: AtomicUsize::new(0),
        })
    }

    /// Bytes taken, and most bytes that may be.
    pub(super) fn state(&self) -> (usize, usize) {
        (self.taken.load(Ordering::Relaxed), self.max)
    }

    /// A permit for no bytes yet.
    pub(super) fn permit(self: &Arc<Self>) -> MemoryPermit {
        MemoryPermit {
            budget: Arc::clone(self),
            taken: 0,
        }
    }
}

/// Bytes taken from a [`MemoryBudget`], returned on drop.
#[derive(Debug)]
pub(super) struct MemoryPermit {
    budget: Arc<MemoryBudget>,
    taken: usize,
}

impl MemoryPermit {
    /// Takes bytes up to this total, or up to the whole budget if that is less. If the budget lacks
    /// them, the permit keeps its present size.
    pub(super) fn grow_to(&mut self, total: usize) -> Result<(), RequestError> {
        let total = total.min(self.budget.max);
        let more = total.saturating_sub(self.taken);
        let grown = |taken: usize| {
            taken
                .checked_add(more)
                .filter(|taken| *taken <= self.budget.max)
        };
        self.budget
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown)
            .map_err(|_| RequestError::InFlightFull)?;
        self.taken += more;
        Ok(())
    }

    pub(super) fn shrink_to(&mut self, total: usize) {
        let less = self.taken.saturating_sub(total);
        self.budget.taken.fetch_sub(less, Ordering::Relaxed);
        self.taken -= less;
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}
