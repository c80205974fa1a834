//! Finds traces with a missing half: the spans of model calls are one signal, the log records with
//! their messages another, and a router may send the two to different places. Does not affect
//! verdicts.

use std::sync::Arc;

use otlp::span::{Span, Value};

use crate::assemble::{CloseReason, Trace};
use crate::extract::spans::keys;

/// A trace with a missing half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HalfArrived {
    /// `service.name` of the half that arrived.
    pub service: Arc<str>,
    pub missing: MissingHalf,
}

/// The half that a trace lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingHalf {
    /// Log records with a model's messages arrived, but no span.
    Spans,
    /// A model's span reports tool calls, but no span or log record names them.
    Calls,
}

/// Returns the missing half of a closed trace, if only one half arrived. `has_calls` is true if the
/// trace has a tool call. Ignores traces that a limit or a stop closed, because they may not have
/// ended.
pub fn half_arrived(trace: &Trace, has_calls: bool) -> Option<HalfArrived> {
    if !matches!(
        trace.reason,
        CloseReason::RootEnded
            | CloseReason::NoRoot
            | CloseReason::Inactive
            | CloseReason::Incomplete
    ) {
        return None;
    }
    if trace.spans.is_empty() {
        let mut records = trace.records.iter();
        let record = records.find(|record| record.parent_id.is_some())?;
        return Some(HalfArrived {
            service: Arc::clone(&record.resource.service),
            missing: MissingHalf::Spans,
        });
    }
    if has_calls || !trace.records.is_empty() {
        return None;
    }
    let mut models = trace.spans.iter().filter(|span| span.class.model);
    let span = models.find(|span| names_calls(span))?;
    Some(HalfArrived {
        service: Arc::clone(&span.resource.service),
        missing: MissingHalf::Calls,
    })
}

/// Returns true if the model's answer ended with calls. Providers write `tool_calls`, `tool_use` or
/// `function_call`, alone or in a list.
fn names_calls(span: &Span) -> bool {
    let reasons = span.get(keys::FINISH_REASONS);
    let Some(Value::Str(reasons) | Value::Json(reasons)) = reasons else {
        return false;
    };
    let reasons = reasons.to_ascii_lowercase();
    ["tool_call", "tool_use", "function_call"]
        .iter()
        .any(|reason| reasons.contains(reason))
}
