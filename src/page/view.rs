//! The JSON of a run: an entry of the list, and all details of one run.

use std::sync::Arc;

use judge::evaluate::{AlignmentRow, Evaluation, Scope, Stage, Verdict};
use judge::extract::{Payload, ToolCall, Trajectory};
use serde_json::{Map, Value, json};
use text::abbreviated;

use super::limits::{MAX_LISTED_CALLS, MAX_LISTED_NAME};
use super::memory::RememberedRun;

use crate::rfc3339::rfc3339;

const MAX_LISTED_EVALUATIONS: usize = 64;
const MAX_CALLS: usize = 2_000;
/// Maximum length of a name in characters.
const MAX_NAME: usize = 1_024;
const MAX_AGENT_RUNS: usize = 500;
/// Maximum length of a value in characters, whatever the configuration allows for explanations.
const MAX_VALUE: usize = 4_096;

pub(super) fn summary(run: &RememberedRun) -> Value {
    let trajectory = &run.trajectory;
    let listed = trajectory.tool_calls.iter().take(MAX_LISTED_CALLS);
    let calls = listed.map(|call| {
        let mut shown = json!({ "name": abbreviated(&call.name, MAX_LISTED_NAME) });
        if call.error {
            shown["error"] = json!(true);
        }
        if let Some(group) = call.parallel_group {
            shown["group"] = json!(group);
        }
        shown
    });
    let mut evaluations: Vec<&Evaluation> = run.evaluations.iter().collect();
    let n_evaluations = evaluations.len();
    if n_evaluations > MAX_LISTED_EVALUATIONS {
        // Sort failures to the front, so that they are cut off last.
        evaluations.sort_by_key(|evaluation| goodness(evaluation.verdict));
        evaluations.truncate(MAX_LISTED_EVALUATIONS);
    }
    let evaluations = evaluations.into_iter().map(|evaluation| {
        let mut shown = json!({
            "criterion": evaluation.criterion.name(),
            "label": evaluation.verdict.as_str(),
        });
        if let Some(score) = evaluation.value {
            shown["score"] = json!(score);
        }
        if evaluation.revision > 0 {
            shown["revision"] = json!(evaluation.revision);
        }
        if evaluation.criterion.scope() == Scope::Session {
            shown["scope"] = json!(Scope::Session.as_str());
        }
        if evaluation.stage == Stage::Alarm {
            shown["final"] = json!(false);
        }
        shown
    });
    let is_bad = |found: &&Evaluation| matches!(found.verdict, Verdict::Fail | Verdict::Error);
    let why = run.evaluations.iter().find(is_bad);
    let mut line = facts(run, MAX_LISTED_NAME);
    line.insert("calls".to_owned(), calls.collect());
    line.insert("evaluations".to_owned(), evaluations.collect());
    line.insert("n_evaluations".to_owned(), json!(n_evaluations));
    if let Some(why) = why {
        let why = unrendered(why);
        let text = abbreviated(why.explanation(), 240);
        line.insert("why".to_owned(), json!(text));
    }
    Value::Object(line)
}

/// Returns the rank of a verdict; the worst has 0.
fn goodness(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Fail => 0,
        Verdict::Error => 1,
        Verdict::NotEvaluated => 2,
        Verdict::Pass => 3,
    }
}

pub(super) fn detail(run: &RememberedRun) -> Value {
    let trajectory = &run.trajectory;
    let mut view = facts(run, MAX_NAME);
    let mut put = |key: &str, value: Value| view.insert(key.to_owned(), value);
    put("n_spans", json!(trajectory.n_spans));
    put("clock_adjusted", json!(trajectory.clock_adjusted));
    put("from_messages", json!(trajectory.from_messages));
    put("has_values", json!(run.has_values));
    let agent_runs = trajectory.agent_runs.iter().take(MAX_AGENT_RUNS);
    let agent_runs = agent_runs.map(|agent_run| {
        json!({
            "name": abbreviated(&agent_run.name, MAX_NAME),
            "parent": agent_run.parent,
            "ended": agent_run.ended,
            "start": agent_run.subject.start_unix_nanos.to_string(),
            "end": agent_run.subject.end_unix_nanos.to_string(),
        })
    });
    put("agent_runs", agent_runs.collect());
    let calls = trajectory.tool_calls.iter().take(MAX_CALLS);
    put(
        "tool_calls",
        calls.map(|call| call_json(call, run.has_values)).collect(),
    );
    let evaluations = run.evaluations.iter();
    let evaluations =
        evaluations.map(|evaluation| evaluation_json(&unrendered(evaluation), trajectory));
    put("evaluations", evaluations.collect());
    Value::Object(view)
}

/// Returns a copy to render. If the stored evaluation were rendered, its text would use memory that
/// is not counted.
fn unrendered(evaluation: &Evaluation) -> Evaluation {
    evaluation.with_trajectory(Arc::clone(&evaluation.trajectory))
}

/// Returns the fields that the entry of the list and the details share.
fn facts(run: &RememberedRun, max_name: usize) -> Map<String, Value> {
    let trajectory = &run.trajectory;
    let name = |name: &str| json!(abbreviated(name, max_name));
    let subject = trajectory.subject.as_ref();
    let start = subject.map_or(0, |subject| subject.start_unix_nanos);
    let first_call = trajectory.tool_calls.first();
    let start = match (start, first_call) {
        (0, Some(call)) => call.start_unix_nanos,
        (start, _) => start,
    };
    let end = subject.map_or(0, |subject| subject.end_unix_nanos);
    let end = match end {
        0 => trajectory.latest_end_unix_nanos,
        end => end,
    };
    let time = |unix_nanos: u64| (unix_nanos > 0).then(|| rfc3339(unix_nanos));
    let mut facts = Map::new();
    let mut put = |key: &str, value: Value| facts.insert(key.to_owned(), value);
    put("trace_id", json!(trajectory.trace_id.to_string()));
    let span_id = subject.map(|subject| subject.span_id.to_string());
    put("span_id", json!(span_id.unwrap_or_default()));
    put("number", json!(run.number));
    put("change", json!(run.change));
    put("start", json!(time(start)));
    put("time", json!(time(end)));
    put("judged", json!(time(run.judged_unix_nanos)));
    put("service", name(&trajectory.service));
    put(
        "agent",
        trajectory.agent.as_deref().map_or(Value::Null, name),
    );
    put("root", name(&trajectory.root));
    put(
        "session",
        trajectory.session.as_deref().map_or(Value::Null, name),
    );
    let case_id = &trajectory.expectation_attributes.case_id;
    put("case_id", case_id.as_deref().map_or(Value::Null, name));
    put("completeness", json!(trajectory.completeness.as_str()));
    put("cut_short", json!(trajectory.cut_short));
    put("withdrawn", json!(trajectory.is_taken_over()));
    put("n_calls", json!(run.n_calls));
    let revision = run.evaluations.iter().map(|found| found.revision).max();
    put("revision", json!(revision.unwrap_or_default()));
    facts
}

fn call_json(call: &ToolCall, has_values: bool) -> Value {
    let mut view = json!({
        "name": abbreviated(&call.name, MAX_NAME),
        "agent": call.agent.as_deref().map(|agent| abbreviated(agent, MAX_NAME)),
        "agent_run": call.agent_run,
        "step": call.step,
        "group": call.parallel_group,
        "error": call.error,
        "ended": !call.partial,
        "start": call.start_unix_nanos.to_string(),
        "end": call.end_unix_nanos.to_string(),
        "span_id": call.span_id.map(|span_id| span_id.to_string()),
        "convention": &*call.convention,
    });
    let value = |payload: &Payload| {
        let text = abbreviated(&payload.text, MAX_VALUE);
        if payload.is_cut() && !text.ends_with('…') {
            format!("{text}…")
        } else {
            text.into_owned()
        }
    };
    for (key, payload) in [("args", &call.args), ("result", &call.result)] {
        if let (true, Some(payload)) = (has_values, payload) {
            view[key] = json!(value(payload));
        }
    }
    view
}

fn evaluation_json(evaluation: &Evaluation, whole: &Trajectory) -> Value {
    let Evaluation {
        criterion,
        trajectory,
        ..
    } = evaluation;
    let own = positions(evaluation, whole);
    let of_whole = |call: usize| match &own {
        Some(own) => own.get(call).copied(),
        None => Some(call),
    };
    let rows = evaluation.alignment().into_iter().map(|row| AlignmentRow {
        calls: row.calls.into_iter().filter_map(of_whole).collect(),
        ..row
    });
    let offending = evaluation.offending().iter().copied();
    let agent = match criterion.scope() {
        Scope::Agent => trajectory.agent.as_deref(),
        Scope::Trace | Scope::Session => None,
    };
    let mut view = json!({
        "criterion": criterion.name(),
        "criterion_revision": criterion.revision(),
        "evaluator": criterion.evaluator(),
        "scope": criterion.scope().as_str(),
        "agent": agent,
        "threshold": criterion.threshold(),
        "score": evaluation.value,
        "label": evaluation.verdict.as_str(),
        "explanation": evaluation.explanation(),
        "revision": evaluation.revision,
        "final": evaluation.stage != Stage::Alarm,
        "offending": offending.filter_map(of_whole).collect::<Vec<_>>(),
        "alignment": rows.collect::<Vec<_>>(),
    });
    if let Some(severity) = criterion.severity() {
        view["severity"] = json!(severity.as_str());
    }
    if let Some(error) = &evaluation.error {
        view["error"] = json!({ "type": error.kind, "message": error.message });
    }
    view
}

/// Returns the positions of an evaluation's calls among the run's calls; `None` if it judges all
/// calls.
fn positions(evaluation: &Evaluation, whole: &Trajectory) -> Option<Vec<usize>> {
    if evaluation.criterion.scope() != Scope::Agent {
        return None;
    }
    let subject = evaluation.trajectory.subject.as_ref()?.span_id;
    let mut agent_runs = whole.agent_runs.iter();
    let run_idx = agent_runs.position(|run| run.subject.span_id == subject)?;
    let mut by_run = whole.calls_by_agent_run();
    Some(by_run.swap_remove(run_idx))
}
