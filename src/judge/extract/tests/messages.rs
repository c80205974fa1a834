//! Tests the extraction of calls and results that are known only from messages.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Made, agent, args, model, names, result, span, taken, tool, trace};
use crate::assemble::CloseReason;
use crate::extract::*;

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
fn ids_come_from_the_raw_answer_below_a_request() {
    let raw = |choices: &str| {
        [
            span(1, 0, "litellm_request", 0, 9)
                .with("gen_ai.operation.name", "chat")
                .with("gen_ai.completion.0.function_call.name", "search")
                .with("gen_ai.completion.0.function_call.arguments", r#"{"q": 1}"#),
            span(2, 1, "raw_gen_ai_request", 0, 9).with("llm.azure_ai.choices", choices),
        ]
    };
    let ids = |spans: &[Made]| -> Vec<Option<String>> {
        let calls = &taken(spans).tool_calls;
        let ids = calls.iter().map(|call| call.call_id.as_deref());
        ids.map(|id| id.map(str::to_owned)).collect()
    };
    let whole = concat!(
        "[{'index': 0, 'message': {'content': None, 'tool_calls': [{'id': 'c1', ",
        r#"'function': {'arguments': '{"q": 1}', 'name': 'search'}, 'type': 'function'}]}}]"#,
    );
    assert_eq!(ids(&raw(whole)), [Some("c1".into())]);
    let another_tool = whole.replace("'search'", "'fetch'");
    assert_eq!(ids(&raw(&another_tool)), [None]);
    // An SDK's attribute limit cut the text: the call is known, but not its id.
    let cut = &whole[..whole.len() - 9];
    assert_eq!(ids(&raw(cut)), [None]);
    // The span above names all calls, so the cut answer hides none.
    let [_, below] = raw(cut);
    let request = span(1, 3, "litellm_request", 0, 9).with("gen_ai.operation.name", "chat");
    let idle = [agent(3, 0, "desk", 0, 99), request, below];
    assert_ne!(taken(&idle).completeness, CloseReason::SizeLimit);
    // Without a request's span above, the raw answer is the reply; if it is cut, calls may be lost.
    let alone = |choices: &str| {
        let run = agent(1, 0, "desk", 0, 99);
        let reply = span(2, 1, "raw_gen_ai_request", 0, 9).with("llm.openai.choices", choices);
        taken(&[run, reply])
    };
    assert_eq!(names(&alone(whole)), ["search"]);
    let cut = alone(cut);
    assert_eq!(cut.completeness, CloseReason::SizeLimit);
    assert_ne!(alone(whole).completeness, CloseReason::SizeLimit);
}

#[test]
fn a_run_stays_one_whose_operation_litellm_has_overwritten() {
    let choices = concat!(
        "[{'index': 0, 'message': {'content': None, 'tool_calls': [{'id': 'c1', ",
        r#"'function': {'arguments': '{"q": 1}', 'name': 'search'}, 'type': 'function'}]}}]"#,
    );
    for (name, agent) in [
        ("invoke_agent desk", Some("desk")),
        ("invoke_agent", Some("invoke_agent")),
        ("invoke_workflow", Some("invoke_workflow")),
        ("invoke_workflow shop", Some("invoke_workflow shop")),
        ("invoke", None),
    ] {
        let run = taken(&[
            span(1, 0, name, 0, 99).with("gen_ai.operation.name", "chat"),
            span(2, 1, "raw_gen_ai_request", 1, 9).with("llm.openai.choices", choices),
        ]);
        assert_eq!(names(&run), ["search"], "{name}");
        assert_eq!(run.agent.as_deref(), agent, "{name}");
        assert_eq!(run.agent_runs.len(), usize::from(agent.is_some()), "{name}");
    }
}

/// `OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT` cuts a reply in the middle of its text, before the first
/// word that mentions a call.
#[test]
fn a_reply_that_its_sdk_has_cut_may_have_held_calls_whatever_is_left_of_it() {
    let messages =
        r#"[{"role": "assistant", "parts": [{"type": "text", "content": "Let us see"}]}]"#;
    let python = "[{'role': 'assistant', 'content': 'Let us see'}]";
    let choice = r#" {"role": "assistant", "content": "Let us see"} "#;
    let completeness = |key, reply: &str| {
        let reply = model(2, 1, 1, 9).with(key, reply);
        taken(&[agent(1, 0, "desk", 0, 99), reply]).completeness
    };
    let keys = [
        "gen_ai.output.messages",
        "output.value",
        "gen_ai.completion",
    ];
    for (key, whole) in keys
        .into_iter()
        .flat_map(|key| [messages, python, choice].map(|whole| (key, whole)))
    {
        assert_ne!(completeness(key, whole), CloseReason::SizeLimit, "{whole}");
        let cut = &whole[..whole.find("us").unwrap()];
        assert_eq!(completeness(key, cut), CloseReason::SizeLimit, "{cut}");
    }
    for text in ["[1] is the source", "{name}, hello", "{", "\"a\"", "[]"] {
        assert_ne!(
            completeness(keys[0], text),
            CloseReason::SizeLimit,
            "{text}"
        );
    }
}

#[test]
fn a_result_may_stand_in_parts_beside_its_call_id() {
    let answered = |parts: &str| {
        let first = model(2, 1, 1, 9).with(
            "gen_ai.output.messages",
            r#"[{"role":"assistant","tool_calls":[{"id":"c1","name":"search"}]}]"#,
        );
        let input = format!(r#"[{{"role":"tool","parts":{parts},"tool_call_id":"c1"}}]"#);
        let second = model(3, 1, 20, 30).with("gen_ai.input.messages", input);
        let run = taken(&[agent(1, 0, "desk", 0, 99), first, second]);
        run.tool_calls[0]
            .result
            .as_ref()
            .map(|result| result.json().clone())
    };
    let part = |text: &str| format!(r#"{{"type":"text","content":"{text}"}}"#);
    assert_eq!(
        answered(&format!("[{}]", part("[1, 2]"))),
        Some(json!([1, 2]))
    );
    let two = format!("[{},{}]", part("a"), part("b"));
    assert_eq!(answered(&two), Some(json!(["a", "b"])));
    assert_eq!(answered("[]"), None);
    assert_eq!(answered(r#"[{"type":"image","content":"x"}]"#), None);
}

#[test]
fn a_prompt_is_pruned_and_only_new_results_are_kept() {
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
    let request = model(1, 0, 1, 2)
        .with("gen_ai.input.messages", history)
        .with("input.value", long.clone())
        .made(&recogniser);
    let size = size_of_val(&request) + request.kept.size();
    assert!(size < 600, "{size} bytes");
    let found = spans::model_messages::tool_results(
        &spans::View::new(request.kept.index(), &request),
        1000,
    );
    let ids = found.results.iter().map(|(id, _)| id.as_str());
    assert_eq!((ids.collect::<Vec<_>>(), found.cut), (vec!["new"], false));
}

/// Returns settings with a convention for this kind of span; `word` is the value of `acme.kind`.
fn house(kind: SpanKind, word: &str) -> Tools {
    let convention = CustomConvention {
        name: "acme".into(),
        matches: [("acme.kind".to_owned(), word.to_owned())].into(),
        kind,
        error_match: BTreeMap::new(),
        name_from: None,
        args_from: None,
        result_from: None,
        id_from: None,
    };
    Tools {
        conventions: vec![convention],
        ..Tools::default()
    }
}

#[test]
fn a_run_by_a_convention_of_the_settings_keeps_only_its_answer() {
    let recogniser = Recogniser::new(&house(SpanKind::Agent, "agent"), [], None);
    let run = span(1, 0, "desk", 0, 9)
        .with("acme.kind", "agent")
        .with("input.value", "What is new?")
        .with("output.value", "Nothing.")
        .made(&recogniser);
    let key = |name| recogniser.keys().id(name).unwrap();
    let kept = run.kept.index();
    assert!(run.class.agent_run);
    assert_eq!(
        (kept.str(key("input.value")), kept.str(key("output.value"))),
        (None, Some("Nothing."))
    );
}

#[test]
fn spans_recognised_under_other_settings_are_recognised_again() {
    let tools = |word: &str| house(SpanKind::Tool, word);
    let mut recogniser = Recogniser::new(&tools("job"), [], None);
    let spans = [
        agent(1, 0, "desk", 0, 99),
        span(2, 1, "fetch", 1, 2).with("acme.kind", "tool"),
    ];
    // Under the settings at their arrival, neither span was a call.
    let taken = trace(&spans, &recogniser);
    assert!(
        trajectory(&taken, &recogniser)
            .unwrap()
            .tool_calls
            .is_empty()
    );
    // Change the settings more often than the counter can count; each change reverses the answer.
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
            if kind == "tool" { vec!["fetch"] } else { vec![] },
            "after {nth} changes"
        );
        let fresh = trace(&spans, &recogniser);
        assert_eq!(
            trajectory(&fresh, &recogniser).unwrap().tool_calls.len(),
            names.len()
        );
    }
}
