//! Passes judgements of made-up runs to a page and calls its API, without a socket or a browser.
//! Only tests/page proves that a browser shows the page.

mod late_spans;

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use judge::assemble::Settings;
use judge::pipeline::{Judged, Pipeline};
use otlp::json;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::cli::configuration::Disk;
use crate::config::{Config, Sources};
use crate::register::{RegisterSetup, merge};
use crate::sidecar;

const CRITERIA: &str = r#"
criteria:
  - name: order
    evaluate: { tool_call_order: { tool_calls_order: [validate, check, create] } }
  - name: item
    evaluate: { tool_call_args: { tool_calls: [{ name: create, args: { item: book } }] } }
"#;

const GOOD: &[&str] = &["validate", "check", "create"];
const SWAPPED: &[&str] = &["validate", "create", "check"];

struct Sight {
    page: Page,
    rules: Rules,
    unix_nanos: u64,
}

impl Sight {
    fn new(text: &str, capacity: usize) -> Self {
        let sources = Sources {
            file: Some(("spanscore.yaml".as_ref(), text)),
            environment: &Default::default(),
            flags: &[],
            files: &Disk,
        };
        let config = Config::load(&sources).unwrap().config;
        let rules = merge::rules(&config, config.criteria.clone(), None);
        let links = config.admin.links.clone();
        let setup = RegisterSetup::alone(config, rules.clone(), sidecar::now);
        let (register, _) = crate::register::open(setup, &Arc::default()).unwrap();
        let page = Page::new(PageSetup {
            capacity: capacity.into(),
            links,
            receivers: ReceiverPorts {
                grpc: Some(([127, 0, 0, 1], 14317).into()),
                http: None,
                has_tls: true,
            },
            register,
            clock: sidecar::now,
        });
        Self {
            page,
            rules,
            unix_nanos: 1_795_000_000_000_000_000,
        }
    }

    /// Judges runs, each with its trace id and its calls, and passes the judgements to the page.
    fn judge(&mut self, runs: &[(u64, &[&str])]) {
        let spans = runs.iter().flat_map(|(id, calls)| spans(*id, calls));
        self.judge_body(&request_of("shop", spans.collect()));
    }

    fn judge_body(&mut self, body: &[u8]) {
        let judged = judged(&self.rules, body);
        self.page.note(&judged, &self.rules, self.unix_nanos);
    }

    async fn call(&self, method: &str, path: &str, body: &str) -> (u16, HeaderMap, Vec<u8>) {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let routes = self.page.api().merge(self.page.assets());
        let response = routes.oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 64 << 20).await.unwrap().to_vec();
        (parts.status.as_u16(), parts.headers, body)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.call("GET", path, "").await;
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn attempt(&self, criterion: &str) -> (u16, Value) {
        let (status, _, body) = self.call("POST", "/v1/runs/evaluate", criterion).await;
        (status, serde_json::from_slice(&body).unwrap())
    }
}

fn judged(rules: &Rules, body: &[u8]) -> Judged {
    let scanned = otlp::scan::scan(body, Some(rules)).unwrap();
    let now = sidecar::now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    pipeline.take(scanned.batch, now);
    pipeline.finish(rules, now)
}

fn request_of(service: &str, spans: Vec<Value>) -> Vec<u8> {
    let request = json!({ "resourceSpans": [{
        "resource": { "attributes": attributes(&json!({ "service.name": service })) },
        "scopeSpans": [{ "spans": spans }],
    }] });
    json::traces(request.to_string().as_bytes()).unwrap()
}

fn attributes(texts: &Value) -> Vec<Value> {
    let texts = texts.as_object().unwrap().iter();
    texts
        .map(|(key, text)| json!({ "key": key, "value": { "stringValue": text } }))
        .collect()
}

/// Returns a span of a trace. The first span of the trace is the parent of all others.
fn span(trace: u64, number: u64, name: &str, texts: &Value) -> Value {
    let id = |number: u64| format!("{:016x}", trace * 100_000 + number + 1);
    let end = 1_005 + number * 10 + if number == 0 { 1_000_000 } else { 0 };
    json!({
        "traceId": self::id(trace),
        "spanId": id(number),
        "parentSpanId": if number == 0 { String::new() } else { id(0) },
        "name": name,
        "startTimeUnixNano": (1_000 + number * 10).to_string(),
        "endTimeUnixNano": end.to_string(),
        "attributes": attributes(texts),
    })
}

fn spans(trace: u64, calls: &[&str]) -> Vec<Value> {
    let run = json!({
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "checkout",
    });
    let calls = calls.iter().zip(1..).map(|(name, number)| {
        let call = json!({
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.arguments": r#"{"item":"book","secret":"s3cret"}"#,
        });
        span(trace, number, "execute_tool", &call)
    });
    let run = span(trace, 0, "invoke_agent checkout", &run);
    std::iter::once(run).chain(calls).collect()
}

fn at<const N: usize>(value: &Value, pointers: [&str; N]) -> Value {
    let found = pointers.map(|pointer| value.pointer(pointer).cloned());
    found.into_iter().map(Option::unwrap_or_default).collect()
}

fn each(list: &Value, pointer: &str) -> Value {
    let items = list.as_array().unwrap().iter();
    items.map(|item| at(item, [pointer])[0].take()).collect()
}

fn id(number: u64) -> String {
    format!("{number:032x}")
}

#[tokio::test]
async fn a_failed_run_shows_where_it_parted_and_no_value() {
    let mut sight = Sight::new(CRITERIA, 1 << 20);
    sight.judge(&[(1, GOOD), (2, SWAPPED)]);
    let (_, list) = sight.get("/v1/runs?label=fail").await;
    assert_eq!(each(&list["runs"], "/trace_id"), json!([id(2)]), "{list}");
    assert_eq!(at(&list, ["/judged", "/remembered"]), json!([2, 2]));
    let (_, run) = sight.get(&format!("/v1/runs/{}", id(2))).await;
    let rows = &run["evaluations"][0]["alignment"];
    assert_eq!(each(rows, "/kind"), json!(["match", "match", "moved"]));
    assert_eq!(rows[2]["calls"], json!([1]));
    assert!(!run.to_string().contains("s3cret"), "{run}");
    let (status, _, yaml) = sight
        .call("GET", &format!("/v1/runs/{}/criterion", id(1)), "")
        .await;
    let yaml = String::from_utf8(yaml).unwrap();
    assert_eq!(status, 200);
    assert!(yaml.contains("[validate, check, create]"), "{yaml}");
}

#[tokio::test]
async fn values_are_kept_only_where_explanations_may_show_them() {
    let mut sight = Sight::new(&format!("explain: {{ values: true }}{CRITERIA}"), 1 << 20);
    sight.judge(&[(1, GOOD)]);
    let (_, run) = sight.get(&format!("/v1/runs/{}", id(1))).await;
    let args = run["tool_calls"][0]["args"].as_str().unwrap();
    assert!(args.contains("s3cret"));
}

#[tokio::test]
async fn a_criterion_is_tried_on_remembered_runs() {
    let mut sight = Sight::new(CRITERIA, 1 << 20);
    sight.judge(&[(1, GOOD), (2, SWAPPED)]);
    let (status, tried) = sight
        .attempt(
            "name: order\nthreshold: 0.5\nevaluate:\n  tool_call_order: { tool_calls_order: \
             [validate, check, create] }\n",
        )
        .await;
    let found = at(&tried, ["/labels/pass", "/changed", "/runs/0/before"]);
    assert_eq!((status, found), (200, json!([2, 1, "fail"])), "{tried}");

    let (_, tried) = sight
        .attempt(
            "name: draft\nevaluate:\n  tool_call_args:\n    tool_calls: [{ name: create, \
             args: { item: book } }]\n",
        )
        .await;
    let found = at(&tried, ["/without_values", "/labels/not_evaluated"]);
    assert_eq!(found, json!([2, 2]));

    let (status, problem) = sight
        .attempt("name: draft\nevaluate:\n  tool_call_ordr: {}\n")
        .await;
    let place = at(&problem, ["/errors/0/line", "/errors/0/column"]);
    assert_eq!((status, place), (400, json!([3, 3])));
    let huge = format!(
        "name: a\nevaluate: {{ tool_call_order: {{ tool_calls_order: [{}] }} }}",
        "x, ".repeat(400_000)
    );
    let (status, problem) = sight.attempt(&huge).await;
    assert!((400..500).contains(&status), "{problem}");
}

#[tokio::test]
async fn an_attempt_counts_runs_that_it_no_longer_selects_or_that_are_remembered_in_part() {
    let mut sight = Sight::new(CRITERIA, 1 << 20);
    let long = ["validate"; 8_000];
    sight.judge(&[(1, GOOD), (2, &long)]);
    let (status, tried) = sight
        .attempt(
            "name: order\nselect: { calls: refund }\nevaluate:\n  tool_call_order: { \
             tool_calls_order: [validate] }\n",
        )
        .await;
    let counts = ["/judged", "/selected", "/unselected", "/in_part"];
    let found = at(&tried, counts);
    assert_eq!((status, found), (200, json!([2, 0, 1, 1])), "{tried}");
}

#[tokio::test]
async fn the_page_names_the_ports_that_telemetry_goes_to() {
    let (status, settings) = Sight::new("", 1 << 20).get("/v1/page").await;
    let grpc = json!({ "address": "127.0.0.1:14317", "tls": true });
    let receivers = json!({ "grpc": grpc, "http": null });
    assert_eq!((status, &settings["receivers"]), (200, &receivers));
}

#[tokio::test]
async fn a_label_selects_runs_that_have_it_and_pass_those_without_another() {
    let mut sight = Sight::new(CRITERIA, 1 << 20);
    sight.judge(&[(1, GOOD), (2, SWAPPED)]);
    let passed = async |query: &str| {
        let (_, list) = sight.get(&format!("/v1/runs?label=pass{query}")).await;
        each(&list["runs"], "/trace_id")
    };
    let failed_order = "the other run failed `order`";
    assert_eq!(passed("").await, json!([id(1)]), "{failed_order}");
    assert_eq!(passed("&criterion=item").await, json!([id(2), id(1)]));
    assert_eq!(passed("&criterion=none*").await, json!([]));
}

/// Returns a trace with a model call and a span that no convention recognises.
fn unknown_convention(trace: u64) -> Bytes {
    let model = json!({
        "gen_ai.operation.name": "chat",
        "asked.tool_name": "lookup",
        "kind": "tool",
    });
    let call = json!({
        "step.kind": "tool",
        "step.tool_name": "lookup",
        "step.input": "s3cret".repeat(100),
    });
    let spans = [("chat", model), ("my_tool_step", call)];
    let spans = (spans.iter().zip(0..))
        .map(|((name, texts), number)| span(trace, number, name, texts))
        .collect();
    request_of("legacy", spans).into()
}

#[tokio::test]
async fn spans_of_an_unknown_convention_come_with_the_setting_to_try() {
    let mut sight = Sight::new("", 1 << 20);
    let unrecognised = async |sight: &Sight| {
        let (_, settings) = sight.get("/v1/page").await;
        settings["unrecognised"].clone()
    };
    // The page was not given the request of the first trace.
    sight.judge_body(&unknown_convention(1));
    assert_eq!(unrecognised(&sight).await[0]["proposal"], Value::Null);
    assert!(sight.page.is_curious());
    let body = unknown_convention(2);
    sight.page.look_at(&body, 2);
    sight.judge_body(&body);
    let found = unrecognised(&sight).await;
    assert_eq!(at(&found[0], ["/seen", "/service"]), json!([2, "legacy"]));
    let setting = found[0]["proposal"].as_str().unwrap();
    assert!(!found.to_string().contains("s3cret"));
    // A configuration with this setting loads, and the call is recognised.
    let mut sight = Sight::new(setting, 1 << 20);
    sight.judge_body(&body);
    let (_, list) = sight.get("/v1/runs").await;
    let name = &list["runs"][0]["calls"][0]["name"];
    assert_eq!(name, "lookup", "{setting} {list}");
}

#[test]
fn few_spans_are_read_once_every_proposal_is_there() {
    let sight = Sight::new("", 1 << 20);
    let body = unknown_convention(1);
    let n_read = (0..10_000)
        .take_while(|_| {
            sight.page.look_at(&body, 2);
            sight.page.is_curious()
        })
        .count();
    assert_eq!(n_read, 4_096 / 2 - 1, "then requests pass unread");
    // Bytes that are not a request must cost nothing and break nothing.
    sight.page.look_at(b"\xff\xff\xff", 1 << 60);
}

#[tokio::test]
async fn the_memory_keeps_the_latest_runs_within_its_bytes() {
    let mut sight = Sight::new(CRITERIA, 64 << 10);
    for number in 1..=200 {
        sight.unix_nanos += 1_000_000_000;
        sight.judge(&[(number, GOOD)]);
    }
    let (_, list) = sight.get("/v1/runs?limit=1000").await;
    let runs = list["runs"].as_array().unwrap();
    assert_eq!(list["judged"], 200);
    assert!((5..100).contains(&runs.len()), "{}", runs.len());
    assert_eq!(runs[0]["trace_id"], id(200));
    let (n_runs, size, capacity) = sight.page.0.runs.lock().sizes();
    assert_eq!(n_runs, runs.len());
    assert!(size <= capacity);
    assert_eq!(sight.get(&format!("/v1/runs/{}", id(1))).await.0, 404);
    let (_, older) = sight.get("/v1/runs?before=198&limit=1").await;
    assert_eq!(older["runs"][0]["number"], 197);
}

#[tokio::test]
async fn a_run_of_many_calls_is_kept_with_its_first_ones() {
    let mut sight = Sight::new(CRITERIA, 1 << 20);
    sight.judge(&[(1, &["validate"; 5_000])]);
    let (_, run) = sight.get(&format!("/v1/runs/{}", id(1))).await;
    assert_eq!(run["n_calls"], 5_000);
    assert_eq!(run["tool_calls"].as_array().unwrap().len(), 500);
    let (status, problem) = sight.get(&format!("/v1/runs/{}/criterion", id(1))).await;
    let is_refused = problem["detail"].as_str().unwrap().contains("first calls");
    assert!(status == 409 && is_refused, "{status} {problem}");
    let evaluation = &run["evaluations"][0];
    assert_eq!(evaluation["label"], "fail");
    assert_ne!(evaluation["explanation"].as_str().unwrap(), "");
}

#[tokio::test]
async fn further_slices_of_a_run_of_many_calls_name_its_last_calls() {
    let sight = Sight::new(CRITERIA, 4 << 20);
    let mut calls = ["search"; 5_000];
    calls[4_998..].copy_from_slice(&["check", "create"]);
    let mut slice = judged(&sight.rules, &request_of("shop", spans(1, &calls)));
    let mut further = Judged::default();
    further.evaluations = slice.evaluations.drain(..1).collect();
    for slice in [slice, further] {
        sight.page.note(&slice, &sight.rules, sight.unix_nanos);
        let (status, run) = sight.get(&format!("/v1/runs/{}", id(1))).await;
        assert_eq!((status, &run["n_calls"]), (200, &5_000.into()));
    }
    let (_, run) = sight.get(&format!("/v1/runs/{}", id(1))).await;
    let labels = each(&run["evaluations"], "/label");
    assert_eq!(labels, json!(["pass", "fail"]));
}

#[tokio::test]
async fn too_many_runs_at_once_are_counted_and_failed_ones_have_places_of_their_own() {
    let mut sight = Sight::new(CRITERIA, 64 << 20);
    let all: Vec<_> = (1..=1_500).map(|number| (number, GOOD)).collect();
    sight.judge(&all);
    sight.judge(&[(2_000, &["create"])]);
    let (_, list) = sight.get("/v1/runs").await;
    let found = at(&list, ["/passed_over", "/runs/0/trace_id"]);
    assert_eq!(found, json!([500, id(2_000)]));
    sight.unix_nanos += 1_000_000_000;
    sight.judge(&[(3_000, GOOD)]);
    let (_, list) = sight.get("/v1/runs").await;
    assert_eq!(list["runs"][0]["trace_id"], id(3_000));
    let (_, history) = sight.get("/v1/history").await;
    assert_eq!(history["criteria"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_failure_does_not_hide_behind_many_criteria_that_pass() {
    let criterion = |number: usize| {
        let most = if number == 99 { 0 } else { 30 };
        format!("  - {{ name: c{number}, evaluate: {{ efficiency: {{ max_calls: {most} }} }} }}\n")
    };
    let criteria: String = (0..100).map(criterion).collect();
    let mut sight = Sight::new(&format!("criteria:\n{criteria}"), 1 << 20);
    sight.judge(&[(1, &["validate"])]);
    let (_, list) = sight.get("/v1/runs").await;
    let run = &list["runs"][0];
    let names = each(&run["evaluations"], "/criterion");
    let n_listed = names.as_array().unwrap().len();
    assert_eq!((n_listed, &run["n_evaluations"]), (64, &json!(100)));
    assert_eq!(at(&names, ["/0", "/1"]), json!(["c99", "c0"]));
    assert_eq!(run["evaluations"][0]["label"], "fail");
}

#[tokio::test]
async fn every_route_is_in_the_openapi_document() {
    let mut sight = Sight::new(CRITERIA, 1 << 20);
    sight.judge(&[(1, &["validate"])]);
    let document: Value = serde_saphyr::from_str(include_str!("../register/openapi.yaml")).unwrap();
    let mut n_paths = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        if !["/v1/runs", "/v1/history", "/v1/page"]
            .iter()
            .any(|start| path.starts_with(start))
            || path == "/v1/runs/events"
        {
            continue;
        }
        n_paths += 1;
        for method in ["get", "put", "post", "delete"] {
            let with_id = path.replace("{trace_id}", &id(1));
            let (status, ..) = sight.call(&method.to_uppercase(), &with_id, "{").await;
            let operation = &operations[method];
            assert_eq!(
                status == 405,
                operation.is_null(),
                "{method} {path}: {status}"
            );
            assert!(
                operation.is_null() || operation["responses"][status.to_string()].is_object(),
                "{method} {path}: {status}"
            );
        }
    }
    assert_eq!(n_paths, 6);
    let (status, problem) = sight.get("/v1/runs?label=bad").await;
    assert!(status == 400 && problem["detail"].as_str().unwrap().contains("`bad`"));
    let (_, list) = sight.get("/v1/runs?criterion=zzz").await;
    assert_eq!(list["runs"], json!([]));
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere_and_is_small() {
    let sight = Sight::new("", 1 << 20);
    let mut size = 0;
    for path in ["/", "/page/page.js", "/page/page.css", "/page/icon.svg"] {
        let request = Request::get(path).header("accept-encoding", "gzip");
        let response = sight
            .page
            .assets()
            .oneshot(request.body(Body::empty()).unwrap())
            .await;
        let (parts, body) = response.unwrap().into_parts();
        let header = |name: &str| parts.headers[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-encoding"), "gzip", "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        let policy = header("content-security-policy");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
        assert!(!parts.headers.contains_key("set-cookie"));
        size += to_bytes(body, 1 << 20).await.unwrap().len();
    }
    assert!(size < 200 << 10, "{size} bytes");
    // A report contains the script between tags.
    let script = assets::script();
    assert!(!script.contains("</script") && !script.contains('\r') && !script.contains("<!--"));
    assert!(!assets::style().contains("</style"));
}

#[tokio::test]
async fn thirty_two_pages_stream_and_further_ones_are_told_to_poll() {
    let sight = Sight::new("", 1 << 20);
    let mut streams = Vec::new();
    for _ in 0..stream::MAX_STREAMS {
        streams.push(stream::stream(sight.page.clone(), 0).unwrap());
    }
    assert_eq!(sight.get("/v1/runs/events").await.0, 503);
    drop(streams);
    assert!(stream::stream(sight.page.clone(), 0).is_ok());
}
