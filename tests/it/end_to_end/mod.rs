//! Sends every captured session of every framework to the real ports of a real sidecar, over gRPC
//! and HTTP. The downstream must receive exactly the sent bytes, and the sidecar must extract the
//! same tool calls as a replay of the session. Also covers score spans, events and metrics. Does
//! not test the exporters of other SDKs.

mod lifecycle;

use bytes::Bytes;
use hyper::header::HeaderMap;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use otlp::scan;
use prost::Message;
use spanscore::config::{Protocol, Signal};
use spanscore::transport::DeliveryOutcome;

use crate::support::backend::Backend;
use crate::support::captures as load;
use crate::support::sidecars::{all_pass_through, client, config, is_ours, start};

#[tokio::test(flavor = "multi_thread")]
async fn half_of_the_captures_pass_through_grpc_untouched_and_understood() {
    all_pass_through(half_of_the_captures(0), Protocol::Grpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_captures_pass_through_grpc_untouched_and_understood() {
    all_pass_through(half_of_the_captures(1), Protocol::Grpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_the_captures_pass_through_http_untouched_and_understood() {
    all_pass_through(half_of_the_captures(0), Protocol::HttpProtobuf).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_captures_pass_through_http_untouched_and_understood() {
    all_pass_through(half_of_the_captures(1), Protocol::HttpProtobuf).await;
}

fn half_of_the_captures(half: usize) -> Vec<load::Scenario> {
    let scenarios = load::scenarios().into_iter();
    scenarios.skip(half).step_by(2).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_arrive_as_span_event_and_metric() {
    let backend = Backend::start().await;
    let (sidecar, _) = start(&config(&backend, Protocol::Grpc)).await;
    let scenarios = load::scenarios();
    let scenario = scenarios
        .iter()
        .find(|scenario| scenario.name == "pydantic-ai/sequence")
        .unwrap();
    let client = client(sidecar.addresses.grpc.unwrap(), Protocol::Grpc);
    for (_, body) in &scenario.requests {
        client
            .send(Signal::Traces, Bytes::from(body.clone()), &HeaderMap::new())
            .await;
    }
    sidecar.stop().await;
    let ours: Vec<_> = backend
        .arrived()
        .into_iter()
        .filter(|arrived| is_ours(&arrived.body))
        .collect();
    let of = |signal: &str| {
        ours.iter()
            .filter(|arrived| arrived.signal == signal)
            .map(|arrived| arrived.body.clone())
            .collect::<Vec<_>>()
    };

    let spans = ExportTraceServiceRequest::decode(of("traces")[0].clone()).unwrap();
    let scope = &spans.resource_spans[0].scope_spans[0];
    assert_eq!(
        (
            scope.scope.as_ref().unwrap().name.as_str(),
            scope.spans.len()
        ),
        ("spanscore", 1)
    );
    let span = &scope.spans[0];
    let original = ExportTraceServiceRequest::decode(scenario.requests[0].1.as_slice()).unwrap();
    let original = &original.resource_spans[0].scope_spans[0].spans[0];
    assert_eq!(
        (span.name.as_str(), &span.trace_id),
        ("evaluation two calls at least", &original.trace_id)
    );

    let events = ExportLogsServiceRequest::decode(of("logs")[0].clone()).unwrap();
    let event = &events.resource_logs[0].scope_logs[0].log_records[0];
    assert_eq!(
        (event.event_name.as_str(), &event.trace_id, &event.span_id),
        (
            "gen_ai.evaluation.result",
            &span.trace_id,
            &span.parent_span_id
        )
    );
    assert!(String::from_utf8_lossy(&of("metrics")[0]).contains("spanscore.evaluations"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_requests_are_refused_and_the_next_one_works() {
    let backend = Backend::start().await;
    let (sidecar, _) = start(&config(&backend, Protocol::Grpc)).await;
    let (grpc, http) = (
        sidecar.addresses.grpc.unwrap(),
        sidecar.addresses.http.unwrap(),
    );
    let scenarios = load::scenarios();
    let good = &scenarios
        .iter()
        .find(|scenario| scenario.name == "pydantic-ai/sequence")
        .unwrap()
        .requests[0]
        .1;
    let mut random = fastrand::Rng::with_seed(1);
    let mut n_refused = 0;
    for round in 0..200 {
        let mut bad = good.clone();
        match round % 3 {
            0 => bad.truncate(random.usize(1..bad.len())),
            1 => (0..8).for_each(|_| {
                let at = random.usize(..bad.len());
                bad[at] ^= 1 << random.u8(..8);
            }),
            _ => {
                let len = random.usize(1..500);
                bad = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
            }
        }
        for (address, protocol) in [(grpc, Protocol::Grpc), (http, Protocol::HttpProtobuf)] {
            let valid = scan::scan(&bad, None).is_ok();
            let answer = client(address, protocol)
                .send(Signal::Traces, Bytes::from(bad.clone()), &HeaderMap::new())
                .await;
            match answer {
                DeliveryOutcome::Delivered { .. } => assert!(valid, "round {round}"),
                DeliveryOutcome::Refused { .. } => {
                    assert!(!valid, "round {round}");
                    n_refused += 1;
                }
                other => panic!("round {round}: {other:?}"),
            }
        }
    }
    assert!(
        n_refused > 100,
        "only {n_refused} of 400 broken requests were refused"
    );
    let answer = client(grpc, Protocol::Grpc)
        .send(Signal::Traces, Bytes::from(good.clone()), &HeaderMap::new())
        .await;
    assert!(
        matches!(answer, DeliveryOutcome::Delivered { .. }),
        "{answer:?}"
    );
    let telemetry = sidecar.telemetry.clone();
    sidecar.stop().await;
    let books = &telemetry.item_counts()["traces"];
    assert_eq!((books.accepted, books.queued), (books.sent, 0));
    assert!(
        backend
            .arrived()
            .iter()
            .any(|arrived| arrived.body == good.as_slice())
    );
}
