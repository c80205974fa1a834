//! `spanscore inspect`: recorded traces in, their tool calls as spanscore understands them out.

use serde_json::{Value, json};

use super::args::{Format, InspectArgs};
use super::output::Output;
use super::replay::{self, plural};
use super::{Exit, Failure};
use crate::extract::{Payload, ToolCall, Trajectory};
use crate::pipeline::Rules;

/// Run the command.
pub(crate) fn run(args: &InspectArgs, rules: Rules, output: &mut Output) -> Result<Exit, Failure> {
    let rules = Rules { criteria: Vec::new(), ..rules };
    let replayed = replay::judge_files(&args.files, args.signal, &rules)?;
    let trajectories = &replayed.judged.trajectories;
    match args.format {
        Format::Jsonl => {
            for trajectory in trajectories {
                output.line(&to_json(trajectory).to_string())?;
            }
        }
        Format::Human | Format::Junit => {
            for trajectory in trajectories {
                output.write(&human(trajectory, rules.explain.max_value_length))?;
                output.line("")?;
            }
            let n_calls = trajectories.iter().map(|trajectory| trajectory.tool_calls.len()).sum();
            let mut text = format!(
                "{} in {} of {} ({}, {})",
                plural(n_calls, "tool call"),
                plural(trajectories.len(), "trajectory").replace("trajectorys", "trajectories"),
                plural(replayed.judged.reasons.len(), "trace"),
                plural(replayed.n_requests, "request"),
                plural(replayed.n_spans, "span"),
            );
            if trajectories.is_empty() && replayed.n_spans > 0 {
                text.push_str("\nno span was recognised as a tool call or an agent run; `tools.name_attributes` names further attributes that mark one");
            }
            output.line(&text)?;
        }
    }
    output.flush()?;
    Ok(Exit::Fine)
}

/// The line of the jsonl contract.
pub(crate) fn to_json(trajectory: &Trajectory) -> Value {
    json!({
        "trace_id": trajectory.trace_id.to_string(),
        "span_id": trajectory.subject.as_ref().map(|subject| subject.span_id.to_string()),
        "service": &*trajectory.service,
        "root": &*trajectory.root,
        "agent": trajectory.agent.as_deref(),
        "session": trajectory.session.as_deref(),
        "completeness": trajectory.completeness.as_str(),
        "spans": trajectory.n_spans,
        "tool_calls": trajectory.tool_calls.iter().map(call_to_json).collect::<Vec<_>>(),
    })
}

fn call_to_json(call: &ToolCall) -> Value {
    json!({
        "name": &*call.name,
        "call_id": call.call_id.as_deref(),
        "args": call.args.as_ref().map(|payload| &payload.json),
        "result": call.result.as_ref().map(|payload| &payload.json),
        "error": call.error,
        "agent": call.agent.as_deref(),
        "step": call.step,
        "parallel_group": call.parallel_group,
        "span_id": call.span_id.map(|span_id| span_id.to_string()),
        "start": call.start_unix_nanos.to_string(),
        "end": call.end_unix_nanos.to_string(),
        "convention": &*call.convention,
    })
}

/// A block for people: the trace, then a line a call.
pub(crate) fn human(trajectory: &Trajectory, max_value_length: usize) -> String {
    let mut text = format!("trace {}  {}", trajectory.trace_id, trajectory.root);
    let facts = [("service", Some(&*trajectory.service)), ("agent", trajectory.agent.as_deref()), ("session", trajectory.session.as_deref())];
    for (word, value) in facts {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            text.push_str(&format!("  {word} {value}"));
        }
    }
    text.push_str(&format!("  {}  {}\n", plural(trajectory.n_spans, "span"), trajectory.completeness.as_str()));
    if trajectory.tool_calls.is_empty() {
        text.push_str("  no tool calls\n");
    }
    let width = trajectory.tool_calls.iter().map(|call| call.name.chars().count()).max().unwrap_or_default().min(40);
    for (call_idx, call) in trajectory.tool_calls.iter().enumerate() {
        text.push_str(&format!("  {:>3}. {:width$}", call_idx + 1, call.name));
        text.push_str(&format!("  step {}", call.step));
        if let Some(group) = call.parallel_group {
            text.push_str(&format!("  group {group}"));
        }
        if call.error {
            text.push_str("  ERROR");
        }
        if let Some(agent) = &call.agent {
            text.push_str(&format!("  by {agent}"));
        }
        text.push_str(&format!("  [{}]\n", call.convention));
        for (word, payload) in [("args", &call.args), ("result", &call.result)] {
            if let Some(payload) = payload {
                text.push_str(&format!("       {word:6} {}\n", shorten(payload, max_value_length)));
            }
        }
    }
    text
}

fn shorten(payload: &Payload, max_length: usize) -> String {
    let mut text: String = payload.text.chars().take(max_length).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if payload.cut || payload.text.chars().nth(max_length).is_some() {
        text.push('…');
    }
    text
}
