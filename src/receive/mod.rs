//! OTLP over gRPC and HTTP in, received requests out. Knows the protocol's answers; does not know
//! who forwards or judges: whoever implements [`Intake`] takes what was received, at once or not at
//! all.

mod body;
mod cors;
mod decompress;
mod grpc;
mod http;
pub mod json;
mod problem;
mod room;
pub mod scan;
pub mod scan_logs;
pub mod scan_metrics;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response};

use crate::config::{self, Signal};
use crate::span::{self, KeySet};
use crate::telemetry::{AuthorizationNotPassed, MetricsSource, Refused, Telemetry};

use body::{Held, Limits};
use cors::Cors;
use problem::{NoRoom, Problem};
use room::{Budget, Room};

/// A request that was read and found valid.
#[derive(Debug)]
pub struct Received {
    /// What it carries.
    pub signal: Signal,
    /// The `Export…ServiceRequest`, protobuf, as it came (after decompression; JSON is transcoded).
    pub body: Bytes,
    /// Spans, log records or metric points; at least one.
    pub n_items: u64,
    /// Those of the request's headers that `forward.pass_headers` names.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// What is kept for scoring; empty when that is off.
    pub batch: span::Batch,
}

/// Takes what was received.
pub trait Intake: Send + Sync + 'static {
    /// What to keep of spans for scoring; `None` when scoring is off.
    fn keys(&self) -> Option<Arc<KeySet>>;

    /// Takes a request, which is acknowledged if this succeeds. Never waits.
    fn offer(&self, received: Received) -> Result<(), Refusal>;
}

/// Why an [`Intake`] does not take a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No room now; the sender is asked to try again after so long.
    Full {
        /// At least a second is sent, since `Retry-After` counts in seconds.
        retry_after: Duration,
    },
    /// It would never fit.
    TooLarge {
        /// Most bytes of one request.
        limit: usize,
    },
    /// The sidecar is about to end.
    Draining,
}

/// What a [`Receiver`] is told of the configuration.
#[derive(Debug)]
pub struct Settings {
    limits: Limits,
    pass_headers: Vec<HeaderName>,
    /// Something is forwarded, and neither `pass_headers` nor `forward.headers` brings an
    /// `authorization`.
    drops_authorization: bool,
    cors: Cors,
}

impl Settings {
    /// `budgets` are the shares of memory; `forwards` tells whether there is a downstream. Fails
    /// with a message that names the setting when `forward.pass_headers` has something that is no
    /// header name.
    pub fn try_new(
        otlp: &config::OtlpReceiver,
        forward: &config::Forward,
        budgets: &config::Budgets,
        forwards: bool,
    ) -> Result<Self, String> {
        // A request that could never fit is too large, not out of room: its sender would try for
        // ever.
        let mut smallest = (otlp.max_request_size.0, "`receivers.otlp.max_request_size`");
        for other in [
            (budgets.in_flight, "all of `receivers.otlp.max_in_flight`"),
            (
                if forwards {
                    budgets.forward_queue / 2
                } else {
                    usize::MAX
                },
                "half of `forward.queue.max_size`",
            ),
        ] {
            if other.0 < smallest.0 {
                smallest = other;
            }
        }
        let (max_size, setting) = smallest;
        let pass_headers = forward.pass_headers.iter().map(|name| {
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                format!("`forward.pass_headers`: `{name}` is not the name of a header")
            })
        });
        let pass_headers = pass_headers.collect::<Result<Vec<_>, _>>()?;
        let sends_own = forward
            .headers
            .keys()
            .any(|name| name.eq_ignore_ascii_case(AUTHORIZATION.as_str()));
        Ok(Self {
            limits: Limits {
                max_size,
                setting,
                budget: Budget::new(budgets.in_flight),
            },
            drops_authorization: forwards && !sends_own && !pass_headers.contains(&AUTHORIZATION),
            pass_headers,
            cors: Cors::new(&otlp.http.cors_allowed_origins),
        })
    }
}

/// Answers OTLP requests, of both transports on either port: people mix the ports up, and it costs
/// nothing to understand them.
#[derive(Clone)]
pub struct Receiver(Arc<Inner>);

struct Inner {
    settings: Settings,
    intake: Arc<dyn Intake>,
    telemetry: Arc<Telemetry>,
}

impl Receiver {
    /// A receiver for any number of ports.
    pub fn new(settings: Settings, intake: Arc<dyn Intake>, telemetry: Arc<Telemetry>) -> Self {
        Self(Arc::new(Inner {
            settings,
            intake,
            telemetry,
        }))
    }

    /// Bytes in flight, and how many there may be, for `/metrics`.
    pub fn metrics(&self) -> MetricsSource {
        let budget = Arc::clone(&self.0.settings.limits.budget);
        Arc::new(move |page| {
            let (taken, max) = budget.state();
            page.gauge(
                "spanscore_receiver_in_flight_bytes",
                "Bytes of requests being received",
                taken,
            );
            page.gauge(
                "spanscore_receiver_in_flight_capacity_bytes",
                "Most bytes of requests being received at once",
                max,
            );
        })
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Answer>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Display,
    {
        match is_grpc(request.headers()) {
            true => grpc::answer(&self.0, request).await,
            false => http::answer(&self.0, request).await,
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Receiver {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let receiver = self.clone();
        Box::pin(async move { Ok(receiver.answer(request).await) })
    }
}

/// `application/grpc`, also with a subtype or parameters, but not gRPC-Web, which is another
/// protocol.
fn is_grpc(headers: &HeaderMap) -> bool {
    let rest = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

// === what both transports do with a message ===

/// How a message is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Protobuf,
    Json,
}

/// Above this, a message is looked through on a thread that may be blocked, so that other
/// connections are not kept waiting.
const LONG_PROTOBUF: usize = 4 << 20;
const LONG_JSON: usize = 256 << 10;

/// While JSON is transcoded there are its bytes and the protobuf, which is smaller as a rule and
/// four times larger at worst (a `0,` in a histogram's counts becomes eight bytes): so many times
/// its bytes are counted as in flight.
const JSON_FACTOR: usize = 4;

impl Inner {
    /// Validates a message and hands it over. Success means that the request is to be acknowledged.
    async fn take(
        &self,
        signal: Signal,
        format: Format,
        mut held: Held,
        headers: &HeaderMap,
    ) -> Result<(), (Problem, u64)> {
        let not_read = |problem: Problem| (problem, 0);
        if format == Format::Json {
            held.room
                .grow_to(held.bytes.len().saturating_mul(JSON_FACTOR))
                .map_err(not_read)?;
        }
        let keys = self.intake.keys();
        let long = match format {
            Format::Protobuf => LONG_PROTOBUF,
            Format::Json => LONG_JSON,
        };
        let contents = match held.bytes.len() > long {
            true => {
                tokio::task::spawn_blocking(move || look(signal, format, held, keys.as_deref()))
                    .await
                    .unwrap_or_else(|error| {
                        Err(format!("the message could not be looked through: {error}"))
                    })
            }
            false => look(signal, format, held, keys.as_deref()),
        };
        let Contents {
            body,
            room,
            n_items,
            batch,
        } = contents.map_err(|error| not_read(Problem::Malformed(error)))?;
        let Limits {
            max_size, setting, ..
        } = self.settings.limits;
        if body.len() > max_size {
            return Err((
                Problem::TooLarge {
                    limit: max_size,
                    setting,
                },
                n_items,
            ));
        }
        let result = match n_items {
            // Nothing to forward and nothing to count; the sender is told that all is well.
            0 => Ok(()),
            _ => self.intake.offer(Received {
                signal,
                body,
                n_items,
                headers: self.passed(headers),
                batch,
            }),
        };
        drop(room);
        result.map_err(|refusal| (refusal.into(), n_items))
    }

    /// The headers that `forward.pass_headers` names.
    fn passed(&self, headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
        if self.settings.drops_authorization && headers.contains_key(AUTHORIZATION) {
            AuthorizationNotPassed.emit(&self.telemetry);
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

    /// Counts a refusal.
    fn refused(&self, signal: Signal, problem: &Problem, n_items: u64) {
        Refused {
            signal: signal.as_str(),
            n_items,
            reason: problem.reason(),
            message: problem.message(),
        }
        .emit(&self.telemetry);
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full { retry_after } => Self::NoRoom {
                what: NoRoom::Queue,
                retry_after: retry_after.max(Duration::from_secs(1)),
            },
            Refusal::TooLarge { limit } => Self::TooLarge {
                limit,
                setting: "half of `forward.queue.max_size`",
            },
            Refusal::Draining => Self::NoRoom {
                what: NoRoom::Draining,
                retry_after: Duration::from_secs(1),
            },
        }
    }
}

/// What is in a message.
struct Contents {
    body: Bytes,
    /// What the body takes of the budget.
    room: Room,
    n_items: u64,
    batch: span::Batch,
}

/// Takes the room along with the bytes: a sender who goes away while a thread looks through what it
/// sent gets none of it back before that is done.
fn look(
    signal: Signal,
    format: Format,
    held: Held,
    keys: Option<&KeySet>,
) -> Result<Contents, String> {
    let Held { bytes: body, room } = held;
    let transcoded = match (format, signal) {
        (Format::Protobuf, _) => None,
        (Format::Json, Signal::Traces) => Some(json::traces(&body)),
        (Format::Json, Signal::Logs) => Some(json::logs(&body)),
        (Format::Json, Signal::Metrics) => Some(json::metrics(&body)),
    };
    let body = match transcoded.transpose().map_err(|error| error.to_string())? {
        None => body,
        Some(mut protobuf) => {
            // What follows counts the bytes, so spare capacity would be memory in nobody's books.
            protobuf.shrink_to_fit();
            Bytes::from(protobuf)
        }
    };
    let (n_items, batch) = match signal {
        Signal::Traces => scan::scan(&body, keys).map(|scanned| (scanned.n_spans, scanned.batch)),
        Signal::Logs => {
            scan_logs::scan(&body, keys).map(|scanned| (scanned.n_records, scanned.batch))
        }
        Signal::Metrics => {
            scan_metrics::scan(&body).map(|n_points| (n_points, span::Batch::default()))
        }
    }
    .map_err(|error| error.to_string())?;
    Ok(Contents {
        body,
        room,
        n_items: n_items as u64,
        batch,
    })
}

// === Answer ===

/// The body of an answer: some bytes, then perhaps trailers.
#[derive(Debug, Default)]
pub struct Answer {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.data)))));
        }
        Poll::Ready(
            self.trailers
                .take()
                .map(|trailers| Ok(Frame::trailers(trailers))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.len() as u64)
    }
}
