//! Tests agents that report their tool calls as log records, alone or beside spans. OTLP/JSON
//! becomes trajectories and evaluations through the real scan and pipeline. The records are written
//! by hand after the agents' documentation. Does not prove that a later version writes them the
//! same way.

mod messages;

use std::time::Duration;

use judge::assemble::Settings;
use judge::evaluate::Verdict;
use judge::extract::ToolCall;
use judge::pipeline::{Judged, Pipeline, Taken};
use otlp::span::Batch;
use serde_json::{Value, json};

use crate::support::records::{
    SECOND, START, attributes, claude, clock, logs, names, record, replay, rules, span, spans, text,
};

#[test]
fn a_prompts_calls_are_judged_when_it_has_been_quiet() {
    let at = clock();
    let settings = Settings {
        inactive: Duration::from_secs(180),
        ..Settings::replay()
    };
    let mut pipeline = Pipeline::new(settings, at(0));
    let rules = rules();
    // The sequence numbers decide the order of the calls, although the order of arrival and the
    // times disagree with them. A decision is not a call, and a repeated record counts once.
    let bash = claude(
        3,
        7,
        "Bash",
        "t3",
        json!({ "success": "false", "tool_parameters": "{\"command\": \"ls\"}" }),
    );
    let decision = record(
        3,
        json!({
            "event.name": "tool_decision",
            "tool_name": "Bash",
            "prompt.id": "p1",
            "tool_use_id": "t3",
        }),
    );
    let mut full_name = claude(5, 3, "Edit", "t2", json!({ "event.name": "" }));
    full_name["eventName"] = json!("claude_code.tool_result");
    let batch = logs(&[bash.clone(), decision, full_name, bash]);
    assert_eq!(batch.spans.len(), 3);
    assert_eq!(
        pipeline.take(batch, at(0)),
        Taken {
            n_taken: 3,
            ..Taken::default()
        }
    );
    pipeline.take(logs(&[claude(1, 1, "Read", "t1", json!({}))]), at(100));
    assert_eq!(pipeline.advance(&rules, at(279)).evaluations.len(), 0);
    let judged = pipeline.advance(&rules, at(281));
    let evaluation = &judged.evaluations[0];
    let trajectory = &judged.trajectories[0];
    assert_eq!(
        (evaluation.verdict, names(trajectory)),
        (Verdict::Pass, vec!["Read", "Edit", "Bash"])
    );
    assert_eq!(
        (trajectory.completeness.as_str(), trajectory.cut_short),
        ("inactive", false)
    );
    assert_eq!(
        (
            &*trajectory.service,
            trajectory.session.as_deref(),
            trajectory.subject.is_none()
        ),
        ("coder", Some("s1"), true)
    );
    // Computed in Python as hashlib.sha256(b"p1").hexdigest()[:32].
    assert_eq!(
        trajectory.trace_id.to_string(),
        "f64551fcd6f07823cb87971cfb914464"
    );
    let ToolCall {
        error,
        args,
        start_unix_nanos,
        end_unix_nanos,
        span_id,
        convention,
        ..
    } = &trajectory.tool_calls[2];
    assert_eq!(
        (*error, text(args), *span_id, &**convention),
        (true, Some("{\"command\": \"ls\"}"), None, "log_calls")
    );
    assert_eq!(
        (*start_unix_nanos, *end_unix_nanos),
        (START + 3 * SECOND - SECOND / 4, START + 3 * SECOND)
    );

    // A later record changes the verdict, as a late span does.
    let late = logs(&[claude(9, 9, "Bash", "t4", json!({}))]);
    assert_eq!(pipeline.take(late, at(300)).n_late, 1);
    let revised = pipeline.advance(&rules, at(600)).evaluations;
    assert_eq!(
        revised
            .iter()
            .map(|revised| (revised.verdict, revised.revision))
            .collect::<Vec<_>>(),
        [(Verdict::Fail, 1)]
    );
}

#[test]
fn order_and_batching_of_the_records_do_not_matter() {
    let records: Vec<Value> = (0..6)
        .map(|n| {
            claude(
                n,
                n as i64,
                ["Read", "Edit", "Bash"][n as usize % 3],
                &format!("t{n}"),
                json!({}),
            )
        })
        .collect();
    let printed = |judged: Judged| {
        format!(
            "{:#?}",
            judged
                .trajectories
                .iter()
                .map(|it| (&it.trace_id, &it.tool_calls))
                .collect::<Vec<_>>()
        )
    };
    let expected = printed(replay([logs(&records)]));
    let mut turned = records.clone();
    for _ in 0..records.len() {
        turned.rotate_left(1);
        assert_eq!(
            printed(replay(
                turned
                    .iter()
                    .rev()
                    .chain(&turned)
                    .map(|record| logs(std::slice::from_ref(record)))
            )),
            expected
        );
    }
}

#[test]
fn codex_and_gemini_are_read_as_they_spell_it() {
    let codex = record(
        1,
        json!({
            "event.name": "codex.tool_result", "tool_name": "shell", "call_id": "c1",
            "arguments": "{\"command\":[\"ls\"]}", "output": "a.txt", "success": true,
            "duration_ms": 12, "conversation.id": "codex-1",
        }),
    );
    let mut gemini = record(
        2,
        json!({
            "function_name": "read_file", "function_args": "{\"path\":\"a.txt\"}",
            "success": false, "duration_ms": 1.5, "prompt_id": "g-1", "session.id": "g-s",
        }),
    );
    gemini["body"] = json!({ "stringValue": "gemini_cli.tool_call" });
    gemini["traceId"] = json!("0af7651916cd43dd8448eb211c80319c");
    let judged = replay([logs(&[codex, gemini])]);
    let seen: Vec<_> = (judged.trajectories.iter())
        .map(|trajectory| {
            let call = &trajectory.tool_calls[0];
            (
                names(trajectory),
                call.call_id.as_deref(),
                text(&call.args),
                text(&call.result),
                call.error,
                trajectory.session.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (
                vec!["shell"],
                Some("c1"),
                Some("{\"command\":[\"ls\"]}"),
                Some("a.txt"),
                false,
                Some("codex-1")
            ),
            (
                vec!["read_file"],
                None,
                Some("{\"path\":\"a.txt\"}"),
                None,
                true,
                Some("g-s")
            ),
        ]
    );
    assert_eq!(
        judged.trajectories[1].trace_id.to_string(),
        "0af7651916cd43dd8448eb211c80319c",
        "the trace that the record names"
    );
}

#[test]
fn a_call_that_a_span_also_reports_is_dropped() {
    let batches = || {
        [
            logs(&[
                claude(1, 1, "Read", "t1", json!({})),
                claude(2, 2, "Edit", "t2", json!({})),
            ]),
            span("0af7651916cd43dd8448eb211c80319c", "t1"),
        ]
    };
    let seen = |judged: Judged| {
        judged
            .trajectories
            .iter()
            .map(|it| (it.subject.is_some(), names(it).join(" ")))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        seen(replay(batches())),
        [(false, "Edit".to_owned()), (true, "Read".to_owned())]
    );
    assert_eq!(
        seen(replay(batches().into_iter().rev())),
        [(true, "Read".to_owned()), (false, "Edit".to_owned())]
    );
    let [_, of_span] = batches();
    let all_told = replay([logs(&[claude(1, 1, "Read", "t1", json!({}))]), of_span]);
    assert_eq!(
        (all_told.n_no_trajectory, seen(all_told)),
        (1, vec![(true, "Read".to_owned())])
    );
}

#[test]
fn records_without_a_group_are_counted_and_other_records_are_not_kept() {
    let lonely = record(
        1,
        json!({ "event.name": "codex.tool_result", "tool_name": "shell" }),
    );
    let other = record(
        1,
        json!({ "event.name": "codex.user_prompt", "conversation.id": "codex-1" }),
    );
    let batch = logs(&[lonely, other]);
    assert_eq!((batch.spans.len(), batch.n_without_ids), (0, 1));
    // A span with the key that marks a log record must not count as a log record.
    let values = json!({ "spanscore.log.trace_id": "x", "tool_name": "Read", "prompt.id": "p1" });
    let forged = json!({
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "00000000000000aa",
        "name": "x",
        "attributes": attributes(&values),
    });
    assert_eq!(replay([spans(&[forged])]).trajectories.len(), 0);
}

#[test]
fn a_verdict_about_records_is_revised_when_spans_report_their_calls() {
    let at = clock();
    let settings = Settings {
        inactive: Duration::from_secs(180),
        settle: Duration::from_secs(5),
        restart_guard: None,
        ..Settings::replay()
    };
    let mut pipeline = Pipeline::new(settings, at(0));
    let rules = rules();
    let mut seen = |batch: Option<Batch>, seconds: u64| {
        if let Some(batch) = batch {
            pipeline.take(batch, at(seconds - 10));
        }
        let evaluations = pipeline.advance(&rules, at(seconds)).evaluations;
        let seen = evaluations.iter().map(|evaluation| {
            let is_of_records = evaluation.trajectory.subject.is_none();
            (is_of_records, evaluation.verdict, evaluation.revision)
        });
        seen.collect::<Vec<_>>()
    };
    let calls = ["Read", "Edit", "Bash"].into_iter().zip(1..);
    let records: Vec<Value> = calls
        .map(|(tool, n)| claude(n, n as i64, tool, &format!("t{n}"), json!({})))
        .collect();
    let of_span = |n: u8| Some(span(&format!("{n:032x}"), &format!("t{n}")));
    assert_eq!(seen(Some(logs(&records)), 20), []);
    assert_eq!(seen(None, 300), [(true, Verdict::Pass, 0)]);
    // Spans report one call, then the remaining calls. The run is not judged twice.
    assert_eq!(seen(of_span(1), 310), [(false, Verdict::Fail, 0)]);
    assert_eq!(seen(None, 600), [(true, Verdict::Fail, 1)]);
    assert_eq!(seen(of_span(2), 610), [(false, Verdict::Fail, 0)]);
    assert_eq!(seen(of_span(3), 620), [(false, Verdict::Fail, 0)]);
    assert_eq!(seen(None, 900), [(true, Verdict::NotEvaluated, 2)]);
    // An id that occurs in two traces proves nothing, so the calls in the records count again.
    let again = Some(span(&format!("{:032x}", 9), "t1"));
    assert_eq!(seen(again, 910), [(false, Verdict::Fail, 0)]);
    assert_eq!(seen(None, 1_200), [(true, Verdict::Fail, 3)]);
}
