//! Sends every shape and the scores of a writer to separate destinations, of which one misbehaves.
//! All other destinations must receive everything, and all accounts must balance. Does not send the
//! original telemetry, for which `forward` has a separate queue and delivery.

use std::time::Duration;

use judge::evaluate::Evaluation;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use otlp::span::TraceId;
use prost::Message;
use serde_json::json;
use tokio::net::TcpListener;

use super::delivery::{PLENTY, config, export, in_time, start};
use super::fixture::{fail, with};
use crate::config::{Config, document};
use crate::eventually::eventually;
use crate::telemetry::Telemetry;
use crate::transport::tests::peer::{Peer, Reply};

const SHAPES: [&str; 4] = [
    "score_spans",
    "score_events",
    "score_metrics",
    "writer_langfuse",
];
const N_EVALUATIONS: u64 = 30;

fn evaluations() -> Vec<Evaluation> {
    let of = |id: u64| {
        with(fail(), |trajectory| {
            trajectory.trace_id = TraceId::try_new(&[id as u8 + 1; 16]).unwrap()
        })
    };
    (0..N_EVALUATIONS).map(of).collect()
}

/// Returns a configuration that sends every shape and a writer's scores over HTTP and retries
/// within milliseconds. The addresses are in the order of [`SHAPES`].
fn everywhere(addresses: [std::net::SocketAddr; 4]) -> Config {
    let mut config = config();
    config.forward.retry.initial_interval.0 = Duration::from_millis(2);
    config.forward.retry.max_interval.0 = Duration::from_millis(20);
    config.scores.peer.protocol = Some(crate::config::Protocol::HttpProtobuf);
    config.scores.peer.timeout = Some(crate::config::Duration(Duration::from_millis(100)));
    // Send several requests to each destination, so that some remain after the failing request.
    config.scores.batch.max_evaluations = 5;
    let url = |idx: usize| format!("http://{}", addresses[idx]);
    config.scores.span.peer.endpoint = Some(url(0));
    config.scores.event.peer.endpoint = Some(url(1));
    config.scores.metrics.peer.endpoint = Some(url(2));
    let keys =
        json!({ "endpoint": url(3), "public_key": "pk", "secret_key": "sk", "timeout": "100ms" });
    let writer = json!({ "langfuse": keys }).to_string();
    config
        .scores
        .writers
        .push(document(&writer, "a writer", "").unwrap());
    config
}

/// Returns the numbers of sent items, and of dropped items by reason.
fn books(telemetry: &Telemetry, shape: &'static str) -> (u64, Vec<(&'static str, u64)>) {
    const REASONS: [&str; 8] = [
        "unimplemented",
        "invalid_argument",
        "refused",
        "rejected",
        "queue_full",
        "shutdown",
        "too_large",
        "unknown_span",
    ];
    let dropped = |reason| {
        telemetry.counter(
            "spanscore_scores_dropped_total",
            &[("shape", shape), ("reason", reason)],
        )
    };
    let dropped = REASONS
        .map(|reason| (reason, dropped(reason)))
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .collect();
    assert_eq!(
        telemetry.gauge("spanscore_scores_queued", &[("shape", shape)]),
        0,
        "{shape}"
    );
    (
        telemetry.counter("spanscore_scores_sent_total", &[("shape", shape)]),
        dropped,
    )
}

fn n_items(shape: &str) -> u64 {
    // Metric points are counted: two labels have both a count and a score, two only a count, and
    // one series is the time to a verdict.
    if shape == "score_metrics" { 7 } else { N_EVALUATIONS }
}

#[tokio::test]
async fn whatever_one_destination_answers_the_others_get_everything() {
    let partial_success = Some(ExportTracePartialSuccess {
        rejected_spans: 1,
        error_message: "too old".to_owned(),
    });
    let partial = ExportTraceServiceResponse { partial_success }.encode_to_vec();
    let busy = |status| Reply::Http {
        status,
        headers: vec![("retry-after", "0".to_owned())],
        body: Vec::new(),
    };
    let garbage = Reply::Http {
        status: 200,
        headers: vec![("content-type", "application/x-protobuf".to_owned())],
        body: vec![0xff; 9],
    };
    // OTLP treats 404 and 500 as final. A backend's own API does not, and treats every 2xx as a
    // success.
    let bad: [(Reply, Option<&str>, Option<&str>); 10] = [
        (
            Reply::http(405),
            Some("unimplemented"),
            Some("unimplemented"),
        ),
        (
            Reply::http(415),
            Some("unimplemented"),
            Some("unimplemented"),
        ),
        (
            Reply::http(400),
            Some("invalid_argument"),
            Some("invalid_argument"),
        ),
        (Reply::http(404), Some("unimplemented"), None),
        (Reply::http(500), Some("refused"), None),
        (busy(429), None, None),
        (busy(503), None, None),
        (Reply::HangUp, None, None),
        (Reply::Silence, None, None),
        (garbage, None, None),
    ];
    for (bad_idx, bad_shape) in SHAPES.into_iter().enumerate() {
        for (reply, otlp_reason, api_reason) in &bad {
            let reply = reply.clone();
            let troubled = Peer::start(
                move |n, _| {
                    if n == 0 { reply.clone() } else { Reply::taken() }
                },
            )
            .await;
            let fine = Peer::willing().await;
            let addresses =
                [0, 1, 2, 3].map(
                    |idx| {
                        if idx == bad_idx { troubled.address } else { fine.address }
                    },
                );
            let (exporter, running, telemetry) = start(&everywhere(addresses), PLENTY, None);
            export(&exporter, &evaluations());
            assert!(running.drain(in_time()).await.is_empty());
            for (idx, shape) in SHAPES.into_iter().enumerate() {
                let (sent, dropped) = books(&telemetry, shape);
                let reason = if idx == bad_idx {
                    if bad_idx == 3 { *api_reason } else { *otlp_reason }
                } else {
                    None
                };
                let n_dropped: u64 = dropped.iter().map(|(_, n)| n).sum();
                assert_eq!(sent + n_dropped, n_items(shape), "{shape} of {}", bad_shape);
                assert_eq!(
                    dropped.first().map(|(reason, _)| *reason),
                    reason,
                    "{shape} of {}",
                    bad_shape
                );
            }
        }
    }
    // Only OTLP has partial success.
    let troubled = Peer::start(move |_, _| Reply::Taken(partial.clone())).await;
    let fine = Peer::willing().await;
    let (exporter, running, telemetry) = start(
        &everywhere([troubled.address, fine.address, fine.address, fine.address]),
        PLENTY,
        None,
    );
    export(&exporter, &evaluations());
    assert!(running.drain(in_time()).await.is_empty());
    assert_eq!(
        books(&telemetry, "score_spans"),
        (24, vec![("rejected", 6)])
    );
    assert_eq!(
        books(&telemetry, "writer_langfuse"),
        (30, vec![]),
        "what was rejected of the spans has its score all the same"
    );
}

#[tokio::test]
async fn a_destination_that_is_gone_for_ten_minutes_gets_everything_when_it_is_back() {
    let absent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = absent.local_addr().unwrap();
    drop(absent);
    let fine = Peer::willing().await;
    let (exporter, running, telemetry) = start(
        &everywhere([address, fine.address, fine.address, fine.address]),
        PLENTY,
        None,
    );
    export(&exporter, &evaluations());
    eventually("an outage of one and all events at another", || {
        let n_outages = telemetry.counter(
            "spanscore_exporter_outages_total",
            &[("queue", "score_spans")],
        );
        let n_events =
            telemetry.counter("spanscore_scores_sent_total", &[("shape", "score_events")]);
        (n_outages > 0 && n_events >= N_EVALUATIONS).then_some(())
    })
    .await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    tokio::time::resume();
    assert_eq!(
        telemetry.gauge("spanscore_scores_queued", &[("shape", "score_spans")]),
        30
    );
    eventually("a backend's own scores wait for no score span", || {
        let queued = telemetry.gauge("spanscore_scores_queued", &[("shape", "writer_langfuse")]);
        (queued == 0).then_some(())
    })
    .await;
    let back = Peer::start_at(address, None, |_, _| Reply::taken()).await;
    assert!(running.drain(in_time()).await.is_empty());
    assert_eq!(
        SHAPES.map(|shape| books(&telemetry, shape)),
        SHAPES.map(|shape| (n_items(shape), vec![]))
    );
    assert_eq!(back.received().len(), 6);
}
