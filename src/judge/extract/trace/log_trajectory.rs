//! Orders the calls of a trace that has only log records, and removes calls with repeated ids.

use hashbrown::{HashMap, HashSet};
use otlp::span::{SpanId, SpanRow, TraceId};

use crate::assemble::Trace;
use crate::extract::spans::keys;
use crate::extract::spans::view::attribute_text;
use crate::extract::tool_call::ToolCall;
use crate::extract::uncertainty::CallUncertainty;

/// Orders the calls by their records, and drops repeated calls. Returns the trace that the records
/// name, if any.
pub(crate) fn arrange(
    trace: &Trace,
    cut_short: bool,
    calls: &mut Vec<ToolCall>,
) -> Option<TraceId> {
    let records = in_order(trace);
    let places: HashMap<SpanId, usize> = records.iter().map(|span| span.span_id).zip(0..).collect();
    calls.sort_by_key(|call| call.span_id.and_then(|span_id| places.get(&span_id)));
    let mut seen = HashSet::new();
    calls.retain(|call| {
        let id = call.call_id.as_ref();
        id.is_none_or(|id| seen.insert(id.clone()))
    });
    for (call, line) in calls.iter_mut().zip(0..) {
        // A record is written when the call is over.
        call.span_id = None;
        call.partial = false;
        // A missing span may also report the call, which then does not count here. A missing record
        // may lack a number, which would change the order of the calls.
        call.uncertainty = if cut_short {
            CallUncertainty {
                may_go: call.call_id.is_some(),
                line,
                ..CallUncertainty::default()
            }
        } else {
            CallUncertainty::default()
        };
    }
    let mut records = records.into_iter();
    records.find_map(|record| trace.spans.attributes(record).named_trace())
}

/// Orders the records by number if all have one, else by time.
fn in_order(trace: &Trace) -> Vec<&SpanRow> {
    let mut records: Vec<&SpanRow> = trace.spans.rows().iter().collect();
    let sequence = |span: &SpanRow| {
        let attributes = trace.spans.attributes(span);
        let text = attributes.get(keys::SEQUENCE).and_then(attribute_text);
        text.and_then(|text| text.parse::<u64>().ok())
    };
    let is_numbered = records.iter().all(|span| sequence(span).is_some());
    records.sort_by_cached_key(|span| {
        (
            sequence(span).filter(|_| is_numbered),
            span.start_unix_nanos,
            span.end_unix_nanos,
            span.span_id,
        )
    });
    records
}
