//! Tests refused HTTP requests, and the status of each refusal.

use hyper::StatusCode;
use prost::Message;
use serde_json::{Value, json};
use tonic::Code;
use tonic_types::pb;

use super::{Http, JSON, PROTOBUF, Wire};
use crate::receive::tests::*;

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
    // The body is malformed, so reading it would give another error.
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
    // The length of JSON is not the length of its protobuf.
    assert_eq!(status(Some(1), JSON).await, 400);
    assert_eq!(served.refused_requests("traces", "queue_full"), 3);

    // A client that sends `Expect` is refused before it sends the body.
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
    let _permit = served.budget.reserve(PeerId(1), 1_234, false).unwrap();
    let mut page = crate::telemetry::MetricsPage::new(0);
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
