//! Tests a sidecar when something goes wrong: late spans, its own scores sent back to it, backends
//! that are down, a shutdown that comes too early. Also tests a sidecar without scoring, and that
//! item counts balance under load.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::header::HeaderMap;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use spanscore::config::{Protocol, Signal};
use spanscore::sidecar::{self, Sidecar};
use spanscore::telemetry::Phase;
use spanscore::transport::{Client, DeliveryOutcome};
use tokio::net::TcpSocket;

use crate::support::backend::{Arrived, Backend};
use crate::support::eventually::eventually;
use crate::support::sidecars::{client, config_with, is_ours, start};

/// Settings with which traces settle and scores are sent within milliseconds.
const QUICK: [(&str, &str); 2] = [
    ("assemble.settle", "1ms"),
    ("scores.batch.max_delay", "1ms"),
];

/// Returns a root (span 1), or a call below it.
fn span(trace: u8, id: u8, tool: &str) -> Span {
    let text = |value: &str| {
        Some(AnyValue {
            value: Some(any_value::Value::StringValue(value.to_owned())),
        })
    };
    let start = sidecar::now().unix_nanos;
    Span {
        trace_id: vec![trace; 16],
        span_id: vec![id; 8],
        parent_span_id: if id == 1 { Vec::new() } else { vec![1; 8] },
        name: "x".repeat(1_000),
        start_time_unix_nano: start,
        end_time_unix_nano: start + 1,
        attributes: if tool.is_empty() {
            Vec::new()
        } else {
            vec![KeyValue {
                key: "tool.name".to_owned(),
                value: text(tool),
                ..KeyValue::default()
            }]
        },
        ..Span::default()
    }
}

fn request(spans: Vec<Span>) -> Bytes {
    let scope_spans = vec![ScopeSpans {
        spans,
        ..ScopeSpans::default()
    }];
    let resource_spans = vec![ResourceSpans {
        scope_spans,
        ..ResourceSpans::default()
    }];
    ExportTraceServiceRequest { resource_spans }
        .encode_to_vec()
        .into()
}

async fn send(client: &Client, body: &Bytes) -> DeliveryOutcome {
    client
        .send(Signal::Traces, body.clone(), &HeaderMap::new())
        .await
}

async fn deliver(client: &Client, body: &Bytes) {
    let answer = send(client, body).await;
    assert!(
        matches!(
            answer,
            DeliveryOutcome::Delivered {
                n_rejected: 0,
                message: None
            }
        ),
        "{answer:?}"
    );
}

fn grpc(sidecar: &Sidecar) -> Client {
    client(sidecar.addresses.grpc.unwrap(), Protocol::Grpc)
}

fn score_spans(backend: &Backend) -> Vec<Span> {
    let traces = backend
        .arrived()
        .into_iter()
        .filter(|arrived| arrived.signal == "traces" && is_ours(&arrived.body));
    let decode = |arrived: Arrived| {
        ExportTraceServiceRequest::decode(arrived.body)
            .unwrap()
            .resource_spans
    };
    traces
        .flat_map(decode)
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .collect()
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span
        .attributes
        .iter()
        .find(|attribute| attribute.key == key)
        .and_then(|attribute| attribute.value.as_ref());
    match found.and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(value)) => value.to_string(),
        other => panic!("{key}: {other:?}"),
    }
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let client = HttpClient::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let response = client
        .get(format!("http://{address}{path}").parse().unwrap())
        .await
        .unwrap();
    let status = response.status().as_u16();
    (
        status,
        String::from_utf8(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .to_vec(),
        )
        .unwrap(),
    )
}

/// Returns an address at which nothing listens. The socket reserves the address until it is
/// dropped.
fn vacant() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_span_causes_a_linked_revision_and_our_own_scores_cause_none() {
    let backend = Backend::start().await;
    let (sidecar, _) = start(&config_with(
        &backend.address.to_string(),
        Protocol::Grpc,
        &QUICK,
    ))
    .await;
    let client = grpc(&sidecar);
    deliver(&client, &request(vec![span(1, 1, ""), span(1, 2, "a")])).await;
    let first = eventually("the first score", || score_spans(&backend).pop()).await;
    assert_eq!(
        ["gen_ai.evaluation.score.label", "spanscore.revision"].map(|key| attribute(&first, key)),
        ["fail", "0"]
    );

    deliver(&client, &request(vec![span(1, 3, "b")])).await;
    let second = eventually("the second score", || {
        score_spans(&backend)
            .into_iter()
            .find(|span| span.span_id != first.span_id)
    })
    .await;
    assert_eq!(
        ["gen_ai.evaluation.score.label", "spanscore.revision"].map(|key| attribute(&second, key)),
        ["pass", "1"]
    );
    assert_eq!(
        (&second.trace_id, &second.parent_span_id),
        (&first.trace_id, &first.parent_span_id)
    );
    assert!(
        second
            .links
            .iter()
            .any(|link| link.span_id == first.span_id && link.trace_id == first.trace_id),
        "{:?}",
        second.links
    );

    // A backend or a Collector behind the sidecar may send the sidecar's own output back. The
    // sidecar forwards it, but opens no trace for it.
    let ours = backend
        .arrived()
        .into_iter()
        .find(|arrived| arrived.signal == "traces" && is_ours(&arrived.body))
        .unwrap()
        .body;
    deliver(&client, &ours).await;
    let telemetry = sidecar.telemetry.clone();
    sidecar.stop().await;
    assert_eq!(
        backend
            .arrived()
            .iter()
            .filter(|arrived| arrived.body == ours)
            .count(),
        2
    );
    assert_eq!(
        score_spans(&backend)
            .iter()
            .map(|span| &span.span_id)
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        2
    );
    assert_eq!(telemetry.counter("spanscore_judgements_total", &[]), 2);
    assert_eq!(telemetry.counter("spanscore_late_spans_total", &[]), 1);
    assert_eq!(telemetry.item_counts()["traces"].sent, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_scoring_off_requests_are_validated_counted_and_forwarded() {
    let backend = Backend::start().await;
    let (sidecar, seen) = start(&config_with(
        &backend.address.to_string(),
        Protocol::Grpc,
        &[("scoring.enabled", "false")],
    ))
    .await;
    let client = grpc(&sidecar);
    let body = request(vec![span(1, 1, ""), span(1, 2, "a")]);
    deliver(&client, &body).await;
    let answer = send(&client, &body.slice(..body.len() - 1)).await;
    assert!(
        matches!(
            answer,
            DeliveryOutcome::Refused {
                reason: "invalid_argument",
                ..
            }
        ),
        "{answer:?}"
    );
    let (_, livez) = get(sidecar.addresses.admin, "/livez").await;
    assert!(!livez.contains("scoring,"), "{livez}");
    let telemetry = sidecar.telemetry.clone();
    sidecar.stop().await;
    let traces: Vec<_> = backend
        .arrived()
        .into_iter()
        .filter(|arrived| arrived.signal == "traces")
        .map(|arrived| arrived.body)
        .collect();
    assert_eq!(traces, [body]);
    assert_eq!(
        (
            telemetry.item_counts()["traces"].accepted,
            telemetry.item_counts()["traces"].sent
        ),
        (2, 2)
    );
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_was_away_gets_everything_once_and_we_stay_healthy() {
    let (reserved, address) = vacant();
    let more = [
        ("forward.queue.max_size", "64KiB"),
        ("forward.retry.initial_interval", "5ms"),
        ("forward.retry.max_interval", "20ms"),
        ("scoring.enabled", "false"),
    ];
    let (sidecar, _) = start(&config_with(&address, Protocol::Grpc, &more)).await;
    let client = grpc(&sidecar);
    let mut accepted = Vec::new();
    let refusal = loop {
        let trace = u8::try_from(accepted.len() + 1).unwrap();
        let body = request((1..=10).map(|id| span(trace, id, "a")).collect());
        match send(&client, &body).await {
            DeliveryOutcome::Delivered { .. } => accepted.push(body),
            refusal => break refusal,
        }
    };
    assert!(accepted.len() >= 4, "{} of 10 KiB in 64", accepted.len());
    let DeliveryOutcome::Retry {
        after: Some(after),
        why,
    } = refusal
    else {
        panic!("{refusal:?}")
    };
    assert!(
        after >= Duration::from_secs(1)
            && why.starts_with("UNAVAILABLE")
            && why.contains("forward.queue.max_size"),
        "{after:?} {why}"
    );
    for path in ["/readyz", "/livez"] {
        assert_eq!(get(sidecar.addresses.admin, path).await.0, 200, "{path}");
    }

    drop(reserved);
    let backend = Backend::start_at(&address).await;
    eventually("everything accepted arrives", || {
        (backend.arrived().len() >= accepted.len()).then_some(())
    })
    .await;
    let telemetry = sidecar.telemetry.clone();
    let stopped = sidecar.stop().await;
    assert_eq!(stopped.n_undelivered, 0);
    let mut arrived: Vec<_> = backend
        .arrived()
        .into_iter()
        .map(|arrived| arrived.body)
        .collect();
    arrived.sort();
    accepted.sort();
    assert!(
        arrived == accepted,
        "{} accepted, {} arrived",
        accepted.len(),
        arrived.len()
    );
    let books = &telemetry.item_counts()["traces"];
    assert_eq!(
        (books.accepted, books.sent, books.queued),
        (10 * accepted.len() as u64, 10 * accepted.len() as u64, 0)
    );
    // The request was rejected before its body was decoded, so the number of its items is unknown.
    assert_eq!(books.refused, BTreeMap::from([("queue_full", 0)]));
    let labels = [("signal", "traces"), ("reason", "queue_full")];
    assert_eq!(
        telemetry.counter("spanscore_receiver_refused_requests_total", &labels),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_scores_delays_no_originals_and_is_logged_at_the_end() {
    let backend = Backend::start().await;
    let (_reserved, scores) = vacant();
    let scores = format!("http://{scores}");
    let more = [
        QUICK[0],
        QUICK[1],
        ("scores.endpoint", &scores),
        ("shutdown.deadline", "1s"),
    ];
    let (sidecar, _) = start(&config_with(
        &backend.address.to_string(),
        Protocol::Grpc,
        &more,
    ))
    .await;
    let client = grpc(&sidecar);
    let telemetry = sidecar.telemetry.clone();
    let body = request(vec![span(1, 1, ""), span(1, 2, "a")]);
    deliver(&client, &body).await;
    eventually("the score waits", || {
        (telemetry.gauge("spanscore_scores_queued", &[("shape", "score_spans")]) == 1).then_some(())
    })
    .await;
    eventually("the original is sent", || {
        (telemetry.item_counts()["traces"].sent == 2).then_some(())
    })
    .await;
    let stopped = sidecar.stop().await;
    assert_eq!(
        backend
            .arrived()
            .into_iter()
            .map(|arrived| arrived.body)
            .collect::<Vec<_>>(),
        [body]
    );
    // Nine items: the score span, its event, and seven data points of metrics (a counter has one
    // data point per label).
    assert_eq!(
        (stopped.n_undelivered, stopped.n_undelivered_scores),
        (0, 9)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_go_their_own_way_while_the_originals_wait() {
    let scores = Backend::start().await;
    let (reserved, away) = vacant();
    let endpoint = format!("http://{}", scores.address);
    let more = [
        QUICK[0],
        QUICK[1],
        ("scores.endpoint", &endpoint),
        ("forward.retry.max_interval", "20ms"),
        ("forward.retry.initial_interval", "5ms"),
    ];
    let (sidecar, _) = start(&config_with(&away, Protocol::Grpc, &more)).await;
    let telemetry = sidecar.telemetry.clone();
    let body = request(vec![span(1, 1, ""), span(1, 2, "a")]);
    deliver(&grpc(&sidecar), &body).await;
    eventually("the score arrives", || {
        (score_spans(&scores).len() == 1).then_some(())
    })
    .await;
    assert_eq!(
        (
            telemetry.item_counts()["traces"].queued,
            telemetry.item_counts()["traces"].sent
        ),
        (2, 0)
    );
    drop(reserved);
    let back = Backend::start_at(&away).await;
    let stopped = sidecar.stop().await;
    assert_eq!(
        (stopped.n_undelivered, stopped.n_undelivered_scores),
        (0, 0)
    );
    assert_eq!(
        back.arrived()
            .into_iter()
            .map(|arrived| arrived.body)
            .collect::<Vec<_>>(),
        [body]
    );
    assert!(
        scores
            .arrived()
            .iter()
            .all(|arrived| is_ours(&arrived.body))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn undelivered_data_is_reported_at_the_deadline_and_shutdown_is_not_unhealthy() {
    let (_reserved, away) = vacant();
    let (sidecar, _) = start(&config_with(
        &away,
        Protocol::Grpc,
        &[("shutdown.deadline", "500ms")],
    ))
    .await;
    let client = grpc(&sidecar);
    deliver(
        &client,
        &request(vec![span(1, 1, ""), span(1, 2, "a"), span(1, 3, "b")]),
    )
    .await;
    let telemetry = sidecar.telemetry.clone();
    let stopped = sidecar.stop().await;
    assert_eq!(stopped.n_undelivered, 3);
    let books = &telemetry.item_counts()["traces"];
    assert_eq!(
        (
            books.accepted,
            books.sent,
            books.queued,
            books.dropped.clone()
        ),
        (3, 0, 0, BTreeMap::from([("shutdown", 3)]))
    );
    // The trace was judged during the shutdown. It counts as complete because its root had ended.
    assert_eq!(
        telemetry.counter("spanscore_traces_closed_total", &[("reason", "root_ended")]),
        1
    );
    assert_eq!(
        (
            telemetry.workers(),
            telemetry.unhealthy(sidecar::now().instant)
        ),
        (Vec::new(), Vec::new())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn while_stopping_without_a_downstream_requests_are_refused_as_retryable() {
    let (_reserved, away) = vacant();
    let settings = [("shutdown.quiet", "1s"), ("shutdown.deadline", "2s")];
    let (sidecar, _) = start(&config_with(&away, Protocol::Grpc, &settings)).await;
    let body = request(vec![span(1, 1, ""), span(1, 2, "a")]);
    let http = client(sidecar.addresses.http.unwrap(), Protocol::HttpProtobuf);
    let client = grpc(&sidecar);
    deliver(&client, &body).await;
    let telemetry = sidecar.telemetry.clone();
    let n_retries =
        || telemetry.counter("spanscore_exporter_retries_total", &[("queue", "forward")]);
    eventually("a retry", || (n_retries() > 0).then_some(())).await;
    deliver(&client, &body).await;

    let stopping = tokio::spawn(sidecar.stop());
    eventually("draining", || {
        (telemetry.phase() == Phase::Draining).then_some(())
    })
    .await;
    for client in [&client, &http, &client] {
        let answer = send(client, &body).await;
        assert!(
            matches!(answer, DeliveryOutcome::Retry { .. }),
            "{answer:?}"
        );
    }
    let labels = [("signal", "traces"), ("reason", "draining")];
    let counter = "spanscore_receiver_refused_requests_total";
    assert_eq!(telemetry.counter(counter, &labels), 3);
    stopping.await.unwrap();
    let books = &telemetry.item_counts()["traces"];
    assert_eq!(
        (books.accepted, books.dropped.clone()),
        (4, BTreeMap::from([("shutdown", 4)])),
        "nothing was taken after the stop began"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_books_balance_in_every_scrape_under_load() {
    let backend = Backend::start().await;
    let (sidecar, _) = start(&config_with(
        &backend.address.to_string(),
        Protocol::Grpc,
        &QUICK,
    ))
    .await;
    let (client, admin) = (grpc(&sidecar), sidecar.addresses.admin);
    let load = tokio::spawn(async move {
        for trace in 1..=200 {
            deliver(
                &client,
                &request(vec![
                    span(trace, 1, ""),
                    span(trace, 2, "a"),
                    span(trace, 3, "b"),
                ]),
            )
            .await;
        }
    });
    for _ in 0..100 {
        let (status, text) = get(admin, "/metrics").await;
        assert_eq!(status, 200);
        assert!(text.ends_with("# EOF\n"));
        let sum = |prefix: &str| -> u64 {
            let values = text
                .lines()
                .filter(|line| line.starts_with(prefix))
                .filter_map(|line| line.rsplit_once(' '));
            values.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
        };
        let [accepted, sent, queued, dropped] = [
            "spanscore_receiver_accepted_spans_total ",
            "spanscore_exporter_sent_spans_total ",
            "spanscore_exporter_queue_spans ",
            "spanscore_exporter_dropped_spans_total",
        ]
        .map(sum);
        assert_eq!(accepted, sent + queued + dropped, "{text}");
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("spanscore_receiver_in_flight_"))
                .count(),
            2,
            "{text}"
        );
    }
    load.await.unwrap();
    let telemetry = sidecar.telemetry.clone();
    sidecar.stop().await;
    assert_eq!(
        (
            telemetry.item_counts()["traces"].sent,
            telemetry.counter("spanscore_judgements_total", &[])
        ),
        (600, 200)
    );
}
