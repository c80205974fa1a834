//! Calls as they lie in HTTP/2's frames, without a socket: what is answered, by whom, and that it
//! is what REST says. They do not prove that clients of other languages read it, which a Python
//! client does in the transcript of docs/criteria-api.md.

use axum::body::{Bytes, to_bytes};
use http_body_util::BodyExt;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::super::tests::{call, register};
use super::*;

const SERVICE: &str = "spanscore.v1.CriteriaService";

fn framed(message: &impl prost::Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    [
        [0].as_slice(),
        &u32::try_from(message.len()).unwrap().to_be_bytes(),
        &message,
    ]
    .concat()
}

/// The messages of a body, of which each is whole.
fn messages(mut body: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let Some((prefix, rest)) = body.split_at_checked(5) {
        let (message, rest) =
            rest.split_at(u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize);
        messages.push(message);
        body = rest;
    }
    messages
}

async fn post(routes: &mut Router, path: &str, body: Vec<u8>) -> Response {
    let request = Request::builder()
        .method("POST")
        .uri(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    routes
        .call(request.body(Body::from(body)).unwrap())
        .await
        .unwrap()
}

/// The status, which comes as a header where there is no answer, and the answer as JSON.
async fn ask(routes: &mut Router, method: &str, question: Value) -> (Status, Value) {
    let method = POOL
        .get_service_by_name(SERVICE)
        .unwrap()
        .methods()
        .find(|known| known.name() == method)
        .unwrap();
    let question = spelling::from_json(&question, method.input()).unwrap();
    let response = post(
        routes,
        &format!("/{SERVICE}/{}", method.name()),
        framed(&question),
    )
    .await;
    let headers = response.headers().clone();
    let collected = response.into_body().collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let status = Status::from_header_map(&headers)
        .or_else(|| Status::from_header_map(&trailers))
        .unwrap();
    let body = collected.to_bytes();
    let answer = messages(&body)
        .first()
        .map(|message| DynamicMessage::decode(method.output(), *message).unwrap());
    (
        status,
        answer.map_or(Value::Null, |answer| spelling::to_json(&answer).unwrap()),
    )
}

#[tokio::test]
async fn a_criterion_is_registered_read_and_taken_out_by_either_api() {
    let register = register("");
    let mut routes = register.routes();
    let criterion = json!({ "name": "b", "evaluate": { "tool_call_order": { "tool_calls_order": ["x", "y"] } } });
    let (status, made) = ask(&mut routes, "Upsert", json!({ "criterion": criterion })).await;
    assert_eq!(status.code(), tonic::Code::Ok, "{status:?}");
    let (_, _, read) = call(&register, "GET", "/v1/criteria/b", &[], "").await;
    assert_eq!(
        (&made["revision"], &made["etag"], &made["source"]),
        (&read["revision"], &read["etag"], &json!("api"))
    );
    let (_, got) = ask(&mut routes, "Get", json!({ "name": "b" })).await;
    assert_eq!(got, made);
    let (_, listed) = ask(&mut routes, "List", json!({})).await;
    assert_eq!(listed["criteria"], json!([made]));
    let (status, _) = ask(
        &mut routes,
        "Upsert",
        json!({ "criterion": criterion, "create_only": true }),
    )
    .await;
    assert_eq!(status.code(), tonic::Code::AlreadyExists, "{status:?}");
    let (status, _) = ask(&mut routes, "Delete", json!({ "name": "b" })).await;
    assert_eq!(status.code(), tonic::Code::Ok, "{status:?}");
    assert_eq!(
        ask(&mut routes, "Get", json!({ "name": "b" }))
            .await
            .0
            .code(),
        tonic::Code::NotFound
    );
    assert_eq!(
        call(&register, "GET", "/v1/criteria/b", &[], "").await.0,
        404
    );
}

#[tokio::test]
async fn a_mistake_is_a_violation_of_the_field_where_it_is() {
    use tonic_types::StatusExt;
    let mut routes = register("").routes();
    let criterion = json!({ "name": "b", "threshold": 2.0, "evaluate": { "tool_call_order": { "tool_calls_order": ["x"] } } });
    let (status, _) = ask(&mut routes, "Upsert", json!({ "criterion": criterion })).await;
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    let violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(
        violations
            .iter()
            .map(|violation| violation.field.as_str())
            .collect::<Vec<_>>(),
        ["criterion.threshold"],
        "{violations:?}"
    );
}

#[tokio::test]
async fn who_watches_is_told_what_is_in_force_and_what_becomes_of_it() {
    let register = register("");
    let mut routes = register.routes();
    let watch = POOL
        .get_service_by_name(SERVICE)
        .unwrap()
        .methods()
        .find(|method| method.name() == "Watch")
        .unwrap();
    let response = post(
        &mut routes,
        &format!("/{SERVICE}/Watch"),
        framed(&DynamicMessage::new(watch.input())),
    )
    .await;
    let mut body = response.into_body();
    let mut told = async || {
        let frame: Bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        spelling::to_json(&DynamicMessage::decode(watch.output(), messages(&frame)[0]).unwrap())
            .unwrap()
    };
    assert_eq!(told().await["cause"], "now");
    let (status, ..) = call(
        &register,
        "PUT",
        "/v1/criteria/c",
        &[],
        "evaluate: { tool_call_order: { tool_calls_order: [y] } }\n",
    )
    .await;
    assert_eq!(status, 201);
    let change = told().await;
    assert_eq!(
        (&change["cause"], &change["added"]),
        (&json!("api"), &json!(["c"]))
    );
}

#[tokio::test]
async fn reflection_tells_of_the_service_in_both_of_its_versions() {
    let mut routes = register("").routes();
    for version in ["v1", "v1alpha"] {
        let questions = [
            MessageRequest::ListServices(String::new()),
            MessageRequest::FileContainingSymbol(SERVICE.to_owned()),
        ];
        let questions = questions.map(|question| ServerReflectionRequest {
            host: String::new(),
            message_request: Some(question),
        });
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let response = post(
            &mut routes,
            &path,
            questions.iter().flat_map(framed).collect(),
        )
        .await;
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let answers = messages(&body).into_iter().map(|message| {
            ServerReflectionResponse::decode(message)
                .unwrap()
                .message_response
        });
        let [
            Some(MessageResponse::ListServicesResponse(listed)),
            Some(MessageResponse::FileDescriptorResponse(file)),
        ] = &answers.collect::<Vec<_>>()[..]
        else {
            panic!("{version} answers otherwise")
        };
        assert!(
            listed.service.iter().any(|service| service.name == SERVICE),
            "{version}: {listed:?}"
        );
        assert!(!file.file_descriptor_proto.is_empty(), "{version}");
    }
}

#[tokio::test]
async fn a_method_that_is_none_is_unimplemented() {
    let mut routes = register("").routes();
    for path in [
        "/spanscore.v1.CriteriaService/Forget",
        "/grpc.reflection.v1.ServerReflection/Forget",
    ] {
        let response = post(&mut routes, path, framed(&())).await;
        assert_eq!(
            Status::from_header_map(response.headers()).unwrap().code(),
            tonic::Code::Unimplemented,
            "{path}"
        );
    }
}
