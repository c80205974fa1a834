//! Tests the receiver over real sockets, on port 0: the answers of the protocol, and the next good
//! request after a bad one. The tests do not prove that other programs' clients agree with ours
//! (the sidecar's tests run those clients), nor what the scan finds.

mod bodies;
mod dense;
mod grpc;
mod http;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Frame;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, metric,
};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::task::JoinSet;

use crate::config::{Budgets, Config};
use crate::eventually::eventually;
use crate::listen::{ConnectionLimits, ConnectionSlots, Port};

use super::*;

/// Reads a body within `limits`, without an announced length in its permit.
async fn read<B: RequestBody>(
    body: &mut B,
    framing: body::Framing,
    encoding: decompress::Encoding,
    limits: &BodyLimits,
) -> Result<BufferedMessage, RequestError> {
    let permit = MemoryPermit::try_new(&limits.budget, PeerId::default(), 0, None)?;
    body::read(body, framing, encoding, limits, permit, |_| Ok(())).await
}

// === an intake that remembers ===

#[derive(Default)]
pub(super) struct Notebook {
    received: Mutex<Vec<Received>>,
    refuses: Mutex<Option<QueueRefusal>>,
    /// Number of bytes from which a body does not fit, if the intake reports it before a request is
    /// read.
    room: Mutex<Option<usize>>,
}

impl RequestSink for Notebook {
    fn admission(&self) -> Option<Arc<dyn SpanAdmission>> {
        Some(Arc::new(span::KeySet::default()))
    }

    fn check_room(&self, _: Signal, _: PeerId, n_bytes: usize) -> Result<(), QueueRefusal> {
        match *self.room.lock().unwrap() {
            Some(room) if n_bytes >= room => Err(QueueRefusal::Full),
            _ => Ok(()),
        }
    }

    fn offer(&self, received: Received) -> Result<Acknowledgement, QueueRefusal> {
        if let Some(refusal) = *self.refuses.lock().unwrap() {
            return Err(refusal);
        }
        self.received.lock().unwrap().push(received);
        Ok(Acknowledgement::Now)
    }
}

impl Notebook {
    pub(super) fn refuse(&self, refusal: impl Into<Option<QueueRefusal>>) {
        *self.refuses.lock().unwrap() = refusal.into();
    }

    /// Makes the intake report, before a request is read, that fewer than `room` bytes fit.
    pub(super) fn leave_room(&self, room: impl Into<Option<usize>>) {
        *self.room.lock().unwrap() = room.into();
    }

    /// Returns the requests since the last call.
    pub(super) fn take(&self) -> Vec<Received> {
        std::mem::take(&mut self.received.lock().unwrap())
    }

    /// Returns the only request since the last call.
    pub(super) fn take_one(&self) -> Received {
        let mut received = self.take();
        assert_eq!(received.len(), 1, "{received:?}");
        received.remove(0)
    }
}

// === a receiver on its own port ===

pub(super) struct Served {
    pub(super) address: SocketAddr,
    pub(super) intake: Arc<Notebook>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) budget: Arc<EvictingBudget>,
    pub(super) metrics: crate::telemetry::MetricsSource,
    /// Stops the receiver at the end of the test.
    _server: JoinSet<()>,
}

/// Starts a receiver that limits requests to 1 MiB each and 2 MiB in flight. `change` may change
/// its settings.
pub(super) async fn serve(change: impl FnOnce(&mut Config, &mut Budgets)) -> Served {
    let mut config = Config::default();
    config.receivers.otlp.max_request_size = config::ByteSize::mib(1);
    let mut budgets = Budgets {
        limit: 512 << 20,
        forward_queue: 64 << 20,
        kafka: 0,
        in_flight: 2 << 20,
        open: 64 << 20,
        recent: 64 << 20,
        scores: 64 << 20,
        scoring_queue: 64 << 20,
        connections: 64 << 20,
        admin_connections: 64 << 20,
        page: 8 << 20,
    };
    change(&mut config, &mut budgets);
    let settings = Settings::try_new(
        &config.receivers.otlp,
        &config.forward,
        &config.journal,
        &budgets.bounds(),
        true,
    )
    .unwrap();
    let budget = Arc::clone(&settings.limits.budget);
    let (intake, telemetry) = (
        Arc::new(Notebook::default()),
        Arc::new(Telemetry::default()),
    );
    let receiver = Receiver::new(settings, intake.clone(), telemetry.clone());
    let metrics = receiver.metrics();
    let port = Port::bind(
        SocketAddr::from(([127, 0, 0, 1], 0)),
        "receivers.otlp.grpc.listen",
        None,
        &ConnectionSlots::new(ConnectionLimits {
            memory: budgets.connections.into(),
            connections: 100,
            streams: 100,
        }),
    )
    .await
    .unwrap();
    let address = port.address().unwrap();
    let mut server = JoinSet::new();
    let heartbeat = telemetry.heartbeat("receiver", tokio::time::Instant::now().into_std());
    server.spawn(port.serve(
        receiver.handler(),
        std::future::pending(),
        heartbeat,
        telemetry.clone(),
    ));
    Served {
        address,
        intake,
        telemetry,
        budget,
        metrics,
        _server: server,
    }
}

impl Served {
    pub(super) fn refused_requests(&self, signal: &'static str, reason: &'static str) -> u64 {
        self.telemetry.counter(
            "spanscore_receiver_refused_requests_total",
            &[("signal", signal), ("reason", reason)],
        )
    }

    /// Waits until no request uses memory. A permit is released when its request's task ends, which
    /// may be shortly after the answer.
    pub(super) async fn assert_nothing_in_flight(&self) {
        eventually("all memory is returned", || {
            (self.budget.n_bytes() == 0).then_some(())
        })
        .await;
    }
}

// === requests ===

pub(super) fn spans(n_spans: usize, text: &str) -> ExportTraceServiceRequest {
    let span = |idx: usize| Span {
        trace_id: vec![7; 16],
        span_id: (idx as u64 + 1).to_be_bytes().to_vec(),
        name: format!("span {idx}"),
        attributes: vec![attribute("tool.name", "search"), attribute("text", text)],
        ..Default::default()
    };
    let scope_spans = vec![ScopeSpans {
        spans: (0..n_spans).map(span).collect(),
        ..Default::default()
    }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans,
            ..Default::default()
        }],
    }
}

pub(super) fn log_records(n_records: usize) -> ExportLogsServiceRequest {
    let log_records = vec![
        LogRecord {
            severity_text: "INFO".to_owned(),
            ..Default::default()
        };
        n_records
    ];
    let scope_logs = vec![ScopeLogs {
        log_records,
        ..Default::default()
    }];
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            scope_logs,
            ..Default::default()
        }],
    }
}

pub(super) fn metric_points(n_points: usize) -> ExportMetricsServiceRequest {
    let gauge = Gauge {
        data_points: vec![
            NumberDataPoint {
                time_unix_nano: 1,
                ..Default::default()
            };
            n_points
        ],
    };
    let metrics = vec![Metric {
        name: "m".to_owned(),
        data: Some(metric::Data::Gauge(gauge)),
        ..Default::default()
    }];
    let scope_metrics = vec![ScopeMetrics {
        metrics,
        ..Default::default()
    }];
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            scope_metrics,
            ..Default::default()
        }],
    }
}

fn attribute(key: &str, text: &str) -> KeyValue {
    let value = Some(AnyValue {
        value: Some(any_value::Value::StringValue(text.to_owned())),
    });
    KeyValue {
        key: key.to_owned(),
        value,
        ..Default::default()
    }
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zlib(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ::zstd::bulk::compress(bytes, 1).unwrap()
}

pub(super) fn framed(compressed: u8, message: &[u8]) -> Vec<u8> {
    let mut framed = vec![compressed];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    framed
}

pub(super) struct Pieces(tokio::sync::mpsc::Receiver<Bytes>);

impl Pieces {
    pub(super) fn new() -> (tokio::sync::mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        (sender, Self(receiver))
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
