//! What is kept of long values, from the bytes of requests to verdicts: what the sidecar cut itself
//! is never read as whole, and never as absent. Replies and requests of models in every spelling,
//! in spans, in their events and in log records. Does not prove what frameworks write.

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use spanscore::assemble::{CloseReason, Settings};
    use spanscore::evaluate::{Criterion, Evaluation, Explain, Verdict};
    use spanscore::extract::Tools;
    use spanscore::pipeline::{Judged, Pipeline, Rules};
    use spanscore::receive::{json as otlp_json, scan, scan_logs};
    use spanscore::sidecar;
    use spanscore::span::Now;

    use crate::support::records::{SECOND, START, attributes, typed};

    const ROOT: &str = "00000000000000aa";

    fn rules(evaluate: &Value) -> Rules {
        let criterion: Criterion =
            serde_json::from_value(json!({ "name": "rule", "evaluate": evaluate })).unwrap();
        Rules::new(vec![criterion], &Tools::default(), Explain::default(), &[])
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
            instant: sidecar::now().instant,
            unix_nanos: START,
        };
        let mut pipeline = Pipeline::new(Settings::replay(), now);
        for request in requests {
            let keys = Some(&**rules.keys());
            let batch = match request {
                Request::Spans(spans) => {
                    let body = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": spans }] }] });
                    let body = otlp_json::traces(body.to_string().as_bytes()).unwrap();
                    scan::scan(&body, keys).unwrap().batch
                }
                Request::Records(records) => {
                    let body =
                        json!({ "resourceLogs": [{ "scopeLogs": [{ "logRecords": records }] }] });
                    let body = otlp_json::logs(body.to_string().as_bytes()).unwrap();
                    scan_logs::scan(&body, keys).unwrap().batch
                }
            };
            pipeline.accept(&rules, batch, now);
        }
        pipeline.end_of_input(&rules, now, |_| ())
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

    /// A run, and below it spans with these attributes, one after the other.
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

    /// Text of this many KiB in many strings, so that no string is long.
    fn prose(kib: usize) -> Value {
        json!(vec!["It was a bright cold day in April. ".repeat(30); kib])
    }

    /// How conventions mark a model's span, where its reply lies, and how it asks for a call.
    fn spellings() -> Vec<(Value, &'static str, Value)> {
        let function = json!({ "name": "delete", "arguments": "{\"id\": 7}" });
        let openai = json!([{ "id": "c1", "type": "function", "function": function }]);
        let openai = json!({ "role": "assistant", "tool_calls": openai });
        let part =
            json!({ "type": "tool_call", "id": "c1", "name": "delete", "arguments": { "id": 7 } });
        let parts = json!({ "role": "assistant", "parts": [part] });
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
        let call = |id: &str, name: &str, args: &Value| json!({ "type": "tool_call", "id": id, "name": name, "arguments": args });
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
        // The provider's own answer repeats the definitions of all tools.
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

    #[test]
    fn a_reply_that_the_sdk_has_cut_does_not_pass() {
        let reply = json!([{ "role": "assistant", "parts": [
            { "type": "tool_call", "id": "c1", "name": "search", "arguments": {} },
            { "type": "tool_call", "id": "c2", "name": "delete", "arguments": {} },
        ] }]);
        let cut = &reply.to_string()[..120];
        let model = chat(json!({ "gen_ai.output.messages": cut }));
        let judged = judge(&never_delete(), [run(&[model])]);
        assert_eq!(only(&judged).verdict, Verdict::NotEvaluated);
        assert_eq!(
            only(&judged).trajectory.completeness,
            CloseReason::SizeLimit
        );
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
            let blocks = json!([{ "text": prose(kib) }, { "toolUse": { "name": "delete", "toolUseId": "c1", "input": {} } }]);
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
        let ask = json!({ "id": "c1", "type": "function", "function": { "name": "delete", "arguments": "{}" } });
        for (kib, verdict) in [
            (1, Verdict::Fail),
            (40, Verdict::Fail),
            (100, Verdict::NotEvaluated),
        ] {
            let body = json!({ "message": { "content": prose(kib), "tool_calls": [ask] } });
            let output = json!([{ "role": "assistant", "parts": [{ "content": prose(kib) }, { "type": "tool_call", "id": "c1", "name": "delete" }] }]);
            let details = json!({ "gen_ai.input.messages": prose(100).to_string(), "gen_ai.output.messages": output.to_string() });
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

    // === results ===

    fn asks(calls: &[(&str, &str)]) -> Value {
        let call = |(id, name): &(&str, &str)| json!({ "type": "tool_call", "id": id, "name": name, "arguments": {} });
        let calls: Vec<Value> = calls.iter().map(call).collect();
        json!({ "role": "assistant", "parts": calls })
    }

    fn answers(id: &str, response: &Value) -> Value {
        json!({ "role": "tool", "parts": [{ "type": "tool_call_response", "id": id, "response": response }] })
    }

    /// Two calls, whose results are in the next request behind a conversation of this many KiB.
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
                json!({ "parts": [{ "type": "tool_call_response", "id": "c1", "response": "secret" }], "role": "tool" }),
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

    /// A model's span in OpenInference's spelling, asked with these messages: role, call id, text.
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
            // Its text is the name of a role.
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

    // === what only messages say of calls that have spans ===

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
        let call = |id: &str, name: &str, args: Value| json!({ "type": "tool_call", "id": id, "name": name, "arguments": args });
        let no_rm = json!({ "tool_calls": {
            "disallowed": [{ "name": "bash", "args": { "command": "rm" } }],
        } });
        for (kib, verdict) in [(1, Verdict::Fail), (100, Verdict::NotEvaluated)] {
            let parts = json!([
                { "type": "text", "content": prose(kib) },
                call("c2", "bash", json!({ "command": "rm" })),
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
        let ask = json!({ "message": { "tool_calls": [{ "id": "c1", "type": "function", "function": { "name": "read", "arguments": "{}" } }] } });
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
            json!({ "messages": [{ "text": prose(kib) }, { "type": "ToolCallRequestEvent", "content": [
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
}
