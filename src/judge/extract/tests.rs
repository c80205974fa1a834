//! Extracts trajectories from small traces written here. `tests/judge/captures` compares real
//! payloads; `products` tests products without a capture. The tests bypass the scan, and so prove
//! nothing about it.

mod completeness;
mod messages;
mod order;
mod payloads;
mod products;

use std::sync::Arc;

use otlp::span::{
    Attribute, Resource, ScopeHash, Span, SpanAdmission, SpanId, SpanRow, Status, StoredAttributes,
    StoredAttributesBuilder, TraceId, Value,
};
use serde_json::{Value as Json, json};

use super::*;
use crate::assemble::{CloseReason, Trace, TraceSpans};

/// A span in a test: ids are small numbers, times are milliseconds.
#[derive(Clone)]
struct Made {
    id: u64,
    parent: u64,
    name: String,
    start: u64,
    end: u64,
    attributes: Vec<(String, Json)>,
    events: Vec<(String, Vec<(String, Json)>)>,
    status: Status,
    service: &'static str,
    scope: &'static str,
    flags: u16,
    cut: Option<&'static str>,
}

fn span(id: u64, parent: u64, name: &str, start: u64, end: u64) -> Made {
    Made {
        id,
        parent,
        name: name.to_owned(),
        start,
        end,
        attributes: Vec::new(),
        events: Vec::new(),
        status: Status::Unset,
        service: "shop",
        scope: "",
        flags: 0x101,
        cut: None,
    }
}

fn agent(id: u64, parent: u64, name: &str, start: u64, end: u64) -> Made {
    span(id, parent, &format!("invoke_agent {name}"), start, end)
        .with("gen_ai.operation.name", "invoke_agent")
        .with("gen_ai.agent.name", name)
}

fn model(id: u64, parent: u64, start: u64, end: u64) -> Made {
    span(id, parent, "chat gpt", start, end).with("gen_ai.operation.name", "chat")
}

fn tool(id: u64, parent: u64, name: &str, start: u64, end: u64) -> Made {
    span(id, parent, &format!("execute_tool {name}"), start, end)
        .with("gen_ai.operation.name", "execute_tool")
        .with("gen_ai.tool.name", name)
}

impl Made {
    /// Marks the attribute as cut by the limit on stored values.
    fn cut(mut self, key: &'static str) -> Self {
        self.cut = Some(key);
        self
    }

    fn with(mut self, key: &str, value: impl Into<Json>) -> Self {
        self.attributes.push((key.to_owned(), value.into()));
        self
    }

    fn event(mut self, name: &str, attributes: &[(&str, &str)]) -> Self {
        self.events.push((
            name.to_owned(),
            attributes
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).into()))
                .collect(),
        ));
        self
    }

    fn status(self, status: Status) -> Self {
        Self { status, ..self }
    }

    fn scope(self, scope: &'static str) -> Self {
        Self { scope, ..self }
    }

    fn service(self, service: &'static str) -> Self {
        Self { service, ..self }
    }

    /// Returns the span as the scan stores it.
    fn made(&self, recogniser: &Recogniser) -> Span {
        let keys = recogniser.keys();
        let mut builder = StoredAttributesBuilder::default();
        builder.name(&self.name);
        let add = |builder: &mut StoredAttributesBuilder, (key, value): &(String, Json)| {
            let Some(kept) = keys.find(key.as_bytes()) else {
                return;
            };
            let suffix = std::str::from_utf8(kept.suffix).unwrap();
            let text = value.to_string();
            let value = match value {
                Json::String(text) => Value::Str(text),
                Json::Bool(value) => Value::Bool(*value),
                Json::Number(number) if number.is_i64() => Value::Int(number.as_i64().unwrap()),
                Json::Number(number) => Value::Double(number.as_f64().unwrap()),
                _ => Value::Json(&text),
            };
            builder.attribute(Attribute {
                key: kept.key,
                suffix,
                value,
                cut: self.cut == Some(key),
            });
        };
        self.attributes
            .iter()
            .for_each(|attribute| add(&mut builder, attribute));
        for (name, attributes) in &self.events {
            builder.begin_event(keys.id(name).unwrap());
            attributes
                .iter()
                .for_each(|attribute| add(&mut builder, attribute));
            builder.end_event();
        }
        let mut span = Span {
            trace_id: TraceId::try_new(&[7; 16]).unwrap(),
            row: SpanRow {
                parent_id: SpanId::try_new(&self.parent.to_be_bytes()),
                start_unix_nanos: self.start * 1_000_000,
                end_unix_nanos: self.end * 1_000_000,
                flags: self.flags,
                n_attributes: self.attributes.len() as u16,
                status: self.status,
                scope: ScopeHash::new(self.scope.as_bytes()),
                ..SpanRow::new(SpanId::try_new(&self.id.to_be_bytes()).unwrap())
            },
            resource: Arc::new(Resource {
                encoded: self.service.as_bytes().into(),
                service: self.service.into(),
                kept: StoredAttributesBuilder::default().finish(),
            }),
            kept: StoredAttributes::default(),
        };
        assert!(recogniser.admit(&mut span, &mut builder));
        span.kept = builder.finish();
        span
    }
}

fn trace(spans: &[Made], recogniser: &Recogniser) -> Trace {
    let spans = spans.iter().map(|made| made.made(recogniser));
    let (spans, shape) = TraceSpans::of(spans);
    Trace {
        trace_id: TraceId::try_new(&[7; 16]).unwrap(),
        reason: CloseReason::RootEnded,
        spans,
        shape,
        parent_missing: false,
        arrival: 0,
    }
}

fn taken_with(spans: &[Made], tools: &Tools) -> Trajectory {
    let recogniser = Recogniser::new(tools, ["env"], None);
    trajectory(&trace(spans, &recogniser), &recogniser).unwrap()
}

fn taken(spans: &[Made]) -> Trajectory {
    taken_with(spans, &Tools::default())
}

fn names(trajectory: &Trajectory) -> Vec<&str> {
    trajectory
        .tool_calls
        .iter()
        .map(|call| &*call.name)
        .collect()
}

fn only(span: Made) -> ToolCall {
    let mut calls = taken(&[span]).tool_calls;
    assert_eq!(calls.len(), 1);
    calls.remove(0)
}

fn args(call: &ToolCall) -> Json {
    call.args
        .as_ref()
        .map_or(Json::Null, |args| args.json().clone())
}

fn result(call: &ToolCall) -> Json {
    call.result
        .as_ref()
        .map_or(Json::Null, |result| result.json().clone())
}

// === one call, one entry ===

#[test]
fn client_server_and_wrapper_are_one_call() {
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 99),
        tool(2, 1, "search", 10, 50)
            .with("gen_ai.tool.call.id", "call_1")
            .with("gen_ai.tool.call.arguments", "{\"q\":1}"),
        span(3, 2, "tools/call search", 11, 49)
            .with("mcp.method.name", "tools/call")
            .with("gen_ai.tool.name", "search"),
        span(4, 3, "MCP send tools/call search", 12, 48)
            .with("mcp.method.name", "tools/call")
            .with("jsonrpc.request.id", "3"),
        span(5, 4, "tools/call search", 13, 40)
            .with("mcp.method.name", "tools/call")
            .with("gen_ai.tool.name", "search")
            .with("error.type", "tool_error")
            .service("server"),
    ]);
    assert_eq!(names(&trajectory), ["search"]);
    let call = &trajectory.tool_calls[0];
    assert_eq!(
        (
            call.span_id.unwrap().to_string().as_str(),
            &*call.convention,
            call.error
        ),
        ("0000000000000002", "gen_ai", true)
    );
    assert_eq!(call.call_id.as_deref(), Some("call_1"));
}

#[test]
fn a_retry_is_a_second_call() {
    let retried = taken(&[
        tool(1, 0, "pay", 10, 20).status(Status::Error),
        tool(2, 0, "pay", 30, 40),
    ]);
    assert_eq!(names(&retried), ["pay", "pay"]);
    let same_id =
        |id, start| tool(id, 9, "pay", start, start + 5).with("gen_ai.tool.call.id", "call_1");
    assert_eq!(
        names(&taken(&[same_id(1, 10), same_id(2, 12)])),
        ["pay", "pay"],
        "siblings never fold"
    );
}

#[test]
fn two_ids_are_two_calls_and_an_agent_in_between_makes_its_own() {
    let nested = taken(&[
        tool(1, 0, "plan", 10, 90).with("gen_ai.tool.call.id", "a"),
        tool(2, 1, "plan", 20, 30).with("gen_ai.tool.call.id", "b"),
    ]);
    assert_eq!(names(&nested), ["plan", "plan"]);
    let through_agent = taken(&[
        tool(1, 0, "plan", 10, 90),
        agent(2, 1, "planner", 11, 89),
        tool(3, 2, "plan", 20, 30),
    ]);
    assert_eq!(names(&through_agent), ["plan", "plan"]);
}

#[test]
fn two_instrumentations_of_one_call_fold_by_its_id() {
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 99),
        span(2, 1, "tools", 9, 60),
        tool(3, 2, "search", 10, 50).with("gen_ai.tool.call.id", "call_1"),
        span(4, 1, "search", 11, 49)
            .with("langfuse.observation.type", "tool")
            .with("langfuse.observation.metadata.tool_call_id", "\"call_1\""),
    ]);
    assert_eq!(names(&trajectory), ["search"]);
}

#[test]
fn a_wrapper_that_succeeded_after_a_failed_attempt_did_not_fail() {
    let trajectory = taken(&[
        tool(1, 0, "pay", 10, 90),
        tool(2, 1, "pay", 20, 30).status(Status::Error),
        tool(3, 1, "pay", 40, 50).status(Status::Ok),
    ]);
    assert_eq!(
        (names(&trajectory), trajectory.tool_calls[0].error),
        (vec!["pay"], false)
    );
}

#[test]
fn a_call_without_any_name_is_listed() {
    assert_eq!(
        &*only(span(1, 0, "step", 1, 2).with("gen_ai.operation.name", "execute_tool")).name,
        "(unnamed)"
    );
    let long = "näme with spaces ".repeat(600);
    assert_eq!(&*only(tool(1, 0, &long, 1, 2)).name, long.as_str());
}

#[test]
fn notes_explain_every_span() {
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    let spans = [
        agent(1, 0, "desk", 0, 99),
        model(2, 1, 1, 9),
        model(3, 2, 2, 8),
        tool(4, 1, "search", 10, 20),
        tool(5, 4, "search", 11, 19),
        tool(6, 1, "finish", 30, 40),
        tool(7, 1, "transfer_to_agent", 50, 60),
        span(8, 1, "POST", 70, 80),
    ];
    let notes: Vec<String> = span_reports(&trace(&spans, &recogniser), &recogniser)
        .iter()
        .map(|report| report.role.to_string())
        .collect();
    let expected = [
        "run of the agent desk (gen_ai)",
        "model call (gen_ai)",
        "model call within another",
        "tool call (gen_ai)",
        "the same call as span 0000000000000004",
        "no call: tools.ignore names it",
        "no call: it hands over to another agent (tools.handoffs)",
        "not recognised",
    ];
    assert_eq!(notes, expected);
}

#[test]
fn notes_mark_a_call_reported_twice_and_a_span_that_only_looks_like_a_run() {
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    let spans = [
        agent(1, 0, "desk", 0, 99),
        agent(2, 1, "desk", 1, 98),
        tool(3, 2, "search", 10, 50).with("gen_ai.tool.call.id", "call_1"),
        span(4, 1, "search", 11, 49)
            .with("langfuse.observation.type", "tool")
            .with("langfuse.observation.metadata.tool_call_id", "\"call_1\""),
        span(5, 0, "ai.generateText", 60, 70).with("ai.operationId", "ai.generateText"),
    ];
    let notes: Vec<(u32, String)> = span_reports(&trace(&spans, &recogniser), &recogniser)
        .iter()
        .map(|report| (report.depth, report.role.to_string()))
        .collect();
    let expected = [
        (0, "run of the agent desk (gen_ai)"),
        (1, "the same run of the agent desk"),
        (2, "tool call (gen_ai)"),
        (1, "the same call as span 0000000000000003"),
        (0, "no agent run: it calls no tool itself (vercel_ai)"),
    ];
    assert_eq!(
        notes,
        expected.map(|(depth, text)| (depth, text.to_owned()))
    );
}

// === transfers and pseudo-tools ===

#[test]
fn a_transfer_to_an_agent_of_the_trace_is_no_call() {
    let spans = [
        agent(1, 0, "coordinator", 0, 99),
        tool(2, 1, "transfer_to_billing", 10, 11),
        agent(3, 1, "Billing", 12, 90),
        tool(4, 3, "transfer_to_savings", 20, 30),
        tool(5, 3, "transfer_to_agent", 40, 41),
    ];
    assert_eq!(names(&taken(&spans)), ["transfer_to_savings"]);
    let off = Tools {
        handoffs: Handoffs::Off,
        ..Tools::default()
    };
    assert_eq!(names(&taken_with(&spans, &off)).len(), 3);
}

#[test]
fn the_ignore_list_is_the_list() {
    let spans = [
        tool(1, 0, "final_answer", 10, 11),
        tool(2, 0, "search", 20, 30),
    ];
    assert_eq!(names(&taken(&spans)), ["search"]);
    let tools = Tools {
        ignore: vec!["search".into()],
        ..Tools::default()
    };
    assert_eq!(names(&taken_with(&spans, &tools)), ["final_answer"]);
}

#[test]
fn house_made_agents_models_and_failures_are_configured() {
    let conventions = serde_json::from_value(json!([
        {
            "name": "acme",
            "match": { "acme.kind": "tool" },
            "error_match": { "acme.outcome": "bad" },
        },
        {
            "name": "acme-agent",
            "kind": "agent",
            "match": { "acme.kind": "agent" },
            "name_from": "acme.name",
        },
        { "name": "acme-model", "kind": "model", "match": { "acme.kind": "llm" } },
    ]));
    let tools = Tools {
        conventions: conventions.unwrap(),
        ..Tools::default()
    };
    assert!(tools.problems().is_empty());
    let trajectory = taken_with(
        &[
            span(1, 0, "run", 0, 99)
                .with("acme.kind", "agent")
                .with("acme.name", "desk"),
            span(2, 1, "ask", 1, 2).with("acme.kind", "llm"),
            span(3, 1, "search", 3, 4).with("acme.kind", "tool"),
            span(4, 1, "ask", 5, 6).with("acme.kind", "llm"),
            span(5, 1, "pay", 7, 8)
                .with("acme.kind", "tool")
                .with("acme.outcome", "bad"),
        ],
        &tools,
    );
    assert_eq!(trajectory.agent.as_deref(), Some("desk"));
    let calls: Vec<_> = trajectory
        .tool_calls
        .iter()
        .map(|call| (&*call.name, call.step, call.error, call.agent.as_deref()))
        .collect();
    assert_eq!(
        calls,
        [
            ("search", 0, false, Some("desk")),
            ("pay", 1, true, Some("desk"))
        ]
    );
    let unused = serde_json::from_value(json!([
        { "name": "m", "kind": "model", "match": { "a": "b" }, "name_from": "c" },
    ]));
    let tools = Tools {
        conventions: unused.unwrap(),
        ..Tools::default()
    };
    let problems = tools.problems();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].0, "conventions[0].name_from");
}

#[test]
fn house_made_spellings_are_configured() {
    let house: CustomConvention = serde_json::from_value(json!({
        "name": "house", "match": { "acme.kind": "tool", "acme.version": "2" },
        "name_from": "acme.tool",
        "args_from": "acme.in",
        "result_from": "acme.out",
        "id_from": "acme.id",
    }))
    .unwrap();
    let tools = Tools {
        conventions: vec![house],
        name_attributes: vec!["op".into()],
        ..Tools::default()
    };
    assert!(tools.problems().is_empty());
    let trajectory = taken_with(
        &[
            span(1, 0, "x", 10, 20)
                .with("acme.kind", "tool")
                .with("acme.version", 2)
                .with("acme.tool", "search")
                .with("acme.in", "{\"q\":1}")
                .with("acme.out", "done")
                .with("acme.id", "7"),
            span(2, 0, "y", 30, 40)
                .with("acme.kind", "tool")
                .with("acme.version", 1)
                .with("acme.tool", "other"),
            span(3, 0, "z", 50, 60).with("op", "lookup"),
        ],
        &tools,
    );
    assert_eq!(names(&trajectory), ["search", "lookup"]);
    let call = &trajectory.tool_calls[0];
    assert_eq!(
        (
            &*call.convention,
            args(call),
            result(call),
            call.call_id.as_deref()
        ),
        ("house", json!({"q": 1}), json!("done"), Some("7"))
    );
}
