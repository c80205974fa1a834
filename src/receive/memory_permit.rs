//! The permit of one request for its memory during arrival, decompression and reading.

use std::sync::Arc;

use otlp::span::PeerId;

use super::request_error::{RequestError, too_large};
use crate::config::Bound;
use crate::fair::{EvictingBudget, Reservation};
use crate::heap;

/// Maximum bytes of a brief request, which has usually arrived in full when reading begins. Other
/// requests of its peer can be evicted for it after a shorter idle time.
const BRIEF: usize = 64 << 10;

/// Limits on the size of a request.
#[derive(Debug, Clone)]
pub(super) struct BodyLimits {
    /// Maximum bytes after decompression, each with the setting that defines it. The lowest maximum
    /// applies; it is never more than the budget.
    pub(super) sizes: Vec<(Bound, &'static str)>,
    /// The budget of all requests that are being received.
    pub(super) budget: Arc<EvictingBudget>,
}

/// The bytes of one request in the budget of all requests that are being received, released on
/// drop.
#[derive(Debug)]
pub(super) struct MemoryPermit {
    pub(super) reservation: Reservation,
    max: usize,
    peer: PeerId,
    /// Bytes in addition to the message.
    fixed: usize,
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

    /// Reserves bytes up to this size of the message, or up to the whole budget if the budget is
    /// smaller. Fails if the budget is full and no other request may be evicted, or if this request
    /// was evicted.
    pub(super) fn grow_to(&mut self, message: usize) -> Result<(), RequestError> {
        let total = message + self.fixed;
        let is_brief = self.announced.saturating_add(self.fixed).max(total) <= BRIEF;
        let more = (self.reservation).grow_to(total, is_brief || self.has_arrived);
        heap::took(more.ok_or(RequestError::InFlightFull)?);
        Ok(())
    }

    /// Releases bytes that the message does not need.
    pub(super) fn shrink_to(&mut self, message: usize) {
        self.reservation.shrink_to(message + self.fixed);
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
}

impl BodyLimits {
    /// Returns the maximum bytes after decompression.
    pub(super) fn max_size(&self) -> usize {
        self.least().0
    }

    pub(super) fn too_large(&self) -> RequestError {
        let (limit, setting) = self.least();
        RequestError::TooLarge(too_large(limit, setting))
    }

    fn least(&self) -> (usize, &'static str) {
        let sizes = self
            .sizes
            .iter()
            .map(|(size, setting)| (size.get(), *setting));
        sizes.min_by_key(|(size, _)| *size).unwrap_or_default()
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
        permit.grow_to(200).unwrap();
        assert_eq!(budget.n_bytes(), 230);
        permit.shrink_to(100);
        assert_eq!(budget.n_bytes(), 130);
        permit.grow_to(5_000).unwrap();
        assert_eq!(budget.n_bytes(), 1_000, "at most the whole budget");
    }
}
