//! The OTLP client. A destination and request bodies in, answers out. Knows both protocols and what
//! their answers mean, and a queue that tries until it is delivered; does not know where the bodies
//! come from, nor what is in them.

mod answer;
mod api;
mod connect;
mod deliver;
mod grpc;
mod http;
#[cfg(test)]
pub(crate) mod peer;
pub mod queue;
mod retry;
mod split;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::http::uri::{InvalidUri, PathAndQuery};
use hyper::{Request, Response, Uri};

use crate::config::{Compression, Destination, Protocol, Signal};
use crate::telemetry::Telemetry;
use crate::tls::TlsError;

pub use answer::Answer;
pub use deliver::{Delivery, Undelivered};
pub use queue::{Parcel, Queue, Target, Token};

use connect::{Connections, Frames};

/// The most we read of an answer's body.
const LONGEST_ANSWER: usize = 64 << 10;

/// Bodies from here on are compressed beside the asynchronous workers, not on them.
const SLOW_TO_COMPRESS: usize = 64 << 10;

/// Why a destination cannot be used. Found at start, before anything is accepted.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The endpoint is no URL.
    #[error("`{origin}`: `{host}` is not a host name or address")]
    Host {
        /// The setting or variable it came from.
        origin: String,
        /// What stands there.
        host: String,
    },
    /// A header that cannot be sent.
    #[error("`{origin}`: `{name}` is not a valid header name, use letters, digits and `-`")]
    HeaderName {
        /// The setting or variable the endpoint came from.
        origin: String,
        /// The header.
        name: String,
    },
    /// A header value that cannot be sent. The value is not shown, it may be a secret.
    #[error(
        "`{origin}`: the value of header `{name}` has characters that no header can carry; a line break at the end of a key file is a usual cause"
    )]
    HeaderValue {
        /// The setting or variable the endpoint came from.
        origin: String,
        /// The header.
        name: String,
    },
    /// A header that the protocol sets.
    #[error("`{origin}`: header `{name}` is set by OTLP itself, remove it")]
    HeaderReserved {
        /// The setting or variable the endpoint came from.
        origin: String,
        /// The header.
        name: String,
    },
    /// `server_name` is no name.
    #[error("`{origin}`: tls.server_name `{name}` is not a host name or address")]
    ServerName {
        /// The setting or variable the endpoint came from.
        origin: String,
        /// What stands there.
        name: String,
    },
    /// Certificate files.
    #[error("`{origin}`: {source}")]
    Tls {
        /// The setting or variable the endpoint came from.
        origin: String,
        /// What is wrong with them.
        source: TlsError,
    },
}

/// Sends OTLP requests to one destination. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    destination: Destination,
    connections: Connections,
    /// Where each signal goes, in the order of [`Signal::ALL`].
    uris: [Uri; 3],
    /// On every request.
    headers: HeaderMap,
}

impl Client {
    /// A client for `destination`; connects when the first request is sent. `telemetry` hears of
    /// certificate files that change.
    pub fn new(
        destination: &Destination,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self, TransportError> {
        let uri = |signal| {
            uri(destination, signal).map_err(|_| TransportError::Host {
                origin: destination.origin.clone(),
                host: destination.endpoint.host.clone(),
            })
        };
        let [traces, logs, metrics] = Signal::ALL;
        let shared = Shared {
            connections: Connections::new(destination, telemetry)?,
            uris: [uri(traces)?, uri(logs)?, uri(metrics)?],
            headers: headers(destination)?,
            destination: destination.clone(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Where it sends to.
    pub fn destination(&self) -> &Destination {
        &self.shared.destination
    }

    /// One attempt to hand a request over: as OTLP, or where it has targets, to those of the
    /// backend's own API.
    pub async fn deliver(&self, parcel: Parcel) -> Answer {
        match parcel.targets.split_last() {
            None => self.send(parcel.signal, parcel.body, &parcel.headers).await,
            Some((last, others)) => {
                for target in others {
                    let answer = self.call(target, parcel.body.clone()).await;
                    if !matches!(answer, Answer::Unknown { .. }) {
                        return answer;
                    }
                }
                self.call(last, parcel.body.clone()).await
            }
        }
    }

    /// One attempt, under the destination's timeout. `headers` go along with those of the
    /// destination; of the same name, they win.
    pub async fn send(&self, signal: Signal, body: Bytes, headers: &HeaderMap) -> Answer {
        let shared = &*self.shared;
        let (body, encoding) = match compress(shared.destination.compression, body).await {
            Ok(compressed) => compressed,
            Err(error) => return Answer::retry(format!("cannot compress the request: {error}")),
        };
        let uri = shared.uris[signal as usize].clone();
        let mut all_headers = shared.headers.clone();
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
            Protocol::HttpProtobuf => http::request(uri, all_headers, body, encoding),
        };
        self.exchange(request, async |response| {
            match shared.destination.protocol {
                Protocol::Grpc => grpc::answer(response).await,
                Protocol::HttpProtobuf => Ok(http::answer(response).await),
            }
        })
        .await
    }

    /// One call of a backend's own API, under the destination's timeout.
    async fn call(&self, target: &Target, body: Bytes) -> Answer {
        let uri = match uri_of(
            &self.shared.destination,
            format!(
                "{}{}",
                self.shared.destination.endpoint.base_path, target.path
            ),
        ) {
            Ok(uri) => uri,
            Err(error) => {
                return Answer::Refused {
                    reason: "refused",
                    why: format!("`{}` is no path: {error}", target.path),
                };
            }
        };
        let request = api::request(
            target.method.clone(),
            uri,
            self.shared.headers.clone(),
            body,
        );
        self.exchange(request, async |response| Ok(api::answer(response).await))
            .await
    }

    async fn exchange(
        &self,
        request: Request<Frames>,
        read: impl AsyncFnOnce(Response<Incoming>) -> Result<Answer, hyper::Error>,
    ) -> Answer {
        let shared = &*self.shared;
        let (response, generation) = shared.connections.request(request);
        let exchange = async {
            let response = response.await.map_err(|error| describe(&error))?;
            read(response).await.map_err(|error| describe(&error))
        };
        match tokio::time::timeout(shared.destination.timeout, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => Answer::retry(why),
            Err(_) => {
                shared.connections.renew(generation);
                Answer::retry(format!("no answer within {:?}", shared.destination.timeout))
            }
        }
    }
}

fn uri(destination: &Destination, signal: Signal) -> Result<Uri, hyper::http::Error> {
    let endpoint = &destination.endpoint;
    let path = match destination.protocol {
        Protocol::Grpc => grpc::path(signal).to_owned(),
        Protocol::HttpProtobuf => http::path(&endpoint.base_path, signal),
    };
    uri_of(destination, path)
}

/// A URL of this path and query, base path included.
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
    let origin = || destination.origin.clone();
    let mut headers = HeaderMap::new();
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("spanscore/", env!("CARGO_PKG_VERSION"))),
    );
    for (name, secret) in &destination.headers {
        let header: HeaderName = name.parse().map_err(|_| TransportError::HeaderName {
            origin: origin(),
            name: name.clone(),
        })?;
        if is_reserved(&header) {
            return Err(TransportError::HeaderReserved {
                origin: origin(),
                name: name.clone(),
            });
        }
        let mut value: HeaderValue =
            secret
                .expose()
                .parse()
                .map_err(|_| TransportError::HeaderValue {
                    origin: origin(),
                    name: name.clone(),
                })?;
        // Keeps it out of debug output and of HTTP/2's header tables.
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

/// Headers that belong to one connection or to the protocol, and must not be set from outside.
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

/// The body as it travels, and the name of its encoding. Level 1: anything above costs more than
/// all our other work together.
async fn compress(
    compression: Compression,
    body: Bytes,
) -> std::io::Result<(Bytes, Option<&'static str>)> {
    let name = match compression {
        Compression::None => return Ok((body, None)),
        Compression::Gzip => "gzip",
        Compression::Zstd => "zstd",
    };
    let is_slow = body.len() >= SLOW_TO_COMPRESS;
    let work = move || -> std::io::Result<Vec<u8>> {
        match compression {
            Compression::None | Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(
                    Vec::with_capacity(body.len() / 4),
                    flate2::Compression::fast(),
                );
                encoder.write_all(&body)?;
                encoder.finish()
            }
            Compression::Zstd => zstd::bulk::compress(&body, 1),
        }
    };
    let compressed = if is_slow {
        tokio::task::spawn_blocking(work).await??
    } else {
        work()?
    };
    Ok((compressed.into(), Some(name)))
}

/// An error with its causes, without saying the same thing twice.
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

/// Reads a body to its end: the start of it, and the trailers, or why it broke off.
async fn read(mut body: Incoming) -> (Vec<u8>, Result<Option<HeaderMap>, hyper::Error>) {
    let mut start = Vec::new();
    let mut trailers = None;
    while let Some(frame) =
        std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await
    {
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
