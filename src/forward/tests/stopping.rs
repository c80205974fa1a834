//! Tests a full queue, and what happens to queued requests at a shutdown.

use std::time::Duration;

use super::{Plane, books, run_and_check_the_balance};
use crate::config::Protocol;
use crate::eventually::eventually;
use crate::forward::*;
use crate::telemetry::{ItemCounts, Unhealthy};
use crate::transport::Undelivered;
use crate::transport::tests::peer::{Peer, Reply};

#[tokio::test]
async fn a_full_queue_refuses_and_takes_again_when_there_is_room() {
    let peer = Peer::willing().await;
    let settings = |capacity| Settings {
        destination: Some(peer.destination(Protocol::Grpc)),
        signals: Signal::ALL.to_vec(),
        capacity: crate::config::Bound::from(capacity),
        journal: None,
    };
    let plane = Plane::with(settings(10_000));
    let offer = |handle: &ForwardHandle, n_bytes: usize| {
        handle.offer(outbound(
            Signal::Traces,
            PeerId(1),
            vec![1; n_bytes].into(),
            1,
            Vec::new(),
        ))
    };
    assert_eq!(
        offer(&plane.handle, 5_001),
        Err(QueueRefusal::TooLarge { limit: 5_000 })
    );
    assert_eq!(
        (
            offer(&plane.handle, 5_000),
            offer(&plane.handle, 3_000),
            offer(&plane.handle, 3_000)
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
    let (undelivered, ()) = tokio::join!(run_and_check_the_balance(delivery, &telemetry), async {
        peer.has_received(2).await;
        eventually("there is room again", || offer(&handle, 4_000).ok()).await;
        handle.close((tokio::time::Instant::now() + Duration::from_secs(60)).into_std());
        assert_eq!(offer(&handle, 1), Err(QueueRefusal::Draining));
    });
    assert_eq!(undelivered, Undelivered::new());
    assert_eq!(telemetry.item_counts()["traces"], books(3, 3, &[]));
}

#[tokio::test]
async fn requests_undelivered_at_the_deadline_are_dropped_and_logged() {
    for reply in [Reply::Silence, Reply::http(503)] {
        let peer = Peer::start(move |_, _| reply.clone()).await;
        let plane = Plane::new(peer.destination(Protocol::Grpc));
        for _ in 0..20 {
            plane.offer(&b"x"[..], 2);
        }
        plane
            .handle
            .offer(outbound(
                Signal::Logs,
                PeerId(1),
                Bytes::from_static(b"y"),
                3,
                Vec::new(),
            ))
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
    let peer = Peer::start(|n, _| if n < 3 { Reply::http(503) } else { Reply::taken() }).await;
    let Plane {
        handle,
        delivery,
        telemetry,
    } = Plane::new(peer.destination(Protocol::Grpc));
    let offer = || {
        let body = Bytes::from_static(b"x");
        handle.offer(outbound(Signal::Traces, PeerId(1), body, 1, Vec::new()))
    };
    let is_refused =
        || handle.check_room(Signal::Traces, PeerId(1), 1) == Err(QueueRefusal::Draining);
    offer().unwrap();
    let n_retries =
        || telemetry.counter("spanscore_exporter_retries_total", &[("queue", "forward")]);
    let (undelivered, ()) = tokio::join!(run_and_check_the_balance(delivery, &telemetry), async {
        eventually("a retry", || (n_retries() > 0).then_some(())).await;
        assert_eq!(offer(), Ok(()), "an outage alone is no reason to refuse");
        handle.begin_drain();
        assert_eq!((is_refused(), offer()), (true, Err(QueueRefusal::Draining)));
        eventually("the downstream is back", || (!is_refused()).then_some(())).await;
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
    let peer = Peer::start(
        |n, _| {
            if n == 0 { Reply::http(503) } else { Reply::taken() }
        },
    )
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
        .offer(outbound(
            Signal::Traces,
            PeerId(1),
            Bytes::from_static(b"x"),
            1,
            Vec::new(),
        ))
        .unwrap();
    let n_retries =
        || telemetry.counter("spanscore_exporter_retries_total", &[("queue", "forward")]);
    let (undelivered, ()) = tokio::join!(run_and_check_the_balance(delivery, &telemetry), async {
        eventually("a retry", || (n_retries() > 0).then_some(())).await;
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
        destination: Some(crate::transport::tests::peer::destination(
            "127.0.0.1:1".parse().unwrap(),
            Protocol::Grpc,
        )),
        signals: Vec::new(),
        capacity: (1 << 20).into(),
        journal: None,
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
    // If the future is dropped early, the worker counts as dead.
    drop(running);
    assert_eq!(
        telemetry.unhealthy(now),
        [("forward delivery".to_owned(), Unhealthy::Dead)]
    );
}
