//! Renders an evaluation as a JSON line for programs or as human-readable text.
//! docs/design.md#machine-readable-lines defines the fields.

use std::fmt::{self, Write};

use anstyle::{AnsiColor, Style};
use judge::evaluate::{Evaluation, Stage};
use judge::extract::Trajectory;
use serde_json::{Map, Value, json};
use text::{safe_json, wrapped};

use super::score_span::score_time;

use crate::rfc3339::rfc3339;
pub(crate) use text::Clean;

/// Maximum number of call names in human-readable text.
const MAX_NAMES: usize = 16;
/// Maximum number of call names in a JSON line: a runaway agent makes thousands of calls.
const MAX_LINE_NAMES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Ansi,
    Plain,
}

/// Colours and line width of human-readable text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    pub colour: Colour,
    /// The width at which lines are wrapped; `None` if lines are not wrapped.
    pub width: Option<usize>,
}

impl Look {
    pub const PLAIN: Self = Self {
        colour: Colour::Plain,
        width: None,
    };
}

impl Colour {
    /// Returns [`Self::Ansi`] if a terminal shows the output.
    pub fn when(seen: bool) -> Self {
        if seen { Self::Ansi } else { Self::Plain }
    }

    fn paint(self, style: Style) -> Style {
        match self {
            Self::Ansi => style,
            Self::Plain => Style::new(),
        }
    }
}

/// Returns one object for an evaluation; the fields and their order are a contract. `span_id` is
/// empty for trajectories made of log records; `time`, `agent`, `session`, `case_id` and `score`
/// may be null; `severity` is present only if the criterion has one, `final` and `verdict_id` only
/// if it raises alarms or judges sessions, and `error` only with the label `error`.
pub fn json(evaluation: &Evaluation) -> Map<String, Value> {
    let (criterion, trajectory) = (&evaluation.criterion, &evaluation.trajectory);
    let mut line = run_json(trajectory);
    // Put the calls last, because there can be many.
    let calls = ["completeness", "n_calls", "calls"].map(|key| (key, line.shift_remove(key)));
    let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
    if evaluation.stage == Stage::Alarm
        && let Some(subject) = evaluation.subject()
    {
        put("span_id", json!(subject.span_id.to_string()));
    }
    put("criterion", json!(criterion.name()));
    put("evaluator", json!(criterion.evaluator()));
    put("scope", json!(criterion.scope().as_str()));
    if let Some(severity) = criterion.severity() {
        put("severity", json!(severity.as_str()));
    }
    put("threshold", json!(criterion.threshold()));
    put("score", json!(evaluation.value));
    put("label", json!(evaluation.verdict.as_str()));
    if let Some(verdict_id) = evaluation.verdict_id() {
        put("final", json!(evaluation.stage != Stage::Alarm));
        put("verdict_id", json!(verdict_id));
    }
    put("explanation", json!(evaluation.explanation()));
    if let Some(error) = &evaluation.error {
        put(
            "error",
            json!({ "type": error.kind, "message": error.message }),
        );
    }
    let [completeness, n_calls, names] = calls;
    put("completeness", json!(completeness.1));
    put("revision", json!(evaluation.revision));
    put("n_calls", json!(n_calls.1));
    put("calls", json!(names.1));
    put("details", evaluation.details().clone());
    line
}

/// Returns the JSON line of an evaluation, safe for a terminal.
pub fn json_text(evaluation: &Evaluation) -> String {
    safe_json(Value::Object(json(evaluation)).to_string())
}

/// Returns the identity of a run, and the names of its first calls.
fn run_json(trajectory: &Trajectory) -> Map<String, Value> {
    let mut line = Map::new();
    let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
    let span_id = trajectory
        .subject
        .as_ref()
        .map(|subject| subject.span_id.to_string());
    let time = Some(score_time(trajectory)).filter(|time| *time > 0);
    let names: Vec<&str> = trajectory
        .tool_calls
        .iter()
        .take(MAX_LINE_NAMES)
        .map(|call| &*call.name)
        .collect();
    put("trace_id", json!(trajectory.trace_id.to_string()));
    put("span_id", json!(span_id.unwrap_or_default()));
    put("time", json!(time.map(rfc3339)));
    put("service", json!(trajectory.service));
    put("root", json!(trajectory.root));
    put("agent", json!(trajectory.agent));
    put("session", json!(trajectory.session));
    put("case_id", json!(trajectory.expectation_attributes.case_id));
    put("completeness", json!(trajectory.completeness.as_str()));
    put("n_calls", json!(trajectory.tool_calls.len()));
    put("calls", json!(names));
    line
}

/// Renders an evaluation as human-readable text: its verdict, then the run.
/// ```text
/// FAIL  checkout-order  0.67 (threshold 0.80)
///       `create_order` was called before `check_inventory`
///       calls: validate_user, create_order, check_inventory
///       2026-11-21T20:12:37Z · invoke_agent checkout · session s-1
///       trace 4bf92f3577b34da6a3ce929d0e0e4736 · shop · checkout · root_ended
/// ```
pub fn human(evaluation: &Evaluation, look: Look) -> String {
    human_line(&json(evaluation), look)
}

/// Like [`human`], for a line that a sidecar sent. Omits missing fields.
pub fn human_line(line: &Map<String, Value>, look: Look) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_verdict(&mut out, line, look.colour, "");
    let _ = write_run(&mut out, line, look.colour, "      ");
    wrapped(&out, look.width).into_owned()
}

/// Renders the verdict alone, to print below its run. With `scope: agent` or `session` the text
/// names the agent or session whose calls were judged.
pub(crate) fn human_verdict(evaluation: &Evaluation, look: Look) -> String {
    let line = json(evaluation);
    let mut out = String::new();
    let _ = write_verdict(&mut out, &line, look.colour, "  ");
    let trajectory = &evaluation.trajectory;
    let whose = match text_of(&line, "scope") {
        "agent" => Some(("", &trajectory.agent)),
        "session" => Some((trajectory.completeness.as_str(), &trajectory.session)),
        _ => None,
    };
    if let Some((completeness, name)) = whose {
        let (scope, name) = (text_of(&line, "scope"), name.as_deref().unwrap_or_default());
        let dim = look.colour.paint(Style::new().dimmed());
        let _ = write!(out, "        {dim}{scope} {} · ", Clean(name));
        if !completeness.is_empty() {
            let _ = write!(out, "{completeness} · ");
        }
        let _ = write_calls(&mut out, &line);
        let _ = writeln!(out, "{dim:#}");
    }
    wrapped(&out, look.width).into_owned()
}

/// Renders a run, with the position in the input from which it was read.
pub(crate) fn human_run(trajectory: &Trajectory, place: Option<&str>, look: Look) -> String {
    let mut out = String::new();
    let line = run_json(trajectory);
    let dim = look.colour.paint(Style::new().dimmed());
    let _ = write_run_head(&mut out, &line, place);
    let _ = write!(out, "{dim}");
    let _ = write_facts(&mut out, &line, "  ");
    let _ = write!(out, "  ");
    let _ = write_calls(&mut out, &line);
    let _ = writeln!(out, "{dim:#}");
    wrapped(&out, look.width).into_owned()
}

fn text_of<'a>(line: &'a Map<String, Value>, key: &str) -> &'a str {
    line.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn write_verdict(
    out: &mut String,
    line: &Map<String, Value>,
    colour: Colour,
    indent: &str,
) -> fmt::Result {
    let text = |key: &str| text_of(line, key);
    let number = |key: &str| line.get(key).and_then(Value::as_f64);
    let is_alarm = line.get("final").and_then(Value::as_bool) == Some(false);
    let (word, style) = match text("label") {
        _ if is_alarm => ("ALARM", AnsiColor::Red.on_default().bold()),
        "pass" => ("PASS ", AnsiColor::Green.on_default().bold()),
        "fail" => ("FAIL ", AnsiColor::Red.on_default().bold()),
        "error" => ("ERROR", AnsiColor::Magenta.on_default().bold()),
        _ => ("NONE ", AnsiColor::Yellow.on_default().bold()),
    };
    let (label, bold) = (colour.paint(style), colour.paint(Style::new().bold()));
    write!(
        out,
        "{indent}{label}{word}{label:#} {bold}{}{bold:#}",
        Clean(text("criterion"))
    )?;
    match number("score") {
        Some(value) => write!(
            out,
            "  {value:.2} (threshold {:.2})",
            number("threshold").unwrap_or_default()
        )?,
        None => write!(out, "  {}", Clean(text("label")))?,
    }
    let severity = text("severity");
    if !severity.is_empty() {
        write!(out, "  {}", Clean(severity))?;
    }
    if let Some(revision) = line
        .get("revision")
        .and_then(Value::as_u64)
        .filter(|revision| *revision > 0)
    {
        write!(out, "  revision {revision}")?;
    }
    out.push('\n');
    // Write one line: a name in the explanation may contain a line break, and the text after the
    // line break must not look like one of our lines.
    let explanation = text("explanation");
    if !explanation.is_empty() {
        writeln!(out, "{indent}      {}", Clean(explanation))?;
    }
    if let Some(error) = line.get("error") {
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let message = Some(text("message"))
            .filter(|message| *message != explanation)
            .map(|message| format!(": {message}"));
        writeln!(
            out,
            "{indent}      {}{}",
            Clean(text("type")),
            Clean(message.as_deref().unwrap_or_default())
        )?;
    }
    Ok(())
}

fn write_run(
    out: &mut String,
    line: &Map<String, Value>,
    colour: Colour,
    indent: &str,
) -> fmt::Result {
    let dim = colour.paint(Style::new().dimmed());
    write!(out, "{dim}")?;
    if line.contains_key("calls") {
        write!(out, "{indent}")?;
        write_calls(out, line)?;
        out.push('\n');
    }
    write_facts(out, line, indent)?;
    write!(out, "{indent}")?;
    write_run_head(out, line, None)?;
    // End the colour before the line break.
    out.pop();
    writeln!(out, "{dim:#}")
}

/// Writes `trace 4bf92f3577b34da6a3ce929d0e0e4736 · shop · checkout · root_ended`.
fn write_run_head(out: &mut String, line: &Map<String, Value>, place: Option<&str>) -> fmt::Result {
    write!(out, "trace {}", Clean(text_of(line, "trace_id")))?;
    for name in ["service", "agent", "completeness"]
        .map(|key| text_of(line, key))
        .into_iter()
        .chain(place)
        .filter(|name| !name.is_empty())
    {
        write!(out, " · {}", Clean(name))?;
    }
    writeln!(out)
}

/// Writes `2026-11-21T20:12:37Z · invoke_agent checkout · session s-1 · case refund-7`.
fn write_facts(out: &mut String, line: &Map<String, Value>, indent: &str) -> fmt::Result {
    let time = text_of(line, "time").split_once('.');
    let time = time.map_or_else(
        || text_of(line, "time").to_owned(),
        |(seconds, _)| format!("{seconds}Z"),
    );
    let facts = [
        ("", time.as_str()),
        ("", text_of(line, "root")),
        ("session ", text_of(line, "session")),
        ("case ", text_of(line, "case_id")),
    ];
    let facts: Vec<String> = facts
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(word, text)| format!("{word}{}", Clean(text)))
        .collect();
    if facts.is_empty() {
        Ok(())
    } else {
        writeln!(out, "{indent}{}", facts.join(" · "))
    }
}

/// Writes `calls: validate_user, create_order, check_inventory`.
fn write_calls(out: &mut String, line: &Map<String, Value>) -> fmt::Result {
    let calls = line.get("calls").and_then(Value::as_array);
    let names: Vec<String> = calls
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .take(MAX_NAMES)
        .map(|name| Clean(name).to_string())
        .collect();
    let n_calls = line.get("n_calls").and_then(Value::as_u64);
    let n_more = n_calls
        .unwrap_or_default()
        .saturating_sub(names.len() as u64);
    if names.is_empty() {
        write!(out, "calls: none")?
    } else {
        write!(out, "calls: {}", names.join(", "))?
    }
    match n_more {
        0 => Ok(()),
        n => write!(out, ", and {n} more"),
    }
}
