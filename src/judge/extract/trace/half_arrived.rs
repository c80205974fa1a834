//! Finds traces of which one half is missing. Model spans are one signal, the log records with
//! their messages another, and a router may send the two to different places. The findings are only
//! reported; they do not affect verdicts.

use std::sync::Arc;

use otlp::span::{IndexedAttributes, Value};

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
/// trace has a tool call. Ignores traces that expired, or that a limit or a shutdown closed,
/// because the other half may have followed.
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
    let spans = &trace.spans;
    let service = |span| Arc::clone(&spans.resource(span).service);
    if spans.rows().is_empty() {
        let mut records = spans.records().iter();
        let record = records.find(|record| record.parent_id.is_some())?;
        return Some(HalfArrived {
            service: service(record),
            missing: MissingHalf::Spans,
        });
    }
    if has_calls || !spans.records().is_empty() {
        return None;
    }
    let mut models = spans.rows().iter().filter(|span| span.class.model);
    let span = models.find(|span| names_calls(&spans.attributes(span)))?;
    Some(HalfArrived {
        service: service(span),
        missing: MissingHalf::Calls,
    })
}

/// Returns true if the model's answer ended with calls. Providers write `tool_calls`, `tool_use` or
/// `function_call`, alone or in a list.
fn names_calls(model: &IndexedAttributes<'_>) -> bool {
    let reasons = model.get(keys::FINISH_REASONS);
    let Some(Value::Str(reasons) | Value::Json(reasons)) = reasons else {
        return false;
    };
    let reasons = reasons.to_ascii_lowercase();
    ["tool_call", "tool_use", "function_call"]
        .iter()
        .any(|reason| reasons.contains(reason))
}
