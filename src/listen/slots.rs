//! Slots for a bounded number of connections. Counts what a connection may hold before it is
//! served.

use std::net::IpAddr;
use std::sync::Arc;

use otlp::span::PeerId;

use crate::config::Bound;
use crate::fair::{EvictingBudget, Reservation};
use crate::sync::Mutex;

/// What one connection may hold: hyper's state, and a read buffer or a frame of 64 KiB, or a window
/// of HTTP/2 of that size.
pub(super) const SLOT_SIZE: usize = 96 << 10;

/// What a connection of HTTP/2 with the larger windows may hold.
pub(super) const WIDE_SLOT_SIZE: usize = SLOT_SIZE + super::WIDE_WINDOW as usize;

/// What TLS may hold in addition: a handshake message or records that are read and written.
const TLS_SIZE: usize = 64 << 10;

/// Most evicted connections that may end their requests.
const MAX_ENDING: usize = 64;

/// How much the connections of some ports may hold together.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// Bytes.
    pub memory: Bound,
    /// Connections, each of which takes a file descriptor.
    pub connections: usize,
    /// HTTP/2: concurrent requests of a connection.
    pub streams: u32,
}

/// The connections of the ports that share one limit.
#[derive(Debug)]
pub struct ConnectionSlots {
    pub(super) limits: ConnectionLimits,
    budget: Arc<EvictingBudget>,
}

/// The slot of a connection, given back on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    reservation: Reservation,
    /// HTTP/2: the connection has the larger windows.
    pub(super) is_wide: bool,
    /// Requests that are not yet answered in full.
    n_requests: Mutex<usize>,
    slots: Arc<ConnectionSlots>,
}

/// Held as long as a request of the connection is not answered in full.
#[derive(Debug)]
pub(super) struct RequestGuard(Arc<ConnectionSlot>);

impl ConnectionSlots {
    /// Slots within these limits; at least one, however little memory there is.
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        let budget = EvictingBudget::new(limits.memory.clone(), Some(limits.connections));
        Arc::new(Self { limits, budget })
    }

    /// A slot for a connection of this peer. If all are taken, another connection is evicted: one
    /// of the peer that has most, or one of this peer that has begun and ended no request for a
    /// second. Idle ones go first. `None` if there is none.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr, tls: bool) -> Option<Arc<ConnectionSlot>> {
        let tls = if tls { TLS_SIZE } else { 0 };
        // Half of the memory is for those that come first: an agent opens a handful.
        let is_wide = self.budget.n_bytes() + WIDE_SLOT_SIZE + tls <= self.budget.max() / 2;
        let size = if is_wide { WIDE_SLOT_SIZE } else { SLOT_SIZE } + tls;
        let reservation = self.budget.reserve(PeerId::from(peer), size, false)?;
        Some(Arc::new(ConnectionSlot {
            reservation,
            is_wide,
            n_requests: Mutex::default(),
            slots: Arc::clone(self),
        }))
    }
}

impl ConnectionSlot {
    /// Returns when the connection is to end.
    pub(super) async fn evicted(&self) {
        self.reservation.evicted().await;
    }

    /// Whether an evicted connection may end its requests. If many are ending, their sockets would
    /// come on top of those of the others.
    pub(super) fn may_end_slowly(&self) -> bool {
        self.slots.budget.n_ending() <= MAX_ENDING
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
