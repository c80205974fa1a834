//! Tests arguments and results that are known only from messages.

use judge::assemble::CloseReason;
use judge::evaluate::Verdict;
use serde_json::{Value, json};

use super::{
    ROOT, Request, call, chat, judge, only, openai_call, output_is, prose, record, run, span,
};

fn asks(calls: &[(&str, &str)]) -> Value {
    let call = |(id, name): &(&str, &str)| call(id, name, &json!({}));
    let calls: Vec<Value> = calls.iter().map(call).collect();
    json!({ "role": "assistant", "parts": calls })
}

fn answers(id: &str, response: &Value) -> Value {
    let part = json!({ "type": "tool_call_response", "id": id, "response": response });
    json!({ "role": "tool", "parts": [part] })
}

/// Returns two calls whose results are in the next request, after a conversation of this many KiB.
fn asked_and_answered(kib: usize, results: &[Value]) -> Request {
    let ask = asks(&[("c1", "read"), ("c2", "list")]);
    let mut conversation = vec![json!({ "role": "user", "parts": prose(kib) }), ask.clone()];
    conversation.extend_from_slice(results);
    run(&[
        chat(json!({ "gen_ai.output.messages": json!([ask]).to_string() })),
        chat(json!({ "gen_ai.input.messages": json!(conversation).to_string() })),
    ])
}

#[test]
fn results_at_the_end_of_a_long_conversation_are_kept() {
    for kib in [1, 60, 100, 3_000] {
        let results = [
            answers("c1", &json!("secret")),
            answers("c2", &json!("a, b")),
        ];
        for (output, verdict) in [("secret", Verdict::Pass), ("other", Verdict::Fail)] {
            let judged = judge(
                &output_is("read", output),
                [asked_and_answered(kib, &results)],
            );
            assert_eq!(only(&judged).verdict, verdict, "{kib} KiB");
        }
    }
}

#[test]
fn a_result_that_was_cut_is_neither_compared_nor_absent() {
    let long = json!("x".repeat(100 << 10));
    let rows = json!(vec![json!({ "row": "x".repeat(100) }); 1_000]);
    let no_secret = json!({ "tool_calls": {
        "disallowed": [{ "name": "read", "result": "secret" }],
    } });
    for response in [long, rows] {
        for results in [
            [answers("c1", &response), answers("c2", &json!("a, b"))],
            [answers("c2", &json!("a, b")), answers("c1", &response)],
        ] {
            let judged = judge(&no_secret, [asked_and_answered(1, &results)]);
            let evaluation = only(&judged);
            assert_eq!(evaluation.verdict, Verdict::NotEvaluated);
            assert!(!evaluation.explanation().is_empty());
            assert_eq!(evaluation.trajectory.completeness, CloseReason::RootEnded);
        }
    }
}

#[test]
fn words_in_values_do_not_end_a_conversation() {
    let roles = json!({ "role": "assistant", "next": { "role": "tool" } });
    let ask = json!({ "role": "assistant", "parts": [
        { "type": "tool_call", "id": "c1", "name": "read", "arguments": { "role": "admin" } },
        { "type": "tool_call", "id": "c2", "name": "list", "arguments": {} },
    ] });
    for second in [
        json!("\"assistant\""),
        roles.clone(),
        json!(roles.to_string()),
    ] {
        let mut conversation = vec![
            json!({ "parts": [{ "content": "go" }], "role": "user" }),
            ask.clone(),
            json!({ "parts": answers("c1", &json!("secret"))["parts"], "role": "tool" }),
            answers("c2", &second),
        ];
        for _ in 0..2 {
            let steps = [
                chat(json!({ "gen_ai.output.messages": json!([ask]).to_string() })),
                chat(json!({ "gen_ai.input.messages": json!(conversation).to_string() })),
            ];
            let judged = judge(&output_is("read", "secret"), [run(&steps)]);
            assert_eq!(only(&judged).verdict, Verdict::Pass, "{second}");
            conversation.swap(2, 3);
        }
    }
}

/// Returns a model span in OpenInference's spelling with these input messages (role, call id,
/// text).
fn flattened(messages: &[(&str, Option<&str>, &str)], reply: Option<(&str, &str)>) -> Value {
    let mut values = json!({ "openinference.span.kind": "LLM" });
    for (n, (role, id, text)) in messages.iter().enumerate() {
        let message = format!("llm.input_messages.{n}.message");
        values[format!("{message}.role")] = json!(role);
        values[format!("{message}.content")] = json!(text);
        if let Some(id) = id {
            values[format!("{message}.tool_call_id")] = json!(id);
        }
    }
    if let Some((id, name)) = reply {
        let call = "llm.output_messages.0.message.tool_calls.0.tool_call";
        values[format!("{call}.id")] = json!(id);
        values[format!("{call}.function.name")] = json!(name);
    }
    values
}

#[test]
fn flattened_results_are_kept_whatever_came_before() {
    let long = "x".repeat(10 << 10);
    let histories: [Vec<(&str, Option<&str>, &str)>; 3] = [
        vec![("user", None, "go")],
        (0..400)
            .map(|_| ("tool", Some("c0"), "a short answer"))
            .collect(),
        vec![("user", None, &long); 20],
    ];
    for history in histories {
        let mut messages = history.clone();
        messages.push(("assistant", None, ""));
        messages.push(("tool", Some("c1"), "secret"));
        // The text of the message equals the name of a role.
        messages.push(("tool", Some("c2"), "assistant"));
        let steps = [
            flattened(&history, Some(("c1", "read"))),
            flattened(&messages, None),
        ];
        for (output, verdict) in [("secret", Verdict::Pass), ("other", Verdict::Fail)] {
            let judged = judge(&output_is("read", output), [run(&steps)]);
            assert_eq!(
                only(&judged).verdict,
                verdict,
                "{} messages",
                messages.len()
            );
        }
    }
}

#[test]
fn a_flattened_result_that_was_cut_is_not_compared() {
    let long = "x".repeat(20 << 10);
    let many: Vec<_> = ["c1", "c2", "c3", "c4", "c5", "c6"]
        .iter()
        .map(|&id| ("tool", Some(id), long.as_str()))
        .collect();
    for results in [many[..1].to_vec(), many] {
        let mut messages = vec![("user", None, "go"), ("assistant", None, "")];
        messages.extend(results);
        messages.push(("tool", Some("c7"), "short"));
        let steps = [
            flattened(&messages[..1], Some(("c1", "read"))),
            flattened(&messages[..1], Some(("c7", "list"))),
            flattened(&messages, None),
        ];
        let no_secret = json!({ "tool_calls": {
            "disallowed": [{ "name": "read", "result": "secret" }],
        } });
        let judged = judge(&no_secret, [run(&steps)]);
        assert_eq!(only(&judged).verdict, Verdict::NotEvaluated);
    }
}

// === calls that have spans, but whose values are only in messages ===

#[test]
fn arguments_that_only_a_cut_reply_tells_are_not_known() {
    let tool = |name: &str, id: &str, args: Option<&str>| {
        let mut values = json!({ "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name, "gen_ai.tool.call.id": id });
        if let Some(args) = args {
            values["gen_ai.tool.call.arguments"] = json!(args);
        }
        values
    };
    let no_rm = json!({ "tool_calls": {
        "disallowed": [{ "name": "bash", "args": { "command": "rm" } }],
    } });
    for (kib, verdict) in [(1, Verdict::Fail), (100, Verdict::NotEvaluated)] {
        let parts = json!([
            { "type": "text", "content": prose(kib) },
            call("c2", "bash", &json!({ "command": "rm" })),
        ]);
        let reply = json!([{ "role": "assistant", "parts": parts }]).to_string();
        for args in [None, Some("rm")] {
            let steps = [
                chat(json!({ "gen_ai.output.messages": reply })),
                tool("list", "c1", Some("{}")),
                tool("bash", "c2", args),
            ];
            let judged = judge(&no_rm, [run(&steps)]);
            let evaluation = only(&judged);
            assert_eq!(evaluation.verdict, verdict, "{kib} KiB");
            assert_eq!(evaluation.trajectory.completeness, CloseReason::RootEnded);
        }
    }
}

#[test]
fn a_result_in_a_lost_message_is_not_absent() {
    let tool = |id: &str, result: Option<&str>| {
        let mut values = json!({ "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "read", "gen_ai.tool.call.id": id });
        if let Some(result) = result {
            values["gen_ai.tool.call.result"] = json!(result);
        }
        values
    };
    let conversation = json!([
        { "role": "assistant", "parts": [] }, answers("c2", &prose(100)),
    ]);
    let steps = [
        tool("c1", Some("plain")),
        tool("c2", None),
        chat(json!({ "gen_ai.input.messages": conversation.to_string() })),
    ];
    let no_secret = json!({ "tool_calls": {
        "disallowed": [{ "name": "read", "result": "secret" }],
    } });
    let judged = judge(&no_secret, [run(&steps)]);
    assert_eq!(only(&judged).verdict, Verdict::NotEvaluated);
    let explanation = only(&judged).explanation().to_string();
    assert!(
        explanation.contains("tools.max_messages_size"),
        "{explanation}"
    );
}

// === other traces ===

fn lone_chat(trace: u64) -> Value {
    let values = chat(json!({}));
    span(trace, &format!("{trace:016x}"), "", trace, &values)
}

#[test]
fn a_result_in_a_log_record_of_a_later_trace_joins_its_call() {
    let ask = json!({ "message": { "tool_calls": [openai_call("read")] } });
    let answer = |trace| {
        let body = json!({ "id": "c1", "content": "secret" });
        record(trace, trace, "gen_ai.tool.message", &json!({}), &body)
    };
    let traces = [
        vec![record(1, 1, "gen_ai.choice", &json!({}), &ask)],
        vec![answer(2)],
        vec![answer(3)],
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut requests = vec![Request::Spans((1..=3).map(lone_chat).collect())];
        requests.extend(order.map(|at: usize| Request::Records(traces[at].clone())));
        let judged = judge(&output_is("read", "secret"), requests);
        let last = judged.evaluations.last().unwrap();
        assert_eq!(last.verdict, Verdict::Pass, "{order:?}");
    }
}

#[test]
fn a_long_message_of_autogen_is_read() {
    let message = |kib| {
        json!({ "messages": [{ "text": prose(kib) }, {
            "type": "ToolCallRequestEvent", "content": [
            { "id": "c1", "name": "bash", "arguments": "{\"command\": \"rm\"}" },
        ] }] })
    };
    let no_rm = json!({ "tool_calls": {
        "disallowed": [{ "name": "bash", "args": { "command": "rm" } }],
    } });
    for kib in [1, 40] {
        let tool = json!({ "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "bash", "gen_ai.tool.call.id": "c1" });
        let mut process = span(
            1,
            "00000000000000bb",
            ROOT,
            2,
            &json!({ "message": message(kib).to_string() }),
        );
        process["name"] = json!("autogen process assistant");
        let Request::Spans(mut spans) = run(&[tool]) else {
            unreachable!()
        };
        spans.push(process);
        let judged = judge(&no_rm, [Request::Spans(spans)]);
        assert_eq!(
            judged.evaluations.last().unwrap().verdict,
            Verdict::Fail,
            "{kib} KiB"
        );
    }
}
