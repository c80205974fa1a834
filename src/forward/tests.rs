//! Tests the forward plane from the receivers' handle to a peer on a socket: delivery, retries,
//! splits, refusals, drops, and that the accounts balance at every moment. The tests check hardly
//! any times, because their intervals are milliseconds; the tests of `retry` check how intervals
//! grow.

mod journaled;
mod log_lines;
mod retries;
mod stopping;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tonic::Code;

use super::*;
use crate::config::Protocol;
use crate::telemetry::ItemCounts;
use crate::transport::Undelivered;
use crate::transport::tests::peer::{Peer, PeerRequest, Reply};

struct Plane {
    handle: ForwardHandle,
    delivery: Delivery,
    telemetry: Arc<Telemetry>,
}

impl Plane {
    fn new(destination: Destination) -> Self {
        Self::with(Settings {
            destination: Some(destination),
            signals: Signal::ALL.to_vec(),
            capacity: (1 << 20).into(),
            journal: None,
        })
    }

    fn with(settings: Settings) -> Self {
        let telemetry = Arc::new(Telemetry::default());
        let (handle, delivery) = start(settings, &telemetry, fastrand::Rng::with_seed(7)).unwrap();
        Self {
            handle,
            delivery: delivery.unwrap(),
            telemetry,
        }
    }

    fn offer(&self, body: impl Into<Bytes>, n_items: u64) {
        assert_eq!(
            self.handle.offer(outbound(
                Signal::Traces,
                PeerId(1),
                body.into(),
                n_items,
                Vec::new()
            )),
            Ok(())
        );
    }

    /// Waits until everything is delivered and returns the accounts.
    async fn finish(self) -> ItemCounts {
        let (undelivered, books) = self.finish_within(Duration::from_secs(60)).await;
        assert_eq!(undelivered, Undelivered::new());
        books
    }

    async fn finish_within(self, time: Duration) -> (Undelivered, ItemCounts) {
        self.handle
            .close((tokio::time::Instant::now() + time).into_std());
        let undelivered = run_and_check_the_balance(self.delivery, &self.telemetry).await;
        let mut books = self.telemetry.item_counts();
        (undelivered, books.remove("traces").unwrap_or_default())
    }
}

/// Runs the delivery to its end. Checks the accounts every millisecond, and whenever the delivery
/// has made progress.
async fn run_and_check_the_balance(delivery: Delivery, telemetry: &Telemetry) -> Undelivered {
    let check = || {
        for (signal, books) in telemetry.item_counts() {
            assert_balance(signal, &books);
        }
    };
    let watch = async {
        loop {
            check();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut running = pin!(delivery.run());
    let run = poll_fn(|context| {
        let polled = running.as_mut().poll(context);
        check();
        polled
    });
    tokio::select! {
        undelivered = run => undelivered,
        () = watch => unreachable!("it never ends"),
    }
}

fn assert_balance(signal: &str, books: &ItemCounts) {
    assert_eq!(
        books.accepted + books.restored,
        books.sent + books.queued + books.dropped.values().sum::<u64>(),
        "{signal}: {books:?}"
    );
}

fn books(accepted: u64, sent: u64, dropped: &[(&'static str, u64)]) -> ItemCounts {
    ItemCounts {
        accepted,
        restored: 0,
        sent,
        queued: 0,
        dropped: dropped.iter().copied().collect(),
        refused: BTreeMap::new(),
    }
}

fn spans(names: &[String]) -> Bytes {
    let spans = names
        .iter()
        .map(|name| Span {
            name: name.clone(),
            ..Span::default()
        })
        .collect();
    let scope_spans = vec![ScopeSpans {
        spans,
        ..ScopeSpans::default()
    }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans,
            ..ResourceSpans::default()
        }],
    }
    .encode_to_vec()
    .into()
}

fn names(received: &PeerRequest) -> Vec<String> {
    let request = ExportTraceServiceRequest::decode(received.body.clone()).unwrap();
    let scopes = request
        .resource_spans
        .into_iter()
        .flat_map(|resource_spans| resource_spans.scope_spans);
    scopes
        .flat_map(|scope_spans| scope_spans.spans)
        .map(|span| span.name)
        .collect()
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Grpc, Protocol::HttpProtobuf];

#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Collects the log lines of this thread; a test's runtime has one thread.
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    /// Returns the log lines, with ports masked.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let port = regex::Regex::new(r"127\.0\.0\.1:[0-9]+").unwrap();
        text.lines()
            .map(|line| port.replace_all(line.trim(), "PEER").into_owned())
            .collect()
    }
}

// === what arrives ===

#[tokio::test]
async fn every_byte_arrives_once_and_unchanged() {
    for protocol in PROTOCOLS {
        let peer = Peer::willing().await;
        let plane = Plane::new(peer.destination(protocol));
        let mut bodies: Vec<Bytes> = (0..100_usize)
            .map(|n| {
                (0..n * 37 + 1)
                    .map(|byte| ((byte ^ n) % 256) as u8)
                    .collect()
            })
            .collect();
        for body in &bodies {
            plane.offer(body.clone(), 3);
        }
        assert_eq!(plane.finish().await, books(300, 300, &[]));
        let mut arrived: Vec<Bytes> = peer
            .received()
            .into_iter()
            .map(|received| received.body)
            .collect();
        bodies.sort();
        arrived.sort();
        assert_eq!(arrived, bodies);
    }
}

#[tokio::test]
async fn a_requests_own_headers_go_along_even_on_a_second_attempt() {
    let peer = Peer::start(
        |n, _| {
            if n == 0 { Reply::http(503) } else { Reply::taken() }
        },
    )
    .await;
    let plane = Plane::new(peer.destination(Protocol::Grpc));
    let headers = ["a", "b"].map(|value| {
        (
            HeaderName::from_static("x-tenant"),
            HeaderValue::from_static(value),
        )
    });
    plane
        .handle
        .offer(outbound(
            Signal::Traces,
            PeerId(1),
            Bytes::from_static(b"x"),
            1,
            headers.to_vec(),
        ))
        .unwrap();
    plane.finish().await;
    assert_eq!(peer.received().len(), 2);
    for received in peer.received() {
        assert_eq!(
            received
                .headers
                .get_all("x-tenant")
                .iter()
                .collect::<Vec<_>>(),
            ["a", "b"]
        );
    }
}

#[tokio::test]
async fn signals_the_backend_does_not_take_are_accepted_and_discarded() {
    let peer = Peer::willing().await;
    let signals = vec![Signal::Traces];
    let plane = Plane::with(Settings {
        destination: Some(peer.destination(Protocol::Grpc)),
        signals,
        capacity: (1 << 20).into(),
        journal: None,
    });
    plane.offer(&b"x"[..], 2);
    plane
        .handle
        .offer(outbound(
            Signal::Logs,
            PeerId(1),
            Bytes::from_static(b"y"),
            5,
            Vec::new(),
        ))
        .unwrap();
    let telemetry = plane.telemetry.clone();
    assert_eq!(plane.finish().await, books(2, 2, &[]));
    assert_eq!(
        telemetry.item_counts()["logs"],
        books(5, 0, &[("discarded", 5)])
    );
    assert_eq!(peer.received().len(), 1);
}

#[test]
fn without_a_downstream_everything_is_accepted_and_discarded() {
    let telemetry = Arc::new(Telemetry::default());
    let settings = Settings {
        destination: None,
        signals: Signal::ALL.to_vec(),
        capacity: 0.into(),
        journal: None,
    };
    let (handle, delivery) = start(settings, &telemetry, fastrand::Rng::with_seed(7)).unwrap();
    assert!(delivery.is_none());
    handle
        .offer(outbound(
            Signal::Traces,
            PeerId(1),
            vec![0; 1 << 20].into(),
            7,
            Vec::new(),
        ))
        .unwrap();
    assert_eq!(
        telemetry.item_counts()["traces"],
        books(7, 0, &[("discarded", 7)])
    );
}

// === split, refused, dropped ===

#[tokio::test]
async fn a_request_that_is_too_large_is_split_until_it_fits_and_arrives_once() {
    let too_large = [
        (Protocol::Grpc, Reply::grpc(Code::OutOfRange)),
        (Protocol::Grpc, Reply::grpc(Code::ResourceExhausted)),
        (Protocol::HttpProtobuf, Reply::http(413)),
    ];
    for (protocol, reply) in too_large {
        let peer =
            Peer::start(
                move |_, received| {
                    if received.body.len() > 200 { reply.clone() } else { Reply::taken() }
                },
            )
            .await;
        let plane = Plane::new(peer.destination(protocol));
        let mut expected: Vec<String> = (0..50).map(|n| format!("span number {n}")).collect();
        // This span never fits.
        let giant = "x".repeat(300);
        let mut all = expected.clone();
        all.insert(20, giant);
        plane.offer(spans(&all), 51);
        plane.offer(spans(&["fits".to_owned()]), 1);
        expected.push("fits".to_owned());
        let telemetry = plane.telemetry.clone();
        assert_eq!(plane.finish().await, books(52, 51, &[("too_large", 1)]));
        let mut arrived: Vec<String> = peer
            .received()
            .iter()
            .filter(|received| received.body.len() <= 200)
            .flat_map(names)
            .collect();
        arrived.sort();
        expected.sort();
        assert_eq!(arrived, expected);
        let n_splits =
            telemetry.counter("spanscore_exporter_splits_total", &[("queue", "forward")]);
        assert_eq!(
            peer.received().len() as u64,
            2 * n_splits + 2,
            "each split makes two requests of one"
        );
    }
}

#[tokio::test]
async fn a_final_refusal_is_dropped_and_the_next_request_goes_through() {
    let refusals = [
        (
            Protocol::Grpc,
            Reply::grpc(Code::InvalidArgument),
            "invalid_argument",
        ),
        (
            Protocol::Grpc,
            Reply::grpc(Code::Unauthenticated),
            "unauthenticated",
        ),
        (
            Protocol::Grpc,
            Reply::grpc(Code::Unimplemented),
            "unimplemented",
        ),
        (Protocol::Grpc, Reply::grpc(Code::Internal), "refused"),
        (Protocol::HttpProtobuf, Reply::http(400), "invalid_argument"),
        (Protocol::HttpProtobuf, Reply::http(404), "unimplemented"),
        (Protocol::HttpProtobuf, Reply::http(500), "refused"),
        (
            Protocol::HttpProtobuf,
            Reply::Http {
                status: 307,
                headers: vec![("location", "/else".to_owned())],
                body: Vec::new(),
            },
            "redirected",
        ),
    ];
    for (protocol, reply, reason) in refusals {
        let peer = Peer::start(
            move |_, received| {
                if received.body == "bad" { reply.clone() } else { Reply::taken() }
            },
        )
        .await;
        let plane = Plane::new(peer.destination(protocol));
        plane.offer(&b"bad"[..], 2);
        plane.offer(&b"good"[..], 3);
        assert_eq!(plane.finish().await, books(5, 3, &[(reason, 2)]));
        assert_eq!(peer.received().len(), 2);
    }
}

#[tokio::test]
async fn partly_rejected_items_are_dropped_as_such() {
    let partial_success = Some(ExportTracePartialSuccess {
        rejected_spans: 2,
        error_message: "too old".to_owned(),
    });
    let message = ExportTraceServiceResponse { partial_success }.encode_to_vec();
    for protocol in PROTOCOLS {
        let message = message.clone();
        let peer = Peer::start(move |_, _| Reply::Taken(message.clone())).await;
        let plane = Plane::new(peer.destination(protocol));
        plane.offer(&b"x"[..], 5);
        // A peer cannot reject more items than were sent.
        plane.offer(&b"x"[..], 1);
        assert_eq!(plane.finish().await, books(6, 3, &[("rejected", 3)]));
    }
}
