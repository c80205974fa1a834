//! The permit of one request for its memory during arrival, decompression and reading.

use std::sync::Arc;

use otlp::span::PeerId;

use super::request_error::RequestError;
use crate::fair::{EvictingBudget, Reservation};
use crate::heap;

/// Maximum bytes of a brief request, which need not wait until another request of its peer is idle:
/// it has usually arrived in full when reading begins.
const BRIEF: usize = 64 << 10;

/// The bytes of one request in the budget of all requests in arrival, released on drop.
#[derive(Debug)]
pub(super) struct MemoryPermit {
    reservation: Reservation,
    max: usize,
    peer: PeerId,
    /// Bytes in addition to the message.
    fixed: usize,
    /// Number of bytes of the message that are in memory twice.
    window: usize,
    /// True if the request is small, or has arrived.
    is_brief: bool,
}

impl MemoryPermit {
    /// Creates a permit for `fixed` bytes in addition to a message, whose length may be announced.
    pub(super) fn try_new(
        budget: &Arc<EvictingBudget>,
        peer: PeerId,
        fixed: usize,
        announced: Option<u64>,
    ) -> Result<Self, RequestError> {
        let is_brief = announced.is_some_and(|length| length <= (BRIEF - fixed.min(BRIEF)) as u64);
        let reservation = budget.reserve(peer, fixed, is_brief);
        Ok(Self {
            reservation: reservation.ok_or(RequestError::InFlightFull)?,
            max: budget.max(),
            peer,
            fixed,
            window: 0,
            is_brief,
        })
    }

    /// Returns the sender of the request.
    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the maximum bytes of all requests together.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Reserves bytes in addition to the message.
    pub(super) fn add_fixed(&mut self, n_bytes: usize) -> Result<(), RequestError> {
        self.fixed += n_bytes;
        self.take(self.reservation.n_bytes() + n_bytes)
    }

    /// Releases bytes that [`Self::add_fixed`] reserved.
    pub(super) fn remove_fixed(&mut self, n_bytes: usize) {
        self.fixed = self.fixed.saturating_sub(n_bytes);
    }

    /// Counts the first `n_bytes` of the message twice from here on.
    pub(super) fn set_window(&mut self, n_bytes: usize) {
        self.window = n_bytes;
    }

    /// Reserves bytes up to this size of the message, or up to the whole budget if that is less.
    /// Fails if the budget is full and no other request may be evicted, or if this request was
    /// evicted.
    pub(super) fn grow_to(&mut self, message: usize) -> Result<(), RequestError> {
        self.take(self.total(message))
    }

    fn take(&mut self, total: usize) -> Result<(), RequestError> {
        let more = self.reservation.grow_to(total, self.is_brief);
        heap::took(more.ok_or(RequestError::InFlightFull)?);
        Ok(())
    }

    /// Releases bytes that the message does not need.
    pub(super) fn shrink_to(&mut self, message: usize) {
        self.reservation.shrink_to(self.total(message));
    }

    fn total(&self, message: usize) -> usize {
        message + message.min(self.window) + self.fixed
    }

    /// Records progress of the request.
    pub(super) fn advanced(&self) {
        self.reservation.moved(false);
    }

    /// Notes that the message has arrived: from here on only other peers can evict the request,
    /// which notices the eviction when it next reserves bytes. Fails if the request was evicted.
    pub(super) fn arrived(&mut self) -> Result<(), RequestError> {
        self.is_brief = true;
        if self.reservation.moved(true) {
            Ok(())
        } else {
            Err(RequestError::InFlightFull)
        }
    }

    /// Waits until the request is evicted; the caller must then end it.
    pub(super) async fn evicted(&self) {
        self.reservation.evicted().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_held_beside_the_message_counts() {
        let budget = EvictingBudget::new(1_000, None);
        let mut permit = MemoryPermit::try_new(&budget, PeerId(1), 30, None).unwrap();
        permit.add_fixed(70).unwrap();
        permit.set_window(50);
        permit.grow_to(200).unwrap();
        assert_eq!(budget.n_bytes(), 350);
        permit.set_window(0);
        permit.remove_fixed(100);
        permit.shrink_to(200);
        assert_eq!(budget.n_bytes(), 200);
        permit.grow_to(5_000).unwrap();
        assert_eq!(budget.n_bytes(), 1_000, "at most the whole budget");
    }
}
