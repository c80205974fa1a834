//! The original bytes to the downstream. Received requests in, the same requests delivered, or dropped and counted. Knows which signals the
//! backend takes and which headers are handed on; does not know who received the requests, nor what is in them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName};

use crate::config::{Destination, Signal};
use crate::telemetry::{Accepted, AuthorizationNotPassed, Discarded, Dropped, Sent, Telemetry};
use crate::transport::queue::{Full, Ledger, Parcel, Queue, WhenFull};
use crate::transport::{Client, Delivery, TransportError};

/// What to forward, and where.
#[derive(Debug)]
pub struct Settings {
    /// The downstream; without one everything is accepted and discarded.
    pub destination: Option<Destination>,
    /// What the backend takes; other signals are accepted and discarded.
    pub signals: Vec<Signal>,
    /// Names of request headers to hand on.
    pub pass_headers: Vec<String>,
    /// Most bytes in the queue.
    pub capacity: usize,
}

/// Why forwarding cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The destination is no good.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A name in `forward.pass_headers` is no header name.
    #[error("`forward.pass_headers`: `{0}` is not a valid header name, use letters, digits and `-`")]
    PassHeader(String),
    /// The downstream is ourselves.
    #[error(
        "`{origin}` points at {host}:{port}, where spanscore itself listens ({listener}): telemetry would go round in circles; {remedy}"
    )]
    Loop {
        /// The setting or variable it came from.
        origin: String,
        /// The downstream's host.
        host: String,
        /// The downstream's port.
        port: u16,
        /// Our listener.
        listener: SocketAddr,
        /// What to do about it.
        remedy: &'static str,
    },
}

/// Why a request was not taken; its sender keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full, or we are stopping: answer UNAVAILABLE with RetryInfo, 503 with Retry-After.
    Full,
    /// Larger than half the queue, so that it could wait for ever: answer RESOURCE_EXHAUSTED without RetryInfo, 413.
    TooLarge,
}

/// Where the receivers put their requests. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct ForwardHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    downstream: Option<Downstream>,
    telemetry: Arc<Telemetry>,
}

#[derive(Debug)]
struct Downstream {
    queue: Queue,
    signals: Vec<Signal>,
    pass_headers: Vec<HeaderName>,
    /// An `authorization` header that a client sends reaches nobody, which is worth one warning.
    warn_of_authorization: AtomicBool,
}

/// Prepares forwarding. The delivery is to be run (and its end awaited) by the caller; there is none without a downstream.
/// `rng` is for the jitter between attempts.
pub fn start(
    settings: Settings,
    telemetry: &Arc<Telemetry>,
    rng: fastrand::Rng,
) -> Result<(ForwardHandle, Option<Delivery>), ForwardError> {
    let Some(destination) = settings.destination else {
        let shared = Arc::new(Shared { downstream: None, telemetry: telemetry.clone() });
        return Ok((ForwardHandle { shared }, None));
    };
    let pass_headers: Vec<HeaderName> = settings
        .pass_headers
        .iter()
        .map(|name| name.parse().map_err(|_| ForwardError::PassHeader(name.clone())))
        .collect::<Result<_, _>>()?;
    let is_authorization_sent =
        pass_headers.contains(&AUTHORIZATION) || destination.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    let client = Client::new(&destination, telemetry)?;
    let ledger = Arc::new(Books { telemetry: telemetry.clone() });
    let queue = Queue::new("forward", settings.capacity, WhenFull::RefuseNewcomer, ledger, telemetry.clone());
    let delivery = Delivery::new(queue.clone(), client, telemetry.clone(), rng);
    let downstream =
        Downstream { queue, signals: settings.signals, pass_headers, warn_of_authorization: AtomicBool::new(!is_authorization_sent) };
    Ok((ForwardHandle { shared: Arc::new(Shared { downstream: Some(downstream), telemetry: telemetry.clone() }) }, Some(delivery)))
}

impl ForwardHandle {
    /// Takes a request, which is then acknowledged, or says why not. Never waits. `n_items` are its spans, log records or metric points;
    /// `headers` are those it came with. The one who answers counts a refusal.
    pub fn offer(&self, signal: Signal, body: Bytes, n_items: u64, headers: &HeaderMap) -> Result<(), Refusal> {
        let downstream = match &self.shared.downstream {
            Some(downstream) if downstream.signals.contains(&signal) => downstream,
            _ => {
                Discarded { signal: signal.as_str(), n_items, reason: "discarded" }.emit(&self.shared.telemetry);
                return Ok(());
            }
        };
        let parcel = Parcel { signal, body, n_items, headers: downstream.pass(headers, &self.shared.telemetry) };
        if parcel.body.len() > self.largest() {
            return Err(Refusal::TooLarge);
        }
        if parcel.body.is_empty() {
            // A request without a byte says nothing, and there is nothing to forward.
            return Ok(());
        }
        downstream.queue.offer(parcel).map_err(|full| match full {
            Full::Full | Full::Closed => Refusal::Full,
        })
    }

    /// The largest request that could ever be taken, in bytes after decompression; for receivers, to say so before it is read.
    pub fn largest(&self) -> usize {
        self.shared.downstream.as_ref().map_or(usize::MAX, |downstream| downstream.queue.capacity() / 2)
    }

    /// Takes nothing more; what is queued may be delivered until `deadline`, when the delivery ends.
    pub fn close(&self, deadline: Instant) {
        if let Some(downstream) = &self.shared.downstream {
            downstream.queue.close(deadline);
        }
    }
}

impl Downstream {
    fn pass(&self, headers: &HeaderMap, telemetry: &Telemetry) -> HeaderMap {
        if headers.contains_key(AUTHORIZATION) && self.warn_of_authorization.swap(false, Ordering::Relaxed) {
            AuthorizationNotPassed.emit(telemetry);
        }
        let mut passed = HeaderMap::new();
        for name in &self.pass_headers {
            for value in headers.get_all(name) {
                let mut value = value.clone();
                value.set_sensitive(true);
                passed.append(name, value);
            }
        }
        passed
    }
}

/// The books of the original telemetry.
#[derive(Debug)]
struct Books {
    telemetry: Arc<Telemetry>,
}

impl Ledger for Books {
    fn queued(&self, signal: Signal, n_items: u64) {
        Accepted { signal: signal.as_str(), n_items }.emit(&self.telemetry);
    }

    fn sent(&self, signal: Signal, n_items: u64) {
        Sent { signal: signal.as_str(), n_items }.emit(&self.telemetry);
    }

    fn dropped(&self, signal: Signal, n_items: u64, reason: &'static str) {
        Dropped { signal: signal.as_str(), n_items, reason }.emit(&self.telemetry);
    }
}

// === the loop guard ===

/// Refuses a downstream that is one of our own `listeners`, by whatever name. A name that does not resolve now is no loop.
pub async fn check_loop(destination: &Destination, listeners: &[SocketAddr]) -> Result<(), ForwardError> {
    let endpoint = &destination.endpoint;
    // Names are only looked up where the port is ours: nobody should wait for DNS at every start.
    if listeners.iter().all(|listener| listener.port() != endpoint.port) {
        return Ok(());
    }
    let resolved: io::Result<Vec<SocketAddr>> =
        tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await.map(|addresses| addresses.collect());
    for address in resolved.unwrap_or_default() {
        if let Some(listener) = listeners.iter().find(|listener| is_ours(address, **listener, is_of_this_machine)) {
            let remedy = if destination.origin.starts_with("OTEL_") {
                "in a pod, agent and sidecar often share the OTEL_ variables, so set SPANSCORE_FORWARD__ENDPOINT or `forward.endpoint`"
            } else {
                "name the backend's endpoint, or listen on another port"
            };
            return Err(ForwardError::Loop {
                origin: destination.origin.clone(),
                host: endpoint.host.clone(),
                port: endpoint.port,
                listener: *listener,
                remedy,
            });
        }
    }
    Ok(())
}

/// Does a connection to `address` end at `listener`?
fn is_ours(address: SocketAddr, listener: SocketAddr, is_of_this_machine: impl Fn(IpAddr) -> bool) -> bool {
    let target = match address.ip().to_canonical() {
        // Connecting to "any address" reaches this machine.
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let listens_there = match listener.ip().to_canonical() {
        // [::] takes IPv4 as well.
        ip if ip.is_unspecified() => (ip.is_ipv6() || target.is_ipv4()) && (target.is_loopback() || is_of_this_machine(target)),
        ip => ip == target,
    };
    address.port() == listener.port() && listens_there
}

/// The system binds sockets to its own addresses only, which spares us listing its interfaces.
fn is_of_this_machine(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests;
