//! Tests HTTP connections byte by byte: pipelining, `Expect`, aborted requests.

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;
use tonic_types::pb;

use super::{Http, Wire, post};
use crate::receive::tests::*;

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
async fn a_client_that_expects_100_continue_gets_it_or_a_refusal() {
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
        // Any answer is accepted, but the connection must be closed.
        let _ = tokio::time::timeout(Duration::from_secs(10), wire.0.read_to_end(&mut rest))
            .await
            .expect("the connection is closed");
        Http::new(&served).good_request_works(&served).await;
    }
}
