//! Calls the admin port's API with faulty queries and bodies. No call may panic or return 500. The
//! target does not prove that an answer is right; the tests of `register` and `page` do.

use std::panic::AssertUnwindSafe;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Uri};
use judge::assemble::Settings;
use judge::evaluate::Criterion;
use judge::pipeline::{Pipeline, Rules};
use otlp::{json, scan::scan};
use serde_json::json;
use spanscore::config::Config;
use spanscore::page::{Page, PageSetup, ReceiverPorts};
use spanscore::register::{self, RegisterSetup};
use spanscore::sidecar;
use tower::ServiceExt;

use crate::corpus;
use crate::generate::{Dice, mutate};

/// Method, path with query, content type and body.
const CALLS: &[[&str; 4]] = &[
    [
        "GET",
        "/v1/runs?label=fail&criterion=or*&agent=*&service=sh?p&text=sea&limit=5&before=9&since=0",
        "",
        "",
    ],
    ["GET", "/v1/runs/00000000000000000000000000000001", "", ""],
    [
        "GET",
        "/v1/runs/00000000000000000000000000000001/criterion",
        "",
        "",
    ],
    ["GET", "/v1/history", "", ""],
    ["GET", "/v1/page", "", ""],
    ["GET", "/v1/criteria?validate_only=true", "", ""],
    [
        "PUT",
        "/v1/criteria/other?validate_only=true&ttl=60s",
        "application/json",
        r#"{"evaluate": {"tool_order": {"expected_tools": [{"tool_name": "a"}]}}, "threshold": 1}"#,
    ],
    [
        "POST",
        "/v1/runs/evaluate?name=tried",
        "application/yaml",
        "evaluate:\n  tool_calls: { required: [search], disallowed: [{ name: '^r', path: x }] }\n",
    ],
    [
        "POST",
        "/v1/evaluate",
        "application/json",
        r#"{"criteria": [{"name": "c", "evaluate": {"efficiency": {"max_calls": 1}}}],
            "trajectory": {"tool_calls": [{"name": "a", "args": {"q": [1, null]}, "step": 0}]}}"#,
    ],
    [
        "POST",
        "/spanscore.v1.CriteriaService/GetCriterion",
        "application/grpc",
        "\0\0\0\0\u{7}\n\u{5}order",
    ],
];

#[test]
fn any_call_of_the_api_is_answered() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let routes = runtime.block_on(async { routes() });
    // After a panic neither value is used again.
    let api = AssertUnwindSafe((runtime, routes));
    let check_input = |recipe: &[u8]| {
        let (runtime, routes) = &*api;
        let mut dice = Dice::new(recipe);
        let [method, path, content_type, body] = CALLS[dice.up_to(CALLS.len())];
        let body = mutate(body.as_bytes(), &mut dice);
        let path = mutate(path.as_bytes(), &mut dice);
        // The HTTP library rejects a path that does not parse.
        let Ok(uri) = Uri::try_from(path.as_slice()) else {
            return;
        };
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", content_type)
            .body(Body::from(body))
            .unwrap();
        let status = runtime.block_on(async {
            let response = routes.clone().oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            // All answers are short except streams, which `CALLS` does not open.
            to_bytes(response.into_body(), 64 << 20).await.unwrap();
            status
        });
        assert_ne!(status, 500, "{}", String::from_utf8_lossy(&path));
    };
    corpus::replay("admin::any_call_of_the_api_is_answered", check_input);
    bolero::check!()
        .with_iterations(1_500)
        .with_max_len(96)
        .for_each(check_input);
}

/// Returns the API with one criterion and one judged run.
fn routes() -> Router {
    let criteria: Vec<Criterion> = serde_json::from_value(json!([
        { "name": "order", "evaluate": { "tool_call_order": { "tool_calls_order": ["search"] } } },
    ]))
    .unwrap();
    let rules = Rules::new(criteria);
    let setup = RegisterSetup::alone(Config::default(), rules.clone(), sidecar::now);
    let (register, _) = register::open(setup, &Default::default()).unwrap();
    let page = Page::new(PageSetup {
        capacity: (1 << 20).into(),
        links: Vec::new(),
        receivers: ReceiverPorts::default(),
        register: register.clone(),
        clock: sidecar::now,
    });
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let body = json!({ "resourceSpans": [{
        "resource": { "attributes": [text("service.name", "shop")] },
        "scopeSpans": [{ "spans": [{
            "traceId": format!("{:032x}", 1), "spanId": format!("{:016x}", 1), "name": "search",
            "startTimeUnixNano": "1", "endTimeUnixNano": "2",
            "attributes": [
                text("gen_ai.operation.name", "execute_tool"),
                text("gen_ai.tool.name", "search"),
            ],
        }] }],
    }] });
    let body = json::traces(body.to_string().as_bytes()).unwrap();
    let batch = scan(&body, Some(&rules)).unwrap().batch;
    let now = sidecar::now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    pipeline.take(batch, now);
    let judged = pipeline.finish(&rules, now);
    page.note(&judged, &rules, now.unix_nanos);
    register::routes(&register).merge(page.api())
}
