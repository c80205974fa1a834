//! Sends requests to one destination: the OTLP client, and a queue whose delivery retries until
//! each request is done.

mod answer_limit;
mod backlog;
mod connect;
mod deliver;
mod grpc;
mod outcome;
pub mod queue;
mod request;
mod retry;
mod split;
#[cfg(test)]
pub(crate) mod tests;

use std::error::Error;
use std::fmt::Debug;
use std::io::Write;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use hyper::http::response::Parts;
use hyper::http::uri::{InvalidUri, PathAndQuery};
use hyper::{Method, Request, Uri};

use crate::config::{Backoff, Compression, Destination, Protocol, Signal};
use crate::telemetry::Telemetry;

pub(crate) use connect::{PooledClient, frames, http1_client};
pub use deliver::{Delivery, Undelivered};
pub(crate) use grpc::path as grpc_path;
pub use outcome::DeliveryOutcome;
pub use queue::{ApiTarget, JournalOutcome, OutboundRequest, Queue, QueueRefusal, Route};
#[cfg(feature = "kafka")]
pub(crate) use split::split;

use connect::{Connections, Frames};

/// Maximum bytes of a response body that are kept; the rest is read and discarded.
const LONGEST_ANSWER: usize = 64 << 10;

/// Size in bytes from which bodies are compressed on a blocking thread, not on an asynchronous
/// worker.
const SLOW_TO_COMPRESS: usize = 64 << 10;

/// A destination that cannot be used. Reported at the start, before any request is accepted, or
/// when headers are replaced.
#[derive(Debug, thiserror::Error)]
#[error("`{origin}`: {why}")]
pub struct TransportError {
    /// The setting or variable with the endpoint.
    pub origin: String,
    /// The mistake, without the values of headers, which may be secrets.
    pub why: String,
}

/// A destination to which a delivery can send requests.
pub trait Recipient: Debug + Clone + Send + Sync + 'static {
    /// Makes one attempt to deliver a request.
    fn deliver(&self, request: OutboundRequest) -> impl Future<Output = DeliveryOutcome> + Send;
    fn backoff(&self) -> &Backoff;
    fn max_concurrency(&self) -> usize;
    /// Returns the setting or variable with the endpoint, for messages.
    fn origin(&self) -> &str;
    fn address(&self) -> String;
}

/// Sends requests to one destination. Clones share their connections and headers.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
    headers: SentHeaders,
}

/// The headers that a client sends with every request. Clones share them.
#[derive(Debug, Clone)]
pub struct SentHeaders(Arc<ArcSwap<HeaderMap>>);

#[derive(Debug)]
struct ClientShared {
    destination: Destination,
    connections: Connections,
    /// The URIs of the signals, in the order of [`Signal::ALL`].
    uris: [Uri; 3],
}

impl Client {
    /// Creates a client for `destination`, which connects when it sends its first request. Reports
    /// changed certificate files to `telemetry`.
    pub fn new(
        destination: &Destination,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self, TransportError> {
        let uri = |signal| {
            uri(destination, signal).map_err(|_| {
                let host = &destination.endpoint.host;
                let why = format!("`{host}` is not a host name or address");
                TransportError::new(destination, why)
            })
        };
        let [traces, logs, metrics] = Signal::ALL;
        let shared = ClientShared {
            connections: Connections::new(destination, telemetry)?,
            uris: [uri(traces)?, uri(logs)?, uri(metrics)?],
            destination: destination.clone(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            headers: SentHeaders::new(destination)?,
        })
    }

    /// Returns the headers, which can be replaced while requests are sent.
    pub fn headers(&self) -> &SentHeaders {
        &self.headers
    }

    pub fn destination(&self) -> &Destination {
        &self.shared.destination
    }

    /// Makes one attempt to send an OTLP request, within the destination's timeout. `headers`,
    /// except reserved ones, are added to the destination's headers, and override headers of the
    /// same name.
    pub async fn send(&self, signal: Signal, body: Bytes, headers: &HeaderMap) -> DeliveryOutcome {
        let shared = &*self.shared;
        let (body, encoding) = match compress(shared.destination.compression, body).await {
            Ok(compressed) => compressed,
            Err(error) => {
                return DeliveryOutcome::retry(format!("cannot compress the request: {error}"));
            }
        };
        let uri = shared.uris[signal as usize].clone();
        let mut all_headers = HeaderMap::clone(&self.headers.0.load());
        for name in headers.keys().filter(|name| !is_reserved(name)) {
            all_headers.remove(name);
            for value in headers.get_all(name) {
                all_headers.append(name, value.clone());
            }
        }
        let request = match shared.destination.protocol {
            Protocol::Grpc => {
                grpc::request(uri, all_headers, body, encoding, shared.destination.timeout)
            }
            Protocol::HttpProtobuf => {
                if let Some(encoding) = encoding {
                    all_headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
                }
                let body = frames(body);
                request(
                    Method::POST,
                    uri,
                    all_headers,
                    "application/x-protobuf",
                    body,
                )
            }
        };
        let interpret = match shared.destination.protocol {
            Protocol::Grpc => grpc::interpret,
            Protocol::HttpProtobuf => |head: &Parts, body: &[u8], _| {
                Ok(DeliveryOutcome::of_http(
                    head.status.as_u16(),
                    &head.headers,
                    body,
                ))
            },
        };
        self.exchange(request, interpret).await
    }

    /// Calls a backend's own API once, within the destination's timeout.
    async fn call(&self, target: &ApiTarget, body: Bytes) -> DeliveryOutcome {
        let destination = &self.shared.destination;
        let path = format!("{}{}", destination.endpoint.base_path, target.path);
        let uri = match uri_of(destination, path) {
            Ok(uri) => uri,
            Err(error) => {
                return DeliveryOutcome::Refused {
                    reason: "refused",
                    why: format!("`{}` is not a valid path: {error}", target.path),
                };
            }
        };
        let request = request(
            target.method.clone(),
            uri,
            HeaderMap::clone(&self.headers.0.load()),
            "application/json",
            frames(body),
        );
        self.exchange(request, |head, body, _| {
            Ok(DeliveryOutcome::of_api(
                head.status.as_u16(),
                &head.headers,
                body,
            ))
        })
        .await
    }

    /// Sends a request, and interprets the head of the response, the beginning of its body and its
    /// trailers.
    async fn exchange(
        &self,
        request: Request<Frames>,
        interpret: fn(&Parts, &[u8], Trailers) -> Result<DeliveryOutcome, hyper::Error>,
    ) -> DeliveryOutcome {
        let shared = &*self.shared;
        let pool = shared.connections.pool();
        let exchange = async {
            let response = pool.request(request).await;
            let (head, body) = response.map_err(|error| describe(&error))?.into_parts();
            let (body, trailers) = read(body).await;
            interpret(&head, &body, trailers).map_err(|error| describe(&error))
        };
        match tokio::time::timeout(shared.destination.timeout, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => DeliveryOutcome::retry(why),
            Err(_) => {
                shared.connections.renew(&pool);
                DeliveryOutcome::retry(format!("no answer within {:?}", shared.destination.timeout))
            }
        }
    }
}

impl TransportError {
    fn new(destination: &Destination, why: String) -> Self {
        Self {
            origin: destination.origin.clone(),
            why,
        }
    }
}

impl Recipient for Client {
    async fn deliver(&self, request: OutboundRequest) -> DeliveryOutcome {
        let targets = match request.route {
            Route::Otlp { headers } => {
                return self.send(request.signal, request.body, &headers).await;
            }
            Route::Api { targets, .. } => targets,
        };
        let mut outcome = DeliveryOutcome::retry("no target");
        for target in &*targets {
            outcome = self.call(target, request.body.clone()).await;
            if !matches!(outcome, DeliveryOutcome::Unknown { .. }) {
                break;
            }
        }
        outcome
    }

    fn backoff(&self) -> &Backoff {
        &self.destination().retry
    }

    fn max_concurrency(&self) -> usize {
        self.destination().max_concurrency
    }

    fn origin(&self) -> &str {
        &self.destination().origin
    }

    fn address(&self) -> String {
        self.destination().endpoint.to_string()
    }
}

impl SentHeaders {
    fn new(destination: &Destination) -> Result<Self, TransportError> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(headers(destination)?))))
    }

    /// Uses the headers of `destination` for all further attempts, including those of queued
    /// requests.
    ///
    /// # Errors
    /// Returns an error, and replaces nothing, if a header is invalid.
    pub fn replace(&self, destination: &Destination) -> Result<(), TransportError> {
        self.0.store(Arc::new(headers(destination)?));
        Ok(())
    }
}

fn uri(destination: &Destination, signal: Signal) -> Result<Uri, hyper::http::Error> {
    let endpoint = &destination.endpoint;
    let path = match destination.protocol {
        Protocol::Grpc => grpc::path(signal).to_owned(),
        Protocol::HttpProtobuf => format!("{}/v1/{}", endpoint.base_path, signal.as_str()),
    };
    uri_of(destination, path)
}

/// Returns the URI of a path at the destination. `path` must be complete, with any base path and
/// query.
fn uri_of(destination: &Destination, path: String) -> Result<Uri, hyper::http::Error> {
    let endpoint = &destination.endpoint;
    let path: Result<PathAndQuery, InvalidUri> = path.try_into();
    let host = if endpoint.host.contains(':') {
        format!("[{}]", endpoint.host)
    } else {
        endpoint.host.clone()
    };
    Uri::builder()
        .scheme(if endpoint.tls { "https" } else { "http" })
        .authority(format!("{host}:{}", endpoint.port))
        .path_and_query(path?)
        .build()
}

fn headers(destination: &Destination) -> Result<HeaderMap, TransportError> {
    let fault = |why| TransportError::new(destination, why);
    let mut headers = HeaderMap::new();
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("spanscore/", env!("CARGO_PKG_VERSION"))),
    );
    for (name, secret) in &destination.headers {
        let header: Result<HeaderName, _> = name.parse();
        let header = header.map_err(|_| {
            fault(format!(
                "`{name}` is not a valid header name, use letters, digits and `-`"
            ))
        })?;
        if is_reserved(&header) {
            return Err(fault(format!(
                "header `{name}` is set by OTLP itself, remove it"
            )));
        }
        let value: Result<HeaderValue, _> = secret.expose().parse();
        let mut value = value.map_err(|_| {
            fault(format!(
                "the value of header `{name}` has characters that no header can contain; \
                 a line break at the end of a key file is a usual cause"
            ))
        })?;
        // Omit the value from debug output and from HTTP/2's header tables.
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

/// Returns true for headers of the connection or the protocol, which neither users nor senders may
/// set.
fn is_reserved(name: &HeaderName) -> bool {
    const RESERVED: [&str; 12] = [
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    RESERVED.contains(&name.as_str()) || name.as_str().starts_with("grpc-")
}

/// Returns the compressed body and the name of its encoding. Uses level 1, because any higher level
/// would cost more than all other work together.
async fn compress(
    compression: Compression,
    body: Bytes,
) -> std::io::Result<(Bytes, Option<&'static str>)> {
    let work: fn(&[u8]) -> std::io::Result<Vec<u8>>;
    let name = match compression {
        Compression::None => return Ok((body, None)),
        Compression::Gzip => {
            work = |body| {
                let compressed = Vec::with_capacity(body.len() / 4);
                let mut encoder =
                    flate2::write::GzEncoder::new(compressed, flate2::Compression::fast());
                encoder.write_all(body)?;
                encoder.finish()
            };
            "gzip"
        }
        Compression::Zstd => {
            work = |body| zstd::bulk::compress(body, 1);
            "zstd"
        }
    };
    let compressed = if body.len() >= SLOW_TO_COMPRESS {
        tokio::task::spawn_blocking(move || work(&body)).await??
    } else {
        work(&body)?
    };
    Ok((compressed.into(), Some(name)))
}

/// Returns the text of an error and its causes, without repetitions.
fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

fn request(
    method: Method,
    uri: Uri,
    mut headers: HeaderMap,
    content_type: &'static str,
    body: Frames,
) -> Request<Frames> {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    request
}

/// The trailers of a response, or the error that interrupted its body. In plain HTTP the error does
/// not matter, because a peer that answers 413 may close the connection before it has read the
/// whole request.
type Trailers = Result<Option<HeaderMap>, hyper::Error>;

/// Reads a body to its end. Returns its beginning.
async fn read(mut body: Incoming) -> (Vec<u8>, Trailers) {
    let mut start = Vec::new();
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        match frame.map(|frame| frame.into_data()) {
            Ok(Ok(data)) => {
                start.extend_from_slice(&data[..data.len().min(LONGEST_ANSWER - start.len())])
            }
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(error) => return (start, Err(error)),
        }
    }
    (start, Ok(trailers))
}
