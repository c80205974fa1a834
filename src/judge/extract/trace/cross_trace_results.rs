//! Finds arguments and results of calls in other traces. Models' requests repeat tool results, and
//! some frameworks record arguments and results in the spans of their own messages.

use std::sync::Arc;

use otlp::span::SpanId;

use crate::assemble::Trace;
use crate::extract::spans::convention::CrossTrace;
use crate::extract::spans::conventions::cross_traces;
use crate::extract::spans::{Recogniser, View, model_messages};
use crate::extract::tool_call::CallPart;

/// Arguments or a result, found in this trace, of a call that may be in another trace.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossTraceResult {
    pub call_id: String,
    /// `service.name` of the span's resource.
    pub service: Arc<str>,
    /// The start of the span in Unix nanoseconds.
    pub start_unix_nanos: u64,
    /// The span that contains the part.
    pub span_id: SpanId,
    pub part: CallPart,
}

/// Returns arguments and results of calls in other traces. Models' requests are read only if no
/// tool of the trace has a span; otherwise tool spans, here or in related traces, contain the
/// results.
pub fn cross_trace_results(trace: &Trace, recogniser: &Recogniser) -> Vec<CrossTraceResult> {
    let max_size = recogniser.tools.max_value_size;
    let spans = &trace.spans;
    let has_tools = spans.rows().iter().any(|span| span.class.tool_call);
    let mut results = Vec::new();
    let mut names = spans.rows().iter().map(|span| spans.name(span));
    if has_tools && !names.any(is_carrier) {
        return results;
    }
    let tool_results = |view: &View<'_>| -> Vec<(String, CallPart)> {
        let repeated = model_messages::tool_results(view, max_size);
        let results = repeated.results.into_iter();
        results
            .map(|(id, result)| (id, CallPart::Result(result)))
            .collect()
    };
    for span in spans.rows().iter().chain(spans.records()) {
        let view = || View::new(spans.attributes(span), span);
        let parts = if span.class.model && !has_tools {
            tool_results(&view())
        } else if let Some(carrier) = carrier(spans.name(span)).filter(|_| !span.is_record) {
            (carrier.parts)(&view(), max_size)
        } else {
            continue;
        };
        results.extend(parts.into_iter().map(|(call_id, part)| CrossTraceResult {
            call_id,
            service: spans.resource(span).service.clone(),
            start_unix_nanos: span.start_unix_nanos,
            span_id: span.span_id,
            part,
        }));
    }
    results
}

/// Returns true if a span of this name contains arguments or results of calls in other traces.
/// Calls of the span's own trace may then get missing values from other traces.
pub(crate) fn is_carrier(span_name: &str) -> bool {
    carrier(span_name).is_some()
}

fn carrier(span_name: &str) -> Option<&'static CrossTrace> {
    cross_traces().find(|cross_trace| (cross_trace.carries)(span_name))
}
