//! Tests the reading of text written by an agent or by a caller of the API: the values of span
//! attributes, which may be JSON, Python literals or neither, and criteria as YAML or JSON. No text
//! may make the program panic. The targets do not prove that a text is understood as intended; the
//! unit tests of `extract` and `config` do.

use std::path::Path;

use judge::assemble::Settings;
use judge::evaluate::{Criterion, PatternLimits};
use judge::pipeline::{Pipeline, Rules};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use otlp::scan::scan;
use prost::Message;
use serde_json::json;
use spanscore::config;
use spanscore::sidecar;

use crate::corpus;
use crate::generate::{Dice, mutate};

/// Attributes that mark a tool call or a model's request, as key and value.
type Marks = &'static [(&'static str, &'static str)];

/// Kinds of spans: their marks, and the attributes whose text is parsed.
const SPANS: &[(Marks, &[&str])] = &[
    (
        &[
            ("gen_ai.operation.name", "execute_tool"),
            ("gen_ai.tool.name", "search"),
        ],
        &["gen_ai.tool.call.arguments", "gen_ai.tool.call.result"],
    ),
    (
        &[("gen_ai.operation.name", "chat")],
        &["gen_ai.input.messages", "gen_ai.output.messages"],
    ),
    (
        &[("openinference.span.kind", "TOOL"), ("tool.name", "search")],
        &["input.value", "output.value", "tool.parameters"],
    ),
    (
        &[("openinference.span.kind", "LLM")],
        &["input.value", "output.value"],
    ),
    (
        &[
            ("traceloop.span.kind", "tool"),
            ("traceloop.entity.name", "search"),
        ],
        &["traceloop.entity.input", "traceloop.entity.output"],
    ),
    (
        &[("mlflow.spanType", "\"TOOL\"")],
        &["mlflow.spanInputs", "mlflow.spanOutputs"],
    ),
];

/// Texts of the kinds that frameworks write: JSON, Python literals, messages, plain words.
const VALUES: &[&str] = &[
    r#"{"query": "weather", "limit": 3, "nested": {"a": [1, 2.5e3, null, true]}}"#,
    r#"{'query': "it's", 'limit': -3, 'raw': b'\x00', 'set': {1, 2}, 'tuple': (1,), 'none': None}"#,
    r#"content='found' name='search' tool_call_id='call_1' additional_kwargs={'a': [True, False]}"#,
    r#"[{"role": "assistant", "parts": [
        {"type": "tool_call", "id": "1", "name": "search", "arguments": {"q": 1}}
    ]}]"#,
    r#"{"messages": [{"role": "tool", "tool_call_id": "1", "content": "{\"ok\": false}"}]}"#,
    "plain words, and \u{1f980}",
];

#[test]
fn any_attribute_text_is_judged() {
    let rules = rules();
    let check_input = |recipe: &[u8]| {
        let mut dice = Dice::new(recipe);
        let value = VALUES[dice.up_to(VALUES.len())];
        let value = String::from_utf8_lossy(&mutate(value.as_bytes(), &mut dice)).into_owned();
        judge(&rules, &value);
    };
    corpus::replay("text::any_attribute_text_is_judged", check_input);
    bolero::check!()
        .with_iterations(1_500)
        .with_max_len(96)
        .for_each(check_input);
}

#[test]
fn any_criteria_body_is_read_or_refused() {
    let bodies = criteria_bodies();
    let check_input = |recipe: &[u8]| {
        let mut dice = Dice::new(recipe);
        let body = bodies[dice.up_to(bodies.len())].as_bytes();
        let body = String::from_utf8_lossy(&mutate(body, &mut dice)).into_owned();
        // A rejection names at least one mistake; rendering the mistake must not panic either.
        if let Err(problems) = config::criteria(&body, PatternLimits::network(100)) {
            assert!(!problems.to_string().is_empty());
        }
        if let Err(problems) = config::criterion(&body, Some("name"), PatternLimits::network(100)) {
            assert!(!problems.to_string().is_empty());
        }
    };
    corpus::replay("text::any_criteria_body_is_read_or_refused", check_input);
    bolero::check!()
        .with_iterations(1_500)
        .with_max_len(96)
        .for_each(check_input);
}

/// Judges a trace with a span of each kind, with `value` in all attributes that are parsed.
fn judge(rules: &Rules, value: &str) {
    let spans = SPANS.iter().zip(1u8..).map(|((marks, parsed), number)| {
        let marks = marks.iter().map(|(key, mark)| attribute(key, mark));
        let parsed = parsed.iter().map(|key| attribute(key, value));
        Span {
            trace_id: vec![1; 16],
            span_id: vec![number; 8],
            parent_span_id: if number == 1 { Vec::new() } else { vec![1; 8] },
            name: "span".to_owned(),
            start_time_unix_nano: u64::from(number),
            end_time_unix_nano: 100,
            attributes: marks.chain(parsed).collect(),
            ..Span::default()
        }
    });
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans: vec![ScopeSpans {
                spans: spans.collect(),
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    };
    let scanned = scan(&request.encode_to_vec(), Some(rules)).unwrap();
    let now = sidecar::now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    pipeline.take(scanned.batch, now);
    let judged = pipeline.finish(rules, now);
    assert!(!judged.evaluations.is_empty());
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Any::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

fn rules() -> Rules {
    let criteria: Vec<Criterion> = serde_json::from_value(json!([
        { "name": "order", "evaluate": { "tool_call_order": { "tool_calls_order": ["search"] } } },
        { "name": "args", "evaluate": { "tool_call_args": {
            "tool_calls": [{ "name": "search", "args": { "query": "weather" } }] } } },
        { "name": "output", "evaluate": { "tool_call_output": {
            "tool_outputs": [{ "name": "search", "output": "ok" }] } } },
    ]))
    .unwrap();
    Rules::new(criteria)
}

/// Returns the example files, a criterion as JSON and a criterion as YAML.
fn criteria_bodies() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    paths.sort();
    let mut bodies: Vec<String> = paths
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    bodies.push(
        r#"{"evaluate": {"tool_calls": {"required": [{"name": "re:^a+$"}], "sequence": ["a"]}}}"#
            .to_owned(),
    );
    bodies.push(
        "name: n\nevaluate:\n  tool_call_count: { tool_calls_count: { a: [\">=\", 1] } }\n"
            .to_owned(),
    );
    bodies
}
