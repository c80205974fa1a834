//! Snapshots of the log lines about delivery.

use super::{Log, Plane, books};
use crate::config::Protocol;
use crate::forward::*;
use crate::transport::tests::peer::{Peer, Reply};

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
             reason=\"invalid_argument\" suppressed=0",
        ]
    );
    assert!(
        lines[2].starts_with(
            "INFO delivery resumed queue=\"forward\" origin=\"forward.endpoint\" \
             endpoint=\"http://PEER\" down_secs="
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
    let peer = Peer::start(|n, _| if n < 3 { Reply::HangUp } else { Reply::http(401) }).await;
    let plane = Plane::new(peer.destination(Protocol::Grpc));
    let headers = vec![(
        HeaderName::from_static("authorization"),
        HeaderValue::from_static("Bearer s3cret"),
    )];
    plane
        .handle
        .offer(outbound(
            Signal::Traces,
            PeerId(1),
            Bytes::from_static(b"x"),
            1,
            headers,
        ))
        .unwrap();
    assert_eq!(plane.finish().await, books(1, 0, &[("unauthenticated", 1)]));
    let lines = log.lines();
    assert!(
        lines.len() >= 3 && !lines.iter().any(|line| line.contains("s3cret")),
        "{lines:#?}"
    );
}
