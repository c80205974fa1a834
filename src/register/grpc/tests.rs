//! Calls gRPC methods with HTTP/2 frames, without a socket, and compares the responses with those
//! of REST. The client builds messages from their descriptors, not from the generated types. The
//! tests do not prove that clients in other languages work, such as the Python client in
//! docs/criteria-api.md.

use axum::body::to_bytes;
use http_body_util::BodyExt;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::json;

use super::super::tests::{call, register};
use super::*;

const SERVICE: &str = "spanscore.v1.CriteriaService";

pub(super) static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).unwrap());

fn from_json(json: Value, descriptor: MessageDescriptor) -> DynamicMessage {
    DynamicMessage::deserialize(descriptor, json).unwrap()
}

fn to_json(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new().use_proto_field_name(true);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .unwrap()
}

fn framed(message: &impl prost::Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    [
        [0].as_slice(),
        &u32::try_from(message.len()).unwrap().to_be_bytes(),
        &message,
    ]
    .concat()
}

/// Returns the messages of a body, each of which must be complete.
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

/// Returns the status, which is a header if there is no response, and the response as JSON.
async fn call_method(routes: &mut Router, method: &str, request: Value) -> (Status, Value) {
    let method = POOL
        .get_service_by_name(SERVICE)
        .unwrap()
        .methods()
        .find(|known| known.name() == method)
        .unwrap();
    let request = from_json(request, method.input());
    let response = post(
        routes,
        &format!("/{SERVICE}/{}", method.name()),
        framed(&request),
    )
    .await;
    let headers = response.headers().clone();
    let collected = response.into_body().collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let status = Status::from_header_map(&headers)
        .or_else(|| Status::from_header_map(&trailers))
        .unwrap();
    let body = collected.to_bytes();
    let response = messages(&body)
        .first()
        .map(|message| DynamicMessage::decode(method.output(), *message).unwrap());
    (
        status,
        response.map_or(Value::Null, |response| to_json(&response)),
    )
}

#[tokio::test]
async fn a_criterion_is_registered_read_and_taken_out_by_either_api() {
    let register = register("");
    let mut routes = routes(&register);
    let criterion = json!({
        "name": "b",
        "evaluate": { "tool_call_order": { "tool_calls_order": ["x", "y"] } },
    });
    let (status, made) =
        call_method(&mut routes, "Upsert", json!({ "criterion": criterion })).await;
    assert_eq!(status.code(), tonic::Code::Ok, "{status:?}");
    let (_, _, read) = call(&register, "GET", "/v1/criteria/b", &[], "").await;
    assert_eq!(
        (&made["revision"], &made["etag"], &made["source"]),
        (&read["revision"], &read["etag"], &json!("api"))
    );
    let (_, got) = call_method(&mut routes, "Get", json!({ "name": "b" })).await;
    assert_eq!(got, made);
    let (_, listed) = call_method(&mut routes, "List", json!({})).await;
    assert_eq!(listed["criteria"], json!([made]));
    let (status, _) = call_method(
        &mut routes,
        "Upsert",
        json!({ "criterion": criterion, "create_only": true }),
    )
    .await;
    assert_eq!(status.code(), tonic::Code::AlreadyExists, "{status:?}");
    let (status, _) = call_method(&mut routes, "Delete", json!({ "name": "b" })).await;
    assert_eq!(status.code(), tonic::Code::Ok, "{status:?}");
    assert_eq!(
        call_method(&mut routes, "Get", json!({ "name": "b" }))
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
    let mut routes = routes(&register(""));
    let criterion = json!({
        "name": "b",
        "threshold": 2.0,
        "evaluate": { "tool_call_order": { "tool_calls_order": ["x"] } },
    });
    let (status, _) = call_method(&mut routes, "Upsert", json!({ "criterion": criterion })).await;
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
async fn both_versions_of_reflection_describe_the_service() {
    let mut routes = routes(&register(""));
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
async fn an_unknown_method_is_unimplemented() {
    let mut routes = routes(&register(""));
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

#[tokio::test]
async fn bytes_that_are_no_message_are_an_invalid_argument() {
    let mut routes = routes(&register(""));
    let body = [[0, 0, 0, 0, 2].as_slice(), b"\x0a\xff"].concat();
    let response = post(&mut routes, "/spanscore.v1.CriteriaService/Get", body).await;
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
}

#[tokio::test]
async fn a_trajectory_and_traces_are_judged_as_rest_judges_them() {
    let register = register("");
    let mut routes = routes(&register);
    let criteria = json!([{
        "name": "m",
        "evaluate": { "toolCallArgs": { "toolCalls": [{ "name": "a", "args": { "n": 2 } }] } },
    }]);
    let calls = json!([{ "name": "a", "args": { "n": 2 }, "start": "1", "end": "2" }]);
    let trajectory = json!({ "tool_calls": calls });
    let request = json!({ "trajectory": { "toolCalls": calls }, "criteria": criteria });
    let (status, judged) = call_method(&mut routes, "Evaluate", request).await;
    assert_eq!(status.code(), tonic::Code::Ok, "{status:?}");
    let rest = json!({
        "trajectory": trajectory,
        "criteria": [{
            "name": "m",
            "evaluate": { "tool_call_args": { "tool_calls": [{
                "name": "a",
                "args": { "n": 2 },
            }] } },
        }],
    });
    let (_, _, by_rest) = call(&register, "POST", "/v1/evaluate", &[], &rest.to_string()).await;
    for field in [
        "label",
        "score",
        "explanation",
        "criterion_revision",
        "trace_id",
    ] {
        let (grpc, rest) = (
            &judged["evaluations"][0][field],
            &by_rest["evaluations"][0][field],
        );
        assert!(
            grpc == rest || grpc.as_f64() == rest.as_f64() && grpc.is_number(),
            "{field}: {grpc} {rest}"
        );
    }
    let span = json!({
        "traceId": "CvdlGRbNQ92ESOshHIAxnA==", "spanId": "t61rcWkgMzE=", "name": "run",
        "startTimeUnixNano": "1", "endTimeUnixNano": "2",
        "attributes": [{ "key": "tool.name", "value": { "stringValue": "a" } }],
    });
    let order = json!([{
        "name": "o", "evaluate": { "toolCallOrder": { "toolCallsOrder": ["a"] } },
    }]);
    let request = json!({
        "traces": { "resourceSpans": [{ "scopeSpans": [{ "spans": [span] }] }] },
        "criteria": order,
    });
    let (status, judged) = call_method(&mut routes, "Evaluate", request).await;
    assert_eq!(status.code(), tonic::Code::Ok, "{status:?}");
    assert_eq!(judged["evaluations"][0]["label"], "pass", "{judged}");
}

#[tokio::test]
async fn rules_references_and_limits_are_judged_as_rest_judges_them() {
    let register = register("");
    let mut routes = routes(&register);
    let rules = |same: Value| {
        let pair =
            |names: [&str; 2]| json!({ "a": [{ "name": names[0] }], "b": [{ "name": names[1] }] });
        let mut bound = pair(["^read$", "^edit$"]);
        bound["same"] = same;
        json!([
            { "precedence": bound },
            { "absence": { "a": [{ "name": "^delete$" }], "max": 0 } },
            { "total": {
                "a": [{ "name": "^edit$", "where": { "args.path": "none" } }],
                "of": "args.size",
                "max": 5,
            } },
            { "not_succession": pair(["^secret$", "^send$"]) },
        ])
    };
    let expected = json!([{ "name": "read", "args": { "path": "a" } }, { "name": "edit" }]);
    let limits = json!({ "max_calls": 1, "max_duration": "1h", "ignore": [{ "name": "^poll" }] });
    let of = |evaluate: [Value; 3]| -> Value {
        let criteria = evaluate.into_iter().zip(["rules", "reference", "effort"]);
        criteria
            .map(|(evaluate, name)| json!({ "name": name, "evaluate": evaluate }))
            .collect()
    };
    let by_message = of([
        json!({ "constraints": {
            "rules": rules(json!([{ "a": "args.path", "b": "args.path" }])),
        } }),
        json!({ "trajectory_match": { "expected": expected, "score": "f1", "ordered": true } }),
        json!({ "efficiency": limits }),
    ]);
    let by_document = of([
        json!({ "constraints": { "rules": rules(json!(["args.path"])) } }),
        json!({ "trajectory_match": { "expected": expected, "score": "f1", "ordered": true } }),
        json!({ "efficiency": limits }),
    ]);
    let call_of = |name: &str, path: &str, start: u32| {
        json!({
            "name": name, "args": { "path": path },
            "start": start.to_string(), "end": (start + 1).to_string(),
        })
    };
    let calls = json!([
        call_of("read", "a", 1),
        call_of("edit", "a", 3),
        call_of("edit", "b", 5)
    ]);

    let request = json!({ "trajectory": { "tool_calls": calls }, "criteria": by_message });
    let (status, judged) = call_method(&mut routes, "Evaluate", request).await;
    assert_eq!(status.code(), tonic::Code::Ok, "{status:?}");
    let request = json!({ "trajectory": { "tool_calls": calls }, "criteria": by_document });
    let request = request.to_string();
    let (_, _, by_rest) = call(&register, "POST", "/v1/evaluate", &[], &request).await;
    let said = |judged: &Value| -> Vec<(Value, Value, Value)> {
        let evaluations = judged["evaluations"].as_array().expect("a list").iter();
        evaluations
            .map(|of| {
                let text = |key: &str| of[key].clone();
                (text("criterion"), text("label"), text("explanation"))
            })
            .collect()
    };
    assert_eq!(said(&judged), said(&by_rest));
    let explanations: Vec<Value> = said(&judged).into_iter().map(|(_, _, text)| text).collect();
    assert_eq!(
        explanations[0],
        "`edit` (call 3): no `^read$` before it in this trace with the same `args.path` \
         (`read` (call 1) differs in `args.path`)"
    );
    assert!(
        explanations[1]
            .as_str()
            .is_some_and(|text| text.starts_with("f1 0.8: 2 of 2"))
    );
    assert!(
        explanations[2]
            .as_str()
            .is_some_and(|text| text.starts_with("3 calls were made"))
    );
    // Scores and details are equal, too.
    for (grpc, rest) in judged["evaluations"]
        .as_array()
        .into_iter()
        .flatten()
        .zip(by_rest["evaluations"].as_array().into_iter().flatten())
    {
        assert_eq!(grpc["score"].as_f64(), rest["score"].as_f64());
        assert_eq!(with_floats(&grpc["details"]), with_floats(&rest["details"]));
    }

    // Every criterion can be registered and is read back unchanged. Fields that exclude each other
    // are a violation of one of them.
    for criterion in by_message.as_array().expect("a list") {
        let request = json!({ "criterion": criterion });
        let (status, made) = call_method(&mut routes, "Upsert", request).await;
        assert_eq!(status.code(), tonic::Code::Ok, "{status:?}");
        let (_, got) = call_method(&mut routes, "Get", json!({ "name": criterion["name"] })).await;
        assert_eq!(got, made);
    }
    use tonic_types::StatusExt;
    let both = json!({ "expected": [{ "name": "read" }], "preset": "uipath", "ordered": true });
    let wrong = json!({ "name": "w", "evaluate": { "trajectory_match": both } });
    let (status, _) = call_method(&mut routes, "Upsert", json!({ "criterion": wrong })).await;
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    let violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(
        violations[0].field,
        "criterion.evaluate.trajectory_match.ordered"
    );
}

/// Returns the value with all numbers as floats, as a protobuf `Struct` contains them.
fn with_floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(with_floats).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), with_floats(value)))
            .collect(),
        _ => value.clone(),
    }
}
