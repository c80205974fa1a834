//! Tests OTLP/gRPC with tonic's clients, and with a bare HTTP/2 client for requests that tonic
//! would not send. The tests do not prove how other languages' clients read the answers.

mod refusals;

use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client as metrics_client;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use prost::Message;
use tonic::transport::Channel as GrpcChannel;
use tonic_types::StatusExt;

use super::*;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

async fn connect(served: &Served) -> GrpcChannel {
    GrpcChannel::from_shared(format!("http://{}", served.address))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

// === a bare client ===

struct Bare {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

struct Called {
    http_status: u16,
    headers: HeaderMap,
    data: Bytes,
    /// The status in the trailers, or in the headers of a response without a body.
    code: Option<i32>,
    message: String,
    details: tonic_types::ErrorDetails,
}

impl Bare {
    fn new(served: &Served) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new())
                .http2_only(true)
                .build_http(),
            address: served.address,
        }
    }

    async fn call(&self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Called {
        let mut request =
            Request::post(format!("http://{}{path}", self.address)).header("te", "trailers");
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self
            .client
            .request(request.body(Full::new(Bytes::from(body))).unwrap())
            .await
            .unwrap();
        let (head, body) = response.into_parts();
        let collected = body.collect().await.unwrap();
        let mut status = head.headers.clone();
        status.extend(collected.trailers().cloned().unwrap_or_default());
        let status = tonic::Status::from_header_map(&status);
        Called {
            http_status: head.status.as_u16(),
            headers: head.headers,
            data: collected.to_bytes(),
            code: status.as_ref().map(|status| status.code() as i32),
            message: status
                .as_ref()
                .map(|status| status.message().to_owned())
                .unwrap_or_default(),
            details: status
                .map(|status| status.get_error_details())
                .unwrap_or_default(),
        }
    }

    async fn good_request_works(&self, served: &Served) {
        let request = spans(1, "good").encode_to_vec();
        let called = self.call(EXPORT, &[], framed(0, &request)).await;
        assert_eq!((called.http_status, called.code), (200, Some(0)));
        assert_eq!(served.intake.take_one().body, request);
    }
}

// === what works ===

#[tokio::test]
async fn every_signal_arrives_as_it_was_sent() {
    let served = serve(|_, _| {}).await;
    let channel = connect(&served).await;
    let mut traces = TraceServiceClient::new(channel.clone());
    let mut logs = LogsServiceClient::new(channel.clone());
    let mut metrics = metrics_client::MetricsServiceClient::new(channel);
    let answer = traces.export(spans(3, "text")).await.unwrap();
    assert_eq!(
        answer.metadata().get("grpc-accept-encoding").unwrap(),
        "identity,gzip,zstd,deflate"
    );
    assert_eq!(answer.into_inner().partial_success, None);
    let answer = logs.export(log_records(4)).await.unwrap();
    assert_eq!(answer.into_inner().partial_success, None);
    let answer = metrics.export(metric_points(5)).await.unwrap();
    assert_eq!(answer.into_inner().partial_success, None);
    let received = served.intake.take();
    let seen: Vec<_> = (received.iter())
        .map(|received| (received.signal, received.n_items))
        .collect();
    assert_eq!(
        seen,
        [(Signal::Traces, 3), (Signal::Logs, 4), (Signal::Metrics, 5)]
    );
    assert!(received[0].body == spans(3, "text").encode_to_vec());
    assert!(received[1].body == log_records(4).encode_to_vec());
    assert!(received[2].body == metric_points(5).encode_to_vec());
    served.assert_nothing_in_flight().await;
}

#[tokio::test]
async fn a_compressed_request_arrives_unpacked() {
    let served = serve(|_, _| {}).await;
    let bare = Bare::new(&served);
    let request = spans(3, &"text ".repeat(10_000)).encode_to_vec();
    for (encoding, packed) in [("gzip", gzip(&request)), ("zstd", zstd(&request))] {
        let headers = [("grpc-encoding", encoding)];
        let called = bare.call(EXPORT, &headers, framed(1, &packed)).await;
        assert_eq!(called.code, Some(0), "{encoding}: {}", called.message);
        assert!(served.intake.take_one().body == request, "{encoding}");
    }
    served.assert_nothing_in_flight().await;
}

#[tokio::test]
async fn unknown_fields_are_received_as_they_came() {
    let served = serve(|_, _| {}).await;
    // Add field 1000, which no version of OTLP has.
    let request = [spans(1, "x").encode_to_vec(), vec![0xc2, 0x3e, 3, 1, 2, 3]].concat();
    let called = Bare::new(&served)
        .call(EXPORT, &[], framed(0, &request))
        .await;
    assert_eq!(called.code, Some(0), "{}", called.message);
    assert_eq!(served.intake.take_one().body, request);
}

#[tokio::test]
async fn an_empty_request_succeeds_and_is_not_handed_on() {
    let served = serve(|_, _| {}).await;
    let mut client = TraceServiceClient::new(connect(&served).await);
    assert_eq!(
        client
            .export(ExportTraceServiceRequest::default())
            .await
            .unwrap()
            .into_inner()
            .partial_success,
        None
    );
    assert_eq!(
        client
            .export(spans(0, ""))
            .await
            .unwrap()
            .into_inner()
            .partial_success,
        None
    );
    assert!(served.intake.take().is_empty());
}

#[tokio::test]
async fn concurrent_streams_of_one_connection_are_all_received() {
    let served = serve(|_, budgets| budgets.in_flight = 64 << 20).await;
    let client = TraceServiceClient::new(connect(&served).await);
    let mut calls = JoinSet::new();
    for n_spans in 1..=100 {
        let mut client = client.clone();
        calls.spawn(async move {
            client
                .export(spans(n_spans, &"x".repeat(n_spans * 10)))
                .await
                .map(|_| ())
        });
    }
    while let Some(called) = calls.join_next().await {
        called.unwrap().unwrap();
    }
    let mut sizes: Vec<_> = served
        .intake
        .take()
        .iter()
        .map(|received| received.n_items)
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, (1..=100).collect::<Vec<_>>());
    served.assert_nothing_in_flight().await;
}

#[tokio::test]
async fn named_headers_are_handed_on_and_no_others() {
    let served = serve(|config, _| config.forward.pass_headers = vec!["X-Tenant".to_owned()]).await;
    let mut request = tonic::Request::new(spans(1, "x"));
    request
        .metadata_mut()
        .insert("x-tenant", "blue".parse().unwrap());
    request
        .metadata_mut()
        .insert("x-other", "no".parse().unwrap());
    TraceServiceClient::new(connect(&served).await)
        .export(request)
        .await
        .unwrap();
    let headers = served.intake.take_one().headers;
    assert_eq!(
        headers,
        [(
            HeaderName::from_static("x-tenant"),
            HeaderValue::from_static("blue")
        )]
    );
}
