//! A load generator: a separate process that sends the requests of one ring over several
//! connections, on commands from its standard input.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::http::request;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::clock::{instant_at, monotonic_nanos};
use crate::payload::{Filled, Recipe, Ring};

pub(crate) const N_CONNECTIONS: u64 = 4;

/// The default gzip level of common SDKs.
const GZIP_LEVEL: u32 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Grpc,
    /// OTLP/gRPC, compressed.
    Gzip,
    /// OTLP/HTTP with protobuf, over HTTP/1.1, as most SDKs send it.
    Http,
}

impl Wire {
    fn try_new(word: &str) -> io::Result<Self> {
        match word {
            "grpc" => Ok(Self::Grpc),
            "gzip" => Ok(Self::Gzip),
            "http" => Ok(Self::Http),
            other => Err(io::Error::other(format!("nothing travels by `{other}`"))),
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Gzip => "gzip",
            Self::Http => "http",
        }
    }
}

#[derive(Default)]
struct Sent {
    n_requests: u64,
    n_roots: u64,
    digest: u64,
    n_refused: u64,
    /// The time until the answer to each accepted request, in nanoseconds.
    waits: Vec<u64>,
}

impl Sent {
    fn add(&mut self, mut other: Self) {
        self.waits.append(&mut other.waits);
        self.n_requests += other.n_requests;
        self.n_roots += other.n_roots;
        self.digest = self.digest.wrapping_add(other.digest);
        self.n_refused += other.n_refused;
    }
}

struct Loader {
    ring: Arc<Ring>,
    /// The next position of each stream; a stream belongs to one connection and one target.
    positions: HashMap<u64, u64>,
}

/// Sends requests until standard input ends. First prints `ready N`, where N is the number of
/// requests in the ring. Commands:
///
/// - `send PORT TARGET N grpc|gzip|http CONNECTIONS` sends N requests on each connection, each
///   after the previous answer. It prints `requests roots digest refused nanos`.
/// - `waits` has the parameters of `send`. It prints one line for each accepted request, with the
///   nanoseconds that the answer took, and then `end`.
/// - `pace PORT TARGET N RATE` sends N requests in total at that rate, even if earlier ones were
///   not answered. It prints N lines `digest due answered`, and `end`.
pub(crate) fn run(recipe: Recipe) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut loader = Loader {
        ring: Arc::new(Ring::new(recipe)),
        positions: HashMap::new(),
    };
    let mut out = io::stdout();
    writeln!(out, "ready {}", loader.ring.len())?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| {
            words
                .get(at)
                .and_then(|word| word.parse::<u64>().ok())
                .ok_or(io::ErrorKind::InvalidInput)
        };
        match words[0] {
            "pace" => {
                let timings = runtime.block_on(loader.pace(
                    number(1)?,
                    number(2)?,
                    number(3)?,
                    number(4)?,
                ))?;
                for (digest, due, answered) in timings {
                    writeln!(out, "{digest} {due} {answered}")?;
                }
                writeln!(out, "end")?;
            }
            _ => {
                let wire = Wire::try_new(words.get(4).copied().unwrap_or_default())?;
                let started = monotonic_nanos();
                let sent = runtime.block_on(loader.send(
                    number(1)?,
                    number(2)?,
                    number(3)?,
                    wire,
                    number(5)?,
                ))?;
                let Sent {
                    n_requests,
                    n_roots,
                    digest,
                    n_refused,
                    waits,
                } = sent;
                if words[0] == "waits" {
                    for nanos in waits {
                        writeln!(out, "{nanos}")?;
                    }
                    writeln!(out, "end")?;
                    continue;
                }
                writeln!(
                    out,
                    "{n_requests} {n_roots} {digest} {n_refused} {}",
                    monotonic_nanos() - started
                )?;
            }
        }
    }
    Ok(())
}

impl Loader {
    async fn send(
        &mut self,
        port: u64,
        target: u64,
        n_requests: u64,
        wire: Wire,
        n_connections: u64,
    ) -> io::Result<Sent> {
        let mut senders = JoinSet::new();
        for connection in 0..n_connections {
            let stream = stream(target, connection);
            let first = self.take(stream, n_requests);
            let ring = Arc::clone(&self.ring);
            let mut client = Client::connect(port, wire).await?;
            senders.spawn(async move {
                let mut sent = Sent::default();
                let mut n_turned_away = 0;
                for position in first..first + n_requests {
                    let filled = ring.fill(stream, position);
                    let begun = monotonic_nanos();
                    let Ok(is_taken) = client.send(&filled.body).await else {
                        // The sidecar has no memory for the connection, or has crashed.
                        sent.n_refused += 1;
                        n_turned_away += 1;
                        match Client::connect(port, wire).await {
                            Ok(another) if n_turned_away == 1 => client = another,
                            _ => break,
                        }
                        continue;
                    };
                    sent.add(if is_taken {
                        Sent {
                            n_requests: 1,
                            n_roots: filled.n_roots,
                            digest: filled.digest,
                            n_refused: 0,
                            waits: vec![monotonic_nanos() - begun],
                        }
                    } else {
                        Sent {
                            n_refused: 1,
                            ..Sent::default()
                        }
                    });
                }
                Ok::<_, io::Error>(sent)
            });
        }
        let mut sent = Sent::default();
        while let Some(joined) = senders.join_next().await {
            sent.add(joined.map_err(io::Error::other)??);
        }
        Ok(sent)
    }

    async fn pace(
        &mut self,
        port: u64,
        target: u64,
        n_requests: u64,
        rate: u64,
    ) -> io::Result<Vec<(u64, u64, u64)>> {
        let mut clients = Vec::new();
        for _ in 0..N_CONNECTIONS {
            clients.push(Client::connect(port, Wire::Grpc).await?);
        }
        // Build the requests beforehand, so that the time for building them is not measured.
        let each = n_requests.div_ceil(N_CONNECTIONS);
        let streams: Vec<(u64, u64)> = (0..N_CONNECTIONS)
            .map(|connection| {
                let stream = stream(target, connection);
                (stream, self.take(stream, each))
            })
            .collect();
        let filled: Vec<Filled> = (0..n_requests)
            .map(|nth| {
                let (stream, first) = streams[(nth % N_CONNECTIONS) as usize];
                self.ring.fill(stream, first + nth / N_CONNECTIONS)
            })
            .collect();
        let begin = monotonic_nanos() + 20_000_000;
        let mut senders = JoinSet::new();
        for (nth, filled) in (0..).zip(filled) {
            let due = begin + nth * 1_000_000_000 / rate;
            let mut client = clients[(nth % N_CONNECTIONS) as usize].beside()?;
            tokio::time::sleep_until(instant_at(due).into()).await;
            senders.spawn(async move {
                let is_taken = client.send(&filled.body).await?;
                let timing = (filled.digest, due, monotonic_nanos());
                is_taken
                    .then_some(timing)
                    .ok_or_else(|| io::Error::other("a paced request was refused"))
            });
        }
        let mut timings = Vec::new();
        while let Some(joined) = senders.join_next().await {
            timings.push(joined.map_err(io::Error::other)??);
        }
        Ok(timings)
    }

    fn take(&mut self, stream: u64, n_requests: u64) -> u64 {
        let position = self.positions.entry(stream).or_default();
        let first = *position;
        *position += n_requests;
        first
    }
}

fn stream(target: u64, connection: u64) -> u64 {
    target * 1_000 + connection
}

struct Client {
    sender: Sender,
    wire: Wire,
    uri: Uri,
    host: String,
}

enum Sender {
    Http2(http2::SendRequest<Full<Bytes>>),
    Http1(http1::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

impl Client {
    async fn connect(port: u64, wire: Wire) -> io::Result<Self> {
        let host = format!("127.0.0.1:{port}");
        let stream = TcpStream::connect(&host).await?;
        stream.set_nodelay(true)?;
        let stream = TokioIo::new(stream);
        // The task of a connection ends when the last handle of its sender is dropped. Nobody
        // awaits the task, because the requests return the connection's errors.
        let (sender, uri) = if wire == Wire::Http {
            let (sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            (Sender::Http1(sender), "/v1/traces".to_owned())
        } else {
            let mut http = http2::Builder::new(TokioExecutor::new());
            http.max_send_buf_size(4 << 20);
            let (sender, connection) = http.handshake(stream).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            (
                Sender::Http2(sender),
                format!("http://{host}/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
            )
        };
        Ok(Self {
            sender,
            wire,
            uri: uri.parse().map_err(io::Error::other)?,
            host,
        })
    }

    /// Returns a second handle of the same connection, for concurrent requests.
    fn beside(&self) -> io::Result<Self> {
        let Sender::Http2(sender) = &self.sender else {
            return Err(io::Error::other("HTTP/1.1 takes one request at a time"));
        };
        Ok(Self {
            sender: Sender::Http2(sender.clone()),
            wire: self.wire,
            uri: self.uri.clone(),
            host: self.host.clone(),
        })
    }

    /// Sends a request; returns `false` if the receiver answered that it is unavailable, usually
    /// for lack of space.
    async fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone());
        let request = match self.wire {
            Wire::Grpc => grpc(request, message, None),
            Wire::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
                encoder.write_all(message)?;
                grpc(request, &encoder.finish()?, Some("gzip"))
            }
            Wire::Http => {
                let request = request
                    .header("host", &self.host)
                    .header("content-type", "application/x-protobuf");
                request.body(Full::new(Bytes::copy_from_slice(message)))
            }
        };
        let request = request.map_err(io::Error::other)?;
        let exchange = async {
            let response = self.sender.send(request).await?;
            let (head, body) = response.into_parts();
            let collected = body.collect().await?;
            let status = collected
                .trailers()
                .unwrap_or(&head.headers)
                .get("grpc-status")
                .cloned();
            Ok::<_, hyper::Error>((head.status, status))
        };
        let (http_status, status) = tokio::time::timeout(Duration::from_secs(60), exchange)
            .await?
            .map_err(io::Error::other)?;
        match (
            self.wire,
            http_status,
            status.as_ref().map(|status| status.as_bytes()),
        ) {
            (Wire::Http, StatusCode::OK, _)
            | (Wire::Grpc | Wire::Gzip, StatusCode::OK, Some(b"0")) => Ok(true),
            (Wire::Http, StatusCode::SERVICE_UNAVAILABLE, _)
            | (Wire::Grpc | Wire::Gzip, StatusCode::OK, Some(b"14")) => Ok(false),
            other => Err(io::Error::other(format!("the answer is {other:?}"))),
        }
    }
}

fn grpc(
    request: request::Builder,
    message: &[u8],
    encoding: Option<&str>,
) -> hyper::http::Result<Request<Full<Bytes>>> {
    let mut body = Vec::with_capacity(5 + message.len());
    body.put_u8(u8::from(encoding.is_some()));
    body.put_u32(message.len() as u32);
    body.extend_from_slice(message);
    let mut request = request
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    request.body(Full::new(Bytes::from(body)))
}
