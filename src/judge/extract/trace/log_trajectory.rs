//! Traces that have only log records, for a prompt or a session: orders their calls and removes
//! repeated call ids.

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use otlp::span::SpanClass;
use otlp::span::{LogRecord, ScopeHash, Span, SpanId, Status, TraceId};

use crate::assemble::Trace;
use crate::extract::spans::keys;
use crate::extract::spans::log_records::holds_messages;
use crate::extract::spans::view::{View, attribute_text};
use crate::extract::tool_call::ToolCall;
use crate::extract::uncertainty::CallUncertainty;

/// A trace in readable form: if it has only log records, the records become its spans.
pub(crate) struct ReadableTrace<'a> {
    pub(crate) trace: Cow<'a, Trace>,
    pub(crate) is_made_of_records: bool,
}

impl<'a> ReadableTrace<'a> {
    pub(crate) fn new(trace: &'a Trace) -> Self {
        let is_made_of_records = trace.spans.is_empty()
            && trace
                .records
                .first()
                .is_some_and(|record| !holds_messages(record));
        Self {
            trace: if is_made_of_records {
                Cow::Owned(records_as_spans(trace))
            } else {
                Cow::Borrowed(trace)
            },
            is_made_of_records,
        }
    }
}

fn records_as_spans(trace: &Trace) -> Trace {
    // A parent that no record has, so that none of the records is the root.
    let absent_parent = SpanId::try_new(&trace.trace_id.as_bytes()[..8]);
    let as_span = |record: &LogRecord| {
        let view = View::of_record(record);
        let duration_ms: f64 = view
            .get(keys::DURATION_MS)
            .and_then(attribute_text)
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        // Saturates: a negative or senseless duration counts as 0.
        let duration_nanos = (duration_ms * 1e6) as u64;
        let failed = view.is_false(keys::SUCCESS);
        Span {
            trace_id: trace.trace_id,
            span_id: record.record_id,
            parent_id: absent_parent,
            start_unix_nanos: record.time_unix_nanos.saturating_sub(duration_nanos),
            end_unix_nanos: record.time_unix_nanos,
            flags: 0,
            n_attributes: 0,
            repeats_answers: None,
            is_watched: false,
            class: SpanClass::default(),
            status: if failed { Status::Error } else { Status::Unset },
            scope: ScopeHash::default(),
            resource: Arc::clone(&record.resource),
            kept: record.kept.clone(),
        }
    };
    let spans = trace.records.iter().map(as_span);
    let mut spans: Vec<Span> = spans.collect();
    spans.sort_by_key(|span| (span.start_unix_nanos, span.span_id));
    Trace {
        spans,
        records: Vec::new(),
        parent_missing: true,
        ..*trace
    }
}

/// Orders the calls by their records, and drops repeated calls. Returns the trace that the records
/// name, if they name one.
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
        // A span may turn out to report the call, too, and the order follows the records' numbers
        // only if all records have one.
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
    records.iter().find_map(|span| span.kept.named_trace())
}

/// Orders the records by number if all have one, else by time.
fn in_order(trace: &Trace) -> Vec<&Span> {
    let mut records: Vec<&Span> = trace.spans.iter().collect();
    let sequence = |span: &Span| {
        let text = span.get(keys::SEQUENCE).and_then(attribute_text);
        text.and_then(|text| text.parse::<u64>().ok())
    };
    let is_numbered = records.iter().all(|span| sequence(span).is_some());
    records.sort_by_key(|span| {
        (
            sequence(span).filter(|_| is_numbered),
            span.start_unix_nanos,
            span.end_unix_nanos,
            span.span_id,
        )
    });
    records
}
