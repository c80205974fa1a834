//! Slots for a limited number of connections. Each slot counts the maximum memory of its connection
//! before the connection is served.

use std::net::IpAddr;
use std::sync::Arc;

use otlp::span::PeerId;

use crate::config::Bound;
use crate::fair::{EvictingBudget, Reservation};
use crate::sync::Mutex;

/// Maximum bytes of one connection: hyper's state, and a read buffer, a frame or an HTTP/2 window
/// of 64 KiB.
pub(super) const SLOT_SIZE: usize = 96 << 10;

/// Maximum bytes of an HTTP/2 connection with the larger windows.
pub(super) const WIDE_SLOT_SIZE: usize = SLOT_SIZE + super::WIDE_WINDOW as usize;

/// Additional maximum bytes with TLS: a handshake message, or records that are read and written.
const TLS_SIZE: usize = 64 << 10;

/// Limits on the connections of several ports together.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    pub memory: Bound,
    /// Maximum number of connections, each of which needs a file descriptor.
    pub connections: usize,
    /// HTTP/2: maximum number of concurrent requests of a connection.
    pub streams: u32,
}

/// The slots of ports that share one limit.
#[derive(Debug)]
pub struct ConnectionSlots {
    pub(super) limits: ConnectionLimits,
    budget: Arc<EvictingBudget>,
}

/// The slot of a connection, released on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    reservation: Reservation,
    /// True if the connection has the larger HTTP/2 windows.
    pub(super) is_wide: bool,
    /// Number of requests without a complete answer.
    n_requests: Mutex<usize>,
}

/// A guard that counts a request of a connection until the answer is complete.
#[derive(Debug)]
pub(super) struct RequestGuard(Arc<ConnectionSlot>);

impl ConnectionSlots {
    /// Creates slots within these limits. There is always at least one slot, however little memory
    /// there is.
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        let budget = EvictingBudget::new(limits.memory.clone(), Some(limits.connections));
        Arc::new(Self { limits, budget })
    }

    /// Returns a slot for a connection of this peer. If all slots are used, evicts a connection of
    /// the peer with the most connections, provided that it has more than this peer would have.
    /// Otherwise evicts a connection of this peer that has neither begun nor finished a request for
    /// a second. Evicts idle connections first. Returns `None` if no connection may be evicted.
    pub(super) fn admit(&self, peer: IpAddr, tls: bool) -> Option<Arc<ConnectionSlot>> {
        let tls = if tls { TLS_SIZE } else { 0 };
        // The first connections get larger windows, up to half of the memory: an agent opens few
        // connections.
        let is_wide = self.budget.n_bytes() + WIDE_SLOT_SIZE + tls <= self.budget.max() / 2;
        let size = if is_wide { WIDE_SLOT_SIZE } else { SLOT_SIZE } + tls;
        let reservation = self.budget.reserve(PeerId::from(peer), size, false)?;
        Some(Arc::new(ConnectionSlot {
            reservation,
            is_wide,
            n_requests: Mutex::default(),
        }))
    }
}

impl ConnectionSlot {
    pub(super) async fn evicted(&self) {
        self.reservation.evicted().await;
    }

    /// Counts a request until the guard is dropped.
    pub(super) fn request(self: &Arc<Self>) -> RequestGuard {
        let mut n_requests = self.n_requests.lock();
        *n_requests += 1;
        self.reservation.moved(true);
        drop(n_requests);
        RequestGuard(Arc::clone(self))
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut n_requests = self.0.n_requests.lock();
        *n_requests -= 1;
        self.0.reservation.moved(*n_requests > 0);
    }
}

#[cfg(test)]
mod tests;
