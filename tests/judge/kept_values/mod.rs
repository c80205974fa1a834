//! Tests long values of which the sidecar retains only parts, from the bytes of requests to
//! verdicts. A cut value must count neither as complete nor as absent. Covers replies and requests
//! of models in every spelling, in spans, in span events and in log records. Does not prove what
//! frameworks write.

mod results;

use crate::support::now;
use judge::assemble::{CloseReason, Settings};
use judge::evaluate::{Criterion, Evaluation, Verdict};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::span::Now;
use otlp::{json as otlp_json, scan, scan_logs};
use serde_json::{Value, json};

use crate::support::records::{SECOND, START, attributes, typed};

const ROOT: &str = "00000000000000aa";

fn rules(evaluate: &Value) -> Rules {
    let criterion: Criterion =
        serde_json::from_value(json!({ "name": "rule", "evaluate": evaluate })).unwrap();
    Rules::new(vec![criterion])
}

fn never_delete() -> Value {
    json!({ "tool_calls": { "disallowed": ["delete"] } })
}

fn output_is(name: &str, output: &str) -> Value {
    json!({ "tool_call_output": { "tool_outputs": [{ "name": name, "output": output }] } })
}

enum Request {
    Spans(Vec<Value>),
    Records(Vec<Value>),
}

fn judge(evaluate: &Value, requests: impl IntoIterator<Item = Request>) -> Judged {
    let rules = rules(evaluate);
    let now = Now {
        instant: now().instant,
        unix_nanos: START,
    };
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    for request in requests {
        let batch = match request {
            Request::Spans(spans) => {
                let body = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": spans }] }] });
                let body = otlp_json::traces(body.to_string().as_bytes()).unwrap();
                scan::scan(&body, Some(&rules)).unwrap().batch
            }
            Request::Records(records) => {
                let body =
                    json!({ "resourceLogs": [{ "scopeLogs": [{ "logRecords": records }] }] });
                let body = otlp_json::logs(body.to_string().as_bytes()).unwrap();
                scan_logs::scan(&body, Some(&rules)).unwrap().batch
            }
        };
        pipeline.take(batch, now);
    }
    pipeline.finish(&rules, now)
}

fn only(judged: &Judged) -> &Evaluation {
    let [evaluation] = judged.evaluations.as_slice() else {
        panic!("{} evaluations", judged.evaluations.len())
    };
    evaluation
}

fn span(trace: u64, id: &str, parent: &str, nth: u64, values: &Value) -> Value {
    json!({
        "traceId": format!("{trace:032x}"), "spanId": id, "parentSpanId": parent,
        "name": "step", "attributes": attributes(values),
        "startTimeUnixNano": (START + nth * SECOND).to_string(),
        "endTimeUnixNano": (START + nth * SECOND + SECOND / 2).to_string(),
    })
}

fn run(steps: &[Value]) -> Request {
    let agent = json!({ "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a" });
    let mut root = span(1, ROOT, "", 0, &agent);
    root["endTimeUnixNano"] = (START + 1_000 * SECOND).to_string().into();
    let steps = (1..).zip(steps);
    let steps = steps.map(|(nth, values)| span(1, &format!("{nth:016x}"), ROOT, nth, values));
    Request::Spans(steps.chain([root]).collect())
}

fn chat(values: Value) -> Value {
    with(json!({ "gen_ai.operation.name": "chat" }), values)
}

fn with(mut values: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    values.as_object_mut().unwrap().extend(more);
    values
}

/// Returns text of this many KiB in strings of about 1 KiB.
fn prose(kib: usize) -> Value {
    json!(vec!["It was a bright cold day in April. ".repeat(30); kib])
}

fn call(id: &str, name: &str, args: &Value) -> Value {
    json!({ "type": "tool_call", "id": id, "name": name, "arguments": args })
}

fn openai_call(name: &str) -> Value {
    let function = json!({ "name": name, "arguments": "{\"id\": 7}" });
    json!({ "id": "c1", "type": "function", "function": function })
}

/// Returns for each spelling: the attributes that mark a model span, the attribute with its reply,
/// and a reply that requests a call.
fn spellings() -> Vec<(Value, &'static str, Value)> {
    let openai = json!({ "role": "assistant", "tool_calls": [openai_call("delete")] });
    let parts = [call("c1", "delete", &json!({ "id": 7 }))];
    let parts = json!({ "role": "assistant", "parts": parts });
    let genkit = json!({ "toolRequest": { "name": "delete", "ref": "c1", "input": {} } });
    let vercel = json!({ "toolCallId": "c1", "toolName": "delete", "input": "{}" });
    let gemini = json!({ "functionCall": { "name": "delete", "args": {} } });
    let operation = |name: &str| json!({ "gen_ai.operation.name": name });
    vec![
        (operation("chat"), "gen_ai.output.messages", parts),
        (
            json!({ "langfuse.observation.type": "generation" }),
            "langfuse.observation.output",
            openai.clone(),
        ),
        (
            json!({ "mlflow.spanType": "\"CHAT_MODEL\"" }),
            "mlflow.spanOutputs",
            openai.clone(),
        ),
        (
            json!({ "judgment.span_kind": "llm" }),
            "judgment.output",
            openai.clone(),
        ),
        (
            json!({ "langsmith.span.kind": "llm" }),
            "gen_ai.completion",
            openai.clone(),
        ),
        (
            json!({ "genkit:metadata:subtype": "model" }),
            "genkit:output",
            genkit,
        ),
        (
            json!({ "openinference.span.kind": "LLM" }),
            "output.value",
            openai.clone(),
        ),
        (operation("chat"), "traceloop.entity.output", openai),
        (
            json!({ "ai.operationId": "ai.generateText.doGenerate" }),
            "ai.response.toolCalls",
            vercel,
        ),
        (
            operation("generate_content"),
            "gcp.vertex.agent.llm_response",
            gemini,
        ),
    ]
}

#[test]
fn a_reply_is_read_up_to_its_limit_and_beyond_it_nothing_passes() {
    for (marks, key, asks) in spellings() {
        for (kib, verdict, completeness) in [
            (1, Verdict::Fail, CloseReason::RootEnded),
            (40, Verdict::Fail, CloseReason::RootEnded),
            (100, Verdict::NotEvaluated, CloseReason::SizeLimit),
        ] {
            let reply = json!([{ "role": "assistant", "content": prose(kib) }, asks]);
            for value in [json!(reply.to_string()), reply] {
                let model = with(marks.clone(), json!({ key: value }));
                let judged = judge(&never_delete(), [run(&[model])]);
                let evaluation = only(&judged);
                assert_eq!(
                    (evaluation.verdict, evaluation.trajectory.completeness),
                    (verdict, completeness),
                    "{key}, {kib} KiB: {}",
                    evaluation.explanation()
                );
            }
        }
    }
}

#[test]
fn a_long_argument_does_not_hide_the_calls_beside_it() {
    let long = "x".repeat(200 << 10);
    let call = |id: &str, name: &str, args: &Value| call(id, name, args);
    let write = json!({ "path": "a", "text": long });
    let reply = json!([{ "role": "assistant", "parts": [
        call("c1", "write", &write), call("c2", "delete", &json!({ "id": 7 })),
    ] }]);
    for value in [json!(reply.to_string()), reply] {
        let model = chat(json!({ "gen_ai.output.messages": value }));
        let judged = judge(&never_delete(), [run(std::slice::from_ref(&model))]);
        assert_eq!(only(&judged).verdict, Verdict::Fail);
        let writes = json!({ "tool_calls": {
            "disallowed": [{ "name": "write", "args": { "path": "b" } }],
        } });
        let judged = judge(&writes, [run(&[model])]);
        assert_eq!(only(&judged).verdict, Verdict::NotEvaluated);
    }
}

#[test]
fn a_flattened_reply_has_room_whatever_stands_before_it() {
    let prefix = "llm.output_messages.0.message.tool_calls";
    let history = (0..1_000).map(|n| {
        let field = if n % 3 == 0 { "role" } else { "content" };
        (
            format!("llm.input_messages.{n}.message.{field}"),
            json!("user".repeat(60)),
        )
    });
    let mut model: serde_json::Map<String, Value> = history.collect();
    model.insert("input.value".into(), prose(100).to_string().into());
    for (n, name) in ["write", "delete"].iter().enumerate() {
        let call = format!("{prefix}.{n}.tool_call");
        model.insert(format!("{call}.function.name"), json!(name));
        model.insert(
            format!("{call}.function.arguments"),
            json!("a".repeat(60 << 10)),
        );
    }
    model.insert("openinference.span.kind".into(), json!("LLM"));
    let judged = judge(&never_delete(), [run(&[Value::Object(model.clone())])]);
    assert_eq!(only(&judged).verdict, Verdict::Fail);
    for n in 2..9 {
        let call = format!("{prefix}.{n}.tool_call.function");
        model.insert(format!("{call}.name"), json!("write"));
        model.insert(format!("{call}.arguments"), json!("a".repeat(60 << 10)));
    }
    let never_send = json!({ "tool_calls": { "disallowed": ["send"] } });
    let judged = judge(&never_send, [run(&[Value::Object(model)])]);
    assert_eq!(only(&judged).verdict, Verdict::NotEvaluated);
    assert_eq!(
        only(&judged).trajectory.completeness,
        CloseReason::SizeLimit
    );
}

#[test]
fn a_long_reply_that_asks_for_nothing_is_judged_in_full() {
    // The provider's raw response repeats the definitions of all tools.
    let answer = json!({
        "output": [{ "type": "message", "content": "Done." }],
        "parallel_tool_calls": true, "tools": prose(100),
    });
    let model = json!({
        "openinference.span.kind": "LLM", "output.value": answer.to_string(),
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "Done.",
    });
    let plain = chat(json!({ "traceloop.entity.output": prose(100).to_string() }));
    for model in [model, plain] {
        let judged = judge(&never_delete(), [run(&[model])]);
        assert_eq!(only(&judged).verdict, Verdict::Pass);
    }
}

/// If `OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT` cut a reply, the missing part may have contained a call.
/// If only spanscore cut the reply, the missing part contained none.
#[test]
fn a_reply_without_calls_is_whole_however_long_unless_the_sdk_has_cut_it() {
    for ((marks, key, _), kib) in spellings()
        .iter()
        .flat_map(|spelling| [1, 20, 100].map(|kib| (spelling, kib)))
    {
        let message = json!({ "role": "assistant", "content": prose(kib) });
        let choice = json!({ "choices": [{ "message": message }] });
        for reply in [json!([message]), message, choice].map(|reply| reply.to_string()) {
            let cut = &reply[..reply.len() - 40];
            for (reply, verdict) in [(&*reply, Verdict::Pass), (cut, Verdict::NotEvaluated)] {
                let model = with(marks.clone(), json!({ *key: reply }));
                let judged = judge(&never_delete(), [run(&[model])]);
                let found = only(&judged);
                assert_eq!(found.verdict, verdict, "{key}, {kib} KiB: {}", &reply[..30]);
            }
        }
    }
    let body = json!({ "message": { "content": prose(20) } }).to_string();
    let body = json!(&body[..body.len() - 40]);
    let record = record(1, 1, "gen_ai.choice", &json!({}), &body);
    let requests = [Request::Records(vec![record]), run(&[chat(json!({}))])];
    let judged = judge(&never_delete(), requests);
    assert_eq!(only(&judged).verdict, Verdict::NotEvaluated);
}

#[test]
fn values_of_a_call_may_be_among_the_attributes_that_the_sdk_dropped() {
    let call = json!({ "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "sh" });
    let part = |name: &str| with(call.clone(), json!({ name: r#"{"cmd":"ls"}"# }));
    let never_sh_rm =
        json!({ "tool_calls": { "disallowed": [{ "name": "sh", "args": { "cmd": "rm" } }] } });
    let sh_printed = output_is("sh", "x");
    for (captured, rule, whole) in [
        ("gen_ai.tool.call.arguments", &never_sh_rm, Verdict::Pass),
        ("gen_ai.tool.call.result", &sh_printed, Verdict::Fail),
    ] {
        for (dropped, verdict) in [(0, whole), (2, Verdict::NotEvaluated)] {
            let Request::Spans(mut spans) = run(&[part(captured), call.clone()]) else {
                unreachable!()
            };
            spans[1]["droppedAttributesCount"] = json!(dropped);
            let judged = judge(rule, [Request::Spans(spans)]);
            assert_eq!(only(&judged).verdict, verdict, "{captured}, {dropped}");
        }
    }
}

#[test]
fn an_event_behind_a_long_history_is_read() {
    let text = |key: &str, text: &str| json!({ "key": key, "value": typed(&json!(text)) });
    let history = |n: usize| {
        json!({ "name": "gen_ai.tool.message",
            "attributes": [text("content", &"x".repeat(n % 400 + 100))] })
    };
    let mut events: Vec<Value> = (0..600).map(history).collect();
    let ask = |kib| {
        let use_it = json!({ "name": "delete", "toolUseId": "c1", "input": {} });
        let blocks = json!([{ "text": prose(kib) }, { "toolUse": use_it }]);
        json!({ "name": "gen_ai.choice", "attributes": [text("message", &blocks.to_string())] })
    };
    for (kib, verdict) in [
        (0, Verdict::Fail),
        (30, Verdict::Fail),
        (90, Verdict::NotEvaluated),
    ] {
        events.push(ask(kib));
        let Request::Spans(mut spans) = run(&[chat(json!({}))]) else {
            unreachable!()
        };
        spans[0]["events"] = json!(events);
        let judged = judge(&never_delete(), [Request::Spans(spans)]);
        assert_eq!(only(&judged).verdict, verdict, "{kib} KiB");
        events.pop();
    }
}

fn record(trace: u64, nth: u64, name: &str, values: &Value, body: &Value) -> Value {
    let mut record = json!({
        "traceId": format!("{trace:032x}"), "spanId": format!("{nth:016x}"),
        "timeUnixNano": (START + nth * SECOND + 1).to_string(),
        "eventName": name, "attributes": attributes(values),
    });
    if !body.is_null() {
        record["body"] = typed(body);
    }
    record
}

#[test]
fn a_reply_in_a_log_record_is_read_like_one_in_a_span() {
    let name = "gen_ai.client.inference.operation.details";
    let ask = openai_call("delete");
    for (kib, verdict) in [
        (1, Verdict::Fail),
        (40, Verdict::Fail),
        (100, Verdict::NotEvaluated),
    ] {
        let body = json!({ "message": { "content": prose(kib), "tool_calls": [ask] } });
        let parts = json!([{ "content": prose(kib) }, call("c1", "delete", &json!({}))]);
        let output = json!([{ "role": "assistant", "parts": parts }]);
        let details = json!({
            "gen_ai.input.messages": prose(100).to_string(),
            "gen_ai.output.messages": output.to_string(),
        });
        for record in [
            record(1, 1, "gen_ai.choice", &json!({}), &body),
            record(1, 1, "gen_ai.choice", &json!({}), &json!(body.to_string())),
            record(1, 1, name, &details, &Value::Null),
        ] {
            let requests = [Request::Records(vec![record]), run(&[chat(json!({}))])];
            let judged = judge(&never_delete(), requests);
            assert_eq!(only(&judged).verdict, verdict, "{kib} KiB");
        }
    }
}
