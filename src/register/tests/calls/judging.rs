//! Tests that `POST /v1/evaluate` judges trajectories and recorded traces.

use crate::register::tests::*;

#[tokio::test]
async fn a_trajectory_is_judged_without_keeping_anything() {
    let register = register(FILE);
    let calls =
        "trajectory: { tool_calls: [{ name: x }, { name: y, agent: b, args: { q: 1 } }] }\n";
    let verdicts = async |question: &str| {
        let (status, _, answer) = call(&register, "POST", "/v1/evaluate", &[], question).await;
        let evaluations = answer["evaluations"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let verdicts = evaluations.iter().map(|line| {
            (
                line["criterion"].as_str().unwrap().to_owned(),
                line["label"].as_str().unwrap().to_owned(),
            )
        });
        (status, verdicts.collect::<Vec<_>>())
    };
    let of = |name: &str, label: &str| (name.to_owned(), label.to_owned());
    assert_eq!(verdicts(calls).await, (200, vec![of("a", "pass")]));
    assert_eq!(
        verdicts(&format!("{calls}names: [a]\n")).await,
        (200, vec![of("a", "pass")])
    );
    assert_eq!(verdicts(&format!("{calls}names: [z]\n")).await.0, 404);
    let own = "criteria:\
        \n- { name: m, evaluate: { tool_call_order: { tool_calls_order: [y, x] } } }\
        \n- { name: n, scope: agent, evaluate: { tool_call_order: { tool_calls_order: [y] } } }\n";
    assert_eq!(
        verdicts(&format!("{calls}{own}")).await,
        (200, vec![of("m", "fail"), of("n", "pass")])
    );
    assert_eq!(judged_by(&register), ["a"]);
    for wrong in [
        "{}",
        "trajectory: {}\ntraces: {}\n",
        "trajectory: { tool_calls: [{}] }",
        "trajectory: { completeness: soon }",
        "[]",
        "names: a",
    ] {
        assert_eq!(verdicts(wrong).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn an_otlp_trace_is_judged_as_a_recording_is_also_by_attributes_that_nobody_kept() {
    let register = register("");
    let span = |id: &str, parent: &str, tool: &str| {
        json!({
            "traceId": "0af7651916cd43dd8448eb211c80319c",
            "spanId": id,
            "parentSpanId": parent,
            "name": "s",
            "startTimeUnixNano": "1795000000000000000", "endTimeUnixNano": "1795000000000000001",
            "attributes": [
                { "key": "tool.name", "value": { "stringValue": tool } },
                { "key": "acme.tenant", "value": { "stringValue": "north" } },
            ],
        })
    };
    let root = json!({
        "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "run",
        "startTimeUnixNano": "1795000000000000000", "endTimeUnixNano": "1795000000000000009",
        "attributes": [{ "key": "acme.tenant", "value": { "stringValue": "north" } }],
    });
    let spans = [
        root,
        span("b7ad6b7169203332", "b7ad6b7169203331", "search"),
        span("b7ad6b7169203333", "b7ad6b7169203331", "edit"),
    ];
    let question = json!({
        "traces": { "resourceSpans": [{ "scopeSpans": [{ "spans": spans }] }] },
        "criteria": [
            {
                "name": "m",
                "select": { "attributes": { "acme.tenant": "north" } },
                "evaluate": { "tool_call_order": { "tool_calls_order": ["search", "edit"] } },
            },
            {
                "name": "n",
                "select": { "attributes": { "acme.tenant": "south" } },
                "evaluate": { "tool_call_order": { "tool_calls_order": ["search"] } },
            },
        ],
    });
    let (status, _, answer) = call(
        &register,
        "POST",
        "/v1/evaluate",
        &[],
        &question.to_string(),
    )
    .await;
    assert_eq!(
        (status, answer["evaluations"].as_array().unwrap().len()),
        (200, 1),
        "{answer}"
    );
    assert_eq!(
        (
            answer["evaluations"][0]["label"].as_str(),
            answer["evaluations"][0]["completeness"].as_str()
        ),
        (Some("pass"), Some("root_ended"))
    );
    let wrong = json!({ "traces": { "resourceSpans": [{ "scopeSpans": [{ "spans": [{
        "traceId": "zz",
    }] }] }] } });
    assert_eq!(
        call(&register, "POST", "/v1/evaluate", &[], &wrong.to_string())
            .await
            .0,
        400
    );
}
