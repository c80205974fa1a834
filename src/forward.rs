//! Enqueues received requests, byte for byte, for the downstream, and requests with spans also for
//! a Kafka topic. Counts requests that neither accepts.

mod loop_guard;

use std::iter;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use otlp::span::PeerId;

use crate::config::{Bound, Destination, Signal};
use crate::journal::{AppendError, JournalLog, Outlet, Record};
use crate::telemetry::{ItemEvent, ItemsCounted, ItemsDiscarded, SpansToKafka, Telemetry};
use crate::transport::queue::{
    Accounting, JournalOutcome, OutboundRequest, Queue, QueueRefusal, Route,
};
use crate::transport::{Client, Delivery, SentHeaders, TransportError};

pub use loop_guard::check_loop;

#[derive(Debug)]
pub struct Settings {
    /// The downstream, if any.
    pub destination: Option<Destination>,
    /// The signals that the downstream accepts. Requests of other signals are acknowledged, but not
    /// sent to the downstream.
    pub signals: Vec<Signal>,
    /// Maximum bytes in the queue.
    pub capacity: Bound,
    /// The journal of undelivered requests. With a journal, the queue is a cache.
    pub journal: Option<JournalLog>,
}

/// The reason why forwarding cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(
        "`{origin}` points at {host}:{port}, where spanscore itself listens ({listener}): \
         telemetry would be forwarded in a loop; {remedy}"
    )]
    Loop {
        /// The setting or variable that names the downstream.
        origin: String,
        host: String,
        port: u16,
        listener: SocketAddr,
        remedy: &'static str,
    },
}

/// Enqueues the receivers' requests for all outlets. Clones share the outlets.
#[derive(Debug, Clone)]
pub struct ForwardHandle {
    /// The topic is first: if the downstream then refuses a request, its sender repeats it, and
    /// only a topic may contain duplicates.
    outlets: Vec<OutletQueue>,
    headers: Option<SentHeaders>,
    journal: Option<JournalLog>,
    telemetry: Arc<Telemetry>,
}

/// A destination of received requests.
#[derive(Debug, Clone)]
struct OutletQueue {
    queue: Queue,
    signals: Vec<Signal>,
    outlet: Outlet,
}

/// Prepares forwarding. The caller runs the returned delivery and awaits its end; without a
/// downstream there is no delivery. `rng` creates the jitter between attempts.
pub fn start(
    settings: Settings,
    telemetry: &Arc<Telemetry>,
    rng: fastrand::Rng,
) -> Result<(ForwardHandle, Option<Delivery>), ForwardError> {
    let telemetry = Arc::clone(telemetry);
    let mut handle = ForwardHandle {
        outlets: Vec::new(),
        headers: None,
        journal: settings.journal,
        telemetry,
    };
    let Some(destination) = settings.destination else {
        return Ok((handle, None));
    };
    let client = Client::new(&destination, &handle.telemetry)?;
    handle.headers = Some(client.headers().clone());
    let accounting = Arc::new(ForwardAccounting {
        telemetry: Arc::clone(&handle.telemetry),
        are_copies: false,
    });
    let mut queue = Queue::new("forward", settings.capacity, accounting, &handle.telemetry);
    if let Some(log) = &handle.journal {
        queue = queue.journaled_in(log, Outlet::Downstream);
    }
    let delivery = Delivery::new(queue.clone(), client, Arc::clone(&handle.telemetry), rng);
    handle.outlets.push(OutletQueue {
        queue,
        signals: settings.signals,
        outlet: Outlet::Downstream,
    });
    Ok((handle, Some(delivery)))
}

impl ForwardHandle {
    /// Also enqueues every request with spans in `queue`.
    #[must_use]
    pub fn also_into(mut self, queue: Queue) -> Self {
        let topic = OutletQueue {
            queue,
            signals: vec![Signal::Traces],
            outlet: Outlet::Topic,
        };
        self.outlets.insert(0, topic);
        self
    }

    /// Returns the accounting for the queue of [`Self::also_into`]: that of the original telemetry
    /// if there is no downstream, else a separate one.
    pub fn accounting_of_copies(&self) -> Arc<dyn Accounting> {
        Arc::new(ForwardAccounting {
            telemetry: self.telemetry.clone(),
            are_copies: !self.outlets.is_empty(),
        })
    }

    /// Returns an error if a request of at least `n_bytes` would be refused. Callers check this
    /// before they read the request.
    pub fn check_room(
        &self,
        signal: Signal,
        peer: PeerId,
        n_bytes: usize,
    ) -> Result<(), QueueRefusal> {
        let mut outlets = self.outlets_of(signal);
        outlets.try_for_each(|outlet| outlet.queue.check_room(peer, n_bytes))
    }

    /// Enqueues a request for all outlets, or for none if one of them has no space for it. Counts a
    /// request that no outlet accepts as discarded. The caller acknowledges the request, or counts
    /// a refusal. Never waits.
    pub fn offer(&self, request: OutboundRequest) -> Result<(), QueueRefusal> {
        let (signal, n_items) = (request.signal, request.n_items);
        let parts = self.parts_of(request).into_iter();
        // If an outlet refuses, the earlier charges are released on drop.
        let charged = parts.map(|(queue, part)| Ok((queue, queue.charge(part)?)));
        let charged: Vec<_> = charged.collect::<Result<_, QueueRefusal>>()?;
        if charged.is_empty() {
            self.discard(signal, n_items);
        }
        (charged.into_iter()).try_for_each(|(queue, request)| queue.offer(request))
    }

    /// Counts the items of a request that no outlet accepts.
    fn discard(&self, signal: Signal, n_items: u64) {
        ItemsDiscarded {
            signal: signal.as_str(),
            n_items,
        }
        .emit(&self.telemetry);
    }

    /// Returns the queue that delivers spans, if there is one: the downstream's, else the topic's.
    pub fn queue_of_spans(&self) -> Option<Queue> {
        let outlet = self.outlets_of(Signal::Traces).last();
        outlet.map(|outlet| outlet.queue.clone())
    }

    /// Returns true if the journal stores requests of this signal. If so, call [`Self::append`]
    /// instead of [`Self::offer`].
    pub fn is_journaled(&self, signal: Signal, is_scored: bool) -> bool {
        self.journal.is_some() && (is_scored || self.outlets_of(signal).next().is_some())
    }

    /// Writes a request to the journal, once for all outlets, and then enqueues it for them. A
    /// request that no outlet accepts is only scored. The caller acknowledges the request when
    /// `outcome` is called with success. Never waits.
    pub fn append(
        &self,
        request: OutboundRequest,
        arrived_unix_nanos: u64,
        outcome: JournalOutcome,
    ) {
        let signal = request.signal;
        let is_closed = (self.outlets_of(signal)).any(|outlet| outlet.queue.is_closed());
        let Some(log) = self.journal.as_ref().filter(|_| !is_closed) else {
            return outcome(Err(QueueRefusal::Draining));
        };
        let record = self.record(&request, arrived_unix_nanos);
        if log.has(&record) {
            return outcome(Ok(None));
        }
        let forward = self.clone();
        let appended = move |appended: Result<u64, AppendError>| {
            if let Ok(sequence) = appended {
                let n_items = request.n_items;
                let parts = forward.parts_of(request);
                if parts.is_empty() {
                    forward.discard(signal, n_items);
                }
                for (queue, part) in parts {
                    queue.enqueue_record(sequence, part);
                }
            }
            outcome(appended.map(Some).map_err(QueueRefusal::from));
        };
        log.append(record, Box::new(appended));
    }

    fn record(&self, request: &OutboundRequest, arrived_unix_nanos: u64) -> Record {
        let (signal, body) = (request.signal, request.body.clone());
        let is_for = |wanted| (self.outlets_of(signal)).any(|outlet| outlet.outlet == wanted);
        let for_downstream = is_for(Outlet::Downstream);
        // Only the downstream gets headers, which may be secrets.
        let route = if for_downstream { &request.route } else { &Route::default() };
        let number = Outlet::signal_for(signal.number(), for_downstream, is_for(Outlet::Topic));
        let (n_items, meta) = (request.n_items, route.encode());
        let record = Record::new(number, n_items, arrived_unix_nanos, meta, body);
        record.of(request.peer)
    }

    /// Uses the headers of `destination` for all further requests.
    ///
    /// # Errors
    /// Returns an error, and replaces nothing, if a header is invalid.
    pub fn renew_headers(&self, destination: &Destination) -> Result<(), TransportError> {
        self.headers
            .as_ref()
            .map_or(Ok(()), |headers| headers.replace(destination))
    }

    /// Starts the drain: without a journal, an outlet refuses requests while its destination is
    /// down, because they would be acknowledged and then dropped.
    pub fn begin_drain(&self) {
        for outlet in &self.outlets {
            outlet.queue.begin_drain();
        }
    }

    /// Rejects further requests. Queued requests may be delivered until `deadline`, which ends the
    /// delivery.
    pub fn close(&self, deadline: Instant) {
        for outlet in &self.outlets {
            outlet.queue.close(deadline);
        }
    }

    fn outlets_of(&self, signal: Signal) -> impl DoubleEndedIterator<Item = &OutletQueue> {
        let outlets = self.outlets.iter();
        outlets.filter(move |outlet| outlet.signals.contains(&signal))
    }

    /// Returns a copy of the request for each outlet that accepts its signal. A topic gets no
    /// headers.
    fn parts_of(&self, request: OutboundRequest) -> Vec<(&Queue, OutboundRequest)> {
        let n_outlets = self.outlets_of(request.signal).count();
        let outlets = self.outlets_of(request.signal);
        let parts = outlets.zip(iter::repeat_n(request, n_outlets));
        let parts = parts.map(|(outlet, mut part)| {
            if outlet.outlet == Outlet::Topic {
                part.route = Route::default();
            }
            (&outlet.queue, part)
        });
        parts.collect()
    }
}

/// Returns a request as it was received from `peer`, with the headers to forward.
pub fn outbound(
    signal: Signal,
    peer: PeerId,
    body: Bytes,
    n_items: u64,
    headers: Vec<(HeaderName, HeaderValue)>,
) -> OutboundRequest {
    let mut passed = HeaderMap::new();
    for (name, mut value) in headers {
        // The value may be a secret: omit it from debug output and from HTTP/2's header tables.
        value.set_sensitive(true);
        passed.append(name, value);
    }
    OutboundRequest {
        peer,
        route: Route::Otlp { headers: passed },
        ..OutboundRequest::otlp(signal, body, n_items)
    }
}

/// Accounts for the original telemetry, or for spans that are sent to a second destination.
#[derive(Debug)]
struct ForwardAccounting {
    telemetry: Arc<Telemetry>,
    are_copies: bool,
}

impl Accounting for ForwardAccounting {
    fn count(&self, signal: Signal, n_items: u64, event: ItemEvent) {
        if self.are_copies {
            SpansToKafka { n_items, event }.emit(&self.telemetry);
        } else {
            ItemsCounted {
                signal: signal.as_str(),
                n_items,
                event,
            }
            .emit(&self.telemetry);
        }
    }
}

#[cfg(test)]
mod tests;
