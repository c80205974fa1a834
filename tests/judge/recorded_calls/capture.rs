//! A missing argument or result counts as absent only if other calls from the same instrumentation
//! have one.

use judge::evaluate::Verdict;
use serde_json::{Value, json};

use super::{Sent, agent, judged, only, sent, tool, verdict};

fn never_rm() -> Value {
    json!({ "tool_calls": { "disallowed": [{ "name": "^bash$", "args": { "command": "rm" } }] } })
}

fn captured(id: u64) -> Sent {
    let values = json!({
        "gen_ai.tool.call.arguments": "{\"q\":\"x\"}",
        "gen_ai.tool.call.result": "found",
    });
    tool(id, 1, (10 * id, 10 * id + 5), "search", &values)
}

fn bash(id: u64) -> Sent {
    tool(id, 1, (10 * id, 10 * id + 5), "bash", &json!({}))
}

fn mcp_bash(id: u64) -> Sent {
    let values = json!({ "mcp.method.name": "tools/call", "gen_ai.tool.name": "bash" });
    sent(id, 1, (10 * id, 10 * id + 5), &values)
}

#[test]
fn other_instrumentations_that_capture_say_nothing() {
    let adk = json!({ "gcp.vertex.agent.event_id": "e-1" });
    let adk = tool(3, 1, (30, 35), "bash", &adk);
    for (what, call) in [
        ("another convention", mcp_bash(3)),
        ("AutoGen", bash(3).under_scope("autogen-core")),
        ("ADK", adk.under_scope("gcp.vertex.agent")),
        ("another service", bash(3).of_service("worker")),
    ] {
        let judged = judged(&never_rm(), &[agent(), captured(2), call]);
        let evaluation = only(&judged);
        assert_eq!(evaluation.verdict, Verdict::NotEvaluated, "{what}");
        let why = evaluation.explanation();
        assert!(
            why.contains("the arguments of the call of `bash` were not captured"),
            "{what}: {why}"
        );
    }
}

#[test]
fn the_same_instrumentation_that_captures_shows_that_there_are_none() {
    for call in [bash(3), bash(3).with("status", json!({ "code": 2 }))] {
        let verdict = verdict(&never_rm(), &[agent(), captured(2), call]);
        assert_eq!(verdict, Verdict::Pass);
    }
    // A product with its own convention counts as one instrumentation, whatever scopes it uses.
    let call = |id: u64, scope: &'static str, more: &Value| {
        let mut values = json!({ "tool.name": "bash" });
        let more = more.as_object().unwrap().clone();
        values.as_object_mut().unwrap().extend(more);
        sent(id, 1, (10 * id, 10 * id + 5), &values).under_scope(scope)
    };
    let ls = call(
        2,
        "app.files",
        &json!({ "tool.arguments": "{\"command\":\"ls\"}" }),
    );
    let spans = [agent(), ls, call(3, "app.shell", &json!({}))];
    assert_eq!(verdict(&never_rm(), &spans), Verdict::Pass);
}

#[test]
fn a_result_that_was_not_captured_is_not_empty() {
    let expected = json!({ "tool_call_output": { "tool_outputs": [
        { "name": "bash", "output": "" },
    ] } });
    let spans = [agent(), captured(2), mcp_bash(3)];
    let judged_by_mcp = judged(&expected, &spans);
    assert_eq!(only(&judged_by_mcp).verdict, Verdict::NotEvaluated);
    let why = only(&judged_by_mcp).explanation();
    assert!(
        why.contains("the result of the call of `bash` was not captured"),
        "{why}"
    );
    let spans = [agent(), captured(2), bash(3)];
    assert_eq!(verdict(&expected, &spans), Verdict::Pass);
}

#[test]
fn arguments_that_a_message_adds_do_not_show_that_spans_capture_them() {
    let reply = json!([{ "role": "assistant", "parts": [
        { "type": "tool_call", "id": "c1", "name": "bash", "arguments": { "command": "ls" } },
    ] }]);
    let chat = json!({
        "gen_ai.operation.name": "chat",
        "gen_ai.output.messages": reply.to_string(),
    });
    let chat = sent(2, 1, (10, 15), &chat);
    let spans = [agent(), chat, mcp_bash(3), mcp_bash(4)];
    assert_eq!(verdict(&never_rm(), &spans), Verdict::NotEvaluated);
}
