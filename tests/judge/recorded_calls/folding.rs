//! Several reports of one call count as one call. Equal ids alone do not merge two calls.

use judge::evaluate::Verdict;
use serde_json::{Value, json};

use super::{Sent, agent, judged, only, sent, tool, verdict};

fn count_is(name: &str, n: u64) -> Value {
    json!({ "tool_call_count": { "tool_calls_count": { name: ["=", n] } } })
}

fn assert_count(name: &str, n: u64, spans: &[Sent]) {
    assert_eq!(
        verdict(&count_is(name, n), spans),
        Verdict::Pass,
        "{n} of {name}"
    );
}

fn with_id(id: &str) -> Value {
    json!({ "gen_ai.tool.call.id": id })
}

fn with_args(args: &Value) -> Value {
    json!({ "gen_ai.tool.call.arguments": args.to_string() })
}

fn both(mut values: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    values.as_object_mut().unwrap().extend(more);
    values
}

/// Returns a model's span whose reply requests these calls (id, name, arguments), and whose request
/// contains these results (id, text).
fn chat(id: u64, calls: &[(&str, &str, Value)], answers: &[(&str, &str)]) -> Sent {
    let parts = calls.iter().map(|(id, name, args)| {
        json!({ "type": "tool_call", "id": id, "name": name, "arguments": args })
    });
    let reply = json!([{ "role": "assistant", "parts": parts.collect::<Vec<_>>() }]);
    let parts = answers
        .iter()
        .map(|(id, text)| json!({ "type": "tool_call_response", "id": id, "response": text }));
    let request = json!([
        { "role": "assistant", "parts": [] },
        { "role": "tool", "parts": parts.collect::<Vec<_>>() },
    ]);
    let values = json!({
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": request.to_string(),
        "gen_ai.output.messages": reply.to_string(),
    });
    sent(id, 1, (10 * id, 10 * id + 5), &values)
}

#[test]
fn another_tool_beneath_a_call_is_a_call_whatever_its_id() {
    let read = tool(2, 1, (20, 40), "read", &with_id("c1")).with("status", json!({ "code": 1 }));
    let wipe = tool(3, 2, (25, 35), "wipe", &with_id("c1"));
    let spans = [agent(), read, wipe];
    let never = json!({ "tool_calls": { "disallowed": ["^wipe$"] } });
    assert_eq!(verdict(&never, &spans), Verdict::Fail);
    assert_count("read", 1, &spans);
}

#[test]
fn calls_of_one_name_fold_unless_their_arguments_differ() {
    let transfer = |id, parent, args: &Value| tool(id, parent, (20, 40), "transfer", args);
    let [one, two] = [1, 2].map(|amount| with_args(&json!({ "amount": amount })));
    let inner_is = |inner: &Value, n: u64| {
        assert_count(
            "transfer",
            n,
            &[agent(), transfer(2, 1, &one), transfer(3, 2, inner)],
        );
    };
    inner_is(&two, 2);
    inner_is(&one, 1);
    inner_is(&json!({}), 1);
    // The inner span has only the bare text of the call's single argument.
    inner_is(&json!({ "gen_ai.tool.call.arguments": "1" }), 1);
    let long = json!({ "amount": 1, "note": "x".repeat(20_000) });
    inner_is(&with_args(&long), 1);
    inner_is(&both(two.clone(), with_id("c1")), 2);
    // The values of an inner report also apply to the reports inside it.
    let chain = [
        agent(),
        transfer(2, 1, &json!({})),
        transfer(3, 2, &one),
        transfer(4, 3, &two),
    ];
    assert_count("transfer", 2, &chain);
    let never_two = json!({ "tool_calls": { "disallowed": [
        { "name": "transfer", "args": { "to": "mallory" } },
    ] } });
    let to = |name: &str| with_args(&json!({ "to": name }));
    let spans = [
        agent(),
        transfer(2, 1, &to("ann")),
        transfer(3, 2, &to("mallory")),
    ];
    assert_eq!(verdict(&never_two, &spans), Verdict::Fail);
}

#[test]
fn two_reports_of_one_call_fold_where_clocks_have_milliseconds() {
    let pay = |id, parent, times, args: Value| {
        tool(id, parent, times, "pay", &both(with_id("call_0"), args))
    };
    let under = |id| sent(id, 1, (0, 1_000), &json!({}));
    let run = |first: (u64, u64), second: (u64, u64), args: [Value; 2]| {
        let [one, other] = args;
        [
            agent(),
            under(2),
            under(3),
            pay(4, 2, first, one),
            pay(5, 3, second, other),
        ]
    };
    let none = || [json!({}), json!({})];
    for (first, second) in [
        ((20, 20), (20, 20)),
        ((20, 30), (30, 30)),
        ((20, 20), (20, 30)),
        ((20, 30), (21, 29)),
    ] {
        assert_count("pay", 1, &run(first, second, none()));
    }
    assert_count("pay", 2, &run((20, 30), (31, 40), none()));
    // Two reports below different parents that overlap in time are different calls only if both
    // have arguments, and the arguments differ.
    let args = |sum: u64| with_args(&json!({ "sum": sum }));
    assert_count("pay", 1, &run((20, 30), (20, 30), [json!({}), args(1)]));
    assert_count("pay", 1, &run((20, 30), (20, 30), [args(1), args(1)]));
    assert_count("pay", 2, &run((20, 30), (20, 30), [args(1), args(2)]));
    let mut three = run((20, 30), (20, 30), [json!({}), args(1)])
        .into_iter()
        .collect::<Vec<_>>();
    three.extend([under(6), pay(7, 6, (20, 30), args(2))]);
    assert_count("pay", 2, &three);
    // Siblings are two calls even if their parent is missing.
    let siblings = [
        agent(),
        pay(4, 9, (20, 30), json!({})),
        pay(5, 9, (20, 30), json!({})),
    ];
    let flags = |span: Sent| span.with("flags", json!(0x301));
    assert_count("pay", 2, &siblings.map(flags));
}

#[test]
fn a_model_that_uses_an_id_again_asks_for_another_call() {
    let turns = |name: &str, args: Value| {
        [
            agent(),
            chat(2, &[("call_0", "search", json!({ "q": "x" }))], &[]),
            chat(3, &[("call_0", name, args)], &[("call_0", "found")]),
            chat(4, &[], &[("call_0", "gone")]),
        ]
    };
    let never = json!({ "tool_calls": { "disallowed": ["^delete$"] } });
    let deletes = turns("delete", json!({ "id": 7 }));
    assert_eq!(verdict(&never, &deletes), Verdict::Fail);
    assert_count("search", 2, &turns("search", json!({ "q": "y" })));
    // The same reply is reported twice.
    assert_count("search", 1, &turns("search", json!({ "q": "x" })));
    // The result may belong to either call.
    let output = json!({ "tool_call_output": { "tool_outputs": [
        { "name": "delete", "output": "found" },
    ] } });
    assert_eq!(verdict(&output, &deletes), Verdict::NotEvaluated);
}

#[test]
fn arguments_of_an_id_that_is_used_again_are_those_of_the_calls_turn() {
    let bash = |id| tool(id, 1, (10 * id, 10 * id + 5), "bash", &with_id("call_0"));
    let asks = |id, command: &str| {
        chat(
            id,
            &[("call_0", "bash", json!({ "command": command }))],
            &[],
        )
    };
    let never = |command: &str| {
        json!({ "tool_calls": { "disallowed": [
            { "name": "^bash$", "args": { "command": command } },
        ] } })
    };
    let spans = || [agent(), asks(2, "ls"), bash(3), asks(4, "rm -rf"), bash(5)];
    let judgement = judged(&never("rm -rf"), &spans());
    assert_eq!(only(&judgement).verdict, Verdict::Fail);
    assert_eq!(only(&judgement).offending(), [1]);
    assert_eq!(verdict(&never("sudo"), &spans()), Verdict::Pass);
}

#[test]
fn an_announcement_is_of_the_tool_that_it_names() {
    // The model requested a search, but another tool ran under that id.
    let spans = [
        agent(),
        chat(2, &[("c1", "search", json!({ "path": "/tmp" }))], &[]),
        tool(3, 1, (30, 35), "wipe", &with_id("c1")),
    ];
    let never = json!({ "tool_calls": { "disallowed": [
        { "name": "^wipe$", "args": { "path": "^/$" } },
    ] } });
    assert_eq!(verdict(&never, &spans), Verdict::NotEvaluated);
}

#[test]
fn a_result_of_an_id_that_two_calls_have_is_of_neither() {
    let bash = |id, command: &str| {
        let values = both(with_id("call_0"), with_args(&json!({ "command": command })));
        tool(id, 1, (10 * id, 10 * id + 5), "bash", &values)
    };
    let output = json!({ "tool_call_output": { "tool_outputs": [
        { "name": "bash", "output": "ok" },
    ] } });
    let answer = || chat(6, &[], &[("call_0", "ok")]);
    let once = [agent(), bash(3, "ls"), answer()];
    assert_eq!(verdict(&output, &once), Verdict::Pass);
    let twice = [agent(), bash(3, "ls"), bash(5, "rm"), answer()];
    assert_eq!(verdict(&output, &twice), Verdict::NotEvaluated);
}

#[test]
fn a_request_answers_no_call_that_is_made_after_it() {
    let output = |name: &str| {
        let expected = json!([{ "name": name, "output": "old" }]);
        json!({ "tool_call_output": { "tool_outputs": expected } })
    };
    let args = json!({ "q": "x" });
    let asks = [
        agent(),
        chat(2, &[("call_0", "search", args)], &[("call_0", "old")]),
    ];
    assert_eq!(verdict(&output("search"), &asks), Verdict::NotEvaluated);
    let bash = tool(3, 1, (30, 35), "bash", &with_id("call_0"));
    let spans = [agent(), chat(2, &[], &[("call_0", "old")]), bash];
    assert_eq!(verdict(&output("bash"), &spans), Verdict::NotEvaluated);
}
