//! The original bytes to the downstream. Received requests in, the same requests delivered, or
//! dropped and counted. Knows which signals the backend takes; does not know who received the
//! requests, nor what is in them.

mod loop_guard;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::config::{Destination, Signal};
use crate::telemetry::{Accepted, Discarded, Dropped, Sent, Telemetry};
use crate::transport::queue::{Full, Ledger, Parcel, Queue, WhenFull};
use crate::transport::{Client, Delivery, TransportError};

pub use loop_guard::check_loop;

/// What to forward, and where.
#[derive(Debug)]
pub struct Settings {
    /// The downstream; without one everything is accepted and discarded.
    pub destination: Option<Destination>,
    /// What the backend takes; other signals are accepted and discarded.
    pub signals: Vec<Signal>,
    /// Most bytes in the queue.
    pub capacity: usize,
}

/// Why forwarding cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The destination is no good.
    #[error(transparent)]
    Transport(#[from] TransportError),
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
    /// The queue is full: answer UNAVAILABLE with RetryInfo, 503 with Retry-After.
    Full,
    /// Larger than half the queue, so that it could wait for ever: answer RESOURCE_EXHAUSTED
    /// without RetryInfo, 413.
    TooLarge {
        /// Most bytes of one request.
        limit: usize,
    },
    /// We are stopping: answer as when full.
    Closed,
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
}

/// Prepares forwarding. The delivery is to be run (and its end awaited) by the caller; there is
/// none without a downstream. `rng` is for the jitter between attempts.
pub fn start(
    settings: Settings,
    telemetry: &Arc<Telemetry>,
    rng: fastrand::Rng,
) -> Result<(ForwardHandle, Option<Delivery>), ForwardError> {
    let Some(destination) = settings.destination else {
        let shared = Arc::new(Shared {
            downstream: None,
            telemetry: telemetry.clone(),
        });
        return Ok((ForwardHandle { shared }, None));
    };
    let client = Client::new(&destination, telemetry)?;
    let ledger = Arc::new(Books {
        telemetry: telemetry.clone(),
    });
    let queue = Queue::new(
        "forward",
        settings.capacity,
        WhenFull::RefuseNewcomer,
        ledger,
        telemetry,
    );
    let delivery = Delivery::new(queue.clone(), client, telemetry.clone(), rng);
    let downstream = Downstream {
        queue,
        signals: settings.signals,
    };
    Ok((
        ForwardHandle {
            shared: Arc::new(Shared {
                downstream: Some(downstream),
                telemetry: telemetry.clone(),
            }),
        },
        Some(delivery),
    ))
}

impl ForwardHandle {
    /// Takes a request, which is then acknowledged, or says why not. Never waits. `n_items` are its
    /// spans, log records or metric points; `headers` are those of its own headers that are handed
    /// on. The one who answers counts a refusal.
    pub fn offer(
        &self,
        signal: Signal,
        body: Bytes,
        n_items: u64,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Result<(), Refusal> {
        let downstream = match &self.shared.downstream {
            Some(downstream) if downstream.signals.contains(&signal) => downstream,
            _ => {
                Discarded {
                    signal: signal.as_str(),
                    n_items,
                }
                .emit(&self.shared.telemetry);
                return Ok(());
            }
        };
        let limit = self.largest();
        if body.len() > limit {
            return Err(Refusal::TooLarge { limit });
        }
        let mut passed = HeaderMap::new();
        for (name, mut value) in headers {
            // Keeps it out of debug output and of HTTP/2's header tables: it may be a key.
            value.set_sensitive(true);
            passed.append(name, value);
        }
        downstream
            .queue
            .offer(Parcel {
                headers: passed,
                ..Parcel::otlp(signal, body, n_items)
            })
            .map_err(|full| match full {
                Full::Full => Refusal::Full,
                Full::Closed => Refusal::Closed,
            })
    }

    /// The largest request that could ever be taken, in bytes after decompression; for receivers,
    /// to say so before it is read.
    pub fn largest(&self) -> usize {
        self.shared
            .downstream
            .as_ref()
            .map_or(usize::MAX, |downstream| downstream.queue.capacity() / 2)
    }

    /// Takes nothing more; what is queued may be delivered until `deadline`, when the delivery
    /// ends.
    pub fn close(&self, deadline: Instant) {
        if let Some(downstream) = &self.shared.downstream {
            downstream.queue.close(deadline);
        }
    }
}

/// The books of the original telemetry.
#[derive(Debug)]
struct Books {
    telemetry: Arc<Telemetry>,
}

impl Ledger for Books {
    fn queued(&self, signal: Signal, n_items: u64) {
        Accepted {
            signal: signal.as_str(),
            n_items,
        }
        .emit(&self.telemetry);
    }

    fn sent(&self, signal: Signal, n_items: u64) {
        Sent {
            signal: signal.as_str(),
            n_items,
        }
        .emit(&self.telemetry);
    }

    fn dropped(&self, signal: Signal, n_items: u64, reason: &'static str) {
        Dropped {
            signal: signal.as_str(),
            n_items,
            reason,
        }
        .emit(&self.telemetry);
    }
}

#[cfg(test)]
mod tests;
