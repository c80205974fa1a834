//! Tests retries: which requests are repeated, when, and in which order.

use std::collections::BTreeSet;
use std::time::Duration;

use tonic::Code;
use tonic_types::{ErrorDetails, StatusExt};

use super::{Log, PROTOCOLS, Plane, books, run_and_check_the_balance};
use crate::config::Protocol;
use crate::eventually::eventually;
use crate::forward::*;
use crate::telemetry::ItemCounts;
use crate::transport::Undelivered;
use crate::transport::tests::peer::{Peer, PeerRequest, Reply};

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
        let peer = Peer::start(
            move |n, _| {
                if n == 0 { reply.clone() } else { Reply::taken() }
            },
        )
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
        let peer = Peer::start(
            |n, _| {
                if n < N_FAILURES { Reply::http(503) } else { Reply::taken() }
            },
        )
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
        // Eight requests are in flight when the outage begins. Then one request at a time is sent
        // as a probe, at growing intervals.
        let probes = &received[8..N_FAILURES];
        assert!(
            probes
                .windows(2)
                .skip(10)
                .all(|pair| pair[1].at - pair[0].at >= Duration::from_millis(10)),
            "half of the longest interval"
        );
        let bodies = |received: &[PeerRequest]| -> Vec<u8> {
            received.iter().map(|received| received.body[0]).collect()
        };
        let mut delivered = bodies(&received[N_FAILURES..]);
        let failed: BTreeSet<u8> = bodies(&received[..N_FAILURES]).into_iter().collect();
        // A successful probe ends the outage; then up to eight requests are in flight, in any
        // order.
        let n_first = 1 + failed.len() + 8;
        let first: BTreeSet<u8> = delivered.iter().take(n_first).copied().collect();
        assert!(failed.is_subset(&first), "younger requests overtake none");
        delivered.sort_unstable();
        assert_eq!(delivered, (0..100).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_peer_that_recovers_gets_what_was_queued_for_it() {
    for protocol in PROTOCOLS {
        let peer = Peer::willing().await;
        let (address, destination) = (peer.address, peer.destination(protocol));
        peer.stop().await;
        let plane = Plane::new(destination);
        plane.offer(&b"kept"[..], 4);
        let telemetry = plane.telemetry.clone();
        let come_back = async {
            // By then the request has failed at least three times.
            let n_retries =
                || telemetry.counter("spanscore_exporter_retries_total", &[("queue", "forward")]);
            eventually("three retries", || (n_retries() >= 3).then_some(())).await;
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
async fn a_request_that_always_fails_blocks_no_other_and_is_logged() {
    let log = Log::default();
    let _guard = log.listen();
    let told = || {
        log.lines()
            .iter()
            .filter(|line| line.contains("keeps failing while others succeed: HTTP 503"))
            .count()
    };
    let peer =
        Peer::start(
            |_, received| {
                if received.body == "cursed" { Reply::http(503) } else { Reply::taken() }
            },
        )
        .await;
    let plane = Plane::new(peer.destination(Protocol::Grpc));
    plane.offer(&b"cursed"[..], 1);
    let Plane {
        handle,
        delivery,
        telemetry,
    } = plane;
    let (undelivered, n_good) =
        tokio::join!(run_and_check_the_balance(delivery, &telemetry), async {
            let mut n_good = 0;
            while told() == 0 {
                for _ in 0..20 {
                    handle
                        .offer(outbound(
                            Signal::Traces,
                            PeerId(1),
                            Bytes::from_static(b"good"),
                            1,
                            Vec::new(),
                        ))
                        .unwrap();
                }
                n_good += 20;
                eventually("the good ones are sent", || {
                    (telemetry.item_counts()["traces"].sent >= n_good).then_some(())
                })
                .await;
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
    let peer = Peer::start(|n, _| if n == 0 { Reply::Silence } else { Reply::taken() }).await;
    let plane = Plane::new(Destination {
        timeout: Duration::from_millis(100),
        ..peer.destination(Protocol::HttpProtobuf)
    });
    plane.offer(&b"x"[..], 1);
    assert_eq!(plane.finish().await, books(1, 1, &[]));
    assert_eq!(peer.received().len(), 2);
}
