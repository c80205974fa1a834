//! The permit of one request for its memory during arrival, decompression and reading.

use std::sync::Arc;

use otlp::span::PeerId;

use super::request_error::RequestError;
use crate::fair::{EvictingBudget, Reservation};
use crate::heap;

/// Maximum bytes of a brief request, which has usually arrived in full when reading begins. Other
/// requests of its peer can be evicted for it after a shorter idle time.
const BRIEF: usize = 64 << 10;

/// The bytes of one request in the budget of all requests that are being received, released on
/// drop.
#[derive(Debug)]
pub(super) struct MemoryPermit {
    reservation: Reservation,
    max: usize,
    peer: PeerId,
    /// Bytes in addition to the message.
    fixed: usize,
    /// Size of the decompressor's window: this many bytes of the message are in memory twice.
    window: usize,
    /// The announced length; 0 if there is none, as in most gRPC requests.
    announced: usize,
    has_arrived: bool,
}

impl MemoryPermit {
    /// Creates a permit for `fixed` bytes in addition to a message, whose length may be announced.
    pub(super) fn try_new(
        budget: &Arc<EvictingBudget>,
        peer: PeerId,
        fixed: usize,
        announced: Option<u64>,
    ) -> Result<Self, RequestError> {
        let announced = announced.unwrap_or_default();
        let announced = usize::try_from(announced).unwrap_or(usize::MAX);
        let is_brief = announced.saturating_add(fixed) <= BRIEF;
        let reservation = budget.reserve(peer, fixed, is_brief);
        Ok(Self {
            reservation: reservation.ok_or(RequestError::InFlightFull)?,
            max: budget.max(),
            peer,
            fixed,
            window: 0,
            announced,
            has_arrived: false,
        })
    }

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

    /// Stops counting bytes that [`Self::add_fixed`] reserved; [`Self::shrink_to`] releases them.
    pub(super) fn remove_fixed(&mut self, n_bytes: usize) {
        self.fixed = self.fixed.saturating_sub(n_bytes);
    }

    /// From now on counts the first `n_bytes` of the message twice.
    pub(super) fn set_window(&mut self, n_bytes: usize) {
        self.window = n_bytes;
    }

    /// Reserves bytes up to this size of the message, or up to the whole budget if the budget is
    /// smaller. Fails if the budget is full and no other request may be evicted, or if this request
    /// was evicted.
    pub(super) fn grow_to(&mut self, message: usize) -> Result<(), RequestError> {
        self.take(self.total(message))
    }

    fn take(&mut self, total: usize) -> Result<(), RequestError> {
        let is_brief = self.announced.saturating_add(self.fixed).max(total) <= BRIEF;
        let more = (self.reservation).grow_to(total, is_brief || self.has_arrived);
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

    pub(super) fn advanced(&self) {
        self.reservation.moved(false);
    }

    /// Records that the message has arrived. From here on, only requests of other peers can evict
    /// this one, and such an eviction takes effect when this request next reserves bytes. Fails if
    /// the request was evicted.
    pub(super) fn arrived(&mut self) -> Result<(), RequestError> {
        self.has_arrived = true;
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

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_length_is_brief_until_it_is_large() {
        let budget = EvictingBudget::new(4 * BRIEF, None);
        let permit = |announced| MemoryPermit::try_new(&budget, PeerId(1), 30, announced);
        let mut large = permit(Some(1 << 20)).unwrap();
        large.grow_to(4 * BRIEF).unwrap();
        tokio::time::advance(std::time::Duration::from_millis(500)).await;
        assert!(
            permit(Some(1 << 20)).is_err(),
            "a large one waits for longer"
        );
        let mut small = permit(None).unwrap();
        small.grow_to(BRIEF - 30).unwrap();
        assert!(large.arrived().is_err(), "it was evicted");
        let mut other = permit(None).unwrap();
        other.grow_to(2 * BRIEF).unwrap();
        tokio::time::advance(std::time::Duration::from_millis(500)).await;
        assert!(small.grow_to(3 * BRIEF).is_err(), "it is not brief");
    }

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
