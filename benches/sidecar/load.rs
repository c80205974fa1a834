//! A load generator: a process of its own, which sends the requests of one ring over four connections, and is told where and how many on its
//! standard input.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper::{Method, Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::clock::{instant_at, monotonic_nanos};
use crate::payload::{Filled, Recipe, Ring};

pub(crate) const N_CONNECTIONS: u64 = 4;

/// The common SDKs' default.
const GZIP_LEVEL: u32 = 6;

/// What was sent.
#[derive(Default)]
struct Sent {
    n_requests: u64,
    n_roots: u64,
    digest: u64,
    n_refused: u64,
}

impl Sent {
    fn add(&mut self, other: &Self) {
        self.n_requests += other.n_requests;
        self.n_roots += other.n_roots;
        self.digest = self.digest.wrapping_add(other.digest);
        self.n_refused += other.n_refused;
    }
}

struct Loader {
    ring: Arc<Ring>,
    /// How far each stream has come; a stream is what one connection sends to one target.
    positions: HashMap<u64, u64>,
}

/// Sends until standard input ends. Says `ready N` first, N being the requests of the ring.
/// Answers `send PORT TARGET N none|gzip CONNECTIONS` (N requests on each connection, the next when the last was answered) with
/// `requests roots digest refused nanos`, and `pace PORT TARGET N RATE` (N requests in all, so many a second, whether answered or not) with
/// N lines `digest due answered` and `end`.
pub(crate) fn run(recipe: Recipe) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut loader = Loader { ring: Arc::new(Ring::new(recipe)), positions: HashMap::new() };
    let mut out = io::stdout();
    writeln!(out, "ready {}", loader.ring.len())?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).ok_or(io::ErrorKind::InvalidInput);
        match words[0] {
            "pace" => {
                let timings = runtime.block_on(loader.pace(number(1)?, number(2)?, number(3)?, number(4)?))?;
                for (digest, due, answered) in timings {
                    writeln!(out, "{digest} {due} {answered}")?;
                }
                writeln!(out, "end")?;
            }
            _ => {
                let gzip = words.get(4) == Some(&"gzip");
                let started = monotonic_nanos();
                let sent = runtime.block_on(loader.send(number(1)?, number(2)?, number(3)?, gzip, number(5)?))?;
                let Sent { n_requests, n_roots, digest, n_refused } = sent;
                writeln!(out, "{n_requests} {n_roots} {digest} {n_refused} {}", monotonic_nanos() - started)?;
            }
        }
    }
    Ok(())
}

impl Loader {
    async fn send(&mut self, port: u64, target: u64, n_requests: u64, gzip: bool, n_connections: u64) -> io::Result<Sent> {
        let mut senders = JoinSet::new();
        for connection in 0..n_connections {
            let stream = stream(target, connection);
            let first = self.take(stream, n_requests);
            let ring = Arc::clone(&self.ring);
            let mut client = Client::connect(port).await?;
            senders.spawn(async move {
                let mut sent = Sent::default();
                for position in first..first + n_requests {
                    let filled = ring.fill(stream, position);
                    let is_taken = client.send(&filled.body, gzip).await?;
                    sent.add(&match is_taken {
                        true => Sent { n_requests: 1, n_roots: filled.n_roots, digest: filled.digest, n_refused: 0 },
                        false => Sent { n_refused: 1, ..Sent::default() },
                    });
                }
                Ok::<_, io::Error>(sent)
            });
        }
        let mut sent = Sent::default();
        while let Some(joined) = senders.join_next().await {
            sent.add(&joined.map_err(io::Error::other)??);
        }
        Ok(sent)
    }

    async fn pace(&mut self, port: u64, target: u64, n_requests: u64, rate: u64) -> io::Result<Vec<(u64, u64, u64)>> {
        let mut clients = Vec::new();
        for _ in 0..N_CONNECTIONS {
            clients.push(Client::connect(port).await?);
        }
        // Made beforehand, so that what is measured is not how fast we write them.
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
            let mut client = clients[(nth % N_CONNECTIONS) as usize].clone();
            tokio::time::sleep_until(instant_at(due).into()).await;
            senders.spawn(async move {
                let is_taken = client.send(&filled.body, false).await?;
                let timing = (filled.digest, due, monotonic_nanos());
                is_taken.then_some(timing).ok_or_else(|| io::Error::other("a paced request was refused"))
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

#[derive(Clone)]
struct Client {
    sender: SendRequest<Full<Bytes>>,
    uri: Uri,
}

impl Client {
    async fn connect(port: u64) -> io::Result<Self> {
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).await?;
        stream.set_nodelay(true)?;
        let mut http = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        http.max_send_buf_size(4 << 20);
        let (sender, connection) = http.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // It ends with the last handle of its sender; its errors are those of the requests on it.
        tokio::spawn(connection);
        let uri = format!("http://127.0.0.1:{port}/opentelemetry.proto.collector.trace.v1.TraceService/Export");
        Ok(Self { sender, uri: uri.parse().map_err(io::Error::other)? })
    }

    /// `false` if there was no room for it.
    async fn send(&mut self, message: &[u8], gzip: bool) -> io::Result<bool> {
        let compressed;
        let message = if gzip {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
            encoder.write_all(message)?;
            compressed = encoder.finish()?;
            &compressed[..]
        } else {
            message
        };
        let mut body = Vec::with_capacity(5 + message.len());
        body.put_u8(u8::from(gzip));
        body.put_u32(message.len() as u32);
        body.extend_from_slice(message);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if gzip {
            request = request.header("grpc-encoding", "gzip");
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(io::Error::other)?;
        self.sender.ready().await.map_err(io::Error::other)?;
        let exchange = async {
            let response = self.sender.send_request(request).await?;
            let headers = response.headers().clone();
            let collected = response.into_body().collect().await?;
            Ok::<_, hyper::Error>(collected.trailers().unwrap_or(&headers).get("grpc-status").cloned())
        };
        let status = tokio::time::timeout(Duration::from_secs(60), exchange).await?.map_err(io::Error::other)?;
        match status.as_ref().map(|status| status.as_bytes()) {
            Some(b"0") => Ok(true),
            Some(b"14") => Ok(false),
            other => Err(io::Error::other(format!("the answer's status is {other:?}"))),
        }
    }
}
