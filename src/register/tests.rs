//! Calls the API through its routes, without a socket, and checks its responses and the rules by
//! which traces are judged afterwards. The tests do not prove that the OpenAPI document fits every
//! response, nor that other gRPC clients can use the API.

mod abuse;
mod calls;

use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use tower::ServiceExt;

use serde_json::{Value, json};

use super::limits::{MAX_BODY_SIZE, MAX_KEYS, MAX_NAME_LENGTH, MAX_REGISTRATIONS};
use super::*;
use crate::config::Sources;
use crate::sidecar;

pub(in crate::register) fn register(text: &str) -> Register {
    opened(text, sidecar::now).0
}

pub(super) fn opened(text: &str, clock: fn() -> Now) -> (Register, Reloader) {
    let config = loaded(text);
    let rules = merge::rules(&config, config.criteria.clone(), None);
    let setup = RegisterSetup::alone(config, rules, clock);
    open(setup, &Arc::default()).unwrap()
}

fn loaded(text: &str) -> Config {
    let files = crate::cli::configuration::Disk;
    let sources = Sources {
        file: Some(("spanscore.yaml".as_ref(), text)),
        environment: &Default::default(),
        flags: &[],
        files: &files,
    };
    Config::load(&sources)
        .unwrap_or_else(|problems| panic!("{problems}"))
        .config
}

/// Calls a route, and returns status, ETag and body.
pub(in crate::register) async fn call(
    register: &Register,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, Value) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = routes(register)
        .oneshot(request.body(Body::from(body.to_owned())).unwrap())
        .await
        .unwrap();
    let (status, etag) = (response.status().as_u16(), etag(&response));
    let body = to_bytes(response.into_body(), 64 << 20).await.unwrap();
    (
        status,
        etag,
        serde_json::from_slice(&body).unwrap_or(Value::Null),
    )
}

fn etag(response: &Response<Body>) -> String {
    response
        .headers()
        .get("etag")
        .map(|etag| etag.to_str().unwrap().to_owned())
        .unwrap_or_default()
}

/// Returns the names of the criteria by which traces are judged, in order.
fn judged_by(register: &Register) -> Vec<String> {
    register
        .0
        .rules
        .load()
        .criteria
        .iter()
        .map(|criterion| criterion.name.clone())
        .collect()
}

const FILE: &str =
    "criteria: [{ name: a, evaluate: { tool_call_order: { tool_calls_order: [x] } } }]\n";
const ORDER: &str = "evaluate: { tool_call_order: { tool_calls_order: [y] } }\n";
