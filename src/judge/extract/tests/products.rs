//! Tests the extraction of spans of products without a capture in `tests/captures`, as documented
//! or observed. The tests do not prove that newer versions write the same spans.

use serde_json::json;

use super::*;

#[test]
fn judgeval_names_its_tools_by_the_span_alone() {
    let call = only(
        span(1, 0, "search", 1, 2)
            .with("judgment.span_kind", "tool")
            .with("judgment.input", "{\"query\": \"x\"}")
            .with("judgment.output", "\"found\"")
            .with("judgment.update_id", 1),
    );
    assert_eq!(
        (&*call.name, args(&call), result(&call), &*call.convention),
        ("search", json!({"query": "x"}), json!("found"), "judgment")
    );
    assert_eq!(&*call.result.unwrap().text, "found");
}

#[test]
fn a_span_exported_at_its_start_is_partial() {
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    let partial = span(1, 0, "run", 5, 5)
        .with("judgment.span_kind", "agent")
        .with("judgment.update_id", 0)
        .made(&recogniser);
    let class = partial.class;
    assert!(class.partial && class.agent_run && class.update == 0 && !class.tool_call);
    let whole = span(1, 0, "run", 5, 9)
        .with("judgment.span_kind", "agent")
        .with("judgment.update_id", 1)
        .made(&recogniser);
    let class = whole.class;
    assert!(!class.partial && class.update == 1);
}

#[test]
fn langsmith_fails_with_a_status_ok() {
    let call = only(
        span(1, 0, "charge_card", 1, 2)
            .with("langsmith.span.kind", "tool")
            .with("gen_ai.operation.name", "execute_tool")
            .with("gen_ai.tool.name", "charge_card")
            .with("gen_ai.prompt", "{\"amount\": 42.5}")
            .with("gen_ai.completion", "{}")
            .with("langsmith.metadata.lc_agent_name", "billing")
            .status(Status::Ok)
            .event(
                "exception",
                &[("exception.message", "ValueError('card declined')")],
            ),
    );
    assert!(call.error);
    assert_eq!(result(&call), json!("ValueError('card declined')"));
    assert_eq!(
        (&*call.convention, args(&call), call.agent.as_deref()),
        ("langsmith", json!({"amount": 42.5}), Some("billing"))
    );
}

#[test]
fn voltagent_names_the_sub_agent_beside_its_parent() {
    let call = only(
        span(1, 0, "tool.execution:get_weather", 1, 2)
            .with("span.type", "tool")
            .with("tool.name", "get_weather")
            .with("tool.call.id", "call_1")
            .with("tool.parameters", "{\"type\":\"object\"}")
            .with("input", "{\"city\":\"Oslo\"}")
            .with("output", "{\"temp\":3}")
            .with("entity.name", "travel-desk")
            .with("subagent.name", "weather"),
    );
    assert_eq!(
        (&*call.name, call.agent.as_deref(), call.call_id.as_deref()),
        ("get_weather", Some("weather"), Some("call_1"))
    );
    assert_eq!(
        (args(&call), result(&call), &*call.convention),
        (json!({"city": "Oslo"}), json!({"temp": 3}), "voltagent")
    );
}

#[test]
fn traceloop_for_javascript_has_the_name_in_the_result() {
    let call = only(
        span(1, 0, "execute_tool DynamicStructuredTool", 1, 2)
            .with("traceloop.span.kind", "task")
            .with("gen_ai.operation.name", "execute_tool")
            .with("traceloop.workflow.name", "travel_desk")
            .with(
                "traceloop.entity.input",
                "{\"args\":[\"{\\\"city\\\":\\\"Oslo\\\"}\"]}",
            )
            .with(
                "traceloop.entity.output",
                concat!(
                    r#"{"lc":1,"type":"constructor","#,
                    r#""id":["langchain_core","messages","ToolMessage"],"#,
                    r#""kwargs":{"content":"{\"temp\":3}","name":"get_weather","#,
                    r#""tool_call_id":"call_9","status":"success"}}"#,
                ),
            ),
    );
    assert_eq!(
        (&*call.name, call.call_id.as_deref(), call.agent.as_deref()),
        ("get_weather", Some("call_9"), Some("travel_desk"))
    );
    assert_eq!(
        (args(&call), result(&call)),
        (json!({"city": "Oslo"}), json!({"temp": 3}))
    );
}

/// Returns a model reply that requests calls, as OpenLLMetry for JavaScript records it.
fn reply(id: u64, parent: u64, start: u64, calls: &[(&str, &str)]) -> Made {
    let parts = calls.iter().map(|(name, args)| {
        let id = format!("call_{name}");
        json!({ "type": "tool_call", "id": id, "name": name, "arguments": args })
    });
    let parts: Vec<_> = parts.collect();
    let messages = json!([{ "role": "assistant", "parts": parts }]).to_string();
    model(id, parent, start, start + 5).with("gen_ai.output.messages", messages)
}

/// Returns a failed call as OpenLLMetry for JavaScript records it: the span's name is the class,
/// and there is no result.
fn failed_class(id: u64, parent: u64, start: u64, args: &str) -> Made {
    span(
        id,
        parent,
        "execute_tool DynamicStructuredTool",
        start,
        start + 5,
    )
    .with("traceloop.span.kind", "task")
    .with("gen_ai.operation.name", "execute_tool")
    .with(
        "traceloop.entity.input",
        json!({ "args": [args] }).to_string(),
    )
    .status(Status::Error)
}

#[test]
fn a_failed_tool_has_its_name_from_the_reply_that_asked_for_it() {
    let run = |calls: &[(&str, &str)]| {
        taken(&[
            agent(1, 0, "travel_desk", 0, 90),
            reply(2, 1, 1, calls),
            failed_class(3, 1, 10, r#"{"city":"Oslo"}"#),
        ])
    };
    let calls = run(&[("get_weather", r#"{"city":"Oslo"}"#)]);
    assert_eq!(names(&calls), ["get_weather"]);
    assert_eq!(
        calls.tool_calls[0].call_id.as_deref(),
        Some("call_get_weather")
    );
    assert!(calls.tool_calls[0].error);
    // Different arguments belong to another call, and two tools with equal arguments prove nothing.
    let calls = run(&[("get_weather", r#"{"city":"Bergen"}"#)]);
    assert_eq!(names(&calls), ["DynamicStructuredTool"]);
    let calls = run(&[
        ("get_weather", r#"{"city":"Oslo"}"#),
        ("get_time", r#"{"city":"Oslo"}"#),
    ]);
    assert_eq!(names(&calls), ["DynamicStructuredTool"]);
}

#[test]
fn a_failed_tool_has_its_name_from_the_output_beside_it() {
    let output = |id, start, calls: &[(&str, &str, &str)]| {
        let calls = calls.iter().map(|(id, name, args)| {
            json!({ "id": id, "type": "function", "function": { "name": name, "arguments": args } })
        });
        let calls: Vec<_> = calls.collect();
        let output = json!({ "messages": [{ "role": "assistant", "tool_calls": calls }] });
        span(id, 1, "workflow RunnableSequence", start, start + 1)
            .with("traceloop.span.kind", "workflow")
            .with("traceloop.entity.output", output.to_string())
    };
    let (oslo, bergen) = (r#"{"city":"Oslo"}"#, r#"{"city":"Bergen"}"#);
    let run = |spans: &[Made]| {
        let trajectory = taken(&[&[agent(1, 0, "travel_desk", 0, 90)], spans].concat());
        let calls = trajectory.tool_calls.into_iter();
        let calls =
            calls.map(|call| (call.name.to_string(), call.call_id.map(|id| id.to_string())));
        calls.collect::<Vec<_>>()
    };
    let (name, class) = ("get_weather".to_owned(), "DynamicStructuredTool".to_owned());
    let first = || output(2, 1, &[("c1", "get_weather", oslo)]);
    let failed = |id, start| failed_class(id, 1, start, oslo);
    let named = (name.clone(), Some("c1".to_owned()));
    assert_eq!(run(&[first(), failed(3, 10)]), std::slice::from_ref(&named));
    // A tool's output is not a reply.
    let other = span(3, 1, "get_time.tool", 3, 4)
        .with("traceloop.span.kind", "tool")
        .with("traceloop.entity.name", "get_time")
        .with("traceloop.entity.output", "a tool's output");
    let time = ("get_time".to_owned(), None);
    assert_eq!(run(&[first(), other, failed(4, 10)]), [time, named]);
    // The last reply requested the call, or no reply did.
    let last = output(3, 5, &[("c2", "get_time", bergen)]);
    assert_eq!(
        run(&[first(), last, failed(4, 10)]),
        [(class.clone(), None)]
    );
    // Either call may be the one that failed.
    let twice = output(
        2,
        1,
        &[("c1", "get_weather", oslo), ("c2", "get_weather", oslo)],
    );
    let unknown = (name, None);
    assert_eq!(
        run(&[twice, failed(3, 10), failed(4, 20)]),
        [unknown.clone(), unknown]
    );
    let many = vec![("c1", "get_weather", oslo); 65];
    assert_eq!(run(&[output(2, 1, &many), failed(3, 10)]), [(class, None)]);
}

#[test]
fn a_run_of_voltagent_is_one_without_a_call_too() {
    let calls = taken(&[
        span(1, 0, "travel-desk", 0, 90)
            .with("entity.type", "agent")
            .with("entity.name", "Travel desk"),
        // VoltAgent repeats the run's `entity.type` on every span inside the run.
        span(2, 1, "llm:streamText", 1, 80)
            .with("span.type", "llm")
            .with("entity.type", "agent")
            .with("entity.name", "Travel desk"),
    ]);
    assert_eq!(names(&calls), [""; 0]);
    assert_eq!(calls.agent.as_deref(), Some("Travel desk"));
}

#[test]
fn a_run_of_dspy_is_one_without_a_call_too() {
    let chain = |id, parent, name, start, end| {
        span(id, parent, name, start, end).with("openinference.span.kind", "CHAIN")
    };
    let calls = taken(&[
        chain(1, 0, "ReAct.forward", 0, 90),
        chain(2, 1, "Predict.forward", 1, 80),
    ]);
    assert_eq!(
        (names(&calls), calls.agent.as_deref()),
        (vec![], Some("ReAct"))
    );
}

#[test]
fn a_flattened_function_call_without_an_id_is_a_call() {
    let calls = taken(&[model(1, 0, 0, 9)
        .with(
            "gen_ai.output.messages",
            r#"[{"role":"assistant","parts":[]}]"#,
        )
        .with("gen_ai.completion.0.function_call.name", "get_weather")
        .with(
            "gen_ai.completion.0.function_call.arguments",
            r#"{"city":"Oslo"}"#,
        )
        .with("gen_ai.completion.1.function_call.name", "search")
        .with("gen_ai.completion.1.function_call.arguments", "{}")]);
    assert_eq!(names(&calls), ["get_weather", "search"]);
    assert_eq!(args(&calls.tool_calls[0]), json!({"city": "Oslo"}));
}

#[test]
fn strands_older_status_fails_a_call() {
    let call = |status| only(tool(1, 0, "search", 1, 2).with("tool.status", status));
    assert!(call("error").error && !call("success").error);
}

#[test]
fn adks_answer_in_place_of_a_failed_tool_is_a_failure() {
    let answer = json!({
        "response_type": "ERROR_HANDLED_BY_REFLECT_AND_RETRY_PLUGIN",
        "error_type": "ValueError", "error_details": "card declined", "retry_count": 1,
        "reflection_guidance": "The call to tool `charge_card` failed.",
    });
    let call = |answer: &Json| {
        only(
            tool(1, 0, "charge_card", 1, 2)
                .with("gcp.vertex.agent.tool_response", answer.to_string())
                .status(Status::Ok),
        )
    };
    assert!(call(&answer).error);
    assert!(!call(&json!({ "response_type": "receipt" })).error);
    // A tool whose result contains this answer only as a text did not fail.
    assert!(!call(&json!({ "log": answer.to_string() })).error);
}

#[test]
fn adk_for_javascript_drops_all_attributes_of_a_failed_call() {
    let calls = taken(&[
        agent(1, 0, "desk", 0, 90),
        span(2, 1, "execute_tool book_flight", 10, 20),
        tool(3, 1, "book_flight", 30, 40)
            .with("gcp.vertex.agent.tool_call_args", "{\"id\":1}")
            .with("gcp.vertex.agent.tool_response", "{\"result\":\"booked\"}"),
        tool(4, 1, "(merged tools)", 30, 40).with("gcp.vertex.agent.tool_call_args", "N/A"),
    ]);
    assert_eq!(names(&calls), ["book_flight", "book_flight"]);
    assert_eq!(&*calls.tool_calls[0].convention, "span_name");
    assert_eq!(
        (args(&calls.tool_calls[1]), result(&calls.tool_calls[1])),
        (json!({"id": 1}), json!("booked"))
    );
}

#[test]
fn openinference_for_vercel_leaks_its_errors() {
    let call = |id, start| {
        span(id, 0, "ai.toolCall travel-desk", start, start + 5)
            .with("ai.operationId", "ai.toolCall")
            .with("ai.toolCall.name", "book")
            .with("ai.toolCall.args", "{}")
            .with("openinference.span.kind", "TOOL")
            .with("tool.name", "book")
            .status(Status::Error)
    };
    let trajectory = taken(&[
        call(1, 10).event("exception", &[]),
        call(2, 20).with("ai.toolCall.result", "\"ok\""),
    ]);
    let errors: Vec<bool> = trajectory
        .tool_calls
        .iter()
        .map(|call| call.error)
        .collect();
    assert_eq!(errors, [true, false]);
}

#[test]
fn mastra_refuses_an_input_with_a_status_ok() {
    let call = |result: &str| {
        only(
            tool(1, 0, "book", 1, 2)
                .with("mastra.span.type", "tool_call")
                .with("gen_ai.tool.call.result", result)
                .status(Status::Ok),
        )
    };
    assert!(call("{\"error\":true,\"message\":\"input\"}").error);
    assert!(!call("{\"error\":\"none\"}").error && &*call("{}").convention == "mastra");
    let chunk = span(1, 0, "model_chunk", 1, 2)
        .with("mastra.span.type", "model_chunk")
        .with("gen_ai.operation.name", "model_chunk");
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    assert!(!chunk.made(&recogniser).class.tool_call);
}

#[test]
fn logfire_marks_a_failure_beside_the_status() {
    let call = || {
        span(1, 0, "Function: {name}", 1, 2)
            .scope("logfire.openai_agents")
            .with("logfire.msg_template", "Function: {name}")
            .with("name", "transfer")
    };
    assert!(!only(call()).error);
    let error = json!({ "message": "Error running tool" });
    assert!(only(call().with("error", error)).error);
}

#[test]
fn strands_keeps_values_in_events() {
    let call = only(
        tool(1, 0, "search", 1, 2)
            .with("gen_ai.tool.status", "error")
            .event(
                "gen_ai.tool.message",
                &[("content", "{\"q\": 1}"), ("role", "tool")],
            )
            .event(
                "gen_ai.choice",
                &[("message", "[{\"text\": \"Error: no\"}]")],
            ),
    );
    assert_eq!(
        (args(&call), result(&call), call.error),
        (json!({"q": 1}), json!("Error: no"), true)
    );
}

#[test]
fn a_guardrail_with_a_tool_name_is_no_call() {
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 9),
        span(2, 1, "guardrail", 1, 2)
            .with("openinference.span.kind", "GUARDRAIL")
            .with("tool.name", "pii"),
        span(3, 1, "made up", 1, 2)
            .with("tool.name", "x")
            .with("tool.synthesized", true),
        span(4, 1, "handoff", 1, 2)
            .with("traceloop.span.kind", "tool")
            .with("gen_ai.operation.name", "handoff"),
    ]);
    assert!(trajectory.tool_calls.is_empty());
}

#[test]
fn a_plain_completion_of_vercels_sdk_is_no_agent_run() {
    let plain = span(1, 0, "ai.generateText", 0, 9).with("ai.operationId", "ai.generateText");
    let request = span(2, 1, "ai.generateText.doGenerate", 1, 8)
        .with("ai.operationId", "ai.generateText.doGenerate");
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    assert!(
        trajectory(
            &trace(&[plain.clone(), request.clone()], &recogniser),
            &recogniser
        )
        .is_none()
    );
    let with_tools = request.with("ai.prompt.tools", json!(["{}"]));
    assert_eq!(taken(&[plain, with_tools]).agent_runs.len(), 1);
}

#[test]
fn claude_code_marks_a_failure_below_the_call() {
    let spans = [
        span(1, 0, "claude_code.interaction", 0, 9).with("session.id", "s1"),
        span(2, 1, "claude_code.llm_request", 1, 2).with("gen_ai.system", "anthropic"),
        span(3, 1, "claude_code.tool", 3, 5)
            .with("tool_name", "Bash")
            .with("tool_use_id", "t1")
            .with("tool_input", "{\"command\":\"ls\"}"),
        span(4, 3, "claude_code.tool.blocked_on_user", 3, 4).with("decision", "accept"),
        span(5, 3, "claude_code.tool.execution", 4, 5)
            .with("success", "false")
            .with("error", "exit 1"),
        span(6, 1, "claude_code.tool", 6, 7)
            .with("tool_name", "Read")
            .with("gen_ai.tool.call.id", "t2"),
        span(7, 6, "claude_code.tool.execution", 6, 7).with("success", true),
    ];
    let trajectory = taken(&spans);
    let seen: Vec<_> = (trajectory.tool_calls.iter())
        .map(|call| {
            (
                &*call.name,
                call.call_id.as_deref(),
                call.error,
                call.agent.as_deref(),
                call.step,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("Bash", Some("t1"), true, Some("claude_code"), 0),
            ("Read", Some("t2"), false, Some("claude_code"), 0)
        ]
    );
    assert_eq!(
        (
            args(&trajectory.tool_calls[0]),
            trajectory.session.as_deref()
        ),
        (json!({"command": "ls"}), Some("s1"))
    );
}

#[test]
fn llama_index_names_the_agent_whose_turn_it_is() {
    let turn = |id, at, name: &str| {
        let event = format!(
            "AgentInput(input=[\"current_agent_name='nobody'\"], current_agent_name='{name}')"
        );
        span(id, 1, "AgentWorkflow.setup_agent", at, at + 1)
            .with("openinference.span.kind", "CHAIN")
            .with(
                "input.value",
                json!({ "ctx": "<Context>", "ev": event }).to_string(),
            )
    };
    let call = |id, parent, at, name: &str| {
        span(id, parent, "FunctionTool.acall", at, at + 1)
            .with("openinference.span.kind", "TOOL")
            .with("tool.name", name)
    };
    let model =
        |id, at| span(id, 1, "OpenAI.achat", at, at + 1).with("openinference.span.kind", "LLM");
    let spans = [
        span(1, 0, "AgentWorkflow.run", 0, 99).with("openinference.span.kind", "CHAIN"),
        turn(2, 1, "writer"),
        model(3, 2),
        span(4, 1, "AgentWorkflow.call_tool", 3, 5).with("openinference.span.kind", "CHAIN"),
        call(5, 4, 4, "draft"),
        turn(6, 6, "reviewer"),
        model(7, 7),
        call(8, 1, 8, "review"),
        model(9, 9),
        call(10, 1, 10, "publish"),
    ];
    let trajectory = taken(&spans);
    let seen: Vec<_> = (trajectory.tool_calls.iter())
        .map(|call| (&*call.name, call.agent.as_deref(), call.step))
        .collect();
    assert_eq!(
        seen,
        [
            ("draft", Some("writer"), 0),
            ("review", Some("reviewer"), 0),
            ("publish", Some("reviewer"), 1)
        ]
    );
    assert_eq!(
        (trajectory.agent.as_deref(), trajectory.agent_runs.len()),
        (Some("writer"), 1)
    );
}

#[test]
fn a_haystack_conversation_without_its_end_is_no_certainty() {
    let message = |role: &str, content: &str| {
        format!(
            "ChatMessage(_role=<ChatRole.{}: '{role}'>, _content=[{content}], \
             _name=None, _meta={{}})",
            role.to_uppercase()
        )
    };
    let call = |id: u8| {
        format!("ToolCall(tool_name='search', arguments={{'n': {id}}}, id='c{id}', extra=None)")
    };
    let messages = [
        message("user", "TextContent(text='ToolCall(tool_name=1)')"),
        message("assistant", &format!("{}, {}", call(1), call(2))),
        message(
            "tool",
            &format!(
                "ToolCallResult(result='no', origin={}, error=True)",
                call(1)
            ),
        ),
        message("assistant", &call(3)),
    ];
    let run = |output: &str| {
        span(1, 0, "Agent.run", 0, 9)
            .with("openinference.span.kind", "CHAIN")
            .with(
                "input.value",
                json!({ "messages": messages[..1] }).to_string(),
            )
            .with("output.value", output)
    };
    let output = json!({ "messages": messages, "last_message": messages[3] }).to_string();
    let trajectory = taken(&[run(&output)]);
    let seen: Vec<_> = (trajectory.tool_calls.iter())
        .map(|call| {
            (
                call.call_id.as_deref(),
                call.error,
                call.step,
                call.parallel_group,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (Some("c1"), true, 0, Some(1)),
            (Some("c2"), false, 0, Some(1)),
            (Some("c3"), false, 1, None)
        ]
    );
    assert_eq!(
        (
            args(&trajectory.tool_calls[2]),
            &*trajectory.tool_calls[2].convention
        ),
        (json!({"n": 3}), "haystack.messages")
    );
    assert!(trajectory.from_messages && !trajectory.cut_short);
    // The models' own spans repeat the reply; the model spans of a nested agent do not.
    let reply = |name: &str| {
        let part = json!({ "type": "tool_call", "name": name, "arguments": {} });
        json!([{ "role": "assistant", "parts": [part] }]).to_string()
    };
    let nested = taken(&[
        run(&output),
        model(2, 1, 1, 2).with("gen_ai.output.messages", reply("search")),
        agent(3, 1, "expert", 3, 6),
        model(4, 3, 4, 5).with("gen_ai.output.messages", reply("look")),
    ]);
    let mut called = names(&nested);
    called.sort_unstable();
    assert_eq!(called, ["look", "search", "search", "search"]);
    let trajectory = taken(&[run(&output[..output.find("'c3'").unwrap()]).cut("output.value")]);
    assert_eq!(
        (trajectory.tool_calls.len(), trajectory.cut_short),
        (2, true)
    );
}

#[test]
fn adk_for_python_wraps_results_and_knows_no_id_of_a_failed_call() {
    let call = only(
        tool(1, 0, "check_inventory", 1, 2)
            .with("gcp.vertex.agent.event_id", "e1")
            .with("gen_ai.tool.call.id", "<not specified>")
            .with("gen_ai.tool.call.result", "{\"result\": 3}"),
    );
    assert_eq!((result(&call), call.call_id), (json!(3), None));
    let call = only(tool(1, 0, "search", 1, 2).with("gen_ai.tool.call.result", "{\"result\": 3}"));
    assert_eq!(
        result(&call),
        json!({"result": 3}),
        "another's result is its own business"
    );
}
