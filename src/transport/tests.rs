//! Tests the client against a peer on a socket: the bytes on the wire, TLS, timeouts, and the
//! errors at the start. The forward plane's tests test deliveries.

pub(crate) mod peer;
mod tls;

use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::peer::{Peer, Reply};
use super::*;
use crate::config::Secret;

fn client(destination: &Destination) -> Client {
    Client::new(destination, &Arc::new(Telemetry::default())).unwrap()
}

const DELIVERED: DeliveryOutcome = DeliveryOutcome::Delivered {
    n_rejected: 0,
    message: None,
};

fn request() -> ExportTraceServiceRequest {
    let spans = vec![
        Span {
            name: "x".repeat(100),
            ..Span::default()
        };
        50
    ];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans: vec![ScopeSpans {
                spans,
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    }
}

fn why(answer: DeliveryOutcome) -> String {
    match answer {
        DeliveryOutcome::Retry { why, .. } => why,
        other => unreachable!("expected a retry, got {other:?}"),
    }
}

// === over the wire ===

#[tokio::test]
async fn grpc_carries_the_bytes_as_they_are_to_the_signals_own_method() {
    let peer = Peer::willing().await;
    let client = client(&peer.destination(Protocol::Grpc));
    // The client must not parse the body, which is not protobuf.
    let body = Bytes::from_static(b"\xff\x00not a message");
    for signal in Signal::ALL {
        assert_eq!(
            client.send(signal, body.clone(), &HeaderMap::new()).await,
            DELIVERED
        );
    }
    let received = peer.received();
    let paths: Vec<_> = received
        .iter()
        .map(|request| request.path.as_str())
        .collect();
    let expected = [
        "trace.v1.TraceService",
        "logs.v1.LogsService",
        "metrics.v1.MetricsService",
    ]
    .map(|service| format!("/opentelemetry.proto.collector.{service}/Export"));
    assert_eq!(paths, expected);
    for request in received {
        assert_eq!(
            (request.body.clone(), request.prefix),
            (body.clone(), Some([0, 0, 0, 0, 15]))
        );
        assert_eq!(request.version, hyper::Version::HTTP_2);
        let user_agent = format!("spanscore/{}", env!("CARGO_PKG_VERSION"));
        let expected = [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", "10000m"),
            ("user-agent", &user_agent),
            ("x-key", "s3cret"),
        ];
        for (name, value) in expected {
            assert_eq!(request.headers[name], value, "{name}");
        }
        assert!(
            !request.headers.contains_key("content-length")
                && !request.headers.contains_key("grpc-encoding")
        );
        assert_eq!(request.connection, 1, "all share one connection");
    }
}

#[tokio::test]
async fn http_posts_the_bytes_below_the_base_path() {
    let peer = Peer::willing().await;
    let mut destination = peer.destination(Protocol::HttpProtobuf);
    destination.endpoint.base_path = "/otlp/x".to_owned();
    let client = client(&destination);
    let body = Bytes::from_static(b"\xff\x00not a message");
    for signal in Signal::ALL {
        assert_eq!(
            client.send(signal, body.clone(), &HeaderMap::new()).await,
            DELIVERED
        );
    }
    let received = peer.received();
    let paths: Vec<_> = received
        .iter()
        .map(|request| request.path.as_str())
        .collect();
    assert_eq!(
        paths,
        ["/otlp/x/v1/traces", "/otlp/x/v1/logs", "/otlp/x/v1/metrics"]
    );
    for request in received {
        assert_eq!(
            (request.body, request.version),
            (body.clone(), hyper::Version::HTTP_11)
        );
        for (name, value) in [
            ("content-type", "application/x-protobuf"),
            ("content-length", "15"),
            ("x-key", "s3cret"),
        ] {
            assert_eq!(request.headers[name], value, "{name}");
        }
    }
}

#[tokio::test]
async fn an_empty_message_is_a_message() {
    let peer = Peer::willing().await;
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        assert_eq!(
            client(&peer.destination(protocol))
                .send(Signal::Traces, Bytes::new(), &HeaderMap::new())
                .await,
            DELIVERED
        );
    }
    assert_eq!(
        peer.received()
            .iter()
            .map(|request| request.body.len())
            .collect::<Vec<_>>(),
        [0, 0]
    );
}

#[tokio::test]
async fn a_requests_own_headers_go_along_but_not_those_of_the_protocol() {
    let peer = Peer::willing().await;
    let headers = [
        ("x-key", "mine"),
        ("x-tenant", "a"),
        ("content-type", "text/plain"),
        ("grpc-timeout", "1H"),
        ("host", "elsewhere"),
    ];
    let headers: HeaderMap = headers
        .into_iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect();
    client(&peer.destination(Protocol::HttpProtobuf))
        .send(Signal::Logs, Bytes::from_static(b"x"), &headers)
        .await;
    let received = &peer.received()[0].headers;
    assert_eq!(
        (
            &received["x-key"],
            &received["x-tenant"],
            &received["content-type"]
        ),
        (
            &HeaderValue::from_static("mine"),
            &HeaderValue::from_static("a"),
            &HeaderValue::from_static("application/x-protobuf")
        )
    );
    assert!(!received.contains_key("grpc-timeout") && received["host"] != "elsewhere");
}

#[tokio::test]
async fn compression_is_undone_to_the_same_bytes() {
    let peer = Peer::willing().await;
    // Test one size below and one above the limit for compression on a blocking thread.
    for n_bytes in [1_000, SLOW_TO_COMPRESS * 2] {
        let body: Bytes = (0..n_bytes).map(|n| (n % 251) as u8).collect();
        for (compression, header) in [(Compression::Gzip, "gzip"), (Compression::Zstd, "zstd")] {
            for (protocol, name) in [
                (Protocol::Grpc, "grpc-encoding"),
                (Protocol::HttpProtobuf, "content-encoding"),
            ] {
                let destination = Destination {
                    compression,
                    ..peer.destination(protocol)
                };
                assert_eq!(
                    client(&destination)
                        .send(Signal::Traces, body.clone(), &HeaderMap::new())
                        .await,
                    DELIVERED
                );
                let received = peer.received().pop().unwrap();
                assert_eq!(received.headers[name], header);
                assert!(
                    received.prefix.is_none_or(|prefix| prefix[0] == 1),
                    "gRPC's flag"
                );
                assert!(received.body.len() < body.len());
                let mut plain = Vec::new();
                match compression {
                    Compression::Zstd => {
                        plain = zstd::bulk::decompress(&received.body, n_bytes).unwrap()
                    }
                    _ => drop(
                        std::io::copy(
                            &mut flate2::read::GzDecoder::new(&received.body[..]),
                            &mut plain,
                        )
                        .unwrap(),
                    ),
                }
                assert_eq!(plain, body);
            }
        }
    }
}

// === a real gRPC server ===

struct Tonic(mpsc::Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Tonic {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.0.send(request.into_inner()).await.unwrap();
        let partial_success = Some(ExportTracePartialSuccess {
            rejected_spans: 2,
            error_message: "too old".to_owned(),
        });
        Ok(tonic::Response::new(ExportTraceServiceResponse {
            partial_success,
        }))
    }
}

#[tonic::async_trait]
impl LogsService for Tonic {
    async fn export(
        &self,
        _: tonic::Request<ExportLogsServiceRequest>,
    ) -> Result<tonic::Response<ExportLogsServiceResponse>, tonic::Status> {
        Ok(tonic::Response::new(ExportLogsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Tonic {
    async fn export(
        &self,
        _: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        Err(tonic::Status::permission_denied(
            "no metrics, s'il vous plaît",
        ))
    }
}

#[tokio::test]
async fn a_tonic_server_understands_us_and_we_it() {
    let (sender, mut seen) = mpsc::channel(8);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let traces = TraceServiceServer::new(Tonic(sender.clone())).max_decoding_message_size(50_000);
    let server = tonic::transport::Server::builder()
        .add_service(traces)
        .add_service(LogsServiceServer::new(Tonic(sender.clone())))
        .add_service(MetricsServiceServer::new(Tonic(sender)));
    let mut tasks = JoinSet::new();
    tasks.spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));

    let request = request();
    let body: Bytes = request.encode_to_vec().into();
    let client = client(&peer::destination(address, Protocol::Grpc));
    let answer = client.send(Signal::Traces, body, &HeaderMap::new()).await;
    assert_eq!(
        answer,
        DeliveryOutcome::Delivered {
            n_rejected: 2,
            message: Some("too old".to_owned())
        }
    );
    assert_eq!(seen.recv().await.unwrap(), request);
    assert_eq!(
        client
            .send(Signal::Logs, Bytes::new(), &HeaderMap::new())
            .await,
        DELIVERED
    );
    let refused = DeliveryOutcome::Refused {
        reason: "permission_denied",
        why: "PERMISSION_DENIED: no metrics, s'il vous plaît".to_owned(),
    };
    assert_eq!(
        client
            .send(Signal::Metrics, Bytes::new(), &HeaderMap::new())
            .await,
        refused
    );
    // The second body exceeds the bytes that the server reads before it answers.
    for n_bytes in [60_000, 30 << 20] {
        let large = client
            .send(Signal::Traces, vec![0; n_bytes].into(), &HeaderMap::new())
            .await;
        assert!(
            matches!(&large, DeliveryOutcome::TooLarge { why } if why.starts_with("OUT_OF_RANGE")),
            "{large:?}"
        );
    }
}

// === failures ===

#[tokio::test]
async fn a_peer_that_is_not_there_or_hangs_up_may_be_there_later() {
    let peer = Peer::start(|_, _| Reply::HangUp).await;
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        why(client(&peer.destination(protocol))
            .send(Signal::Traces, Bytes::from_static(b"x"), &HeaderMap::new())
            .await);
    }
    let destinations =
        [Protocol::Grpc, Protocol::HttpProtobuf].map(|protocol| peer.destination(protocol));
    peer.stop().await;
    for destination in destinations {
        let why = why(client(&destination)
            .send(Signal::Traces, Bytes::from_static(b"x"), &HeaderMap::new())
            .await);
        assert!(why.contains("refused"), "{why}");
    }
}

#[tokio::test]
async fn after_a_timeout_the_next_attempt_takes_a_new_connection() {
    let peer = Peer::start(|n, _| if n == 0 { Reply::Silence } else { Reply::taken() }).await;
    let destination = Destination {
        timeout: Duration::from_millis(100),
        ..peer.destination(Protocol::Grpc)
    };
    let client = client(&destination);
    let answer = client
        .send(Signal::Traces, Bytes::from_static(b"x"), &HeaderMap::new())
        .await;
    assert_eq!(why(answer), "no answer within 100ms");
    assert_eq!(
        client
            .send(Signal::Traces, Bytes::from_static(b"x"), &HeaderMap::new())
            .await,
        DELIVERED
    );
    assert_eq!(
        peer.received()
            .iter()
            .map(|request| request.connection)
            .collect::<Vec<_>>(),
        [1, 2]
    );
}

#[tokio::test]
async fn an_answer_of_any_length_is_read_no_further_than_it_matters() {
    let long = Reply::Http {
        status: 200,
        headers: Vec::new(),
        body: vec![b'x'; 10 << 20],
    };
    let peer = Peer::start(move |_, _| long.clone()).await;
    assert_eq!(
        client(&peer.destination(Protocol::HttpProtobuf))
            .send(Signal::Traces, Bytes::new(), &HeaderMap::new())
            .await,
        DELIVERED
    );
}

#[tokio::test]
async fn an_answer_that_comes_before_the_request_is_through_counts() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    server.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut start = [0; 1_000];
        stream.read_exact(&mut start).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
        stream.shutdown().await.unwrap();
        // Continue reading, as a server does that wants the client to read its answer.
        tokio::io::copy(&mut stream, &mut tokio::io::sink())
            .await
            .unwrap();
    });
    let client = client(&peer::destination(address, Protocol::HttpProtobuf));
    let answer = client
        .send(Signal::Traces, vec![0; 30 << 20].into(), &HeaderMap::new())
        .await;
    assert_eq!(
        answer,
        DeliveryOutcome::TooLarge {
            why: "HTTP 413".to_owned()
        }
    );
}

#[tokio::test]
async fn http_is_distinguished_from_grpc() {
    let peer = Peer::start(|_, _| Reply::http(200)).await;
    let answer = client(&peer.destination(Protocol::Grpc))
        .send(Signal::Traces, Bytes::new(), &HeaderMap::new())
        .await;
    assert!(
        matches!(
            &answer,
            DeliveryOutcome::Refused { why, .. } if why.contains("does not speak OTLP/gRPC")
        ),
        "{answer:?}"
    );
}

// === refused at start ===

#[test]
fn headers_that_cannot_be_sent_are_named_and_their_values_kept_quiet() {
    let error = |name: &str, value: &str| {
        let mut destination = peer::destination("127.0.0.1:1".parse().unwrap(), Protocol::Grpc);
        destination.headers = vec![(name.to_owned(), Secret::new(value))];
        Client::new(&destination, &Arc::new(Telemetry::default()))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error("a b", "s3cret"),
        "`forward.endpoint`: `a b` is not a valid header name, use letters, digits and `-`"
    );
    assert_eq!(
        error("grpc-timeout", "s3cret"),
        "`forward.endpoint`: header `grpc-timeout` is set by OTLP itself, remove it"
    );
    assert_eq!(
        error("authorization", "s3cret\n"),
        "`forward.endpoint`: the value of header `authorization` has characters that no header can \
         contain; a line break at the end of a key file is a usual cause"
    );
}

#[test]
fn a_host_that_is_none_is_named() {
    let mut destination = peer::destination("127.0.0.1:1".parse().unwrap(), Protocol::Grpc);
    destination.endpoint.host = "a b".to_owned();
    let error = Client::new(&destination, &Arc::new(Telemetry::default())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`forward.endpoint`: `a b` is not a host name or address"
    );
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    let client = client(&peer::destination(
        "127.0.0.1:1".parse().unwrap(),
        Protocol::Grpc,
    ));
    assert!(!format!("{client:?}").contains("s3cret"));
}
