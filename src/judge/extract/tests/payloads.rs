//! Tests the parsing and cutting of values, and the sources for values that a span lacks.

use serde_json::json;

use super::{agent, args, model, names, only, result, span, taken, tool};

#[test]
fn a_whole_copy_is_read_where_the_original_is_cut() {
    let call = |args: &str, result: &str| {
        let call = span(1, 0, "search", 1, 2)
            .with("openinference.span.kind", "TOOL")
            .with("input.value", args)
            .with("output.value", result)
            .with("gen_ai.tool.call.arguments", r#"{"q":"copy"}"#)
            .with("gen_ai.tool.call.result", "copied");
        only(call.cut("output.value"))
    };
    // An attribute limit of the SDK has cut the arguments.
    let cut = call(r#"{"kwargs": {"q":"orig"#, "orig");
    assert_eq!(
        (args(&cut), result(&cut)),
        (json!({"q": "copy"}), json!("copied"))
    );
    let whole = call(r#"{"q":"original"}"#, "orig");
    assert_eq!(args(&whole), json!({"q": "original"}));
}

#[test]
fn values_that_are_no_json_are_text_and_cut_ones_say_so() {
    let call = |args: &str| {
        only(tool(1, 0, "a", 1, 2).with("gen_ai.tool.call.arguments", args))
            .args
            .unwrap()
    };
    assert_eq!(*call("not json").json(), json!("not json"));
    assert_eq!(*call("{'a': None}").json(), json!({"a": null}));
    assert_eq!(
        *call("\"{\\\"a\\\": 1}\"").json(),
        json!({"a": 1}),
        "JSON within JSON"
    );
    assert_eq!(
        *call("{\"n\": 9007199254740993}").json(),
        json!({"n": 9_007_199_254_740_993_i64}),
        "64-bit integers stay exact"
    );
    let digits = "123456789012345678901234567890.10";
    assert_eq!(
        call(&format!("{{\"n\": {digits}}}")).json()["n"].to_string(),
        digits,
        "numbers keep all their digits"
    );
    let not_finite = call("{\"n\": NaN, \"of\": [-Infinity]}");
    assert_eq!(
        *not_finite.json(),
        json!({"n": "NaN", "of": ["-Infinity"]}),
        "as Python's json.dumps writes them"
    );
    assert!(!not_finite.is_cut());
    assert!(call("{\"n\": NaN, \"query\": \"a long te").is_cut());
    for hidden in [
        &format!(
            "{{\"a\": 1, \"b\": {}{}}}",
            "[".repeat(200),
            "]".repeat(200)
        ),
        "{\"\\u0024serde_json::private::Number\": \"x\", \"a\": 1}",
    ] {
        assert!(
            call(hidden).is_cut(),
            "JSON that we cannot read must not count as a value without keys: {hidden}"
        );
    }
    let cut = call("{\"query\": \"a long te");
    assert!(
        cut.is_cut() && cut.json().is_string(),
        "cut by an attribute limit of the SDK"
    );
    let long = call(&format!("{{\"a\": \"{}\"}}", "é".repeat(20_000)));
    assert!(long.is_cut() && long.text.len() <= 16 << 10);
    assert!(!call(&"[".repeat(200_000)).json().is_array());
}

#[test]
fn the_bare_text_of_an_only_argument_gets_its_name_from_the_reply_also_in_braces() {
    let query = "{ user { id } }";
    let reply = json!([{ "role": "assistant", "parts": [{
        "type": "tool_call",
        "id": "c1",
        "name": "graph",
        "arguments": { "query": query },
    }] }]);
    let trajectory = taken(&[
        agent(1, 0, "clerk", 1, 9),
        model(2, 1, 2, 3).with("gen_ai.output.messages", reply.to_string()),
        tool(3, 1, "graph", 4, 5)
            .with("gen_ai.tool.call.id", "c1")
            .with("gen_ai.tool.call.arguments", query),
    ]);
    assert_eq!(args(&trajectory.tool_calls[0]), json!({ "query": query }));
}

#[test]
fn an_envelope_is_opened_with_white_space_before_it() {
    let message = "\n {\"type\": \"tool\", \"content\": \"no stock\", \
                   \"tool_call_id\": \"c1\", \"status\": \"error\"}";
    let call = only(
        span(1, 0, "lookup", 1, 2)
            .with("openinference.span.kind", "TOOL")
            .with("tool.name", "lookup")
            .with("output.value", message),
    );
    assert_eq!(
        (result(&call), call.call_id.as_deref(), call.error),
        (json!("no stock"), Some("c1"), true)
    );
}

#[test]
fn an_attribute_behind_many_others_is_found() {
    let mut many = tool(1, 0, "a", 1, 2);
    many.attributes.splice(
        0..0,
        (0..300).map(|n| {
            (
                format!("llm.input_messages.{n}.message.role"),
                "user".into(),
            )
        }),
    );
    assert_eq!(names(&taken(&[many])), ["a"]);
}
