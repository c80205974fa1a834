//! Renders an evaluation as a JSON line for programs or as a block of text for people, as `replay`
//! prints it, and `run` without an endpoint. Pure. The fields are the contract of
//! docs/design.md#machine-readable-lines. Must not know whether the output is a terminal.

use std::fmt::{self, Write};

use anstyle::{AnsiColor, Style};
use serde_json::{Map, Value, json};

use crate::evaluate::Evaluation;

/// Most names of calls shown to people.
const MAX_NAMES: usize = 16;

/// With colours or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// ANSI escape codes.
    Ansi,
    /// Plain text.
    Plain,
}

impl Colour {
    /// Colours for output that is seen on a terminal.
    pub fn when(seen: bool) -> Self {
        if seen { Self::Ansi } else { Self::Plain }
    }
}

/// One object per evaluation: the fields and their order are a contract. `span_id` is empty for
/// trajectories made of log records, `agent` and `score` may be null, and `error` is there only
/// with the label `error`.
pub fn json(evaluation: &Evaluation) -> Map<String, Value> {
    let Evaluation {
        criterion,
        trajectory,
        ..
    } = evaluation;
    let mut line = Map::new();
    let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
    put("trace_id", json!(trajectory.trace_id.to_string()));
    put(
        "span_id",
        json!(
            trajectory
                .subject
                .as_ref()
                .map(|subject| subject.span_id.to_string())
                .unwrap_or_default()
        ),
    );
    put("service", json!(trajectory.service));
    put("agent", json!(trajectory.agent));
    put("criterion", json!(criterion.name()));
    put("evaluator", json!(criterion.evaluator()));
    put("scope", json!(criterion.scope().as_str()));
    put("threshold", json!(criterion.threshold()));
    put("score", json!(evaluation.value));
    put("label", json!(evaluation.verdict.as_str()));
    put("explanation", json!(evaluation.explanation()));
    if let Some(error) = &evaluation.error {
        put(
            "error",
            json!({ "type": error.kind, "message": error.message }),
        );
    }
    put("completeness", json!(trajectory.completeness.as_str()));
    put("revision", json!(evaluation.revision));
    put("details", evaluation.details().clone());
    line
}

/// An evaluation for people: a block of four lines.
/// ```text
/// FAIL  checkout-order  0.67 (threshold 0.80)
///       `create_order` was called before `check_inventory`
///       calls: validate_user, create_order, check_inventory
///       trace 4bf92f3577b34da6a3ce929d0e0e4736 · shop · checkout-agent · root_ended
/// ```
pub fn human(evaluation: &Evaluation, colour: Colour) -> String {
    let names: Vec<&str> = evaluation
        .trajectory
        .tool_calls
        .iter()
        .map(|call| &*call.name)
        .collect();
    block(&json(evaluation), Some(&names), colour)
}

/// Like [`human`], for a line that came from a sidecar: without the calls, which are not in it.
/// Leaves out missing fields.
pub fn human_line(line: &Map<String, Value>, colour: Colour) -> String {
    block(line, None, colour)
}

fn block(line: &Map<String, Value>, names: Option<&[&str]>, colour: Colour) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_block(&mut out, line, names, colour);
    out
}

fn write_block(
    out: &mut String,
    line: &Map<String, Value>,
    names: Option<&[&str]>,
    colour: Colour,
) -> fmt::Result {
    let text = |key: &str| line.get(key).and_then(Value::as_str).unwrap_or_default();
    let number = |key: &str| line.get(key).and_then(Value::as_f64);
    let (word, style) = match text("label") {
        "pass" => ("PASS ", AnsiColor::Green.on_default().bold()),
        "fail" => ("FAIL ", AnsiColor::Red.on_default().bold()),
        "error" => ("ERROR", AnsiColor::Magenta.on_default().bold()),
        _ => ("NONE ", AnsiColor::Yellow.on_default().bold()),
    };
    let paint = |style: Style| {
        if colour == Colour::Ansi {
            style
        } else {
            Style::new()
        }
    };
    let (label, bold, dim) = (
        paint(style),
        paint(Style::new().bold()),
        paint(Style::new().dimmed()),
    );

    write!(
        out,
        "{label}{word}{label:#} {bold}{}{bold:#}",
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
    if let Some(revision) = line
        .get("revision")
        .and_then(Value::as_u64)
        .filter(|revision| *revision > 0)
    {
        write!(out, "  revision {revision}")?;
    }
    out.push('\n');
    let explanation = text("explanation");
    for text in explanation.lines() {
        writeln!(out, "      {}", Clean(text))?;
    }
    if let Some(error) = line.get("error") {
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let message = Some(text("message"))
            .filter(|message| *message != explanation)
            .map(|message| format!(": {message}"));
        writeln!(
            out,
            "      {}{}",
            Clean(text("type")),
            Clean(message.as_deref().unwrap_or_default())
        )?;
    }
    if let Some(names) = names {
        write!(out, "      {dim}calls:")?;
        for (call_idx, name) in names.iter().take(MAX_NAMES).enumerate() {
            write!(
                out,
                "{} {}",
                if call_idx > 0 { "," } else { "" },
                Clean(name)
            )?;
        }
        match names.len() {
            0 => write!(out, " none")?,
            n if n > MAX_NAMES => write!(out, ", and {} more", n - MAX_NAMES)?,
            _ => {}
        }
        writeln!(out, "{dim:#}")?;
    }
    write!(out, "      {dim}trace {}", Clean(text("trace_id")))?;
    for name in ["service", "agent", "completeness"]
        .map(text)
        .into_iter()
        .filter(|name| !name.is_empty())
    {
        write!(out, " · {}", Clean(name))?;
    }
    writeln!(out, "{dim:#}")
}

/// A text from outside, made safe for a terminal: names come from the network, and a control
/// character in one could rewrite the screen, and a change of writing direction could reorder the
/// line.
pub(crate) struct Clean<'a>(pub(crate) &'a str);

impl fmt::Display for Clean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
                true => write!(f, "{}", c.escape_default())?,
                false => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
