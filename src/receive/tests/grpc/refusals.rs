//! Tests refused gRPC requests, and the status of each refusal.

use std::pin::pin;

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use prost::Message;
use tonic::Code;
use tonic_types::StatusExt;

use super::{Bare, EXPORT, connect};
use crate::eventually::eventually;
use crate::receive::tests::*;

#[tokio::test]
async fn malformed_requests_are_refused_whole_and_the_next_good_one_works() {
    let served = serve(|_, _| {}).await;
    let bare = Bare::new(&served);
    let good = spans(2, "x").encode_to_vec();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("truncated protobuf", framed(0, &good[..good.len() - 1])),
        ("random bytes", framed(0, &[0xff; 100])),
        ("no message", Vec::new()),
        ("half a prefix", vec![0, 0]),
        ("less than announced", framed(0, &good)[..20].to_vec()),
        (
            "two messages",
            [framed(0, &good), framed(0, &good)].concat(),
        ),
        ("compressed, nobody knows how", framed(1, &gzip(&good))),
        (
            "a trace id of five bytes",
            framed(0, &{
                let mut request = spans(1, "x");
                request.resource_spans[0].scope_spans[0].spans[0].trace_id = vec![1; 5];
                request.encode_to_vec()
            }),
        ),
    ];
    let n_cases = cases.len() as u64;
    for (name, body) in cases {
        let called = bare.call(EXPORT, &[], body).await;
        assert_eq!(
            (called.http_status, called.code),
            (200, Some(Code::InvalidArgument as i32)),
            "{name}: {}",
            called.message
        );
        assert!(called.details.retry_info().is_none(), "{name}");
        assert!(!called.message.is_empty(), "{name}");
        assert!(
            called.data.is_empty() && served.intake.take().is_empty(),
            "{name}: nothing is taken"
        );
        bare.good_request_works(&served).await;
    }
    assert_eq!(served.refused_requests("traces", "malformed"), n_cases);
}

#[tokio::test]
async fn sixty_five_mebibytes_are_too_large_and_not_to_be_sent_again() {
    let served = serve(|config, budgets| {
        config.receivers.otlp.max_request_size = config::ByteSize::mib(64);
        budgets.in_flight = 80 << 20;
        budgets.forward_queue = 150 << 20;
    })
    .await;
    let bare = Bare::new(&served);
    let large = spans(1, &"x".repeat(65 << 20)).encode_to_vec();
    for (encoding, body) in [
        ("identity", framed(0, &large)),
        ("gzip", framed(1, &gzip(&large))),
        ("zstd", framed(1, &zstd(&large))),
    ] {
        let called = bare
            .call(EXPORT, &[("grpc-encoding", encoding)], body)
            .await;
        let exhausted = Code::ResourceExhausted as i32;
        assert_eq!(
            called.code,
            Some(exhausted),
            "{encoding}: {}",
            called.message
        );
        assert!(called.details.retry_info().is_none());
        assert!(
            called.message.contains("larger than 67108864 bytes"),
            "{}",
            called.message
        );
        bare.good_request_works(&served).await;
    }
    served.assert_nothing_in_flight().await;
}

#[tokio::test]
async fn a_request_that_could_never_fit_is_too_large_and_the_answer_names_the_setting() {
    let in_flight = serve(|_, budgets| budgets.in_flight = 10_000).await;
    let status = TraceServiceClient::new(connect(&in_flight).await)
        .export(spans(1, &"x".repeat(20_000)))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(
        status.message().contains("`receivers.otlp.max_in_flight`"),
        "{status:?}"
    );
    let queue = serve(|_, budgets| budgets.forward_queue = 20_000).await;
    let status = TraceServiceClient::new(connect(&queue).await)
        .export(spans(1, &"x".repeat(12_000)))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(
        status
            .message()
            .contains("half of `forward.queue.max_size`"),
        "{status:?}"
    );
}

#[tokio::test]
async fn a_request_without_room_is_refused_before_it_is_unpacked_and_validated() {
    let served = serve(|_, _| {}).await;
    let bare = Bare::new(&served);
    // The body is malformed, so reading it would give another error.
    let nonsense = [0xff; 1000];
    served.intake.leave_room(900);
    for (encoding, message) in [
        ("identity", framed(0, &nonsense)),
        ("gzip", framed(1, &nonsense)),
    ] {
        let called = bare
            .call(EXPORT, &[("grpc-encoding", encoding)], message)
            .await;
        assert_eq!(called.code, Some(Code::Unavailable as i32), "{encoding}");
        assert!(called.details.retry_info().is_some());
    }
    assert_eq!(served.refused_requests("traces", "queue_full"), 2);
    assert_eq!(served.refused_requests("traces", "malformed"), 0);
    bare.good_request_works(&served).await;
    served.intake.leave_room(None);
    let called = bare.call(EXPORT, &[], framed(0, &nonsense)).await;
    assert_eq!(called.code, Some(Code::InvalidArgument as i32));
}

#[tokio::test]
async fn a_full_queue_is_unavailable_with_a_time_to_try_again() {
    let served = serve(|_, _| {}).await;
    let mut client = TraceServiceClient::new(connect(&served).await);
    let cases = [
        (QueueRefusal::Full, Code::Unavailable, Some(1), "queue_full"),
        (
            QueueRefusal::Draining,
            Code::Unavailable,
            Some(1),
            "draining",
        ),
        (
            QueueRefusal::TooLarge { limit: 9 },
            Code::ResourceExhausted,
            None,
            "too_large",
        ),
    ];
    for (refusal, code, seconds, reason) in cases {
        served.intake.refuse(refusal);
        let before = served.refused_requests("traces", reason);
        let status = client.export(spans(3, "x")).await.unwrap_err();
        let delay = status
            .get_error_details()
            .retry_info()
            .and_then(|retry_info| retry_info.retry_delay);
        assert_eq!(
            (status.code(), delay),
            (code, seconds.map(Duration::from_secs)),
            "{refusal:?}"
        );
        assert_eq!(served.refused_requests("traces", reason), before + 1);
        served.intake.refuse(None);
        client.export(spans(1, "good")).await.unwrap();
        assert_eq!(served.intake.take_one().n_items, 1);
    }
    let books = served.telemetry.item_counts();
    assert_eq!(
        books["traces"].refused["queue_full"], 3,
        "the items of a readable request are counted"
    );
    assert_eq!(
        books["traces"].accepted, 0,
        "accepting is the intake's to count"
    );
}

#[tokio::test]
async fn too_much_in_flight_is_unavailable_until_there_is_room() {
    let served = serve(|_, budgets| budgets.in_flight = 1 << 20).await;
    // Send 900 of the 1 000 KiB of a slow request.
    let (sender, body) = Pieces::new();
    let slow: Client<_, _> = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Pieces>();
    let request = Request::post(format!("http://{}{EXPORT}", served.address))
        .header("content-type", "application/grpc");
    let calling = tokio::spawn(slow.request(request.body(body).unwrap()));
    let message = framed(0, &spans(1, &"x".repeat(1_000 << 10)).encode_to_vec());
    let (first, last) = message.split_at(900 << 10);
    sender.send(Bytes::copy_from_slice(first)).await.unwrap();
    eventually("the first part is taken", || {
        (served.budget.n_bytes() >= first.len() - 5).then_some(())
    })
    .await;
    let mut client = TraceServiceClient::new(connect(&served).await);
    let status = client
        .export(spans(1, &"x".repeat(200 << 10)))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(
        status
            .get_error_details()
            .retry_info()
            .and_then(|info| info.retry_delay),
        Some(Duration::from_secs(1))
    );
    assert_eq!(served.refused_requests("traces", "in_flight_full"), 1);
    sender.send(Bytes::copy_from_slice(last)).await.unwrap();
    drop(sender);
    assert_eq!(calling.await.unwrap().unwrap().status(), 200);
    assert_eq!(served.intake.take_one().body.len(), message.len() - 5);
    client
        .export(spans(1, &"x".repeat(200 << 10)))
        .await
        .unwrap();
    served.assert_nothing_in_flight().await;
}

#[tokio::test]
async fn a_client_that_goes_away_gives_its_room_back() {
    let served = serve(|_, _| {}).await;
    let (sender, body) = Pieces::new();
    let client: Client<_, _> = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Pieces>();
    let request = Request::post(format!("http://{}{EXPORT}", served.address))
        .header("content-type", "application/grpc");
    let mut calling = Box::pin(client.request(request.body(body).unwrap()));
    sender
        .send(framed(0, &[0; 500_000])[..400_000].to_vec().into())
        .await
        .unwrap();
    let arrived = eventually("the body is taken", || {
        (served.budget.n_bytes() >= 399_000).then_some(())
    });
    tokio::select! {
        _ = &mut calling => panic!("answered before the body came"),
        () = arrived => {}
    }
    drop((calling, sender, client));
    served.assert_nothing_in_flight().await;
    Bare::new(&served).good_request_works(&served).await;
}

#[tokio::test]
async fn what_we_do_not_speak_is_unimplemented() {
    let served = serve(|_, _| {}).await;
    let bare = Bare::new(&served);
    let body = framed(1, &spans(1, "x").encode_to_vec());
    let called = bare
        .call(EXPORT, &[("grpc-encoding", "snappy")], body.clone())
        .await;
    assert_eq!(called.code, Some(Code::Unimplemented as i32));
    assert_eq!(
        called.headers["grpc-accept-encoding"],
        "identity,gzip,zstd,deflate"
    );
    for path in [
        "/opentelemetry.proto.collector.trace.v1.TraceService/Other",
        "/some.Service/Export",
        "/",
    ] {
        let called = bare.call(path, &[], body.clone()).await;
        assert_eq!(
            (called.http_status, called.code),
            (200, Some(Code::Unimplemented as i32)),
            "{path}"
        );
    }
    let web = bare
        .call(
            EXPORT,
            &[("content-type", "application/grpc-web+proto")],
            body.clone(),
        )
        .await;
    assert_eq!(
        (web.http_status, web.code),
        (404, None),
        "gRPC-Web is no gRPC"
    );
    bare.good_request_works(&served).await;
}

#[tokio::test]
async fn deflate_is_read_since_grpc_of_python_offers_it() {
    let served = serve(|_, _| {}).await;
    let request = spans(1, "x").encode_to_vec();
    let called = Bare::new(&served)
        .call(
            EXPORT,
            &[("grpc-encoding", "deflate")],
            framed(1, &zlib(&request)),
        )
        .await;
    assert_eq!(called.code, Some(0), "{}", called.message);
    assert_eq!(served.intake.take_one().body, request);
}

#[tokio::test]
async fn a_compressed_message_may_be_sent_plain() {
    let served = serve(|_, _| {}).await;
    let request = spans(1, "x").encode_to_vec();
    let called = Bare::new(&served)
        .call(EXPORT, &[("grpc-encoding", "gzip")], framed(0, &request))
        .await;
    assert_eq!(called.code, Some(0), "{}", called.message);
    assert_eq!(served.intake.take_one().body, request);
}

#[tokio::test]
async fn an_answer_that_comes_before_the_body_ends_reaches_its_client() {
    let served = serve(|_, _| {}).await;
    let (sender, body) = Pieces::new();
    let client: Client<_, _> = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Pieces>();
    let request = Request::post(format!("http://{}{EXPORT}", served.address))
        .header("content-type", "application/grpc");
    let mut calling = pin!(client.request(request.body(body).unwrap()));
    // The prefix announces two mebibytes where one is allowed; the bytes arrive in pieces.
    let message = framed(0, &vec![0; 2 << 20]);
    let sending = async {
        for piece in message.chunks(100_000) {
            sender.send(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        drop(sender);
        std::future::pending::<()>().await;
    };
    let response = tokio::select! {
        response = &mut calling => response.unwrap(),
        () = sending => unreachable!(),
    };
    assert_eq!(response.headers()["grpc-status"], "8");
}
