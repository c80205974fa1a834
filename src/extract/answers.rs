//! Pure. A closed trace in, what it tells of calls of other traces out: the tool results that its
//! models' requests bring, for the traces whose models asked for them, and what AutoGen's runtime
//! hands around. Knows which traces can have any; does not know who asked.

use std::sync::Arc;

use super::autogen;
use super::convention::View;
use super::messages;
use super::recognise::Recogniser;
use super::tool_call::Payload;
use crate::assemble::Trace;
use crate::span::SpanId;

/// What a span tells of a call that another trace may have made.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The id of the call.
    pub call_id: String,
    /// `service.name` of the span's resource.
    pub service: Arc<str>,
    /// Start of the span, Unix nanoseconds.
    pub start_unix_nanos: u64,
    /// The span.
    pub span_id: SpanId,
    /// What it tells.
    pub told: Told,
}

/// A part of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// What the call was made with.
    Args(Payload),
    /// What it returned.
    Result(Payload),
}

/// What a trace tells of others' calls. No results where its tools have spans: those tell for
/// themselves, and so do those of its kind.
pub fn answers(trace: &Trace, recogniser: &Recogniser) -> Vec<Answer> {
    let max_size = recogniser.tools.max_value_size;
    let has_tools = trace.spans.iter().any(|(_, mark)| mark.tool_call);
    let mut answers = Vec::new();
    if has_tools && !autogen::takes_part(trace) {
        return answers;
    }
    for (span, mark) in trace.spans.iter().chain(&trace.records) {
        let told = match (mark.model || mark.record) && !has_tools {
            true => messages::responses(&View::new(span), max_size)
                .into_iter()
                .map(|(id, result)| (id, Told::Result(result)))
                .collect(),
            false => autogen::told(span, max_size),
        };
        answers.extend(told.into_iter().map(|(call_id, told)| {
            let (service, span_id) = (span.resource.service.clone(), span.span_id);
            Answer {
                call_id,
                service,
                start_unix_nanos: span.start_unix_nanos,
                span_id,
                told,
            }
        }));
    }
    answers
}
