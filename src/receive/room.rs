//! How many bytes the requests that are being received may take together. Knows nothing of
//! requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::problem::{NoRoom, Problem};

/// When to try again after there was no room: requests in flight are gone within a moment.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Bytes of all requests being received.
#[derive(Debug)]
pub(super) struct Budget {
    max: usize,
    taken: AtomicUsize,
}

impl Budget {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: AtomicUsize::new(0),
        })
    }

    /// Bytes taken, of how many.
    pub(super) fn state(&self) -> (usize, usize) {
        (self.taken.load(Ordering::Relaxed), self.max)
    }

    /// No room taken yet.
    pub(super) fn room(self: &Arc<Self>) -> Room {
        Room {
            budget: Arc::clone(self),
            taken: 0,
        }
    }
}

/// Room taken in a [`Budget`], given back when dropped.
#[derive(Debug)]
pub(super) struct Room {
    budget: Arc<Budget>,
    taken: usize,
}

impl Room {
    /// Take so much in all; what is taken already stays taken if there is not enough. Never asks
    /// for more than there could be.
    pub(super) fn grow_to(&mut self, total: usize) -> Result<(), Problem> {
        let total = total.min(self.budget.max);
        let more = total.saturating_sub(self.taken);
        let grown = |taken: usize| {
            taken
                .checked_add(more)
                .filter(|taken| *taken <= self.budget.max)
        };
        match self
            .budget
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown)
        {
            Ok(_) => {
                self.taken += more;
                Ok(())
            }
            Err(_) => Err(Problem::NoRoom {
                what: NoRoom::InFlight,
                retry_after: RETRY_AFTER,
            }),
        }
    }

    pub(super) fn shrink_to(&mut self, total: usize) {
        let less = self.taken.saturating_sub(total);
        self.budget.taken.fetch_sub(less, Ordering::Relaxed);
        self.taken -= less;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}
