//! Pure. Log records that hold messages of a model: OpenTelemetry's instrumentations put them there
//! when content is captured as events. A record in, what is held of it with the trace it names out.
//! It is no span: the span that it was written in is the model's call, and what is said here counts
//! as said there. Does not know how records are encoded.

use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::convention::View;
use super::{keys, log_calls};
use crate::span::{LogCall, Span, SpanId, TraceId, Value, WantedBody};

const TOOL_MESSAGE: &str = "gen_ai.tool.message";

/// Event names of these records. `gen_ai.assistant.message` is left: it repeats what a model had
/// answered to an earlier request.
pub(super) const EVENTS: &[(&str, WantedBody)] = &[
    ("gen_ai.client.inference.operation.details", WantedBody::Not),
    ("gen_ai.choice", WantedBody::Messages),
    (TOOL_MESSAGE, WantedBody::Whole),
];

/// Does this record hold messages?
pub(super) fn is_messages(record: &LogCall) -> bool {
    EVENTS.iter().any(|(event, _)| *event == record.kept.name())
}

/// Is this what [`held`] made of one?
pub(super) fn is_held(span: &View<'_>) -> bool {
    span.has(keys::LOG_TRACE_ID) && EVENTS.iter().any(|(event, _)| *event == span.name())
}

/// A record as it is held with its trace. `None` where it names no trace or no span, or tells of no
/// call: there is nothing to join it with.
pub(super) fn held(record: LogCall) -> Option<Span> {
    let Some(Value::Bytes(trace_id)) = record.kept.get(keys::LOG_TRACE_ID) else {
        return None;
    };
    let (trace_id, parent_id) = (TraceId::try_new(&trace_id.to_vec())?, Some(record.span_id?));
    let mut span = log_calls::as_span(record, trace_id, parent_id);
    if span.name() == TOOL_MESSAGE {
        // Every request repeats the answers of all tools before it. Without a place and a time they
        // are one record, which is held once.
        let digest = Sha256::digest(answered(&span)?);
        span.span_id = SpanId::try_new(&digest[..8])?;
        (span.parent_id, span.start_unix_nanos, span.end_unix_nanos) = (None, 0, 0);
    }
    Some(span)
}

/// The id of the call that a tool's message answers.
fn answered(record: &Span) -> Option<String> {
    let (Value::Str(text) | Value::Json(text)) = record.get(keys::LOG_BODY)? else {
        return None;
    };
    let body: Json = serde_json::from_str(text).ok()?;
    super::messages::answered(body.as_object()?).map(str::to_owned)
}
