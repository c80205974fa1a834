//! A tool call of a trajectory: name, arguments, result, error, and the agent that made it.

use std::sync::{Arc, OnceLock};

use otlp::span::SpanId;
use serde_json::Value;

use super::uncertainty::CallUncertainty;

#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The tool's name; `(unnamed)` if the span names none.
    pub name: Arc<str>,
    /// The model's id of the call, if it was recorded.
    pub call_id: Option<Arc<str>>,
    /// The arguments, unwrapped; `None` if there are none, or if they were not captured.
    pub args: Option<Payload>,
    /// The result, unwrapped; `None` if there is none, or if it was not captured.
    pub result: Option<Payload>,
    /// The parts that the call's instrumentation captures.
    pub captured: CapturedParts,
    /// True if the call failed.
    pub error: bool,
    /// The name of the agent that made the call.
    pub agent: Option<Arc<str>>,
    /// The agent run that made the call, an index in `Trajectory::agent_runs`.
    pub agent_run: Option<usize>,
    /// The index of the model turn that requested the call, from 0.
    pub step: u32,
    /// The group of calls that one model reply requested, or that overlap in time if there is no
    /// model span; `None` for a single call.
    pub parallel_group: Option<u32>,
    /// The call's span, or the model's span for a call read from messages; `None` for a call from a
    /// log record.
    pub span_id: Option<SpanId>,
    /// The start in Unix nanoseconds.
    pub start_unix_nanos: u64,
    /// The end in Unix nanoseconds.
    pub end_unix_nanos: u64,
    /// The name of the convention that recognised the call, followed by `.messages` for a call read
    /// from model messages.
    pub convention: Arc<str>,
    /// True if the span has not ended.
    pub partial: bool,
    /// True if the span has no start, or ends before it starts: the time of the call is unknown,
    /// and its position in the list is a guess.
    pub untimed: bool,
    /// The ways in which the call could change if the trace was cut short.
    pub uncertainty: CallUncertainty,
}

/// The parts of calls that an instrumentation captures. If a call lacks a captured part, it was
/// made without arguments or returned no result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapturedParts {
    pub args: bool,
    pub result: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PartOfCall<'c> {
    pub(crate) payload: Option<&'c Payload>,
    /// True if the call's instrumentation captures this part of calls.
    pub(crate) is_captured: bool,
    /// True if spans missing from a cut trace may contain another value.
    pub(crate) may_change: bool,
}

/// Arguments or a result. Parsed on first use, because most criteria never read it.
#[derive(Debug, Clone)]
pub struct Payload {
    /// The text as received (unwrapped), which patterns and text equality read; compact JSON for
    /// values received as OTLP arrays or maps.
    pub text: Arc<str>,
    read: fn(&str) -> (Value, StoredPart),
    /// Boxed because most payloads are never parsed, and calls are moved.
    json: OnceLock<Box<(Value, StoredPart)>>,
    pub(super) beginning: OnceLock<Option<Box<Beginning>>>,
}

/// The stored prefix of a cut value. Its complete inner values are known; more may have followed.
#[derive(Debug, Clone)]
pub(super) struct Beginning {
    pub(super) json: Value,
    /// The keys and indices from the root to the innermost incomplete value.
    pub(super) path: Vec<String>,
}

/// The extent to which a value was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredPart {
    Whole,
    /// A prefix of a text that may be JSON.
    Beginning,
    /// A prefix of plain text.
    BeginningOfText,
    /// An unusable piece, which may belong to an envelope or may not be a prefix.
    Unreadable,
}

impl ToolCall {
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
                may_change: uncertainty.result || self.partial,
            }
        } else {
            PartOfCall {
                payload: self.args.as_ref(),
                is_captured: captured.args,
                may_change: uncertainty.args,
            }
        }
    }

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

    /// Returns the first `n_first` calls without their values, which become unknown, not absent.
    pub(super) fn all_without_values(calls: &[Self], n_first: usize) -> Vec<Self> {
        let lost = Payload::unread("", |_| {
            (Value::String(String::new()), StoredPart::Unreadable)
        });
        let first = calls.iter().take(n_first);
        first.map(|call| call.without_values(&lost)).collect()
    }
}

impl Payload {
    /// Creates a payload from a text and its JSON; plain text is a JSON string. `cut` is true if
    /// the end is missing.
    pub fn new(text: impl Into<Arc<str>>, json: Value, cut: bool) -> Self {
        let kept = if cut { StoredPart::Unreadable } else { StoredPart::Whole };
        Self::read(text, json, kept)
    }

    pub(super) fn read(text: impl Into<Arc<str>>, json: Value, kept: StoredPart) -> Self {
        Self {
            text: text.into(),
            read: |_| (Value::Null, StoredPart::Whole),
            json: Box::new((json, kept)).into(),
            beginning: OnceLock::new(),
        }
    }

    /// Returns a value of which nothing was stored: unknown, not absent.
    pub(crate) fn lost() -> Self {
        Self::new("", Value::String(String::new()), true)
    }

    /// Returns true if nothing was stored.
    pub fn is_lost(&self) -> bool {
        self.text.is_empty() && self.is_cut()
    }

    /// Marks the value as one whose end is missing.
    pub(crate) fn into_cut(self) -> Self {
        Self::new(self.text.clone(), self.json().clone(), true)
    }

    /// Creates a payload that `read` parses on first use.
    pub(crate) fn unread(text: &str, read: fn(&str) -> (Value, StoredPart)) -> Self {
        Self {
            text: text.into(),
            read,
            json: OnceLock::new(),
            beginning: OnceLock::new(),
        }
    }

    /// Returns the text as JSON; plain text is a JSON string.
    pub fn json(&self) -> &Value {
        &self.parsed().0
    }

    /// Returns true if part of the value is missing. Never compare a cut value as if it were whole.
    pub fn is_cut(&self) -> bool {
        self.kept() != StoredPart::Whole
    }

    pub(crate) fn kept(&self) -> StoredPart {
        self.parsed().1
    }

    fn parsed(&self) -> &(Value, StoredPart) {
        self.json.get_or_init(|| Box::new((self.read)(&self.text)))
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.parsed() == other.parsed()
    }
}

/// Arguments or a result found in another trace than the call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallPart {
    Args(Payload),
    Result(Payload),
}
