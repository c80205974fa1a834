//! Pure. A closed trace in, the tool results that its models' requests bring out, for the traces whose models asked for the calls. Knows which
//! traces can have any; does not know who asked.

use super::convention::View;
use super::messages;
use super::recognise::Recogniser;
use super::tool_call::Payload;
use crate::assemble::Trace;
use crate::span::SpanId;

/// A tool result among the messages that a model was asked with.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The id of the call that it answers.
    pub call_id: String,
    /// `service.name` of the model span's resource.
    pub service: Box<str>,
    /// Start of the model span, Unix nanoseconds.
    pub start_unix_nanos: u64,
    /// The model span.
    pub span_id: SpanId,
    /// What was answered.
    pub result: Payload,
}

/// The tool results that a trace brings. None where its tools have spans: those tell for themselves, and so do those of its kind.
pub fn answers(trace: &Trace, recogniser: &Recogniser) -> Vec<Answer> {
    let has_tools = trace.spans.iter().any(|(_, mark)| mark.tool_call);
    if has_tools {
        return Vec::new();
    }
    let mut answers = Vec::new();
    for span in trace.spans.iter().filter(|(_, mark)| mark.model).map(|(span, _)| span) {
        for (call_id, result) in messages::responses(&View::new(span), recogniser.tools.max_value_size) {
            let (service, span_id) = (span.resource.service.clone(), span.span_id);
            answers.push(Answer { call_id, service, start_unix_nanos: span.start_unix_nanos, span_id, result });
        }
    }
    answers
}
