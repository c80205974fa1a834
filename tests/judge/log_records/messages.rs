//! Tests model messages in log records, in the three shapes that instrumentations write. OTLP/JSON
//! becomes trajectories and evaluations through the real scan and pipeline. The shapes come from
//! recorded sessions (`captures` tests the recordings) and from the documentation of the JavaScript
//! instrumentation. Does not prove that a later version writes the same shapes.

use std::time::Duration;

use judge::assemble::Settings;
use judge::evaluate::Verdict;
use judge::pipeline::{Judged, Pipeline};
use otlp::span::Batch;
use serde_json::{Value, json};

use crate::support::records::{
    SECOND, START, attributes, clock, logs, replay, rules, spans, text, typed,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const ROOT: &str = "00000000000000aa";

fn model_id(n: u64) -> String {
    format!("{:016x}", 0xb0 + n)
}

fn loop_of(n_models: u64) -> Vec<Value> {
    let span = |id: &str, parent: &str, name: &str, from: u64, to: u64, values: Value| {
        json!({
            "traceId": TRACE,
            "spanId": id,
            "parentSpanId": parent,
            "name": name,
            "attributes": attributes(&values),
            "startTimeUnixNano": (START + from * SECOND).to_string(),
            "endTimeUnixNano": (START + to * SECOND).to_string(),
        })
    };
    let model = |n| {
        span(
            &model_id(n),
            ROOT,
            "chat gpt",
            2 * n + 1,
            2 * n + 2,
            json!({ "gen_ai.operation.name": "chat" }),
        )
    };
    (0..n_models)
        .map(model)
        .chain([span(ROOT, "", "agent_run", 0, 2 * n_models + 1, json!({}))])
        .collect()
}

/// Returns a record written in the n-th model span. The event's name is an attribute, as in
/// JavaScript, or a field of the record.
fn event(n: u64, name: &str, in_attribute: bool, values: Value, body: Value) -> Value {
    let mut values = values;
    let mut record = json!({
        "traceId": TRACE,
        "spanId": model_id(n),
        "observedTimeUnixNano": (START + (2 * n + 2) * SECOND).to_string(),
    });
    if in_attribute {
        values["event.name"] = name.into();
    } else {
        record["eventName"] = name.into();
    }
    record["attributes"] = attributes(&values);
    if !body.is_null() {
        record["body"] = typed(&body);
    }
    record
}

fn choice(n: u64, calls: &[(&str, &str, &str)]) -> Value {
    let calls: Vec<Value> = (calls.iter())
        .map(|(id, name, args)| {
            json!({
                "id": id,
                "type": "function",
                "function": { "name": name, "arguments": args },
            })
        })
        .collect();
    let body =
        json!({ "index": 0, "finish_reason": "tool_calls", "message": { "tool_calls": calls } });
    event(
        n,
        "gen_ai.choice",
        true,
        json!({ "gen_ai.system": "openai" }),
        body,
    )
}

fn answer(n: u64, id: &str, content: &str) -> Value {
    event(
        n,
        "gen_ai.tool.message",
        true,
        json!({}),
        json!({ "id": id, "content": content }),
    )
}

/// Returns a conversation in which the agent reads and edits in parallel, then runs a command. Each
/// request repeats the previous messages.
fn conversation() -> Vec<Value> {
    let history = |n| {
        let calls = json!({ "tool_calls": [{
            "id": "c1",
            "type": "function",
            "function": { "name": "Read", "arguments": "{}" },
        }] });
        event(n, "gen_ai.assistant.message", true, json!({}), calls)
    };
    vec![
        choice(
            0,
            &[("c1", "Read", "{\"path\":\"a\"}"), ("c2", "Edit", "{}")],
        ),
        history(1),
        answer(1, "c1", "{\"size\": 3}"),
        answer(1, "c2", "edited"),
        choice(
            1,
            &[
                ("c3", "Bash", "{\"command\":\"ls\"}"),
                ("c1", "Read", "{\"path\":\"a\"}"),
            ],
        ),
        history(2),
        answer(2, "c1", "{\"size\": 3}"),
        answer(2, "c2", "edited"),
        answer(2, "c3", "a.txt"),
        event(
            2,
            "gen_ai.choice",
            true,
            json!({}),
            json!({
                "index": 0,
                "finish_reason": "stop",
                "message": { "content": "I used a tool." },
            }),
        ),
    ]
}

fn told(judged: &Judged) -> Vec<String> {
    let calls = judged
        .trajectories
        .iter()
        .flat_map(|trajectory| &trajectory.tool_calls);
    calls
        .map(|call| {
            let (args, result) = (
                text(&call.args).unwrap_or("-"),
                text(&call.result).unwrap_or("-"),
            );
            format!(
                "{} {} {args} {result} step {} group {:?} {}",
                call.name,
                call.call_id.as_deref().unwrap_or("-"),
                call.step,
                call.parallel_group,
                call.convention
            )
        })
        .collect()
}

const TOLD: [&str; 3] = [
    "Read c1 {\"path\":\"a\"} {\"size\": 3} step 0 group Some(1) gen_ai.messages",
    "Edit c2 {} edited step 0 group Some(1) gen_ai.messages",
    "Bash c3 {\"command\":\"ls\"} a.txt step 1 group None gen_ai.messages",
];

#[test]
fn a_plain_loop_is_read_from_the_records_of_its_models() {
    let judged = replay([spans(&loop_of(3)), logs(&conversation())]);
    assert_eq!(told(&judged), TOLD);
    let trajectory = &judged.trajectories[0];
    assert_eq!(
        (
            trajectory.from_messages,
            trajectory.n_spans,
            &*trajectory.root
        ),
        (true, 4, "agent_run")
    );
    assert_eq!(judged.evaluations[0].verdict, Verdict::Pass);
}

/// As recorded from openai-v2 2.3b0 (Python): without content capture, there are no keys for
/// arguments and results.
#[test]
fn without_content_capture_the_calls_have_their_names_and_their_order() {
    let choice = |n, id: &str, name: &str| {
        let call = json!({ "id": id, "type": "function", "function": { "name": name } });
        let message = json!({ "role": "assistant", "tool_calls": [call] });
        let body = json!({ "index": 0, "finish_reason": "tool_calls", "message": message });
        let system = json!({ "gen_ai.system": "openai" });
        event(n, "gen_ai.choice", false, system, body)
    };
    let answer = |n, id| {
        let system = json!({ "gen_ai.system": "openai" });
        event(n, "gen_ai.tool.message", false, system, json!({ "id": id }))
    };
    let records = [
        choice(0, "c1", "Read"),
        answer(1, "c1"),
        choice(1, "c2", "Edit"),
        answer(2, "c1"),
        answer(2, "c2"),
    ];
    let judged = replay([spans(&loop_of(3)), logs(&records)]);
    let expected = [
        "Read c1 - - step 0 group None gen_ai.messages",
        "Edit c2 - - step 1 group None gen_ai.messages",
    ];
    assert_eq!(told(&judged), expected);
}

#[test]
fn order_and_batching_do_not_matter() {
    let one = |record: &Value| logs(std::slice::from_ref(record));
    let mut records = conversation();
    for _ in 0..records.len() {
        records.rotate_left(3);
        let before: Vec<Batch> = records
            .iter()
            .map(one)
            .chain([spans(&loop_of(3))])
            .collect();
        assert_eq!(told(&replay(before)), TOLD);
        let after: Vec<Batch> = [spans(&loop_of(3))]
            .into_iter()
            .chain(records.iter().rev().chain(&records).map(one))
            .collect();
        assert_eq!(told(&replay(after)), TOLD);
    }
}

#[test]
fn records_that_come_late_change_the_verdict() {
    let at = clock();
    let settings = Settings {
        settle: Duration::from_secs(5),
        restart_guard: None,
        ..Settings::replay()
    };
    let mut pipeline = Pipeline::new(settings, at(0));
    let rules = rules();
    let mut records = conversation();
    let last_call = records.remove(4);
    // Records alone neither close a trace nor prevent its closing.
    pipeline.take(logs(&records), at(0));
    assert_eq!(pipeline.advance(&rules, at(20)).reasons.len(), 0);
    assert_eq!(pipeline.take(spans(&loop_of(3)), at(30)).n_taken, 4);
    let judged = pipeline.advance(&rules, at(36));
    assert_eq!(
        (judged.evaluations[0].verdict, told(&judged).len()),
        (Verdict::Fail, 2)
    );
    // A repeated record changes nothing; a new record reopens the trace.
    assert_eq!(pipeline.take(logs(&records), at(40)).n_late, 0);
    assert_eq!(pipeline.take(logs(&[last_call]), at(41)).n_late, 1);
    let revised = pipeline.advance(&rules, at(47)).evaluations;
    assert_eq!(
        revised
            .iter()
            .map(|evaluation| (evaluation.verdict, evaluation.revision))
            .collect::<Vec<_>>(),
        [(Verdict::Pass, 1)]
    );
}

#[test]
fn a_record_with_all_the_messages_is_read_as_a_span_would_be() {
    let parts = |parts: Value| {
        json!([{
            "role": "assistant",
            "parts": parts,
            "finish_reason": "tool_calls",
        }])
    };
    let call = |id: &str, name: &str| {
        json!({
            "type": "tool_call",
            "id": id,
            "name": name,
            "arguments": { "n": 1 },
        })
    };
    let details = |n, input: Value, output: Value| {
        let values = json!({
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": input,
            "gen_ai.output.messages": output,
        });
        event(
            n,
            "gen_ai.client.inference.operation.details",
            false,
            values,
            Value::Null,
        )
    };
    let results = json!([
        { "role": "assistant", "parts": [call("c1", "Read")] },
        {
            "role": "tool",
            "parts": [{ "type": "tool_call_response", "id": "c1", "response": "text" }],
        }
    ]);
    let records = [
        details(
            0,
            json!([{ "role": "user", "parts": [{ "type": "text", "content": "go" }] }]),
            parts(json!([call("c1", "Read")])),
        ),
        details(1, results, parts(json!([call("c2", "Edit")]))),
    ];
    let expected = [
        "Read c1 {\"n\":1} text step 0 group None gen_ai.messages",
        "Edit c2 {\"n\":1} - step 1 group None gen_ai.messages",
    ];
    assert_eq!(
        told(&replay([logs(&records), spans(&loop_of(2))])),
        expected
    );
}

#[test]
fn a_tool_span_takes_from_messages_only_the_parts_it_lacks() {
    let tool = |id: &str, name: &str, start: u64| {
        let values = json!({
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": id,
        });
        json!({
            "traceId": TRACE,
            "spanId": format!("{start:016x}"),
            "parentSpanId": ROOT,
            "name": "execute_tool",
            "attributes": attributes(&values),
            "startTimeUnixNano": (START + start * SECOND).to_string(),
            "endTimeUnixNano": (START + start * SECOND + 1).to_string(),
        })
    };
    let mut with_tools = loop_of(3);
    with_tools.extend([tool("c1", "Read", 3), tool("c3", "Bash", 5)]);
    let judged = replay([logs(&conversation()), spans(&with_tools)]);
    assert_eq!(
        told(&judged),
        [
            "Read c1 {\"path\":\"a\"} {\"size\": 3} step 0 group None gen_ai",
            "Bash c3 {\"command\":\"ls\"} a.txt step 1 group None gen_ai"
        ]
    );
}

#[test]
fn a_span_that_nobody_knows_is_a_models_if_one_was_recorded_in_it() {
    let mut plain = loop_of(3);
    plain
        .iter_mut()
        .for_each(|span| span["attributes"] = json!([]));
    assert_eq!(told(&replay([spans(&plain), logs(&conversation())])), TOLD);
}

#[test]
fn records_without_a_span_are_counted_and_long_ones_are_not_kept() {
    let mut lonely = choice(0, &[("c1", "Read", "{}")]);
    lonely["spanId"] = "".into();
    let mut without_trace = choice(0, &[("c1", "Read", "{}")]);
    without_trace["traceId"] = "".into();
    let batch = logs(&[
        lonely,
        without_trace,
        answer(0, "", "x"),
        conversation().remove(1),
    ]);
    assert_eq!((batch.spans.len(), batch.n_without_ids), (1, 2));
    // The model's last reply contains no call, so it is not stored.
    let batch = logs(&[
        conversation().remove(9),
        choice(0, &[("c1", "Read", &"x".repeat(1 << 20))]),
    ]);
    let sizes: Vec<usize> = batch
        .spans
        .iter()
        .map(|record| record.kept.size())
        .collect();
    assert!(
        sizes[0] < 128 && (16 << 10..17 << 10).contains(&sizes[1]),
        "{sizes:?}"
    );
    // Records without their spans give no trajectory.
    assert_eq!(replay([logs(&conversation())]).trajectories.len(), 0);
}
