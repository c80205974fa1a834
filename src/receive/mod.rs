//! Receives OTLP over gRPC and HTTP, validates it and passes it to a [`RequestSink`].

mod body;
mod cors;
mod decompress;
mod grpc;
mod http;
mod mapped;
mod memory_permit;
mod pace;
mod request_error;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Body;
use hyper::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap, HeaderName, HeaderValue,
};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use otlp::span::{self, PeerId, ScopeHash, SpanAdmission};
use otlp::{scan_logs, scan_metrics, scan_scores};
use tokio::sync::oneshot;

use crate::config::{self, Bound, Signal};
use crate::fair::EvictingBudget;
use crate::listen::{Handler, PeerAddress};
use crate::telemetry::{
    AuthorizationNotPassed, IncomingRefused, MetricsSource, RequestMisdirected, ScoresReceived,
    Telemetry,
};
use crate::transport::queue::{QueueRefusal, largest_request};

use body::{BufferedMessage, Framing};
use cors::Cors;
use decompress::Encoding;
use memory_permit::{BodyLimits, MemoryPermit};
use request_error::RequestError;

/// A complete and valid request.
#[derive(Debug)]
pub struct Received {
    /// The signal of the items.
    pub signal: Signal,
    /// The `Export…ServiceRequest` as protobuf, byte for byte as received after decompression; but
    /// JSON is transcoded, and received scores may be removed.
    pub body: Bytes,
    /// Number of spans, log records or data points; at least one.
    pub n_items: u64,
    /// The request's headers that `forward.pass_headers` names.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The spans and log records for scoring; empty if scoring is off.
    pub batch: span::Batch,
}

/// The body of a request: hyper's, or a test's.
pub trait RequestBody: Body<Data = Bytes, Error: Display> + Unpin {}

impl<B: Body<Data = Bytes, Error: Display> + Unpin> RequestBody for B {}

/// The body of an answer: bytes, then optional trailers.
pub use axum::body::Body as ResponseBody;

/// Accepts or refuses received requests.
pub trait RequestSink: Send + Sync + 'static {
    /// Returns the attributes to store for scoring; `None` if scoring is off.
    fn admission(&self) -> Option<Arc<dyn SpanAdmission>>;

    /// Returns an error if a request of at least `n_bytes` would be refused. Call it before a body
    /// is read, so that refusing is cheap; [`Self::offer`] decides.
    fn check_room(&self, signal: Signal, peer: PeerId, n_bytes: usize) -> Result<(), QueueRefusal>;

    /// Accepts a request, which is then acknowledged, or refuses it. Never waits.
    fn offer(&self, received: Received) -> Result<Acknowledgement, QueueRefusal>;
}

/// The time at which a request must be acknowledged.
#[derive(Debug)]
pub enum Acknowledgement {
    /// Immediately.
    Now,
    /// After the journal has stored the request. The journal may still refuse the request.
    WhenDurable(oneshot::Receiver<Result<(), QueueRefusal>>),
}

/// The configuration of a [`Receiver`].
#[derive(Debug)]
pub struct Settings {
    limits: BodyLimits,
    pass_headers: Vec<HeaderName>,
    /// True if requests are forwarded, `pass_headers` does not pass `authorization`, and
    /// `forward.headers` does not set it.
    drops_authorization: bool,
    received_scores: config::ReceivedScores,
    cors: Cors,
}

impl Settings {
    /// Creates settings. `budgets` are the shares of memory; `forwards` is true if requests are
    /// forwarded to a downstream.
    ///
    /// # Errors
    /// Returns a message that names the setting, if an entry of `forward.pass_headers` is not a
    /// header name.
    pub fn try_new(
        otlp: &config::OtlpReceiver,
        forward: &config::Forward,
        journal: &config::Journal,
        budgets: &config::Budgets<Bound>,
        forwards: bool,
    ) -> Result<Self, String> {
        // A request that could never fit is answered "too large". If the answer were "no memory",
        // its sender would retry forever.
        let writes_topic = budgets.kafka.get() > 0;
        let mut sizes = vec![
            (
                otlp.max_request_size.0.into(),
                "`receivers.otlp.max_request_size`",
            ),
            (
                budgets.in_flight.clone(),
                "all of `receivers.otlp.max_in_flight`",
            ),
        ];
        if journal.directory.is_some() && (forwards || writes_topic) {
            let limit = journal.largest_request().into();
            sizes.push((limit, "half of `journal.max_size`"));
        } else if forwards {
            let limit = largest_request(&budgets.forward_queue);
            sizes.push((limit, "half of `forward.queue.max_size`"));
        }
        if writes_topic {
            // Allow only the share that one record may use, because one record may have all spans
            // of the request.
            sizes.push((
                budgets.kafka.share(4),
                "a quarter of `kafka.write.queue.max_size`",
            ));
        }
        let pass_headers = forward.pass_headers.iter().map(|name| {
            HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("`forward.pass_headers`: `{name}` is not a valid header name"))
        });
        let pass_headers = pass_headers.collect::<Result<Vec<_>, _>>()?;
        let sends_own = forward
            .headers
            .keys()
            .any(|name| name.eq_ignore_ascii_case(AUTHORIZATION.as_str()));
        Ok(Self {
            limits: BodyLimits {
                sizes,
                budget: EvictingBudget::new(budgets.in_flight.clone(), None),
            },
            drops_authorization: forwards && !sends_own && !pass_headers.contains(&AUTHORIZATION),
            pass_headers,
            received_scores: otlp.scores,
            cors: Cors::new(&otlp.http.cors_allowed_origins),
        })
    }
}

/// Answers OTLP requests over both transports on either port, because users mix the ports up.
pub struct Receiver {
    settings: Settings,
    intake: Arc<dyn RequestSink>,
    telemetry: Arc<Telemetry>,
}

impl Receiver {
    /// Creates a receiver for any number of ports.
    pub fn new(
        settings: Settings,
        intake: Arc<dyn RequestSink>,
        telemetry: Arc<Telemetry>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            intake,
            telemetry,
        })
    }

    /// Returns the bytes in flight and their limit, for `/metrics`.
    pub fn metrics(&self) -> MetricsSource {
        let budget = Arc::clone(&self.settings.limits.budget);
        Arc::new(move |page| {
            page.gauge(
                "spanscore_receiver_in_flight_bytes",
                "Bytes of requests being received",
                budget.n_bytes(),
            );
            page.gauge(
                "spanscore_receiver_in_flight_capacity_bytes",
                "Maximum bytes of requests being received at once",
                budget.max(),
            );
        })
    }

    /// Returns the handler of a port.
    pub fn handler(self: Arc<Self>) -> Handler {
        Arc::new(move |request| {
            let receiver = self.clone();
            Box::pin(async move { receiver.answer(request).await })
        })
    }

    /// Answers one request.
    pub async fn answer<B: RequestBody>(&self, request: Request<B>) -> Response<ResponseBody> {
        let permit = self.permit(&request);
        if is_grpc(request.headers()) {
            grpc::answer(self, request, permit).await
        } else {
            http::answer(self, request, permit).await
        }
    }
}

/// Returns true for `application/grpc`, with or without a subtype or parameters, but not for
/// gRPC-Web, which is another protocol.
fn is_grpc(headers: &HeaderMap) -> bool {
    let rest = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

// === validating a message ===

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Protobuf,
    Json,
}

/// Size in bytes above which a message is validated on a blocking thread, so that other connections
/// do not wait.
const LONG_PROTOBUF: usize = 4 << 20;
const LONG_JSON: usize = 256 << 10;

/// Factor by which the bytes of JSON count as in flight. During transcoding, memory contains the
/// JSON and the protobuf. The protobuf is usually smaller than the JSON, and at worst four times as
/// large (a `0,` in a histogram's counts becomes eight bytes).
const JSON_FACTOR: usize = 5;

/// Bytes of a request while it is answered: its task and its stream.
const REQUEST_SIZE: usize = 4 << 10;
/// Bytes of a header besides its name and value.
const HEADER_SIZE: usize = 64;

impl Receiver {
    /// Creates a permit for the memory of a request, which already counts its headers.
    fn permit<B: Body>(&self, request: &Request<B>) -> Result<MemoryPermit, RequestError> {
        let address = request.extensions().get();
        let peer = address.map_or_else(PeerId::default, |PeerAddress(ip)| PeerId::from(*ip));
        let headers = request.headers().iter();
        let header_sizes =
            headers.map(|(name, value)| name.as_str().len() + value.len() + HEADER_SIZE);
        let fixed = REQUEST_SIZE + header_sizes.sum::<usize>();
        let announced = request.body().size_hint().exact();
        MemoryPermit::try_new(&self.settings.limits.budget, peer, fixed, announced)
    }

    /// Reads, validates and offers a request. Success means that the request must be acknowledged.
    /// Counts an error.
    async fn export<B: RequestBody>(
        &self,
        signal: Signal,
        framing: Framing,
        format: Option<Format>,
        headers: &HeaderMap,
        body: &mut B,
        permit: Result<MemoryPermit, RequestError>,
    ) -> Result<(), RequestError> {
        let exported: Result<(), (RequestError, u64)> = async {
            let permit = permit?;
            let readable = readable(framing, format, headers);
            let (format, encoding) = match readable {
                Ok(readable) => readable,
                Err(error) => {
                    body::discard(body).await;
                    return Err(error.into());
                }
            };
            let limits = &self.settings.limits;
            let peer = permit.peer();
            // JSON is transcoded, mostly to fewer bytes, so its length is not the memory that it
            // needs.
            let check_room = |n_bytes| {
                let n_bytes = if format == Format::Json { 0 } else { n_bytes };
                let room = self.intake.check_room(signal, peer, n_bytes);
                room.map_err(RequestError::Refused)
            };
            // Check the space before reading the body: reading would make hyper answer `100
            // Continue` to a client that sends `Expect: 100-continue`.
            if headers.contains_key(EXPECT) {
                let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
                if announced > limits.max_size() {
                    return Err(limits.too_large().into());
                }
                check_room(announced)?;
            }
            let message = body::read(body, framing, encoding, limits, permit, check_room).await?;
            self.take(signal, format, message, headers).await
        }
        .await;
        exported.map_err(|(error, n_items)| {
            IncomingRefused {
                signal: signal.as_str(),
                n_items,
                reason: error.reason(),
                message: error.message(),
            }
            .emit(&self.telemetry);
            error
        })
    }

    /// Validates a message and passes it to the intake. Success means that the request must be
    /// acknowledged; an error has the number of the request's items, if known.
    async fn take(
        &self,
        signal: Signal,
        format: Format,
        mut message: BufferedMessage,
        headers: &HeaderMap,
    ) -> Result<(), (RequestError, u64)> {
        let scores = self.settings.received_scores;
        if format == Format::Json {
            message
                .permit
                .grow_to(message.bytes.len().saturating_mul(JSON_FACTOR))?;
        }
        let admission = self.intake.admission();
        let peer = message.permit.peer();
        let long = match format {
            Format::Protobuf => LONG_PROTOBUF,
            Format::Json => LONG_JSON,
        };
        let is_long = message.bytes.len() > long;
        let validating = move || validate(signal, format, message, admission.as_deref(), scores);
        let validated = if is_long {
            let validated = tokio::task::spawn_blocking(validating).await;
            validated.unwrap_or_else(|error| {
                Err(RequestError::Malformed(format!(
                    "the message could not be validated: {error}"
                )))
            })
        } else {
            validating()
        };
        let mut valid = validated?;
        valid.batch.peer = peer;
        let n_items = valid.n_items;
        if valid.body.len() > self.settings.limits.max_size() {
            return Err((self.settings.limits.too_large(), n_items));
        }
        if valid.n_scores > 0 {
            ScoresReceived {
                signal: signal.as_str(),
                n_items: valid.n_scores,
                action: scores.as_str(),
            }
            .emit(&self.telemetry);
        }
        let result = match n_items {
            // There is nothing to forward or count; the request succeeds.
            0 => Ok(()),
            _ => {
                let offered = self.intake.offer(Received {
                    signal,
                    body: valid.body,
                    n_items,
                    headers: self.passed(headers),
                    batch: valid.batch,
                });
                match offered {
                    Ok(Acknowledgement::Now) => Ok(()),
                    // The journal's thread answers every request, unless the thread has panicked.
                    Ok(Acknowledgement::WhenDurable(kept)) => {
                        kept.await.unwrap_or(Err(QueueRefusal::DiskFailed))
                    }
                    Err(refusal) => Err(refusal),
                }
            }
        };
        drop(valid.permit);
        result.map_err(|refusal| (RequestError::Refused(refusal), n_items))
    }

    /// Returns the headers that `forward.pass_headers` names.
    fn passed(&self, headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
        if self.settings.drops_authorization && headers.contains_key(AUTHORIZATION) {
            AuthorizationNotPassed {}.emit(&self.telemetry);
        }
        let names = self.settings.pass_headers.iter();
        names
            .flat_map(|name| {
                headers
                    .get_all(name)
                    .iter()
                    .map(|value| (name.clone(), value.clone()))
            })
            .collect()
    }

    /// Counts a request with a wrong path, method, protocol or origin.
    fn misdirected(&self, reason: &'static str, head: &Parts, remedy: &str) {
        RequestMisdirected {
            reason,
            method: head.method.as_str(),
            path: head.uri.path(),
            remedy: remedy.trim_end(),
        }
        .emit(&self.telemetry);
    }
}

/// Returns the format and the encoding of a body from its headers.
fn readable(
    framing: Framing,
    format: Option<Format>,
    headers: &HeaderMap,
) -> Result<(Format, Encoding), RequestError> {
    let format = format.ok_or_else(|| {
        let named = headers
            .get(CONTENT_TYPE)
            .map_or("(none)".to_owned(), |value| {
                format!("`{}`", String::from_utf8_lossy(value.as_bytes()))
            });
        RequestError::Unsupported(format!(
            "cannot read the media type {named}; send application/x-protobuf or application/json"
        ))
    })?;
    let encoding = match framing {
        Framing::Whole => headers.get(CONTENT_ENCODING),
        Framing::Prefixed => headers.get("grpc-encoding"),
    };
    Ok((format, Encoding::try_new(encoding)?))
}

struct ValidatedMessage {
    body: Bytes,
    permit: MemoryPermit,
    /// Number of items to forward.
    n_items: u64,
    /// Number of items that claimed to be scores of spanscore.
    n_scores: u64,
    batch: span::Batch,
}

/// Transcodes JSON, then validates the message and counts its items. Owns the permit, so that
/// memory in use stays reserved if the sender disconnects during the validation.
fn validate(
    signal: Signal,
    format: Format,
    message: BufferedMessage,
    admission: Option<&dyn SpanAdmission>,
    scores: config::ReceivedScores,
) -> Result<ValidatedMessage, RequestError> {
    let BufferedMessage {
        bytes: body,
        mut permit,
    } = message;
    let transcoded = match (format, signal) {
        (Format::Protobuf, _) => None,
        (Format::Json, Signal::Traces) => Some(otlp::json::traces(&body)),
        (Format::Json, Signal::Logs) => Some(otlp::json::logs(&body)),
        (Format::Json, Signal::Metrics) => Some(otlp::json::metrics(&body)),
    };
    let malformed = |error: &dyn Display| RequestError::Malformed(error.to_string());
    let body = match transcoded.transpose().map_err(|error| malformed(&error))? {
        None => body,
        Some(mut protobuf) => {
            // Later stages count only the bytes, so spare capacity would be unaccounted memory.
            protobuf.shrink_to_fit();
            Bytes::from(protobuf)
        }
    };
    let mut refusal = None;
    let mut has_room = |n_bytes: usize| {
        let n_bytes = body.len() + n_bytes;
        let grown = if n_bytes > permit.max() {
            Err(RequestError::TooLarge(format!(
                "the request has so many small items that reading it takes more than {} bytes \
                 (`receivers.otlp.max_in_flight`); send smaller batches or raise the limit",
                permit.max()
            )))
        } else {
            permit.grow_to(n_bytes)
        };
        refusal = grown.err();
        refusal.is_none()
    };
    let names_us = || memchr::memmem::find(&body, ScopeHash::OWN_NAME.as_bytes()).is_some();
    let scanned = match signal {
        Signal::Traces => otlp::scan::scan_within(&body, admission, &mut has_room)
            .map(|scanned| (scanned.n_spans, scanned.batch, scanned.claims_own_scope)),
        Signal::Logs => scan_logs::scan_within(&body, admission, &mut has_room)
            .map(|scanned| (scanned.n_records, scanned.batch, names_us())),
        Signal::Metrics => {
            scan_metrics::scan(&body).map(|n_points| (n_points, span::Batch::default(), names_us()))
        }
    };
    let (n_items, batch, may_contain_scores) =
        scanned.map_err(|error| refusal.take().unwrap_or_else(|| malformed(&error)))?;
    let is_score = match signal {
        Signal::Traces => scan_scores::score_spans as scan_scores::ScoreTest,
        Signal::Logs => scan_scores::score_records,
        Signal::Metrics => scan_scores::score_points,
    };
    let n_scores = if may_contain_scores { scan_scores::count(&body, is_score) } else { 0 };
    let (body, n_left) = match scores {
        config::ReceivedScores::Drop if n_scores > 0 => {
            // Until the old body is dropped, the request is in memory twice.
            permit.grow_to(2 * body.len() + batch.size())?;
            let body = scan_scores::without(&body, is_score);
            (Bytes::from(body), n_items - n_scores)
        }
        _ => (body, n_items),
    };
    Ok(ValidatedMessage {
        body,
        permit,
        n_items: n_left as u64,
        n_scores: n_scores as u64,
        batch,
    })
}
