//! `spanscore inspect`: prints the tool calls that spanscore extracts from recorded traces.

use std::collections::HashMap;
use std::io;

use clap::{Args, ValueEnum};
use judge::evaluate::ValuePath;
use judge::extract::{Payload, ToolCall, Trajectory};
use judge::pipeline::Rules;
use serde_json::{Value, json};
use text::{abbreviated, counted, safe_json, truncated, wrapped};

use super::recording::Recordings;
use super::replayed::{self, Replayed};
use super::verbose::Explainer;
use super::{Exit, Streams};
use crate::export::score_line::Clean;

/// Options of `inspect`.
#[derive(Debug, Args)]
pub(super) struct Inspect {
    /// The recordings to read.
    #[command(flatten)]
    pub(super) recordings: Recordings,
    /// Output format.
    #[arg(long, value_enum, default_value_t = InspectFormat::Human)]
    pub(super) format: InspectFormat,
    /// Also explain how every span was interpreted, and how to configure unrecognised ones (human
    /// format only).
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Show the values at this path, for example `args.amount` or `result.items.*.id`, instead of
    /// all arguments and results (human format only). Paths are written as in a criterion's
    /// `where`.
    #[arg(long, value_name = "PATH", value_parser = ValuePath::parse)]
    pub(super) path: Option<ValuePath>,
}

/// Output formats of `inspect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum InspectFormat {
    /// Text for people.
    Human,
    /// One JSON object per trajectory.
    Jsonl,
}

/// Maximum characters of arguments or of a result in the human format.
const MAX_SHOWN: usize = 160;

pub(super) fn inspect(
    args: &Inspect,
    rules: &Rules,
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
    let human_only = [("--verbose", args.verbose), ("--path", args.path.is_some())];
    let option = human_only.iter().find(|(_, is_given)| *is_given);
    if let (Some((option, _)), InspectFormat::Jsonl) = (option, args.format) {
        let message =
            format!("{option} works with the human format only; drop it or `--format jsonl`");
        streams.complain(&message)?;
        return Ok(Exit::Usage);
    }
    let shown = match &args.path {
        Some(path) => Shown::AtPath(path),
        None => Shown::Whole(MAX_SHOWN),
    };
    let judging = rules;
    let rules = rules.without_judgement();
    let mut explainer = Explainer::new(judging);
    let Recordings { files, signal } = &args.recordings;
    let read = if args.verbose {
        replayed::judge_watched(files, *signal, &rules, &mut explainer)
    } else {
        replayed::judge(&args.recordings, &rules)
    };
    let replayed = match read {
        Ok(replayed) => replayed,
        Err(unreadable) => {
            return streams
                .complain(&unreadable.to_string())
                .map(|()| Exit::Unreadable);
        }
    };
    let width = streams.look.width;
    match (args.format, args.verbose) {
        (InspectFormat::Jsonl, _) => {
            for trajectory in &replayed.judged.trajectories {
                let line = to_json(trajectory).to_string();
                writeln!(streams.out, "{}", safe_json(line))?;
            }
        }
        (InspectFormat::Human, false) => {
            for trajectory in &replayed.judged.trajectories {
                let text = human(trajectory, shown);
                writeln!(streams.out, "{}", wrapped(&text, width))?;
            }
            writeln!(streams.out, "{}", wrapped(&summary(&replayed), width))?;
        }
        (InspectFormat::Human, true) => {
            let by_arrival: HashMap<_, _> = replayed
                .judged
                .trajectories
                .iter()
                .map(|trajectory| (trajectory.arrival, trajectory))
                .collect();
            for explained in &explainer.traces {
                let trajectory = by_arrival.get(&explained.arrival);
                match trajectory {
                    Some(trajectory) => {
                        let text = human(trajectory, shown);
                        write!(streams.out, "{}", wrapped(&text, width))?
                    }
                    None => writeln!(
                        streams.out,
                        "trace {}  neither a tool call nor an agent run: not judged",
                        explained.trace_id
                    )?,
                }
                if trajectory.is_some_and(|trajectory| {
                    trajectory.from_messages && !trajectory.tool_calls.is_empty()
                }) {
                    writeln!(
                        streams.out,
                        "  no span is a tool call; these calls come from the models' messages"
                    )?;
                }
                if let Some(trajectory) = trajectory {
                    let text = explainer.span_expectations(explained, trajectory);
                    write!(streams.out, "{}", wrapped(&text, width))?;
                }
                writeln!(
                    streams.out,
                    "{}",
                    wrapped(&explainer.spans(explained), width)
                )?;
            }
            writeln!(streams.out, "{}", wrapped(&summary(&replayed), width))?;
            if let Some(hint) = explainer.hint() {
                write!(streams.out, "{hint}")?;
            }
        }
    }
    streams.out.flush()?;
    Ok(Exit::Fine)
}

/// Summarises the input and the calls found. If there are spans but no trajectory, suggests what to
/// check.
fn summary(replayed: &Replayed) -> String {
    let trajectories = &replayed.judged.trajectories;
    let n_calls = trajectories
        .iter()
        .map(|trajectory| trajectory.tool_calls.len())
        .sum();
    let calls = counted(n_calls, "tool call", "tool calls");
    let found = counted(trajectories.len(), "trajectory", "trajectories");
    let traces = counted(replayed.judged.reasons.len(), "trace", "traces");
    let read = [
        counted(replayed.n_requests, "request", "requests"),
        counted(replayed.n_spans, "span", "spans"),
    ]
    .join(", ");
    let mut text = format!("{calls} in {found} of {traces} ({read})");
    if trajectories.is_empty() && replayed.n_spans > 0 {
        text.push_str(
            "\nno span was recognised as a tool call or an agent run; --verbose shows the spans \
             and their attributes, and `tools.name_attributes` or `tools.conventions` define \
             your own",
        );
    }
    text
}

/// Returns the trajectory in the documented jsonl format. The span id is empty if only log records
/// report the call or the run.
pub(super) fn to_json(trajectory: &Trajectory) -> Value {
    let subject = trajectory.subject.as_ref();
    let span_id = subject.map(|subject| subject.span_id.to_string());
    json!({
        "trace_id": trajectory.trace_id.to_string(),
        "span_id": span_id.unwrap_or_default(),
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
        "args": call.args.as_ref().map(Payload::json),
        "result": call.result.as_ref().map(Payload::json),
        "error": call.error,
        "agent": call.agent.as_deref(),
        "step": call.step,
        "parallel_group": call.parallel_group,
        "span_id": call.span_id.map(|span_id| span_id.to_string()).unwrap_or_default(),
        "start": call.start_unix_nanos.to_string(),
        "end": call.end_unix_nanos.to_string(),
        "convention": &*call.convention,
    })
}

/// Determines which values of calls are shown.
#[derive(Clone, Copy)]
pub(super) enum Shown<'a> {
    /// No values.
    Nothing,
    /// Arguments and results, at most this many characters of each.
    Whole(usize),
    /// The values at a path.
    AtPath(&'a ValuePath),
}

/// Returns human-readable text: a line for the trace, then each call, with its values in further
/// lines.
pub(super) fn human(trajectory: &Trajectory, shown: Shown<'_>) -> String {
    let mut text = format!("trace {}  {}", trajectory.trace_id, Clean(&trajectory.root));
    let facts = [
        ("service", Some(&*trajectory.service)),
        ("agent", trajectory.agent.as_deref()),
        ("session", trajectory.session.as_deref()),
    ];
    for (word, value) in facts {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            text.push_str(&format!("  {word} {}", Clean(value)));
        }
    }
    text.push_str(&format!(
        "  {}  {}\n",
        counted(trajectory.n_spans, "span", "spans"),
        trajectory.completeness.as_str()
    ));
    if trajectory.tool_calls.is_empty() {
        text.push_str("  no tool calls\n");
    }
    let names: Vec<String> = trajectory
        .tool_calls
        .iter()
        .map(|call| Clean(&call.name).to_string())
        .collect();
    let width = names
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or_default()
        .min(40);
    for (call_idx, (call, name)) in trajectory.tool_calls.iter().zip(&names).enumerate() {
        text.push_str(&format!("  {:>3}. {name:width$}", call_idx + 1));
        text.push_str(&format!("  step {}", call.step));
        if let Some(group) = call.parallel_group {
            text.push_str(&format!("  group {group}"));
        }
        if call.error {
            text.push_str("  ERROR");
        }
        if let Some(agent) = &call.agent {
            text.push_str(&format!("  by {}", Clean(agent)));
        }
        text.push_str(&format!("  [{}]\n", call.convention));
        match shown {
            Shown::Nothing => {}
            Shown::AtPath(path) => {
                text.push_str(&format!(
                    "       {} {}\n",
                    path.as_str(),
                    at_path(path, call)
                ));
            }
            Shown::Whole(max_length) => {
                for (word, payload) in [("args", &call.args), ("result", &call.result)] {
                    if let Some(payload) = payload {
                        let value = shorten(payload, max_length);
                        text.push_str(&format!("       {word:6} {value}\n"));
                    }
                }
            }
        }
    }
    text
}

/// Returns the values at a path as JSON, so that numbers and texts look different, as they are to a
/// criterion.
fn at_path(path: &ValuePath, call: &ToolCall) -> String {
    let Some(found) = path.values_in(call) else {
        return "(not captured, or cut)".to_owned();
    };
    let texts: Vec<String> = found.present().map(|value| value.to_string()).collect();
    let shown = match (texts.is_empty(), found.is_cut()) {
        (true, true) => return "(cut)".to_owned(),
        (true, false) => return "(no value)".to_owned(),
        (false, true) => texts.join(", ") + " (cut)",
        (false, false) => texts.join(", "),
    };
    Clean(&abbreviated(&shown, MAX_SHOWN)).to_string()
}

fn shorten(payload: &Payload, max_length: usize) -> String {
    // Results often contain line breaks and tabs. Show them as spaces.
    let start = truncated(&payload.text, max_length);
    let mut text = Clean(&start.replace(char::is_whitespace, " ")).to_string();
    if payload.is_cut() || start.len() < payload.text.len() {
        text.push('…');
    }
    text
}
