//! Tests OTLP/HTTP with hyper's client, and with bare bytes on a socket where their order matters.
//! Does not prove how other languages' clients read the answers.

use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tonic::Code;
use tonic_types::pb;

use super::*;

const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
const JSON: (&str, &str) = ("content-type", "application/json");

struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

struct Answered {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answered {
    fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// The `google.rpc.Status`, which is in the media type of the request.
    fn status_body(&self) -> (i32, String) {
        match self.header("content-type") {
            "application/x-protobuf" => {
                let status = pb::Status::decode(self.body.clone()).unwrap();
                (status.code, status.message)
            }
            "application/json" => {
                let status: Value = serde_json::from_slice(&self.body).unwrap();
                (
                    status["code"].as_i64().unwrap() as i32,
                    status["message"].as_str().unwrap().to_owned(),
                )
            }
            other => panic!("media type {other:?}"),
        }
    }
}

impl Http {
    fn new(served: &Served) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            address: served.address,
        }
    }

    fn http2(served: &Served) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new())
                .http2_only(true)
                .build_http(),
            address: served.address,
        }
    }

    async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answered {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self
            .client
            .request(request.body(Full::new(body.into())).unwrap())
            .await
            .unwrap();
        let (head, body) = response.into_parts();
        Answered {
            status: head.status.as_u16(),
            headers: head.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    async fn good_request_works(&self, served: &Served) {
        let request = spans(1, "good").encode_to_vec();
        assert_eq!(
            self.request("POST", "/v1/traces", &[PROTOBUF], request.clone())
                .await
                .status,
            200
        );
        assert_eq!(served.intake.take_one().body, request);
    }
}

// === what works ===

#[tokio::test]
async fn every_signal_arrives_as_it_was_sent_over_both_versions_of_http() {
    let served = serve(|_, _| {}).await;
    let cases = [
        (
            "/v1/traces",
            Signal::Traces,
            3,
            spans(3, "x").encode_to_vec(),
        ),
        ("/v1/logs", Signal::Logs, 4, log_records(4).encode_to_vec()),
        (
            "/v1/metrics",
            Signal::Metrics,
            5,
            metric_points(5).encode_to_vec(),
        ),
        (
            "/collector/prefix/v1/traces",
            Signal::Traces,
            3,
            spans(3, "x").encode_to_vec(),
        ),
        (
            "/v1/traces/",
            Signal::Traces,
            3,
            spans(3, "x").encode_to_vec(),
        ),
        (
            "/v1/logs?key=value",
            Signal::Logs,
            4,
            log_records(4).encode_to_vec(),
        ),
    ];
    for http in [Http::new(&served), Http::http2(&served)] {
        for (path, signal, n_items, body) in &cases {
            let answered = http.request("POST", path, &[PROTOBUF], body.clone()).await;
            assert_eq!(
                (answered.status, answered.header("content-type")),
                (200, "application/x-protobuf"),
                "{path}"
            );
            assert!(answered.body.is_empty(), "partial_success is unset");
            let received = served.intake.take_one();
            assert_eq!(
                (received.signal, received.n_items),
                (*signal, *n_items),
                "{path}"
            );
            assert_eq!(received.body, body, "{path}");
        }
    }
    served.assert_nothing_in_flight().await;
}

#[tokio::test]
async fn every_encoding_is_unpacked() {
    let served = serve(|_, _| {}).await;
    let http = Http::new(&served);
    let request = spans(3, &"text ".repeat(10_000)).encode_to_vec();
    let cases = [
        ("gzip", gzip(&request)),
        ("GZIP", gzip(&request)),
        ("x-gzip", gzip(&request)),
        ("zstd", zstd(&request)),
        ("deflate", zlib(&request)),
        ("identity", request.clone()),
        ("", request.clone()),
    ];
    for (encoding, body) in cases {
        let answered = http
            .request(
                "POST",
                "/v1/traces",
                &[PROTOBUF, ("content-encoding", encoding)],
                body,
            )
            .await;
        assert_eq!(answered.status, 200, "{encoding}: {:?}", answered.body);
        assert!(served.intake.take_one().body == request, "{encoding}");
    }
}

#[tokio::test]
async fn json_becomes_the_protobuf_it_stands_for() {
    let served = serve(|_, _| {}).await;
    let http = Http::new(&served);
    let request = json!({ "resourceSpans": [{ "resource": null, "scopeSpans": [{ "spans": [{
        "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "eee19b7ec3c1b174",
                "parentSpanId": null, "name": "a", "kind": 1,
        "startTimeUnixNano": "1795000000000000000", 
                "endTimeUnixNano": 1795000000000000001_u64, "laterField": [1],
    }] }] }] });
    for (content_type, encoding) in [
        ("application/json", ""),
        ("application/json; charset=utf-8", "gzip"),
        ("Application/JSON", "zstd"),
    ] {
        let body = match encoding {
            "gzip" => gzip(request.to_string().as_bytes()),
            "zstd" => zstd(request.to_string().as_bytes()),
            _ => request.to_string().into_bytes(),
        };
        let headers = [
            ("content-type", content_type),
            ("content-encoding", encoding),
        ];
        let answered = http.request("POST", "/v1/traces", &headers, body).await;
        assert_eq!(
            (
                answered.status,
                answered.header("content-type"),
                &answered.body[..]
            ),
            (200, "application/json", &b"{}"[..])
        );
        let received = served.intake.take_one();
        assert_eq!(received.n_items, 1);
        let decoded = ExportTraceServiceRequest::decode(received.body).unwrap();
        let span = &decoded.resource_spans[0].scope_spans[0].spans[0];
        assert_eq!(
            span.trace_id,
            0x5b8efff798038103d269b633813fc60c_u128.to_be_bytes()
        );
        assert_eq!(
            (span.start_time_unix_nano, span.end_time_unix_nano),
            (1_795_000_000_000_000_000, 1_795_000_000_000_000_001)
        );
    }
    let logs = json!({ "resourceLogs": [{ "scopeLogs": [{ "logRecords": [{}, {}] }] }] });
    assert_eq!(
        http.request("POST", "/v1/logs", &[JSON], logs.to_string())
            .await
            .status,
        200
    );
    assert_eq!(served.intake.take_one().n_items, 2);
    assert_eq!(
        http.request("POST", "/v1/metrics", &[JSON], "{}")
            .await
            .status,
        200,
        "an empty request succeeds"
    );
    assert!(served.intake.take().is_empty());
    served.assert_nothing_in_flight().await;
}

#[tokio::test]
async fn a_long_json_is_transcoded_as_well() {
    let served = serve(|_, budgets| budgets.in_flight = 16 << 20).await;
    let text = "x".repeat(LONG_JSON + 1);
    let span = json!({
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "name": text,
    });
    let body = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": [span] }] }] }).to_string();
    assert_eq!(
        Http::new(&served)
            .request("POST", "/v1/traces", &[JSON], body)
            .await
            .status,
        200
    );
    assert!(served.intake.take_one().body.len() > LONG_JSON);
}

#[tokio::test]
async fn chunked_bodies_need_no_length() {
    let served = serve(|_, _| {}).await;
    let (sender, body) = Pieces::new();
    let client: Client<_, _> = Client::builder(TokioExecutor::new()).build_http::<Pieces>();
    let request = Request::post(format!("http://{}/v1/traces", served.address))
        .header(PROTOBUF.0, PROTOBUF.1);
    let calling = tokio::spawn(client.request(request.body(body).unwrap()));
    let message = spans(5, &"x".repeat(50_000)).encode_to_vec();
    for piece in message.chunks(7_777) {
        sender.send(Bytes::copy_from_slice(piece)).await.unwrap();
    }
    drop(sender);
    assert_eq!(calling.await.unwrap().unwrap().status(), 200);
    assert!(served.intake.take_one().body == message);
}

// === what does not ===

#[tokio::test]
async fn each_bad_request_gets_its_status_and_the_next_good_one_works() {
    let served = serve(|_, _| {}).await;
    let http = Http::new(&served);
    let good = spans(1, "x").encode_to_vec();
    let large = spans(1, &"x".repeat(2 << 20)).encode_to_vec();
    let large_json = format!("{{\"x\": \"{}\"}}", "x".repeat(2 << 20)).into_bytes();
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Vec<u8>, u16, Code);
    let cases: Vec<Case<'_>> = vec![
        (
            "truncated protobuf",
            &[PROTOBUF],
            good[..good.len() - 1].to_vec(),
            400,
            Code::InvalidArgument,
        ),
        (
            "random bytes",
            &[PROTOBUF],
            vec![0xff; 200],
            400,
            Code::InvalidArgument,
        ),
        (
            "JSON as protobuf",
            &[PROTOBUF],
            b"{\"resourceSpans\": []}".to_vec(),
            400,
            Code::InvalidArgument,
        ),
        (
            "protobuf as JSON",
            &[JSON],
            good.clone(),
            400,
            Code::InvalidArgument,
        ),
        (
            "no JSON",
            &[JSON],
            b"{\"resourceSpans\": [".to_vec(),
            400,
            Code::InvalidArgument,
        ),
        (
            "an empty body as JSON",
            &[JSON],
            Vec::new(),
            400,
            Code::InvalidArgument,
        ),
        (
            "an id that is no hex",
            &[JSON],
            br#"{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"xyz"}]}]}]}"#.to_vec(),
            400,
            Code::InvalidArgument,
        ),
        (
            "no gzip",
            &[PROTOBUF, ("content-encoding", "gzip")],
            good.clone(),
            400,
            Code::InvalidArgument,
        ),
        (
            "half a gzip",
            &[JSON, ("content-encoding", "gzip")],
            gzip(&good)[..20].to_vec(),
            400,
            Code::InvalidArgument,
        ),
        (
            "too large",
            &[PROTOBUF],
            large.clone(),
            413,
            Code::ResourceExhausted,
        ),
        (
            "too large as JSON",
            &[JSON],
            large_json,
            413,
            Code::ResourceExhausted,
        ),
        (
            "too large in gzip",
            &[PROTOBUF, ("content-encoding", "gzip")],
            gzip(&large),
            413,
            Code::ResourceExhausted,
        ),
        (
            "too large in zstd",
            &[PROTOBUF, ("content-encoding", "zstd")],
            zstd(&large),
            413,
            Code::ResourceExhausted,
        ),
        (
            "a strange encoding",
            &[PROTOBUF, ("content-encoding", "br")],
            good.clone(),
            415,
            Code::Unimplemented,
        ),
    ];
    for (name, headers, body, status, code) in cases {
        let answered = http.request("POST", "/v1/traces", headers, body).await;
        assert_eq!(answered.status, status, "{name}");
        assert_eq!(answered.header("content-type"), headers[0].1, "{name}");
        let (status_code, message) = answered.status_body();
        assert_eq!(status_code, code as i32, "{name}: {message}");
        assert!(
            !message.is_empty() && answered.header("retry-after").is_empty(),
            "{name}"
        );
        assert!(served.intake.take().is_empty(), "{name}: nothing is taken");
        http.good_request_works(&served).await;
    }
    let answered = http
        .request(
            "POST",
            "/v1/traces",
            &[PROTOBUF, ("content-encoding", "br")],
            good,
        )
        .await;
    assert_eq!(
        answered.header("accept-encoding"),
        "identity,gzip,zstd,deflate"
    );
    assert_eq!(served.refused_requests("traces", "malformed"), 9);
    assert_eq!(served.refused_requests("traces", "too_large"), 4);
    served.assert_nothing_in_flight().await;
}

#[tokio::test]
async fn other_media_types_paths_and_methods_are_named() {
    let served = serve(|_, _| {}).await;
    let http = Http::new(&served);
    let body = spans(1, "x").encode_to_vec();
    for headers in [
        &[("content-type", "application/protobuf")][..],
        &[("content-type", "text/plain")],
        &[],
    ] {
        let answered = http
            .request("POST", "/v1/traces", headers, body.clone())
            .await;
        assert_eq!(
            (answered.status, answered.header("content-type")),
            (415, "text/plain; charset=utf-8")
        );
        assert!(
            answered
                .body
                .windows(22)
                .any(|words| words == b"application/x-protobuf"),
            "{:?}",
            answered.body
        );
    }
    for path in [
        "/",
        "/v1/trace",
        "/v1/traces/more",
        "/av1/traces",
        "/v1development/profiles",
    ] {
        let answered = http.request("POST", path, &[PROTOBUF], body.clone()).await;
        assert_eq!(
            (answered.status, answered.status_body().0),
            (404, Code::NotFound as i32),
            "{path}"
        );
        assert!(answered.status_body().1.contains("/v1/traces"), "{path}");
    }
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        let answered = http.request(method, "/v1/logs", &[JSON], Vec::new()).await;
        assert_eq!(
            (answered.status, answered.header("allow")),
            (405, "POST"),
            "{method}"
        );
    }
    http.good_request_works(&served).await;
}

#[tokio::test]
async fn out_of_room_says_when_to_try_again() {
    let served = serve(|_, _| {}).await;
    let http = Http::new(&served);
    served.intake.refuse(QueueRefusal::Full);
    let answered = http
        .request(
            "POST",
            "/v1/traces",
            &[PROTOBUF],
            spans(2, "x").encode_to_vec(),
        )
        .await;
    assert_eq!(
        (answered.status, answered.header("retry-after")),
        (503, "1")
    );
    let status = pb::Status::decode(answered.body).unwrap();
    assert_eq!(
        (status.code, status.details[0].type_url.as_str()),
        (14, "type.googleapis.com/google.rpc.RetryInfo")
    );
    let answered = http
        .request(
            "POST",
            "/v1/logs",
            &[JSON],
            r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{}]}]}]}"#,
        )
        .await;
    assert_eq!(
        (answered.status, answered.header("retry-after")),
        (503, "1")
    );
    let status: Value = serde_json::from_slice(&answered.body).unwrap();
    assert_eq!(
        status["details"],
        json!([{ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.000s" }])
    );
    served.intake.refuse(None);
    http.good_request_works(&served).await;
}

#[tokio::test]
async fn a_request_without_room_is_refused_before_it_is_read() {
    let served = serve(|_, _| {}).await;
    let http = Http::new(&served);
    // Once read, it would be malformed.
    let nonsense = vec![0xff; 1000];
    let status = async |room: Option<usize>, media_type| {
        served.intake.leave_room(room);
        http.request("POST", "/v1/traces", &[media_type], nonsense.clone())
            .await
            .status
    };
    assert_eq!(status(Some(0), PROTOBUF).await, 503);
    assert_eq!(status(Some(0), JSON).await, 503);
    assert_eq!(status(Some(1000), PROTOBUF).await, 503);
    assert_eq!(status(Some(1001), PROTOBUF).await, 400);
    // The length of JSON is not that of its protobuf.
    assert_eq!(status(Some(1), JSON).await, 400);
    assert_eq!(served.refused_requests("traces", "queue_full"), 3);

    // A client that asks before it sends learns it at once.
    served.intake.leave_room(1000);
    let mut wire = Wire::connect(&served).await;
    let head = "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n\
                expect: 100-continue\r\ncontent-length: 1000\r\n\r\n";
    wire.write(head).await;
    assert_eq!(
        wire.answer().await.unwrap().0,
        "HTTP/1.1 503 Service Unavailable"
    );
    http.good_request_works(&served).await;
}

#[tokio::test]
async fn bytes_in_flight_are_shown() {
    let served = serve(|_, budgets| budgets.in_flight = 3 << 20).await;
    let mut permit = served.budget.permit();
    permit.grow_to(1_234).unwrap();
    let mut page = crate::telemetry::MetricsPage::default();
    (served.metrics)(&mut page);
    let text = page.finish();
    assert!(
        text.contains("\nspanscore_receiver_in_flight_bytes 1234\n"),
        "{text}"
    );
    assert!(
        text.ends_with("\nspanscore_receiver_in_flight_capacity_bytes 3145728\n# EOF\n"),
        "{text}"
    );
}

#[tokio::test]
async fn grpc_needs_http2_and_says_so() {
    let served = serve(|_, _| {}).await;
    let answered = Http::new(&served)
        .request(
            "POST",
            "/v1/traces",
            &[("content-type", "application/grpc")],
            Vec::new(),
        )
        .await;
    assert_eq!(answered.status, StatusCode::HTTP_VERSION_NOT_SUPPORTED);
}

#[tokio::test]
async fn an_authorization_that_is_not_handed_on_is_noticed_once() {
    let served = serve(|_, _| {}).await;
    let http = Http::new(&served);
    for _ in 0..2 {
        let headers = [PROTOBUF, ("authorization", "Bearer secret")];
        assert_eq!(
            http.request(
                "POST",
                "/v1/traces",
                &headers,
                spans(1, "x").encode_to_vec()
            )
            .await
            .status,
            200
        );
        assert!(served.intake.take_one().headers.is_empty());
    }
    assert_eq!(
        served
            .telemetry
            .counter("spanscore_authorization_not_passed_total", &[]),
        2
    );
    let passing =
        serve(|config, _| config.forward.pass_headers = vec!["Authorization".to_owned()]).await;
    let headers = [PROTOBUF, ("authorization", "Bearer secret")];
    assert_eq!(
        Http::new(&passing)
            .request(
                "POST",
                "/v1/traces",
                &headers,
                spans(1, "x").encode_to_vec()
            )
            .await
            .status,
        200
    );
    assert_eq!(
        passing.intake.take_one().headers,
        [(AUTHORIZATION, HeaderValue::from_static("Bearer secret"))]
    );
    assert_eq!(
        passing
            .telemetry
            .counter("spanscore_authorization_not_passed_total", &[]),
        0
    );
}

// === browsers ===

#[tokio::test]
async fn browsers_of_allowed_origins_may_send() {
    let origins = ["https://app.example.com", "http://*.test:8080"];
    let served = serve(|config, _| {
        config.receivers.otlp.http.cors_allowed_origins = origins.map(str::to_owned).to_vec()
    })
    .await;
    let http = Http::new(&served);
    let preflight = |origin: &'static str| {
        [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "content-type,x-key"),
        ]
    };
    for origin in ["https://app.example.com", "http://a.b.test:8080"] {
        let answered = http
            .request("OPTIONS", "/v1/traces", &preflight(origin), Vec::new())
            .await;
        assert_eq!(
            (
                answered.status,
                answered.header("access-control-allow-origin")
            ),
            (204, origin)
        );
        assert_eq!(answered.header("access-control-allow-methods"), "POST");
        assert_eq!(
            answered.header("access-control-allow-headers"),
            "content-type,x-key"
        );
        assert_eq!(
            (
                answered.header("access-control-allow-credentials"),
                answered.header("vary")
            ),
            ("true", "origin")
        );
        for (body, status) in [("{}", 200), ("{", 400)] {
            let answered = http
                .request("POST", "/v1/traces", &[JSON, ("origin", origin)], body)
                .await;
            assert_eq!(
                (
                    answered.status,
                    answered.header("access-control-allow-origin")
                ),
                (status, origin)
            );
        }
    }
    for origin in [
        "https://evil.example.com",
        "http://test:8080",
        "http://a.test:8080.evil.com",
        "https://app.example.com.evil.com",
    ] {
        let answered = http
            .request("OPTIONS", "/v1/traces", &preflight(origin), Vec::new())
            .await;
        assert_eq!(
            (
                answered.status,
                answered.header("access-control-allow-origin")
            ),
            (204, ""),
            "{origin}"
        );
        assert_eq!(
            answered.header("access-control-allow-headers"),
            "",
            "{origin}"
        );
    }
    let off = serve(|_, _| {}).await;
    let answered = Http::new(&off)
        .request(
            "OPTIONS",
            "/v1/traces",
            &preflight("https://app.example.com"),
            Vec::new(),
        )
        .await;
    assert_eq!((answered.status, answered.header("vary")), (405, ""));
    let any =
        serve(|config, _| config.receivers.otlp.http.cors_allowed_origins = vec!["*".to_owned()])
            .await;
    let answered = Http::new(&any)
        .request(
            "OPTIONS",
            "/v1/traces",
            &preflight("https://app.example.com"),
            Vec::new(),
        )
        .await;
    assert_eq!(
        answered.header("access-control-allow-origin"),
        "https://app.example.com"
    );
}

// === bytes on the wire ===

/// A connection on which bytes are written, and answers read one by one.
struct Wire(BufReader<TcpStream>);

impl Wire {
    async fn connect(served: &Served) -> Self {
        Self(BufReader::new(
            TcpStream::connect(served.address).await.unwrap(),
        ))
    }

    async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).await.unwrap();
    }

    /// Status line and body of the next answer; `None` when the connection is closed instead.
    async fn answer(&mut self) -> Option<(String, Vec<u8>)> {
        let (mut status_line, mut line, mut length) = (String::new(), String::new(), 0);
        self.0
            .read_line(&mut status_line)
            .await
            .ok()
            .filter(|n_read| *n_read > 0)?;
        while self.0.read_line(&mut line).await.unwrap() > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        Some((status_line.trim().to_owned(), body))
    }
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let served = serve(|_, _| {}).await;
    let mut wire = Wire::connect(&served).await;
    let requests: Vec<_> = (1..=5)
        .map(|n_spans| spans(n_spans, "x").encode_to_vec())
        .collect();
    let mut all: Vec<u8> = requests
        .iter()
        .flat_map(|body| post("/v1/traces", body))
        .collect();
    all.extend(post("/v1/traces", b"\xff"));
    all.extend(post("/v1/nothing", b""));
    all.extend(post("/v1/traces", &requests[0]));
    wire.write(all).await;
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(wire.answer().await.unwrap().0);
    }
    let (ok, bad, missing) = (
        "HTTP/1.1 200 OK",
        "HTTP/1.1 400 Bad Request",
        "HTTP/1.1 404 Not Found",
    );
    assert_eq!(statuses, [ok, ok, ok, ok, ok, bad, missing, ok]);
    let n_items: Vec<_> = served
        .intake
        .take()
        .iter()
        .map(|received| received.n_items)
        .collect();
    assert_eq!(n_items, [1, 2, 3, 4, 5, 1]);
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_told_to_go_on_or_not_to() {
    let served = serve(|_, _| {}).await;
    let ask = |length: usize| {
        let head = "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n\
         expect: 100-continue\r\n";
        format!("{head}content-length: {length}\r\n\r\n")
    };
    let body = spans(1, "x").encode_to_vec();
    let mut wire = Wire::connect(&served).await;
    wire.write(ask(body.len())).await;
    assert_eq!(wire.answer().await.unwrap().0, "HTTP/1.1 100 Continue");
    wire.write(&body).await;
    assert_eq!(wire.answer().await.unwrap().0, "HTTP/1.1 200 OK");
    assert_eq!(served.intake.take_one().body, body);
    wire.write(ask(65 << 20)).await;
    assert_eq!(
        wire.answer().await.unwrap().0,
        "HTTP/1.1 413 Payload Too Large"
    );
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_taken() {
    let served = serve(|_, _| {}).await;
    let request = post(
        "/v1/traces",
        &spans(1, &"x".repeat(100_000)).encode_to_vec(),
    );
    let chunked =
        b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n\
          transfer-encoding: chunked\r\n\r\nfff\r\nab";
    for bytes in [&request[..50_000], &chunked[..]] {
        let mut wire = Wire::connect(&served).await;
        wire.write(bytes).await;
        wire.0.get_mut().shutdown().await.unwrap();
        if let Some((status_line, _)) = wire.answer().await {
            assert_eq!(status_line, "HTTP/1.1 400 Bad Request");
        }
        served.assert_nothing_in_flight().await;
        assert!(served.intake.take().is_empty());
        Http::new(&served).good_request_works(&served).await;
    }
}

#[tokio::test]
async fn sixty_five_mebibytes_get_their_answer_and_the_connection_lives_on() {
    let served = serve(|config, budgets| {
        config.receivers.otlp.max_request_size = config::ByteSize::mib(64);
        budgets.in_flight = 80 << 20;
        budgets.forward_queue = 150 << 20;
    })
    .await;
    let mut wire = Wire::connect(&served).await;
    wire.write(post("/v1/traces", &vec![0; 65 << 20])).await;
    let (status_line, body) = wire.answer().await.unwrap();
    assert_eq!(status_line, "HTTP/1.1 413 Payload Too Large");
    assert_eq!(
        pb::Status::decode(&*body).unwrap().code,
        Code::ResourceExhausted as i32
    );
    wire.write(post("/v1/traces", &spans(1, "good").encode_to_vec()))
        .await;
    assert_eq!(wire.answer().await.unwrap().0, "HTTP/1.1 200 OK");
    assert_eq!(served.intake.take_one().n_items, 1);
}

#[tokio::test]
async fn nonsense_on_the_port_is_no_reason_to_stop() {
    let served = serve(|_, _| {}).await;
    let nonsense: [&[u8]; 4] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense-nonsense",
        b"\0\0\0\0",
        b"",
    ];
    for bytes in nonsense {
        let mut wire = Wire::connect(&served).await;
        wire.write(bytes).await;
        wire.0.get_mut().shutdown().await.unwrap();
        let mut rest = Vec::new();
        // Whatever it says to that, it says it and closes.
        let _ = tokio::time::timeout(Duration::from_secs(10), wire.0.read_to_end(&mut rest))
            .await
            .expect("the connection is closed");
        Http::new(&served).good_request_works(&served).await;
    }
}
