//! Tests the forward plane from the receivers' handle to a peer on a socket: delivery, retries,
//! splits, refusals, drops, and that the accounts balance at every moment in between. Does not
//! prove anything about time: the intervals here are milliseconds; the tests of `retry` check their
//! growth.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tonic::Code;
use tonic_types::{ErrorDetails, StatusExt};

use super::*;
use crate::config::Protocol;
use crate::telemetry::{ItemCounts, Unhealthy};
use crate::transport::Undelivered;
use crate::transport::peer::{Peer, PeerRequest, Reply};

/// A forward plane under test.
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
            capacity: 1 << 20,
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
            self.handle
                .offer(Signal::Traces, body.into(), n_items, Vec::new()),
            Ok(())
        );
    }

    /// Lets everything be delivered and gives the books.
    async fn finish(self) -> ItemCounts {
        let (undelivered, books) = self.finish_within(Duration::from_secs(60)).await;
        assert_eq!(undelivered, Undelivered::new());
        books
    }

    async fn finish_within(self, time: Duration) -> (Undelivered, ItemCounts) {
        self.handle
            .close((tokio::time::Instant::now() + time).into_std());
        let undelivered = run_with_an_eye_on_the_books(self.delivery, &self.telemetry).await;
        let mut books = self.telemetry.item_counts();
        (undelivered, books.remove("traces").unwrap_or_default())
    }
}

/// Runs the delivery to its end, and looks at the books at every chance between.
async fn run_with_an_eye_on_the_books(delivery: Delivery, telemetry: &Telemetry) -> Undelivered {
    let watch = async {
        loop {
            for (signal, books) in telemetry.item_counts() {
                assert_balance(signal, &books);
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        undelivered = delivery.run() => undelivered,
        () = watch => unreachable!("it never ends"),
    }
}

fn assert_balance(signal: &str, books: &ItemCounts) {
    assert_eq!(
        books.accepted,
        books.sent + books.queued + books.dropped.values().sum::<u64>(),
        "{signal}: {books:?}"
    );
}

fn books(accepted: u64, sent: u64, dropped: &[(&'static str, u64)]) -> ItemCounts {
    ItemCounts {
        accepted,
        sent,
        queued: 0,
        dropped: dropped.iter().copied().collect(),
        refused: BTreeMap::new(),
    }
}

/// A request of spans with these names.
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
    let peer = Peer::start(|n, _| {
        if n == 0 {
            Reply::http(503)
        } else {
            Reply::taken()
        }
    })
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
        .offer(
            Signal::Traces,
            Bytes::from_static(b"x"),
            1,
            headers.to_vec(),
        )
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
        capacity: 1 << 20,
    });
    plane.offer(&b"x"[..], 2);
    plane
        .handle
        .offer(Signal::Logs, Bytes::from_static(b"y"), 5, Vec::new())
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
        capacity: 0,
    };
    let (handle, delivery) = start(settings, &telemetry, fastrand::Rng::with_seed(7)).unwrap();
    assert!(delivery.is_none());
    handle
        .offer(Signal::Traces, vec![0; 1 << 20].into(), 7, Vec::new())
        .unwrap();
    assert_eq!(
        telemetry.item_counts()["traces"],
        books(7, 0, &[("discarded", 7)])
    );
}

// === tried again ===

#[tokio::test]
async fn every_retryable_answer_is_followed_by_another_attempt() {
    let retry_info = tonic::Status::with_error_details(
        Code::ResourceExhausted,
        "",
        ErrorDetails::with_retry_info(Some(Duration::ZERO)),
    );
    let retry_info = data_encoding::BASE64_NOPAD.encode(retry_info.details());
    let grpc = |code: Code, early| Reply::Grpc {
        code: code as i32,
        headers: vec![("grpc-message", "later".to_owned())],
        early,
    };
    let exhausted = |early| Reply::Grpc {
        code: Code::ResourceExhausted as i32,
        headers: vec![("grpc-status-details-bin", retry_info.clone())],
        early,
    };
    let codes = [
        Code::Cancelled,
        Code::DeadlineExceeded,
        Code::Aborted,
        Code::Unavailable,
        Code::DataLoss,
    ];
    let mut grpc_replies: Vec<Reply> = codes
        .into_iter()
        .flat_map(|code| [grpc(code, false), grpc(code, true)])
        .collect();
    grpc_replies.extend([
        exhausted(false),
        exhausted(true),
        Reply::http(503),
        Reply::HangUp,
    ]);
    let http_replies = vec![
        Reply::http(429),
        Reply::http(502),
        Reply::http(503),
        Reply::http(504),
        Reply::HangUp,
    ];
    for (protocol, replies) in [
        (Protocol::Grpc, grpc_replies),
        (Protocol::HttpProtobuf, http_replies),
    ] {
        let n_replies = replies.len();
        let peer = Peer::start(move |n, _| replies.get(n).cloned().unwrap_or(Reply::taken())).await;
        let plane = Plane::new(peer.destination(protocol));
        plane.offer(&b"x"[..], 3);
        let telemetry = plane.telemetry.clone();
        assert_eq!(plane.finish().await, books(3, 3, &[]));
        assert_eq!(peer.received().len(), n_replies + 1);
        assert!(peer.received().iter().all(|received| received.body == "x"));
        assert_eq!(
            telemetry.counter("spanscore_exporter_retries_total", &[("queue", "forward")]),
            n_replies as u64
        );
    }
}

#[tokio::test]
async fn the_wait_a_peer_asks_for_is_kept() {
    let wait = Duration::from_millis(300);
    let retry_info = tonic::Status::with_error_details(
        Code::Unavailable,
        "",
        ErrorDetails::with_retry_info(Some(wait)),
    );
    let details = data_encoding::BASE64.encode(retry_info.details());
    let grpc = Reply::Grpc {
        code: Code::Unavailable as i32,
        headers: vec![("grpc-status-details-bin", details)],
        early: true,
    };
    let http = Reply::Http {
        status: 503,
        headers: vec![("retry-after", "1".to_owned())],
        body: Vec::new(),
    };
    for (protocol, reply, wait) in [
        (Protocol::Grpc, grpc, wait),
        (Protocol::HttpProtobuf, http, Duration::from_secs(1)),
    ] {
        let peer = Peer::start(move |n, _| {
            if n == 0 {
                reply.clone()
            } else {
                Reply::taken()
            }
        })
        .await;
        let plane = Plane::new(peer.destination(protocol));
        plane.offer(&b"x"[..], 1);
        plane.finish().await;
        let received = peer.received();
        assert!(
            received[1].at - received[0].at >= wait,
            "{:?}",
            received[1].at - received[0].at
        );
    }
}

#[tokio::test]
async fn during_an_outage_one_probe_goes_out_at_a_time_and_afterwards_everything() {
    const N_FAILURES: usize = 30;
    for protocol in PROTOCOLS {
        let peer = Peer::start(|n, _| {
            if n < N_FAILURES {
                Reply::http(503)
            } else {
                Reply::taken()
            }
        })
        .await;
        let plane = Plane::new(peer.destination(protocol));
        for n in 0..100_u8 {
            plane.offer(vec![n], 1);
        }
        assert_eq!(plane.finish().await, books(100, 100, &[]));
        let received = peer.received();
        assert_eq!(
            received.len(),
            100 + N_FAILURES,
            "every failure cost one attempt"
        );
        // Eight are on their way when the outage begins; after them one at a time, at growing
        // distances.
        let probes = &received[8..N_FAILURES];
        assert!(
            probes
                .windows(2)
                .skip(10)
                .all(|pair| pair[1].at - pair[0].at >= Duration::from_millis(10)),
            "half of the longest interval"
        );
        let mut delivered: Vec<_> = received[N_FAILURES..]
            .iter()
            .map(|received| received.body[0])
            .collect();
        delivered.sort_unstable();
        assert_eq!(delivered, (0..100).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_peer_that_is_away_and_comes_back_gets_what_was_kept_for_it() {
    for protocol in PROTOCOLS {
        let peer = Peer::willing().await;
        let (address, destination) = (peer.address, peer.destination(protocol));
        peer.stop().await;
        let plane = Plane::new(destination);
        plane.offer(&b"kept"[..], 4);
        let telemetry = plane.telemetry.clone();
        let come_back = async {
            // It has been tried in vain at least three times.
            while telemetry.counter("spanscore_exporter_retries_total", &[("queue", "forward")]) < 3
            {
                tokio::task::yield_now().await;
            }
            assert_eq!(
                telemetry.item_counts()["traces"],
                ItemCounts {
                    queued: 4,
                    ..books(4, 0, &[])
                }
            );
            Peer::start_at(address, None, |_, _| Reply::taken()).await
        };
        let (peer, books_after) = tokio::join!(come_back, plane.finish());
        assert_eq!(books_after, books(4, 4, &[]));
        assert_eq!(peer.received().len(), 1);
    }
}

#[tokio::test]
async fn a_request_that_always_fails_holds_nobody_up_and_is_told() {
    let log = Log::default();
    let _guard = log.listen();
    let told = || {
        log.lines()
            .iter()
            .filter(|line| line.contains("keeps failing while others succeed: HTTP 503"))
            .count()
    };
    let peer = Peer::start(|_, received| {
        if received.body == "cursed" {
            Reply::http(503)
        } else {
            Reply::taken()
        }
    })
    .await;
    let plane = Plane::new(peer.destination(Protocol::Grpc));
    plane.offer(&b"cursed"[..], 1);
    let Plane {
        handle,
        delivery,
        telemetry,
    } = plane;
    let (undelivered, n_good) =
        tokio::join!(run_with_an_eye_on_the_books(delivery, &telemetry), async {
            let mut n_good = 0;
            while told() == 0 {
                for _ in 0..20 {
                    handle
                        .offer(Signal::Traces, Bytes::from_static(b"good"), 1, Vec::new())
                        .unwrap();
                }
                n_good += 20;
                while telemetry.item_counts()["traces"].sent < n_good {
                    tokio::task::yield_now().await;
                }
            }
            handle.close(tokio::time::Instant::now().into_std());
            n_good
        });
    assert_eq!(
        telemetry.item_counts()["traces"],
        books(n_good + 1, n_good, &[("shutdown", 1)])
    );
    assert_eq!(
        (undelivered, told()),
        (Undelivered::from([(Signal::Traces, 1)]), 1)
    );
}

#[tokio::test]
async fn a_silent_peer_is_given_up_on_after_the_timeout_and_tried_again() {
    let peer = Peer::start(|n, _| {
        if n == 0 {
            Reply::Silence
        } else {
            Reply::taken()
        }
    })
    .await;
    let plane = Plane::new(Destination {
        timeout: Duration::from_millis(100),
        ..peer.destination(Protocol::HttpProtobuf)
    });
    plane.offer(&b"x"[..], 1);
    assert_eq!(plane.finish().await, books(1, 1, &[]));
    assert_eq!(peer.received().len(), 2);
}

// === split, refused, dropped ===

#[tokio::test]
async fn what_is_too_large_is_split_until_it_fits_and_arrives_once() {
    let too_large = [
        (Protocol::Grpc, Reply::grpc(Code::OutOfRange)),
        (Protocol::Grpc, Reply::grpc(Code::ResourceExhausted)),
        (Protocol::HttpProtobuf, Reply::http(413)),
    ];
    for (protocol, reply) in too_large {
        let peer = Peer::start(move |_, received| {
            if received.body.len() > 200 {
                reply.clone()
            } else {
                Reply::taken()
            }
        })
        .await;
        let plane = Plane::new(peer.destination(protocol));
        let mut expected: Vec<String> = (0..50).map(|n| format!("span number {n}")).collect();
        // One span that will never fit.
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
        let peer = Peer::start(move |_, received| {
            if received.body == "bad" {
                reply.clone()
            } else {
                Reply::taken()
            }
        })
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
        // More than there were cannot be rejected.
        plane.offer(&b"x"[..], 1);
        assert_eq!(plane.finish().await, books(6, 3, &[("rejected", 3)]));
    }
}

// === full, and stopping ===

#[tokio::test]
async fn a_full_queue_refuses_and_takes_again_when_there_is_room() {
    let peer = Peer::willing().await;
    let settings = |capacity| Settings {
        destination: Some(peer.destination(Protocol::Grpc)),
        signals: Signal::ALL.to_vec(),
        capacity,
    };
    let plane = Plane::with(settings(10_000));
    let offer = |handle: &ForwardHandle, n_bytes: usize| {
        handle.offer(Signal::Traces, vec![1; n_bytes].into(), 1, Vec::new())
    };
    assert_eq!(
        offer(&plane.handle, 5_001),
        Err(QueueRefusal::TooLarge { limit: 5_000 })
    );
    assert_eq!(
        (
            offer(&plane.handle, 5_000),
            offer(&plane.handle, 4_000),
            offer(&plane.handle, 4_000)
        ),
        (Ok(()), Ok(()), Err(QueueRefusal::Full))
    );
    assert_eq!(
        plane.telemetry.item_counts()["traces"],
        ItemCounts {
            queued: 2,
            ..books(2, 0, &[])
        },
        "a refusal is the receiver's to count"
    );

    let Plane {
        handle,
        delivery,
        telemetry,
    } = plane;
    let (undelivered, ()) =
        tokio::join!(run_with_an_eye_on_the_books(delivery, &telemetry), async {
            peer.has_received(2).await;
            while offer(&handle, 4_000) == Err(QueueRefusal::Full) {
                tokio::task::yield_now().await;
            }
            handle.close((tokio::time::Instant::now() + Duration::from_secs(60)).into_std());
            assert_eq!(offer(&handle, 1), Err(QueueRefusal::Draining));
        });
    assert_eq!(undelivered, Undelivered::new());
    assert_eq!(telemetry.item_counts()["traces"], books(3, 3, &[]));
}

#[tokio::test]
async fn what_is_undelivered_at_the_deadline_is_dropped_and_told() {
    for reply in [Reply::Silence, Reply::http(503)] {
        let peer = Peer::start(move |_, _| reply.clone()).await;
        let plane = Plane::new(peer.destination(Protocol::Grpc));
        for _ in 0..20 {
            plane.offer(&b"x"[..], 2);
        }
        plane
            .handle
            .offer(Signal::Logs, Bytes::from_static(b"y"), 3, Vec::new())
            .unwrap();
        let telemetry = plane.telemetry.clone();
        let (undelivered, books_after) = plane.finish_within(Duration::from_millis(200)).await;
        assert_eq!(
            undelivered,
            Undelivered::from([(Signal::Traces, 40), (Signal::Logs, 3)])
        );
        assert_eq!(books_after, books(40, 0, &[("shutdown", 40)]));
        assert_eq!(
            telemetry.item_counts()["logs"],
            books(3, 0, &[("shutdown", 3)])
        );
    }
}

#[tokio::test]
async fn while_stopping_nothing_is_acknowledged_that_the_downstream_may_not_take() {
    let peer = Peer::start(|n, _| {
        if n < 3 {
            Reply::http(503)
        } else {
            Reply::taken()
        }
    })
    .await;
    let Plane {
        handle,
        delivery,
        telemetry,
    } = Plane::new(peer.destination(Protocol::Grpc));
    let offer = || {
        let body = Bytes::from_static(b"x");
        handle.offer(Signal::Traces, body, 1, Vec::new())
    };
    let is_refused = || handle.check_room(Signal::Traces, 1) == Err(QueueRefusal::Draining);
    offer().unwrap();
    let n_retries =
        || telemetry.counter("spanscore_exporter_retries_total", &[("queue", "forward")]);
    let (undelivered, ()) =
        tokio::join!(run_with_an_eye_on_the_books(delivery, &telemetry), async {
            while n_retries() == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(offer(), Ok(()), "an outage alone is no reason to refuse");
            handle.begin_drain();
            assert_eq!((is_refused(), offer()), (true, Err(QueueRefusal::Draining)));
            while is_refused() {
                tokio::task::yield_now().await;
            }
            assert_eq!(offer(), Ok(()), "the downstream is back");
            handle.close((tokio::time::Instant::now() + Duration::from_secs(60)).into_std());
        });
    assert_eq!(undelivered, Undelivered::new());
    assert_eq!(telemetry.item_counts()["traces"], books(3, 3, &[]));
}

#[tokio::test]
async fn no_more_requests_are_in_flight_than_the_setting_allows() {
    for max_concurrency in [1, 3] {
        let peer = Peer::start(|_, _| Reply::Silence).await;
        let plane = Plane::new(Destination {
            max_concurrency,
            ..peer.destination(Protocol::HttpProtobuf)
        });
        for _ in 0..10 {
            plane.offer(&b"x"[..], 1);
        }
        let (_, books_after) = plane.finish_within(Duration::from_millis(300)).await;
        assert_eq!(books_after, books(10, 0, &[("shutdown", 10)]));
        assert_eq!(peer.received().len(), max_concurrency);
    }
}

#[tokio::test]
async fn stopping_does_not_wait_for_the_next_interval() {
    let peer = Peer::start(|n, _| {
        if n == 0 {
            Reply::http(503)
        } else {
            Reply::taken()
        }
    })
    .await;
    let mut destination = peer.destination(Protocol::Grpc);
    destination.retry.initial = Duration::from_secs(3_600);
    destination.retry.max = Duration::from_secs(3_600);
    let Plane {
        handle,
        delivery,
        telemetry,
    } = Plane::new(destination);
    handle
        .offer(Signal::Traces, Bytes::from_static(b"x"), 1, Vec::new())
        .unwrap();
    let (undelivered, ()) =
        tokio::join!(run_with_an_eye_on_the_books(delivery, &telemetry), async {
            while telemetry.counter("spanscore_exporter_retries_total", &[("queue", "forward")])
                == 0
            {
                tokio::task::yield_now().await;
            }
            handle.close((tokio::time::Instant::now() + Duration::from_secs(60)).into_std());
        });
    assert_eq!(
        (undelivered, peer.received().len()),
        (Undelivered::new(), 2)
    );
}

#[tokio::test]
async fn an_idle_delivery_beats() {
    tokio::time::pause();
    let telemetry = Arc::new(Telemetry::default());
    let settings = Settings {
        destination: Some(crate::transport::peer::destination(
            "127.0.0.1:1".parse().unwrap(),
            Protocol::Grpc,
        )),
        signals: Vec::new(),
        capacity: 1 << 20,
    };
    let (_handle, delivery) = start(settings, &telemetry, fastrand::Rng::with_seed(7)).unwrap();
    let mut running = Box::pin(delivery.unwrap().run());
    assert!(
        tokio::time::timeout(Duration::from_secs(60), &mut running)
            .await
            .is_err(),
        "it does not end by itself"
    );
    let now = tokio::time::Instant::now().into_std();
    assert_eq!(telemetry.workers(), ["forward delivery"]);
    assert_eq!(telemetry.unhealthy(now), [], "it beat until now");
    // A future that is dropped in mid-run is a worker that died.
    drop(running);
    assert_eq!(
        telemetry.unhealthy(now),
        [("forward delivery".to_owned(), Unhealthy::Dead)]
    );
}

// === what the log says ===

/// Where the log goes during a test.
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
    /// Hears what this thread says; a test's runtime is one thread.
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

    /// Its lines, ports blotted out.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let port = regex::Regex::new(r"127\.0\.0\.1:[0-9]+").unwrap();
        text.lines()
            .map(|line| port.replace_all(line.trim(), "PEER").into_owned())
            .collect()
    }
}

#[tokio::test]
async fn an_outage_costs_two_lines_and_a_row_of_refusals_one() {
    let log = Log::default();
    let _guard = log.listen();
    let refused = Reply::Http {
        status: 400,
        headers: vec![("content-type", "text/plain".to_owned())],
        body: b"no such tenant".to_vec(),
    };
    let peer = Peer::start(move |n, _| match n {
        0..30 => Reply::http(503),
        30..60 => refused.clone(),
        _ => Reply::taken(),
    })
    .await;
    let plane = Plane::new(peer.destination(Protocol::HttpProtobuf));
    for _ in 0..40 {
        plane.offer(&b"x"[..], 2);
    }
    assert_eq!(
        plane.finish().await,
        books(80, 20, &[("invalid_argument", 60)])
    );
    let lines = log.lines();
    assert_eq!(
        [&lines[0], &lines[1]],
        [
            "WARN delivery paused; telemetry is queued and will be retried: HTTP 503 \
             queue=\"forward\" origin=\"forward.endpoint\" endpoint=\"http://PEER\"",
            "WARN request refused permanently and dropped: HTTP 400: no such tenant \
             origin=\"forward.endpoint\" signal=\"traces\" n_items=2 \
             reason=\"invalid_argument\" more_before=0",
        ]
    );
    assert!(
        lines[2].starts_with(
            "INFO delivery resumed queue=\"forward\" origin=\"forward.endpoint\" \
             endpoint=\"http://PEER\" down_secs=0 queued_bytes="
        ),
        "{}",
        lines[2]
    );
    assert_eq!(lines.len(), 3, "{lines:#?}");
}

#[tokio::test]
async fn keys_are_not_shown_when_things_go_wrong() {
    let log = Log::default();
    let _guard = log.listen();
    let peer = Peer::start(|n, _| {
        if n < 3 {
            Reply::HangUp
        } else {
            Reply::http(401)
        }
    })
    .await;
    let plane = Plane::new(peer.destination(Protocol::Grpc));
    let headers = vec![(
        HeaderName::from_static("authorization"),
        HeaderValue::from_static("Bearer s3cret"),
    )];
    plane
        .handle
        .offer(Signal::Traces, Bytes::from_static(b"x"), 1, headers)
        .unwrap();
    assert_eq!(plane.finish().await, books(1, 0, &[("unauthenticated", 1)]));
    let lines = log.lines();
    assert!(
        lines.len() >= 3 && !lines.iter().any(|line| line.contains("s3cret")),
        "{lines:#?}"
    );
}
