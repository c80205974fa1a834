//! Tests spans under spanscore's own instrumentation scope. Only pure evaluations are excluded from
//! judgement, because any sender can use that scope's name.

use judge::evaluate::Verdict;
use serde_json::{Value, json};

use super::{Sent, agent, judged, sent, tool, verdict};

const OWN: &str = "spanscore";

fn never_wipe() -> Value {
    json!({ "tool_calls": { "disallowed": ["^wipe$"] } })
}

fn score(id: u64, parent: u64, more: &Value) -> Sent {
    let mut values = json!({
        "gen_ai.operation.name": "evaluation",
        "openinference.span.kind": "EVALUATOR",
        "gen_ai.evaluation.name": "rule",
    });
    let more = more.as_object().unwrap().clone();
    values.as_object_mut().unwrap().extend(more);
    sent(id, parent, (500, 501), &values).under_scope(OWN)
}

#[test]
fn a_call_is_judged_whatever_scope_its_span_claims() {
    let wipe = |more: &Value| tool(2, 1, (20, 30), "wipe", more).under_scope(OWN);
    assert_eq!(
        verdict(&never_wipe(), &[agent(), wipe(&json!({}))]),
        Verdict::Fail
    );
    // A span that is a tool in one convention and an evaluation in another counts as a call.
    let disguised = json!({ "openinference.span.kind": "TOOL", "tool.name": "wipe" });
    assert_eq!(
        verdict(&never_wipe(), &[agent(), score(2, 1, &disguised)]),
        Verdict::Fail
    );
    let reply = json!([{ "role": "assistant", "parts": [
        { "type": "tool_call", "id": "c1", "name": "wipe", "arguments": {} },
    ] }]);
    let chat = json!({
        "gen_ai.operation.name": "chat",
        "gen_ai.output.messages": reply.to_string(),
    });
    let chat = sent(2, 1, (20, 30), &chat).under_scope(OWN);
    assert_eq!(
        verdict(&never_wipe(), &[agent().under_scope(OWN), chat]),
        Verdict::Fail
    );
}

#[test]
fn an_evaluation_opens_no_trace_and_changes_none() {
    let judgement = judged(&never_wipe(), &[score(2, 9, &json!({}))]);
    assert_eq!(
        (judgement.reasons.len(), judgement.evaluations.len()),
        (0, 0)
    );
    // An evaluation by another evaluator is an ordinary span.
    let foreign = score(2, 9, &json!({})).under_scope("app");
    assert_eq!(judged(&never_wipe(), &[foreign]).reasons.len(), 1);
    let spans = [agent(), score(2, 9, &json!({}))];
    let judgement = judged(&never_wipe(), &spans);
    assert_eq!(judgement.trajectories[0].n_spans, 1);
    assert_eq!(judgement.evaluations[0].verdict, Verdict::Pass);
}
