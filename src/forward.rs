//! Forwards received requests to the downstream, byte for byte, or counts them as dropped.

mod loop_guard;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use otlp::span::PeerId;

use crate::config::{Bound, Destination, Signal};
use crate::journal::JournalLog;
use crate::telemetry::{
    ItemsAccepted, ItemsDiscarded, ItemsDropped, ItemsSent, SpansToKafka, Telemetry,
};
use crate::transport::queue::{
    Accounting, KeepOutcome, OutboundRequest, Queue, QueueRefusal, Route,
};
use crate::transport::{Client, Delivery, SentHeaders, TransportError};

pub use loop_guard::check_loop;

/// The signals to forward, and their destinations.
#[derive(Debug)]
pub struct Settings {
    /// The downstream. Without one, every request is accepted and discarded.
    pub destination: Option<Destination>,
    /// The signals that the backend accepts. Requests of other signals are accepted and discarded.
    pub signals: Vec<Signal>,
    /// Maximum bytes in the queue.
    pub capacity: Bound,
    /// The journal of undelivered requests. With a journal, the queue is a cache.
    pub journal: Option<JournalLog>,
}

/// The reason why forwarding cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The destination cannot be used.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The downstream is spanscore itself.
    #[error(
        "`{origin}` points at {host}:{port}, where spanscore itself listens ({listener}): \
         telemetry would go round in circles; {remedy}"
    )]
    Loop {
        /// The setting or variable that names the downstream.
        origin: String,
        /// The downstream's host.
        host: String,
        /// The downstream's port.
        port: u16,
        /// The listener at that address.
        listener: SocketAddr,
        /// The remedy.
        remedy: &'static str,
    },
}

/// The sender and the arrival time of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestArrival {
    /// The sender.
    pub peer: PeerId,
    /// Unix time in nanoseconds.
    pub unix_nanos: u64,
}

/// Enqueues the receivers' requests for the downstream.
#[derive(Debug, Clone)]
pub struct ForwardHandle {
    downstream: Option<Downstream>,
    /// The queue of a second destination, for requests with spans.
    copies: Option<Queue>,
    telemetry: Arc<Telemetry>,
}

#[derive(Debug, Clone)]
struct Downstream {
    queue: Queue,
    signals: Arc<[Signal]>,
    headers: SentHeaders,
    is_kept: bool,
}

/// Prepares forwarding. The caller runs the returned delivery and awaits its end; without a
/// downstream there is no delivery. `rng` creates the jitter between attempts.
pub fn start(
    settings: Settings,
    telemetry: &Arc<Telemetry>,
    rng: fastrand::Rng,
) -> Result<(ForwardHandle, Option<Delivery>), ForwardError> {
    let telemetry = Arc::clone(telemetry);
    let Some(destination) = settings.destination else {
        let handle = ForwardHandle {
            downstream: None,
            copies: None,
            telemetry,
        };
        return Ok((handle, None));
    };
    let client = Client::new(&destination, &telemetry)?;
    let headers = client.headers().clone();
    let accounting = Arc::new(ForwardAccounting {
        telemetry: Arc::clone(&telemetry),
    });
    let mut queue = Queue::new("forward", settings.capacity, accounting, &telemetry);
    let is_kept = settings.journal.is_some();
    if let Some(log) = &settings.journal {
        queue = queue.kept_in(log);
    }
    let delivery = Delivery::new(queue.clone(), client, Arc::clone(&telemetry), rng);
    let downstream = Downstream {
        queue,
        signals: settings.signals.into(),
        headers,
        is_kept,
    };
    let handle = ForwardHandle {
        downstream: Some(downstream),
        copies: None,
        telemetry,
    };
    Ok((handle, Some(delivery)))
}

impl ForwardHandle {
    /// Enqueues every request with spans in `queue`, too.
    #[must_use]
    pub fn also_into(self, queue: Queue) -> Self {
        Self {
            copies: Some(queue),
            ..self
        }
    }

    /// Returns the accounting of a queue for [`Self::also_into`]. Without a downstream it is the
    /// accounting of the telemetry, else a separate one.
    pub fn accounting_of_copies(&self) -> Arc<dyn Accounting> {
        let telemetry = self.telemetry.clone();
        match &self.downstream {
            None => Arc::new(ForwardAccounting { telemetry }),
            Some(_) => Arc::new(CopyAccounting { telemetry }),
        }
    }

    /// Returns an error if a request of at least `n_bytes` would be refused. Call it before reading
    /// the request.
    pub fn check_room(
        &self,
        signal: Signal,
        peer: PeerId,
        n_bytes: usize,
    ) -> Result<(), QueueRefusal> {
        if let Some(copies) = self.copies_of(signal) {
            copies.check_room(peer, n_bytes)?;
        }
        match self.downstream_for(signal) {
            Some(downstream) => downstream.queue.check_room(peer, n_bytes),
            None => Ok(()),
        }
    }

    /// Enqueues a request, which is then acknowledged, or refuses it; the caller counts a refusal.
    /// Never waits. `n_items` is the number of spans, log records or data points, `headers` are the
    /// request's headers to forward, and `peer` is the sender.
    pub fn offer(
        &self,
        signal: Signal,
        peer: PeerId,
        body: Bytes,
        n_items: u64,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Result<(), QueueRefusal> {
        let Some(copies) = self.copies_of(signal) else {
            return self.offer_downstream(signal, peer, body, n_items, headers);
        };
        let copy = OutboundRequest {
            peer,
            ..OutboundRequest::otlp(signal, body.clone(), n_items)
        };
        // Both queues must have space; otherwise the sender keeps the request.
        let copy = copies.charge(copy)?;
        if self.downstream_for(signal).is_some() {
            self.offer_downstream(signal, peer, body, n_items, headers)?;
        }
        copies.offer(copy)
    }

    fn offer_downstream(
        &self,
        signal: Signal,
        peer: PeerId,
        body: Bytes,
        n_items: u64,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Result<(), QueueRefusal> {
        let Some(downstream) = self.downstream_for(signal) else {
            ItemsDiscarded {
                signal: signal.as_str(),
                n_items,
            }
            .emit(&self.telemetry);
            return Ok(());
        };
        downstream.queue.offer(OutboundRequest {
            peer,
            ..outbound(signal, body, n_items, headers)
        })
    }

    /// Returns the queue that delivers spans, if there is one: the downstream's, else the second
    /// destination's.
    pub fn queue_of_spans(&self) -> Option<Queue> {
        let downstream = self.downstream_for(Signal::Traces);
        let queue = downstream.map(|downstream| &downstream.queue);
        queue.or(self.copies.as_ref()).cloned()
    }

    /// Returns true if the journal stores requests of this signal: then call [`Self::keep`], not
    /// [`Self::offer`].
    pub fn keeps(&self, signal: Signal) -> bool {
        self.keeps_for_downstream(signal) || self.copies_of(signal).is_some_and(Queue::is_kept)
    }

    /// Returns true if the journal stores requests of this signal for the downstream. Only then
    /// does [`Self::keep`] report the number of a record that scoring can refer to.
    pub fn keeps_for_downstream(&self, signal: Signal) -> bool {
        self.downstream_for(signal)
            .is_some_and(|downstream| downstream.is_kept)
    }

    /// Writes a request to the journal. Acknowledge the request once `outcome` is called with
    /// success. Refuses a signal that the journal does not store. Never waits.
    pub fn keep(
        &self,
        signal: Signal,
        body: Bytes,
        n_items: u64,
        headers: Vec<(HeaderName, HeaderValue)>,
        arrival: RequestArrival,
        outcome: KeepOutcome,
    ) {
        let RequestArrival { peer, unix_nanos } = arrival;
        let copy = OutboundRequest {
            peer,
            ..OutboundRequest::otlp(signal, body.clone(), n_items)
        };
        let downstream = self.downstream_for(signal).map(|downstream| {
            let request = OutboundRequest {
                peer,
                ..outbound(signal, body, n_items, headers)
            };
            (downstream.queue.clone(), request)
        });
        match (self.copies_of(signal), downstream) {
            (None, None) => outcome(Err(QueueRefusal::Draining)),
            (None, Some((queue, request))) => queue.keep(request, unix_nanos, outcome),
            (Some(copies), None) => copies.keep(copy, unix_nanos, outcome),
            (Some(copies), Some((queue, request))) => {
                // If the downstream's log refuses the request, its sender retries. The request is
                // then written to Kafka twice, which changes no verdict.
                let then: KeepOutcome = Box::new(move |kept| match kept {
                    Ok(_) => queue.keep(request, unix_nanos, outcome),
                    Err(refusal) => outcome(Err(refusal)),
                });
                copies.keep(copy, unix_nanos, then);
            }
        }
    }

    /// Uses the headers of `destination` for all further requests.
    ///
    /// # Errors
    /// A header is invalid. Nothing is replaced then.
    pub fn renew_headers(&self, destination: &Destination) -> Result<(), TransportError> {
        match &self.downstream {
            Some(downstream) => downstream.headers.replace(destination),
            None => Ok(()),
        }
    }

    /// Starts the drain: requests are refused whenever the downstream is down, because they would
    /// be acknowledged and then dropped.
    pub fn begin_drain(&self) {
        for queue in self.queues() {
            queue.begin_drain();
        }
    }

    /// Rejects further requests. Queued requests may be delivered until `deadline`, when the
    /// delivery ends.
    pub fn close(&self, deadline: Instant) {
        for queue in self.queues() {
            queue.close(deadline);
        }
    }

    fn queues(&self) -> impl Iterator<Item = &Queue> {
        let downstream = self.downstream.iter().map(|downstream| &downstream.queue);
        downstream.chain(self.copies.as_ref())
    }

    /// Returns the queue of the second destination, if the signal goes there.
    fn copies_of(&self, signal: Signal) -> Option<&Queue> {
        self.copies.as_ref().filter(|_| signal == Signal::Traces)
    }

    /// Returns the downstream, if it accepts the signal.
    fn downstream_for(&self, signal: Signal) -> Option<&Downstream> {
        self.downstream
            .as_ref()
            .filter(|downstream| downstream.signals.contains(&signal))
    }
}

fn outbound(
    signal: Signal,
    body: Bytes,
    n_items: u64,
    headers: Vec<(HeaderName, HeaderValue)>,
) -> OutboundRequest {
    let mut passed = HeaderMap::new();
    for (name, mut value) in headers {
        // The value may be a key: keep it out of debug output and of HTTP/2's header tables.
        value.set_sensitive(true);
        passed.append(name, value);
    }
    OutboundRequest {
        route: Route::Otlp { headers: passed },
        ..OutboundRequest::otlp(signal, body, n_items)
    }
}

/// Accounts for the original telemetry.
#[derive(Debug)]
struct ForwardAccounting {
    telemetry: Arc<Telemetry>,
}

impl Accounting for ForwardAccounting {
    fn queued(&self, signal: Signal, n_items: u64) {
        ItemsAccepted {
            signal: signal.as_str(),
            n_items,
        }
        .emit(&self.telemetry);
    }

    fn sent(&self, signal: Signal, n_items: u64) {
        ItemsSent {
            signal: signal.as_str(),
            n_items,
        }
        .emit(&self.telemetry);
    }

    fn dropped(&self, signal: Signal, n_items: u64, reason: &'static str) {
        ItemsDropped {
            signal: signal.as_str(),
            n_items,
            reason,
        }
        .emit(&self.telemetry);
    }
}

/// Accounts for spans that go to a second destination as well as to the downstream.
#[derive(Debug)]
struct CopyAccounting {
    telemetry: Arc<Telemetry>,
}

impl Accounting for CopyAccounting {
    fn queued(&self, _: Signal, n_items: u64) {
        SpansToKafka::Accepted { n_items }.emit(&self.telemetry);
    }

    fn sent(&self, _: Signal, n_items: u64) {
        SpansToKafka::Sent { n_items }.emit(&self.telemetry);
    }

    fn dropped(&self, _: Signal, n_items: u64, reason: &'static str) {
        SpansToKafka::Dropped { n_items, reason }.emit(&self.telemetry);
    }
}

#[cfg(test)]
mod tests;
