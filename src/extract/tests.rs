//! How a trace becomes a trajectory, on small traces written down here. Real payloads are compared
//! in `tests/it/captures`, products without a capture in `products`. They prove nothing about the
//! scan, which is not asked here.

mod payloads;
mod products;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::*;
use crate::assemble::{CloseReason, Trace};
use crate::span::{
    Attribute, KeptAttributesBuilder, KeySet, Resource, Span, SpanId, Status, TraceId, Value,
};

/// A span as a test writes it: ids are small numbers, times are milliseconds.
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
    flags: u32,
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
    /// The attribute was longer than what is kept of one.
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

    fn service(self, service: &'static str) -> Self {
        Self { service, ..self }
    }

    fn made(&self, keys: &KeySet) -> Span {
        let mut builder = KeptAttributesBuilder::default();
        builder.name(&self.name);
        let add = |builder: &mut KeptAttributesBuilder, (key, value): &(String, Json)| {
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
        Span {
            trace_id: TraceId::try_new(&[7; 16]).unwrap(),
            span_id: SpanId::try_new(&self.id.to_be_bytes()).unwrap(),
            parent_id: SpanId::try_new(&self.parent.to_be_bytes()),
            start_unix_nanos: self.start * 1_000_000,
            end_unix_nanos: self.end * 1_000_000,
            flags: self.flags,
            n_attributes: self.attributes.len() as u32,
            status: self.status,
            resource: Arc::new(Resource {
                encoded: self.service.as_bytes().into(),
                service: self.service.into(),
                kept: KeptAttributesBuilder::default().finish(),
            }),
            kept: builder.finish(),
        }
    }
}

fn trace(spans: &[Made], recogniser: &Recogniser) -> Trace {
    let mut spans: Vec<_> = (spans.iter())
        .map(|made| {
            let mut span = made.made(recogniser.keys());
            let class = classify(&span, recogniser);
            prune(&mut span, class);
            (span, class)
        })
        .collect();
    spans.sort_by_key(|(span, _)| (span.start_unix_nanos, span.span_id));
    Trace {
        trace_id: TraceId::try_new(&[7; 16]).unwrap(),
        reason: CloseReason::RootEnded,
        spans,
        records: Vec::new(),
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

/// The one call of a trace of one span.
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
fn notes_say_what_became_of_every_span() {
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
fn notes_tell_a_call_told_twice_and_what_only_looks_like_a_run() {
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
        (0, "no agent run: nothing in it uses tools (vercel_ai)"),
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

// === order, steps, groups, agents ===

#[test]
fn ties_are_broken_by_depth_then_by_the_order_of_the_reply() {
    let reply = concat!(
        r#"[{"role":"assistant","parts":["#,
        r#"{"type":"tool_call","id":"c2","name":"b","arguments":{}},"#,
        r#"{"type":"tool_call","id":"c1","name":"a","arguments":{}}]}]"#,
    );
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 99),
        model(2, 1, 1, 9).with("gen_ai.output.messages", reply),
        tool(3, 1, "a", 10, 20).with("gen_ai.tool.call.id", "c1"),
        tool(4, 1, "b", 10, 30).with("gen_ai.tool.call.id", "c2"),
        tool(5, 4, "inner", 10, 15),
    ]);
    assert_eq!(names(&trajectory), ["b", "a", "inner"]);
    let groups: Vec<Option<u32>> = trajectory
        .tool_calls
        .iter()
        .map(|call| call.parallel_group)
        .collect();
    assert_eq!(
        groups,
        [Some(1), Some(1), None],
        "a call within a call is none of its group"
    );
}

#[test]
fn a_step_is_the_turn_of_the_agents_model() {
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 999),
        model(2, 1, 1, 9),
        model(3, 2, 2, 8),
        tool(4, 1, "ask_expert", 10, 400),
        agent(5, 4, "expert", 11, 399),
        model(6, 5, 12, 20),
        tool(7, 5, "search", 21, 30),
        model(8, 5, 31, 40),
        tool(9, 5, "fetch", 41, 50),
        tool(10, 5, "store", 60, 70),
        model(11, 1, 401, 410),
        tool(12, 1, "publish", 411, 420),
    ]);
    let steps: Vec<(&str, u32, Option<u32>)> = trajectory
        .tool_calls
        .iter()
        .map(|call| (&*call.name, call.step, call.parallel_group))
        .collect();
    let expected = [
        ("ask_expert", 0, None),
        ("search", 0, None),
        ("fetch", 1, Some(1)),
        ("store", 1, Some(1)),
        ("publish", 1, None),
    ];
    assert_eq!(steps, expected);
    assert_eq!(trajectory.agent.as_deref(), Some("desk"));
    assert_eq!(trajectory.judged_agent_runs(), [0, 1]);
    let expert = trajectory.for_agent_run(1);
    assert_eq!(
        (names(&expert), expert.agent.as_deref()),
        (vec!["search", "fetch", "store"], Some("expert"))
    );
    assert_eq!(
        expert.subject.unwrap().span_id.to_string(),
        "0000000000000005"
    );
    assert_eq!(
        trajectory
            .node_visits
            .iter()
            .map(|name| &**name)
            .collect::<Vec<_>>(),
        ["desk", "expert"]
    );
}

#[test]
fn without_model_spans_overlap_makes_a_group() {
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 99),
        tool(2, 1, "a", 10, 30),
        tool(3, 1, "b", 20, 40),
        tool(4, 1, "c", 35, 36),
        tool(5, 1, "d", 40, 50),
    ]);
    let groups: Vec<Option<u32>> = trajectory
        .tool_calls
        .iter()
        .map(|call| call.parallel_group)
        .collect();
    assert_eq!(groups, [Some(1), Some(1), Some(1), None]);
}

#[test]
fn runs_of_one_name_directly_nested_are_one() {
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 99),
        agent(2, 1, "desk", 1, 98),
        tool(3, 2, "desk_again", 10, 60),
        agent(4, 3, "desk", 11, 59),
        tool(5, 4, "search", 20, 30),
    ]);
    assert_eq!(trajectory.agent_runs.len(), 2);
    assert_eq!(trajectory.agent_runs[1].parent, Some(0));
    assert_eq!(trajectory.tool_calls[0].agent_run, Some(0));
    assert_eq!(trajectory.tool_calls[1].agent_run, Some(1));
}

#[test]
fn a_run_without_calls_that_contains_a_run_is_not_judged() {
    let trajectory = taken(&[
        agent(1, 0, "flow", 0, 99),
        agent(2, 1, "desk", 1, 98),
        tool(3, 2, "search", 10, 20),
    ]);
    assert_eq!(trajectory.judged_agent_runs(), [1]);
    assert_eq!(taken(&[agent(1, 0, "idle", 0, 9)]).judged_agent_runs(), [0]);
}

#[test]
fn a_process_with_another_clock_is_ordered_below_its_parent() {
    let spans = [
        agent(1, 0, "desk", 1000, 9000),
        tool(2, 1, "first", 2000, 3000),
        tool(3, 1, "remote", 4000, 6000),
        span(4, 3, "serve", 500, 2500).service("server"),
        tool(5, 4, "inner", 600, 700).service("server"),
    ];
    let trajectory = taken(&spans);
    assert_eq!(names(&trajectory), ["first", "remote", "inner"]);
    assert!(trajectory.clock_adjusted);
    assert_eq!(trajectory.tool_calls[2].start_unix_nanos, 4_100_000_000);
    assert!(!taken(&spans[..3]).clock_adjusted);
}

#[test]
fn a_session_is_looked_up_the_ancestors_then_anywhere() {
    let above = taken(&[
        span(1, 0, "POST", 0, 99).with("session.id", "s1"),
        agent(2, 1, "desk", 1, 98),
        tool(3, 2, "a", 2, 3).with("session.id", "s2"),
    ]);
    assert_eq!(
        (above.session.as_deref(), &*above.root),
        (Some("s1"), "POST")
    );
    let below = taken(&[
        agent(1, 0, "desk", 1, 98),
        model(2, 1, 2, 3).with("gen_ai.conversation.id", "s3"),
    ]);
    assert_eq!(below.session.as_deref(), Some("s3"));
}

#[test]
fn only_what_a_selector_reads_is_copied() {
    let trajectory = taken(&[agent(1, 0, "desk", 1, 98)
        .with("env", 3)
        .with("session.id", "s")]);
    let subject = trajectory.subject.unwrap();
    assert_eq!(
        (subject.attribute("env"), subject.attribute("session.id")),
        (Some("3"), None)
    );
}

#[test]
fn the_evaluated_span_is_the_earliest_topmost_run_that_no_call_holds() {
    let subject = |spans: &[Made]| {
        taken(spans)
            .subject
            .unwrap()
            .span_id
            .to_string()
            .trim_start_matches('0')
            .to_owned()
    };
    assert_eq!(
        subject(&[
            span(1, 0, "POST", 0, 99),
            agent(3, 1, "b", 50, 60),
            agent(2, 1, "a", 10, 40)
        ]),
        "2"
    );
    let called = [
        span(1, 0, "graph", 0, 99),
        tool(2, 1, "ask", 10, 90),
        agent(3, 2, "expert", 11, 89),
    ];
    assert_eq!(
        subject(&called),
        "1",
        "the run belongs to a call, which an agent above it made"
    );
    let remote = |id: u64, flags: u32| Made {
        flags,
        ..span(id, 99, "POST", 0, 99)
    };
    assert_eq!(
        subject(&[
            remote(1, 0x301),
            model(2, 1, 10, 20),
            tool(4, 1, "a", 20, 30),
            span(3, 98, "orphan", 0, 5)
        ]),
        "1"
    );
    assert_eq!(
        subject(&[span(4, 98, "orphan", 0, 50), tool(5, 4, "a", 10, 20)]),
        "4"
    );
}

// === messages ===

#[test]
fn calls_that_only_messages_tell_of_are_marked_so() {
    let asked = concat!(
        r#"[{"role":"assistant","parts":["#,
        r#"{"type":"tool_call","id":"c1","name":"search","arguments":"{\"q\": 1}"},"#,
        r#"{"type":"tool_call","id":"c2","name":"fetch","arguments":{}}]}]"#,
    );
    let answered = concat!(
        r#"[{"role":"user","parts":[{"type":"text","content":"hi"}]},"#,
        r#"{"role":"assistant","parts":"#,
        r#"[{"type":"tool_call","id":"c1","name":"search","arguments":"{}"}]},"#,
        r#"{"role":"tool","parts":"#,
        r#"[{"type":"tool_call_response","id":"c1","response":"[1, 2]"}]}]"#,
    );
    let spans = [
        agent(1, 0, "desk", 0, 99),
        model(2, 1, 1, 9).with("gen_ai.output.messages", asked),
        model(3, 1, 20, 30)
            .with("gen_ai.input.messages", answered)
            .with("gen_ai.output.messages", asked),
    ];
    let trajectory = taken(&spans);
    assert!(trajectory.from_messages);
    assert_eq!(names(&trajectory), ["search", "fetch"]);
    let call = &trajectory.tool_calls[0];
    assert_eq!(
        (&*call.convention, args(call), result(call), call.step),
        ("gen_ai.messages", json!({"q": 1}), json!([1, 2]), 0)
    );
    assert_eq!(call.parallel_group, trajectory.tool_calls[1].parallel_group);
    let mut with_tool = spans.to_vec();
    with_tool.push(tool(4, 1, "search", 10, 12));
    let trajectory = taken(&with_tool);
    assert!(!trajectory.from_messages);
    assert_eq!(
        (
            names(&trajectory),
            trajectory.tool_calls[0].call_id.as_deref()
        ),
        (vec!["search"], Some("c1"))
    );
}

#[test]
fn a_prompt_is_let_go_and_only_new_results_are_kept() {
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    let long = "x".repeat(10_000);
    let history = format!(
        concat!(
            r#"[{{"role":"system","parts":"{}"}},"#,
            r#"{{"role":"tool","parts":"#,
            r#"[{{"type":"tool_call_response","id":"old","response":1}}]}},"#,
            r#"{{"role":"assistant","parts":[]}},"#,
            r#"{{"role":"tool","parts":"#,
            r#"[{{"type":"tool_call_response","id":"new","response":2}}]}}]"#,
        ),
        long
    );
    let mut request = model(1, 0, 1, 2)
        .with("gen_ai.input.messages", history)
        .with("input.value", long.clone())
        .made(recogniser.keys());
    let class = classify(&request, &recogniser);
    prune(&mut request, class);
    assert!(request.size() < 600, "{} bytes", request.size());
    let found = spans::model_messages::tool_results(&spans::View::new(&request), 1000);
    assert_eq!(
        found.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(),
        ["new"]
    );
}

#[test]
fn what_other_settings_recognised_is_looked_at_again() {
    let house = |kind: &str| CustomConvention {
        name: "acme".into(),
        matches: [("acme.kind".to_owned(), kind.to_owned())].into(),
        name_from: None,
        args_from: None,
        result_from: None,
        id_from: None,
    };
    let tools = |kind: &str| Tools {
        conventions: vec![house(kind)],
        ..Tools::default()
    };
    let mut recogniser = Recogniser::new(&tools("job"), [], None);
    let spans = [
        agent(1, 0, "desk", 0, 99),
        span(2, 1, "fetch", 1, 2).with("acme.kind", "tool"),
    ];
    // A span that came under these settings is none of their calls.
    let taken = trace(&spans, &recogniser);
    assert!(
        trajectory(&taken, &recogniser)
            .unwrap()
            .tool_calls
            .is_empty()
    );
    // More changes than can be counted, each of which turns the answer round.
    for nth in 0..600 {
        let kind = if nth % 2 == 0 { "tool" } else { "job" };
        recogniser = Recogniser::new(&tools(kind), [], Some(&recogniser));
        let names: Vec<_> = trajectory(&taken, &recogniser)
            .unwrap()
            .tool_calls
            .iter()
            .map(|call| call.name.to_string())
            .collect();
        assert_eq!(
            names,
            if kind == "tool" {
                vec!["fetch"]
            } else {
                vec![]
            },
            "after {nth} changes"
        );
        let fresh = trace(&spans, &recogniser);
        assert_eq!(
            trajectory(&fresh, &recogniser).unwrap().tool_calls.len(),
            names.len()
        );
    }
}

// === how far a trace can be trusted ===

#[test]
fn a_trace_without_an_ended_root_is_cut_short_where_it_shows_a_hole() {
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    let cut = |spans: &[Made], reason: CloseReason| {
        let is_absent = |id: u64| spans.iter().all(|span| span.id != id);
        let trace = Trace {
            reason,
            parent_missing: spans
                .iter()
                .any(|span| span.parent > 0 && span.flags & 0x200 == 0 && is_absent(span.parent)),
            ..trace(spans, &recogniser)
        };
        trajectory(&trace, &recogniser).unwrap().cut_short
    };
    let flags = |flags: u32, made: Made| Made { flags, ..made };
    let (unmarked, local, remote) = (0, 0x101, 0x301);
    let run = |of: u32| flags(of, agent(2, 1, "desk", 1, 98));
    let call = tool(3, 2, "a", 2, 3);
    let remote_call = flags(remote, tool(3, 9, "a", 2, 3));
    let server = flags(remote, span(1, 9, "POST", 0, 99));
    for (spans, is_cut, why) in [
        (vec![run(unmarked), call.clone()], false, "a finished run"),
        (vec![run(local), call.clone()], true, "its parent is here"),
        (
            vec![run(unmarked), call.clone(), agent(7, 0, "other", 1, 98)],
            true,
            "a root shows that the run is no root",
        ),
        (
            vec![flags(unmarked, agent(2, 1, "desk", 1, 0)), call.clone()],
            true,
            "the run goes on",
        ),
        (
            vec![agent(2, 0, "desk", 1, 0), call.clone()],
            true,
            "so does the root",
        ),
        (vec![flags(unmarked, call.clone())], true, "an orphan"),
        (
            vec![agent(2, 0, "desk", 1, 98), call.clone()],
            false,
            "a root",
        ),
        (vec![remote_call.clone()], true, "a tool's server"),
        (
            vec![server.clone(), tool(3, 1, "a", 2, 3)],
            true,
            "a tool's server behind HTTP",
        ),
        (
            vec![server, tool(3, 1, "a", 2, 3), model(4, 1, 1, 2)],
            false,
            "an agent behind HTTP",
        ),
        (
            vec![run(remote), call.clone()],
            false,
            "an agent called from afar",
        ),
    ] {
        for reason in [CloseReason::Inactive, CloseReason::NoRoot] {
            assert_eq!(cut(&spans, reason), is_cut, "{why}");
        }
        assert!(!cut(&spans, CloseReason::RootEnded), "{why}");
        assert!(cut(&spans, CloseReason::SpanLimit), "{why}");
    }
}

// === bad input ===

#[test]
fn cycles_and_spans_that_are_their_own_parents_end() {
    let spans = [
        tool(1, 1, "self", 10, 20),
        tool(2, 3, "b", 30, 40),
        tool(3, 4, "c", 20, 90),
        tool(4, 2, "d", 50, 60),
    ];
    let trajectory = taken(&spans);
    assert_eq!(names(&trajectory), ["self", "c", "b", "d"]);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a bound on a quadratic walk, a hundred times what it takes"
)]
fn thirty_two_thousand_spans_of_any_shape_take_linear_time() {
    let n = 32_000;
    let deep = |id: u64| {
        tool(
            id,
            id - 1,
            if id.is_multiple_of(2) { "a" } else { "b" },
            id,
            2 * n - id,
        )
        .with("gen_ai.tool.call.id", "same")
    };
    let flat = |id: u64| tool(id, 0, "a", id, id + 1).with("gen_ai.tool.call.id", "same");
    let models = |id: u64| {
        if id.is_multiple_of(2) {
            model(id, 0, id, id + 1)
        } else {
            tool(id, 0, "a", id, id + 1)
        }
    };
    let runs = |id: u64| {
        agent(
            id,
            id - 1,
            if id.is_multiple_of(2) { "x" } else { "y" },
            id,
            2 * n - id,
        )
    };
    let cycle = |id: u64| tool(id, id % n + 1, "a", id, id + 1);
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    for (shape, make) in [
        ("deep", &deep as &dyn Fn(u64) -> Made),
        ("flat", &flat),
        ("models", &models),
        ("runs", &runs),
        ("cycle", &cycle),
    ] {
        let spans: Vec<Made> = (1..=n).map(make).collect();
        let trace = trace(&spans, &recogniser);
        let start = Instant::now();
        assert!(trajectory(&trace, &recogniser).is_some(), "{shape}");
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{shape} took {:?}",
            start.elapsed()
        );
    }
}
