//! A tool call of a trajectory: name, arguments, result, error, and the agent that made it.
//! Knows nothing of the span that it was taken from.

use std::sync::{Arc, OnceLock};

use otlp::span::SpanId;
use serde_json::Value;

use super::uncertainty::CallUncertainty;

/// One call of one tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The tool's name; `(unnamed)` where the span names none.
    pub name: Arc<str>,
    /// The model's id of the call, where the payload carries it.
    pub call_id: Option<Arc<str>>,
    /// Arguments, unwrapped; `None` if it has none, or if they were not captured.
    pub args: Option<Payload>,
    /// Result, unwrapped; `None` if it has none, or if it was not captured.
    pub result: Option<Payload>,
    /// Which of the two are captured where the call was recorded.
    pub captured: CapturedParts,
    /// Did the call fail?
    pub error: bool,
    /// Name of the agent that made it.
    pub agent: Option<Arc<str>>,
    /// The agent run that made it, a position in `Trajectory::agent_runs`.
    pub agent_run: Option<usize>,
    /// The model turn that asked for it, counted from 0.
    pub step: u32,
    /// Calls of one model reply share a group; `None` for a call alone.
    pub parallel_group: Option<u32>,
    /// The span it was taken from; `None` for a log record.
    pub span_id: Option<SpanId>,
    /// Start, Unix nanoseconds.
    pub start_unix_nanos: u64,
    /// End, Unix nanoseconds.
    pub end_unix_nanos: u64,
    /// The convention that recognised it, by its file's name (`…messages` for calls taken from
    /// model messages).
    pub convention: Arc<str>,
    /// Its span has not ended yet.
    pub partial: bool,
    /// The call's span has no start, or ends before it starts: the time of the call is not known,
    /// and its place in the list is a guess.
    pub untimed: bool,
    /// The ways in which the call could still change if the trace was cut short.
    pub uncertainty: CallUncertainty,
}

/// The parts that an instrumentation captures of its calls: a call without such a part has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapturedParts {
    /// Arguments.
    pub args: bool,
    /// Results.
    pub result: bool,
}

/// The arguments or the result of a call, as far as they are known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartOfCall<'c> {
    pub(crate) payload: Option<&'c Payload>,
    /// Whether such parts are captured where the call was recorded.
    pub(crate) is_captured: bool,
    /// Whether the rest of a cut trace may bring another one.
    pub(crate) may_change: bool,
}

/// Arguments or a result. Parsed on first use: most criteria never read it.
#[derive(Debug, Clone)]
pub struct Payload {
    /// The text as it was received (unwrapped), which patterns and text equality see; compact JSON
    /// only for values that came as OTLP arrays or maps.
    pub text: Arc<str>,
    /// How to read the text, once.
    read: fn(&str) -> (Value, KeptPart),
    /// Boxed: most payloads are never read, and calls are moved about.
    json: OnceLock<Box<(Value, KeptPart)>>,
    /// What stands before a cut, read on first use.
    pub(super) beginning: OnceLock<Option<Box<Beginning>>>,
}

/// The kept beginning of a value: what stands in it is known, and more may follow where it was cut.
#[derive(Debug, Clone)]
pub(super) struct Beginning {
    pub(super) json: Value,
    /// The keys and positions from the root to the innermost value that is incomplete.
    pub(super) path: Vec<String>,
}

/// How much of a value was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptPart {
    /// All of it.
    Whole,
    /// The beginning of its text, which may be JSON.
    Beginning,
    /// The beginning of a plain text.
    BeginningOfText,
    /// A part that tells nothing: it may be of an envelope, or not the beginning.
    Unreadable,
}

impl ToolCall {
    /// Its result, or its arguments.
    pub(crate) fn part(&self, is_result: bool) -> PartOfCall<'_> {
        let Self {
            captured,
            uncertainty,
            ..
        } = self;
        if is_result {
            PartOfCall {
                payload: self.result.as_ref(),
                is_captured: captured.result,
                may_change: uncertainty.result,
            }
        } else {
            PartOfCall {
                payload: self.args.as_ref(),
                is_captured: captured.args,
                may_change: uncertainty.args,
            }
        }
    }

    /// This call without its values: `lost` stands for each that was captured.
    fn without_values(&self, lost: &Payload) -> Self {
        let lost_if = |payload: &Option<Payload>| payload.as_ref().map(|_| lost.clone());
        Self {
            name: self.name.clone(),
            call_id: self.call_id.clone(),
            args: lost_if(&self.args),
            result: lost_if(&self.result),
            agent: self.agent.clone(),
            convention: self.convention.clone(),
            ..*self
        }
    }

    /// The first calls of a list without their values, which are neither absent nor known.
    pub(super) fn all_without_values(calls: &[Self], n_first: usize) -> Vec<Self> {
        let lost = Payload::unread("", |_| (Value::String(String::new()), KeptPart::Unreadable));
        let first = calls.iter().take(n_first);
        first.map(|call| call.without_values(&lost)).collect()
    }
}

impl Payload {
    /// A text and its value as JSON; a plain text is a JSON string. `cut` if something is missing
    /// at its end.
    pub fn new(text: impl Into<Arc<str>>, json: Value, cut: bool) -> Self {
        let kept = if cut { KeptPart::Unreadable } else { KeptPart::Whole };
        Self::read(text, json, kept)
    }

    /// A text that was read.
    pub(super) fn read(text: impl Into<Arc<str>>, json: Value, kept: KeptPart) -> Self {
        Self {
            text: text.into(),
            read: |_| (Value::Null, KeptPart::Whole),
            json: Box::new((json, kept)).into(),
            beginning: OnceLock::new(),
        }
    }

    /// A value of which nothing was kept: it is neither absent nor known.
    pub(crate) fn lost() -> Self {
        Self::new("", Value::String(String::new()), true)
    }

    /// Was nothing of it kept?
    pub fn is_lost(&self) -> bool {
        self.text.is_empty() && self.is_cut()
    }

    /// This value, marked as one whose end is missing.
    pub(crate) fn into_cut(self) -> Self {
        Self::new(self.text.clone(), self.json().clone(), true)
    }

    /// A text that `read` parses on first use: its JSON, and how much of it was kept.
    pub(crate) fn unread(text: &str, read: fn(&str) -> (Value, KeptPart)) -> Self {
        Self {
            text: text.into(),
            read,
            json: OnceLock::new(),
            beginning: OnceLock::new(),
        }
    }

    /// The text as JSON; a plain text is a JSON string.
    pub fn json(&self) -> &Value {
        &self.parsed().0
    }

    /// Is something missing at its end? Then never compare it as if it were whole.
    pub fn is_cut(&self) -> bool {
        self.kept() != KeptPart::Whole
    }

    /// How much of it was kept.
    pub(crate) fn kept(&self) -> KeptPart {
        self.parsed().1
    }

    fn parsed(&self) -> &(Value, KeptPart) {
        self.json.get_or_init(|| Box::new((self.read)(&self.text)))
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.parsed() == other.parsed()
    }
}

/// A part of a call that another trace brings.
#[derive(Debug, Clone, PartialEq)]
pub enum CallPart {
    /// The arguments of the call.
    Args(Payload),
    /// The result of the call.
    Result(Payload),
}
