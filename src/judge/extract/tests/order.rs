//! Tests the order, steps, parallel groups and agents of a trace's calls.

use super::{Made, agent, model, names, span, taken, tool};

#[test]
fn ties_are_broken_by_depth_then_by_the_order_of_the_reply() {
    let reply = concat!(
        r#"[{"role":"assistant","parts":["#,
        r#"{"type":"tool_call","id":"c2","name":"b","arguments":{}},"#,
        r#"{"type":"tool_call","id":"c1","name":"a","arguments":{}}]}]"#,
    );
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 99),
        model(2, 1, 1, 9).with("gen_ai.output.messages", reply),
        tool(3, 1, "a", 10, 20).with("gen_ai.tool.call.id", "c1"),
        tool(4, 1, "b", 10, 30).with("gen_ai.tool.call.id", "c2"),
        tool(5, 4, "inner", 10, 15),
    ]);
    assert_eq!(names(&trajectory), ["b", "a", "inner"]);
    let groups: Vec<Option<u32>> = trajectory
        .tool_calls
        .iter()
        .map(|call| call.parallel_group)
        .collect();
    assert_eq!(
        groups,
        [Some(1), Some(1), None],
        "a call within a call is none of its group"
    );
}

#[test]
fn a_step_is_the_turn_of_the_agents_model() {
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 999),
        model(2, 1, 1, 9),
        model(3, 2, 2, 8),
        tool(4, 1, "ask_expert", 10, 400),
        agent(5, 4, "expert", 11, 399),
        model(6, 5, 12, 20),
        tool(7, 5, "search", 21, 30),
        model(8, 5, 31, 40),
        tool(9, 5, "fetch", 41, 50),
        tool(10, 5, "store", 60, 70),
        model(11, 1, 401, 410),
        tool(12, 1, "publish", 411, 420),
    ]);
    let steps: Vec<(&str, u32, Option<u32>)> = trajectory
        .tool_calls
        .iter()
        .map(|call| (&*call.name, call.step, call.parallel_group))
        .collect();
    let expected = [
        ("ask_expert", 0, None),
        ("search", 0, None),
        ("fetch", 1, Some(1)),
        ("store", 1, Some(1)),
        ("publish", 1, None),
    ];
    assert_eq!(steps, expected);
    assert_eq!(trajectory.agent.as_deref(), Some("desk"));
    assert_eq!(trajectory.judged_agent_runs(), [0, 1]);
    let expert = trajectory.for_agent_run(1, &trajectory.calls_by_agent_run()[1]);
    assert_eq!(
        (names(&expert), expert.agent.as_deref()),
        (vec!["search", "fetch", "store"], Some("expert"))
    );
    assert_eq!(
        expert.subject.unwrap().span_id.to_string(),
        "0000000000000005"
    );
    assert_eq!(
        trajectory
            .node_visits
            .iter()
            .map(|name| &**name)
            .collect::<Vec<_>>(),
        ["desk", "expert"]
    );
}

#[test]
fn without_model_spans_overlap_makes_a_group() {
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 99),
        tool(2, 1, "a", 10, 30),
        tool(3, 1, "b", 20, 40),
        tool(4, 1, "c", 35, 36),
        tool(5, 1, "d", 40, 50),
    ]);
    let groups: Vec<Option<u32>> = trajectory
        .tool_calls
        .iter()
        .map(|call| call.parallel_group)
        .collect();
    assert_eq!(groups, [Some(1), Some(1), Some(1), None]);
}

#[test]
fn runs_of_one_name_directly_nested_are_one() {
    let trajectory = taken(&[
        agent(1, 0, "desk", 0, 99),
        agent(2, 1, "desk", 1, 98),
        tool(3, 2, "desk_again", 10, 60),
        agent(4, 3, "desk", 11, 59),
        tool(5, 4, "search", 20, 30),
    ]);
    assert_eq!(trajectory.agent_runs.len(), 2);
    assert_eq!(trajectory.agent_runs[1].parent, Some(0));
    assert_eq!(trajectory.tool_calls[0].agent_run, Some(0));
    assert_eq!(trajectory.tool_calls[1].agent_run, Some(1));
}

#[test]
fn a_run_without_calls_that_contains_a_run_is_not_judged() {
    let trajectory = taken(&[
        agent(1, 0, "flow", 0, 99),
        agent(2, 1, "desk", 1, 98),
        tool(3, 2, "search", 10, 20),
    ]);
    assert_eq!(trajectory.judged_agent_runs(), [1]);
    assert_eq!(taken(&[agent(1, 0, "idle", 0, 9)]).judged_agent_runs(), [0]);
}

#[test]
fn one_call_of_a_model_that_two_instrumentations_report_is_one_step() {
    let step = |outer: Made, inner: Made| {
        let trajectory = taken(&[
            agent(1, 0, "desk", 0, 999),
            outer.scope("wrapper"),
            inner.scope("sdk"),
            tool(4, 1, "search", 10, 20),
        ]);
        trajectory.tool_calls[0].step
    };
    let (outer, inner) = (|| model(2, 1, 1, 9), || model(3, 1, 2, 8));
    assert_eq!(step(outer(), inner()), 0);
    let asking = |model: Made, id: &str| {
        let call = format!(r#"{{"type": "tool_call", "id": "{id}", "name": "search"}}"#);
        let reply = format!(r#"[{{"role": "assistant", "parts": [{call}]}}]"#);
        model.with("gen_ai.output.messages", reply)
    };
    assert_eq!(step(asking(outer(), "x"), inner()), 0);
    assert_eq!(step(asking(outer(), "x"), asking(inner(), "x")), 0);
    assert_eq!(step(asking(outer(), "x"), asking(inner(), "y")), 1);
    // The duration of a span without an end is unknown.
    assert_eq!(step(outer(), model(3, 1, 2, 0)), 1);
    assert_eq!(step(outer(), model(3, 1, 4, 10)), 1);
}

#[test]
fn a_process_with_another_clock_is_ordered_below_its_parent() {
    let spans = [
        agent(1, 0, "desk", 1000, 9000),
        tool(2, 1, "first", 2000, 3000),
        tool(3, 1, "remote", 4000, 6000),
        span(4, 3, "serve", 500, 2500).service("server"),
        tool(5, 4, "inner", 600, 700).service("server"),
    ];
    let trajectory = taken(&spans);
    assert_eq!(names(&trajectory), ["first", "remote", "inner"]);
    assert!(trajectory.clock_adjusted);
    assert_eq!(trajectory.tool_calls[2].start_unix_nanos, 4_100_000_000);
    assert!(!taken(&spans[..3]).clock_adjusted);
}

#[test]
fn a_session_is_looked_up_the_ancestors_then_anywhere() {
    let above = taken(&[
        span(1, 0, "POST", 0, 99).with("session.id", "s1"),
        agent(2, 1, "desk", 1, 98),
        tool(3, 2, "a", 2, 3).with("session.id", "s2"),
    ]);
    assert_eq!(
        (above.session.as_deref(), &*above.root),
        (Some("s1"), "POST")
    );
    let below = taken(&[
        agent(1, 0, "desk", 1, 98),
        model(2, 1, 2, 3).with("gen_ai.conversation.id", "s3"),
    ]);
    assert_eq!(below.session.as_deref(), Some("s3"));
    // A session may have several conversations.
    let both = agent(1, 0, "desk", 1, 98).with("gen_ai.conversation.id", "c1");
    let both = taken(&[both.with("session.id", "s4")]);
    assert_eq!(both.session.as_deref(), Some("s4"));
}

#[test]
fn only_what_a_selector_reads_is_copied() {
    let trajectory = taken(&[agent(1, 0, "desk", 1, 98)
        .with("env", 3)
        .with("session.id", "s")]);
    let subject = trajectory.subject.unwrap();
    assert_eq!(
        (subject.attribute("env"), subject.attribute("session.id")),
        (Some("3"), None)
    );
}

#[test]
fn the_evaluated_span_is_the_earliest_topmost_run_that_no_call_holds() {
    let subject = |spans: &[Made]| {
        taken(spans)
            .subject
            .unwrap()
            .span_id
            .to_string()
            .trim_start_matches('0')
            .to_owned()
    };
    assert_eq!(
        subject(&[
            span(1, 0, "POST", 0, 99),
            agent(3, 1, "b", 50, 60),
            agent(2, 1, "a", 10, 40)
        ]),
        "2"
    );
    let called = [
        span(1, 0, "graph", 0, 99),
        tool(2, 1, "ask", 10, 90),
        agent(3, 2, "expert", 11, 89),
    ];
    assert_eq!(
        subject(&called),
        "1",
        "the run belongs to a call, which an agent above it made"
    );
    let remote = |id: u64, flags: u16| Made {
        flags,
        ..span(id, 99, "POST", 0, 99)
    };
    assert_eq!(
        subject(&[
            remote(1, 0x301),
            model(2, 1, 10, 20),
            tool(4, 1, "a", 20, 30),
            span(3, 98, "orphan", 0, 5)
        ]),
        "1"
    );
    assert_eq!(
        subject(&[span(4, 98, "orphan", 0, 50), tool(5, 4, "a", 10, 20)]),
        "4"
    );
}
