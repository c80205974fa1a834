//! The receivers of the measured requests. Some drop everything they receive, as raw bytes or
//! decoded by prost. One is the backend behind a sidecar, and reads every span's ids. Each receiver
//! is a separate process, so that its CPU time is measured alone, and reads commands from its
//! standard input.

use std::convert::Infallible;
use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tokio::net::TcpListener;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, NamedService};
use tonic::transport::server::TcpIncoming;

use crate::clock::monotonic_nanos;
use crate::payload::digest;

/// Flow-control windows in bytes. They are larger than those of the sidecar's ports, so flow
/// control costs these receivers less.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
const MAX_FRAME: u32 = 1 << 20;
const MAX_MESSAGE: usize = 64 << 20;

const SCORES: &[u8] = b"spanscore";

#[derive(Default)]
struct Seen {
    n_requests: AtomicU64,
    n_spans: AtomicU64,
    n_score_spans: AtomicU64,
    digest: AtomicU64,
    /// The delay of each answer in milliseconds.
    delay: AtomicU64,
    /// True if every request is answered with "unavailable", and not counted.
    is_down: AtomicBool,
    notes_arrivals: AtomicBool,
    /// The digest of each request, with its time of arrival.
    arrivals: Mutex<Vec<(u64, u64)>>,
}

/// Serves until standard input ends. First prints `ready PORT`. Answers `report` with `requests
/// spans digest score-spans`; `arrivals` with a line for each request since the previous query, and
/// `end`; `delay MILLIS`, `down` and `up` with `ok`.
pub(crate) fn run(kind: &str) -> io::Result<()> {
    let seen = Arc::new(Seen::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn({
        let seen = Arc::clone(&seen);
        move || {
            // A broken pipe means that nobody reads the answers.
            let _ = obey(&seen, port);
            std::process::exit(0);
        }
    });
    match kind {
        "raw" => runtime.block_on(serve(listener, RawReceiver { seen })),
        "prost" => {
            let server = TraceServiceServer::new(DecodingReceiver { seen });
            runtime.block_on(serve(
                listener,
                server
                    .max_decoding_message_size(MAX_MESSAGE)
                    .accept_compressed(CompressionEncoding::Gzip),
            ))
        }
        _ => runtime.block_on(check(listener, seen)),
    }
}

fn obey(seen: &Seen, port: u16) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "ready {port}")?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("delay", millis) => {
                seen.delay
                    .store(millis.parse().unwrap_or_default(), Ordering::Relaxed);
                writeln!(out, "ok")?;
            }
            (state @ ("down" | "up"), _) => {
                seen.is_down.store(state == "down", Ordering::Relaxed);
                writeln!(out, "ok")?;
            }
            ("arrivals", _) => {
                seen.notes_arrivals.store(true, Ordering::Relaxed);
                let arrivals =
                    std::mem::take(&mut *seen.arrivals.lock().map_err(|_| io::ErrorKind::Other)?);
                for (digest, nanos) in arrivals {
                    writeln!(out, "{digest} {nanos}")?;
                }
                writeln!(out, "end")?;
            }
            _ => {
                let [n_requests, n_spans, digest, n_score_spans] = [
                    &seen.n_requests,
                    &seen.n_spans,
                    &seen.digest,
                    &seen.n_score_spans,
                ]
                .map(|number| number.load(Ordering::SeqCst));
                writeln!(out, "{n_requests} {n_spans} {digest} {n_score_spans}")?;
            }
        }
    }
    Ok(())
}

async fn serve<S>(listener: TcpListener, service: S) -> io::Result<()>
where
    S: tonic::codegen::Service<
            Request<tonic::body::Body>,
            Response = Response<tonic::body::Body>,
            Error = Infallible,
        > + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .add_service(service)
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await
        .map_err(io::Error::other)
}

// === raw bytes, dropped ===

#[derive(Clone)]
struct RawReceiver {
    seen: Arc<Seen>,
}

impl NamedService for RawReceiver {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl tonic::codegen::Service<Request<tonic::body::Body>> for RawReceiver {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let seen = Arc::clone(&self.seen);
        Box::pin(async move {
            let export = tower::service_fn(move |request: tonic::Request<Bytes>| {
                seen.n_requests.fetch_add(1, Ordering::SeqCst);
                drop(request);
                async { Ok::<_, tonic::Status>(tonic::Response::new(Bytes::new())) }
            });
            let grpc = Grpc::new(RawCodec);
            let mut grpc = grpc
                .max_decoding_message_size(MAX_MESSAGE)
                .accept_compressed(CompressionEncoding::Gzip);
            Ok(grpc.unary(export, request).await)
        })
    }
}

#[derive(Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = tonic::Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = tonic::Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, tonic::Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

// === decoded, dropped ===

struct DecodingReceiver {
    seen: Arc<Seen>,
}

#[tonic::async_trait]
impl TraceService for DecodingReceiver {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        drop(request);
        self.seen.n_requests.fetch_add(1, Ordering::SeqCst);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

// === read ===

async fn check(listener: TcpListener, seen: Arc<Seen>) -> io::Result<()> {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let seen = Arc::clone(&seen);
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, Arc::clone(&seen)));
            let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            http.initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_frame_size(MAX_FRAME);
            // When a sidecar stops, it closes its connection.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    seen: Arc<Seen>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, hyper::Error> {
    let is_traces = request.uri().path().contains("TraceService");
    let body = request.into_body().collect().await?.to_bytes();
    let arrived = monotonic_nanos();
    let is_down = seen.is_down.load(Ordering::Relaxed);
    if is_traces && !is_down {
        let message = body.get(5..).unwrap_or_default();
        let mut tally = Tally::default();
        let status = tally.request(message);
        if status.is_none() || body.first() != Some(&0) {
            // Unknown content must not be counted as arrived.
            tally = Tally::default();
        }
        seen.n_requests.fetch_add(1, Ordering::SeqCst);
        seen.digest.fetch_add(tally.digest, Ordering::SeqCst);
        seen.n_score_spans
            .fetch_add(tally.n_score_spans, Ordering::SeqCst);
        seen.n_spans.fetch_add(tally.n_spans, Ordering::SeqCst);
        if seen.notes_arrivals.load(Ordering::Relaxed)
            && let Ok(mut arrivals) = seen.arrivals.lock()
        {
            arrivals.push((tally.digest, arrived));
        }
    }
    let delay = seen.delay.load(Ordering::Relaxed);
    if delay > 0 {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let trailers = async move {
        let status = (
            HeaderName::from_static("grpc-status"),
            HeaderValue::from_static(if is_down { "14" } else { "0" }),
        );
        Some(Ok(HeaderMap::from_iter([status])))
    };
    let mut response =
        Response::new(Full::new(Bytes::from_static(&[0; 5])).with_trailers(trailers));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

#[derive(Default)]
struct Tally {
    n_spans: u64,
    n_score_spans: u64,
    digest: u64,
}

impl Tally {
    fn request(&mut self, message: &[u8]) -> Option<()> {
        for resource_spans in delimited(message, 1)? {
            for scope_spans in delimited(resource_spans, 2)? {
                let scope = delimited(scope_spans, 1)?.pop().unwrap_or_default();
                let spans = delimited(scope_spans, 2)?;
                if delimited(scope, 1)?.pop() == Some(SCORES) {
                    self.n_score_spans += spans.len() as u64;
                    continue;
                }
                for span in spans {
                    self.n_spans += 1;
                    let [trace_id, span_id] = ids(span)?;
                    self.digest = self.digest.wrapping_add(digest(trace_id, span_id));
                }
            }
        }
        Some(())
    }
}

fn delimited(mut message: &[u8], tag: u32) -> Option<Vec<&[u8]>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let (field, wire_type) = decode_key(&mut message).ok()?;
        if field == tag && wire_type == WireType::LengthDelimited {
            let len = decode_varint(&mut message).ok()?;
            let (bytes, rest) = message.split_at_checked(len as usize)?;
            found.push(bytes);
            message = rest;
        } else {
            skip_field(wire_type, field, &mut message, DecodeContext::default()).ok()?;
        }
    }
    Some(found)
}

/// Returns the trace id and the span id of a span. Nearly every sender writes them first; a
/// Collector writes the fields of a span in reverse.
fn ids(mut span: &[u8]) -> Option<[&[u8]; 2]> {
    let mut ids = [None; 2];
    loop {
        if let [Some(trace_id), Some(span_id)] = ids {
            return Some([trace_id, span_id]);
        }
        let (field, wire_type) = decode_key(&mut span).ok()?;
        if let (1 | 2, WireType::LengthDelimited) = (field, wire_type) {
            let len = decode_varint(&mut span).ok()?;
            let (bytes, rest) = span.split_at_checked(len as usize)?;
            ids[field as usize - 1] = Some(bytes);
            span = rest;
        } else {
            skip_field(wire_type, field, &mut span, DecodeContext::default()).ok()?;
        }
    }
}
