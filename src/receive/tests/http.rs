//! Tests OTLP/HTTP with hyper's client, and with raw bytes on a socket where their order matters.
//! The tests do not prove how other languages' clients read the answers.

mod connections;
mod refusals;

use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use otlp::span::PeerId;
use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
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

    /// Returns the code and the message of the `google.rpc.Status` in the body.
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

/// A connection for writing bytes and reading one answer at a time.
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

    /// Returns the status line and body of the next answer, or `None` if the connection is closed
    /// instead.
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

// === accepted requests ===

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

/// Returns a request of each signal that contains one of our scores and two items that are no
/// scores, although they resemble a score or are in our scope.
fn with_scores() -> [(&'static str, &'static str, Value); 3] {
    let scope = |name: &str, items: &str, list: Value| {
        let mut group = json!({ "scope": { "name": name } });
        group[items] = list;
        group
    };
    let value = |text: &str| json!({ "stringValue": text });
    let span = |id: u64, operation: &str| {
        json!({
            "traceId": format!("{:032x}", 7), "spanId": format!("{id:016x}"), "name": operation,
            "attributes": [{ "key": "gen_ai.operation.name", "value": value(operation) }],
        })
    };
    let record = |event: &str| json!({ "eventName": event });
    let metric = |name: &str| {
        let points = json!([{ "asInt": "1" }]);
        json!({ "name": name, "gauge": { "dataPoints": points } })
    };
    [
        (
            "traces",
            "/v1/traces",
            json!({ "resourceSpans": [{ "scopeSpans": [
            scope("app", "spans", json!([span(1, "evaluation")])),
            scope("spanscore", "spans", json!([span(2, "evaluation"), span(3, "execute_tool")])),
        ] }] }),
        ),
        (
            "logs",
            "/v1/logs",
            json!({ "resourceLogs": [{ "scopeLogs": [
            scope("app", "logRecords", json!([record("gen_ai.evaluation.result")])),
            scope("spanscore", "logRecords", json!([
                record("gen_ai.evaluation.result"),
                record("tool_result"),
            ])),
        ] }] }),
        ),
        (
            "metrics",
            "/v1/metrics",
            json!({ "resourceMetrics": [{ "scopeMetrics": [
            scope("app", "metrics", json!([metric("spanscore.evaluations"), metric("b")])),
            scope("spanscore", "metrics", json!([metric("spanscore.evaluations")])),
        ] }] }),
        ),
    ]
}

#[tokio::test]
async fn items_that_claim_to_be_our_scores_are_counted_and_dropped_if_so_configured() {
    use config::ReceivedScores::{Drop, Forward};
    for (scores, n_left) in [(Forward, 3), (Drop, 2)] {
        let served = serve(|config, _| config.receivers.otlp.scores = scores).await;
        let http = Http::new(&served);
        for (signal, path, request) in with_scores() {
            let json = [("content-type", "application/json")];
            let body = request.to_string().into_bytes();
            assert_eq!(http.request("POST", path, &json, body).await.status, 200);
            let received = served.intake.take_one();
            assert_eq!(received.n_items, n_left, "{signal} {scores:?}");
            let labels = [("signal", signal), ("action", scores.as_str())];
            let counted = served
                .telemetry
                .counter("spanscore_receiver_scores_total", &labels);
            assert_eq!(counted, 1, "{signal} {scores:?}");
        }
        // If scores are dropped, a request with only scores becomes empty. Its sender gets no
        // error.
        let [(_, path, mut only), ..] = with_scores();
        let groups = &mut only["resourceSpans"][0]["scopeSpans"];
        *groups = json!([groups[1].clone()]);
        groups[0]["spans"].as_array_mut().unwrap().truncate(1);
        let json = [("content-type", "application/json")];
        let answered = http
            .request("POST", path, &json, only.to_string().into_bytes())
            .await;
        assert_eq!(answered.status, 200);
        assert_eq!(served.intake.take().len(), usize::from(scores == Forward));
        assert_eq!(served.telemetry.received_scores(scores.as_str()), 4);
        served.assert_nothing_in_flight().await;
    }
}

#[tokio::test]
async fn a_batch_names_the_peer_that_sent_it() {
    let served = serve(|_, _| ()).await;
    let body = spans(1, "").encode_to_vec();
    let client = Http::new(&served);
    client
        .request("POST", "/v1/traces", &[PROTOBUF], body)
        .await;
    assert_eq!(served.intake.take_one().batch.peer, PeerId(0x7f00_0001));
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

#[tokio::test]
async fn a_wrong_path_or_method_is_counted_and_answered_with_the_right_one() {
    let served = serve(|_, _| {}).await;
    let http = Http::new(&served);
    for (method, path, status, told) in [
        (
            "POST",
            "/",
            404,
            "nothing at `/`; send OTLP/HTTP to /v1/traces",
        ),
        ("GET", "/v1/traces", 405, "send OTLP requests with POST"),
    ] {
        let answered = http.request(method, path, &[PROTOBUF], Vec::new()).await;
        assert_eq!(answered.status, status, "{method} {path}");
        let body = String::from_utf8_lossy(&answered.body);
        assert!(body.contains(told), "{method} {path}: {body}");
    }
    let n_misdirected = |reason| {
        let name = "spanscore_receiver_misdirected_requests_total";
        served.telemetry.counter(name, &[("reason", reason)])
    };
    assert_eq!((n_misdirected("path"), n_misdirected("method")), (1, 1));
}

/// To a browser, a page has the same origin as our receiver if the page has its port, and a host
/// name that resolves to 127.0.0.1.
#[tokio::test]
async fn a_page_of_another_host_may_not_send_to_a_loopback_address() {
    let origins = vec!["http://shop.example".to_owned()];
    let served = serve(|config, _| config.receivers.otlp.http.cors_allowed_origins = origins).await;
    let http = Http::new(&served);
    for (host, origin, expected) in [
        ("evil.example", Some("http://evil.example"), 403),
        ("evil.example:4318", Some("http://evil.example:4318"), 403),
        ("shop.example", Some("http://shop.example"), 200),
        ("localhost:4318", Some("http://localhost:4318"), 200),
        ("[::1]:4318", Some("http://[::1]:4318"), 200),
        // Without `Origin`, the sender is not a browser, and may have its own name for the host.
        ("spanscore", None, 200),
    ] {
        let mut headers = vec![JSON, ("host", host)];
        headers.extend(origin.map(|origin| ("origin", origin)));
        let body = br#"{"resourceSpans": []}"#.to_vec();
        let answered = http.request("POST", "/v1/traces", &headers, body).await;
        assert_eq!(answered.status, expected, "{host} {origin:?}");
    }
}
