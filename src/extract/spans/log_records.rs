//! Pure. Turns log records into items of a trace: a reported tool call joins the trace that stands
//! for its prompt or session, so that one machine holds, judges and forgets it; the messages of a
//! model join the trace that the record names. Does not know how records are encoded.

use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::conventions::log_calls::PROMPTS;
use super::keys;
use super::view::{View, attribute_text};
use crate::extract::values::messages;
use crate::span::{LogCall, Span, SpanId, Status, TraceId, Value, WantedBody};

const TOOL_MESSAGE: &str = "gen_ai.tool.message";

/// Event names of the records that hold messages of a model: OpenTelemetry's instrumentations put
/// messages there when content is captured as events. `gen_ai.assistant.message` is left out: it
/// repeats what a model had answered to an earlier request.
pub(super) const MESSAGE_EVENTS: &[(&str, WantedBody)] = &[
    ("gen_ai.client.inference.operation.details", WantedBody::Not),
    ("gen_ai.choice", WantedBody::Messages),
    (TOOL_MESSAGE, WantedBody::Whole),
];

fn is_message_event(name: &str) -> bool {
    MESSAGE_EVENTS.iter().any(|(event, _)| *event == name)
}

/// A record as an item of a trace. `None` for a record that cannot be placed: a call that names
/// neither its prompt nor its session, or messages without a trace, a span or a call.
pub fn log_call(record: LogCall) -> Option<Span> {
    if is_message_event(record.kept.name()) {
        message_record(record)
    } else {
        call_record(record)
    }
}

/// Did [`log_call`] make this span of a record with messages?
pub(super) fn is_message_record(span: &View<'_>) -> bool {
    span.has(keys::LOG_TRACE_ID) && is_message_event(span.name())
}

fn call_record(record: LogCall) -> Option<Span> {
    let time_unix_nanos = record.time_unix_nanos;
    let mut span = as_span(record, group(b"")?.trace_id, None);
    let view = View::new(&span);
    let id = view
        .first_text(PROMPTS)
        .or_else(|| view.first_text(keys::SESSIONS))?;
    let group = group(id.as_bytes())?;
    let duration_ms: f64 = view
        .get(keys::DURATION_MS)
        .and_then(attribute_text)
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    let failed = view.is_false(keys::SUCCESS);
    span.trace_id = group.trace_id;
    // No record says that it is the last call of its prompt: a parent that never comes keeps the
    // trace open until it is inactive.
    span.parent_id = Some(group.absent_parent);
    // Saturates: a negative or senseless duration counts as none.
    span.start_unix_nanos = time_unix_nanos.saturating_sub((duration_ms * 1e6) as u64);
    span.status = if failed { Status::Error } else { Status::Unset };
    Some(span)
}

/// The trace that stands for the calls of one prompt or session.
struct Group {
    trace_id: TraceId,
    /// A parent that no span of the trace has.
    absent_parent: SpanId,
}

fn group(id: &[u8]) -> Option<Group> {
    let digest = Sha256::digest(id);
    Some(Group {
        trace_id: TraceId::try_new(&digest[..16])?,
        absent_parent: SpanId::try_new(&digest[16..24])?,
    })
}

fn message_record(record: LogCall) -> Option<Span> {
    let Some(Value::Bytes(trace_id)) = record.kept.get(keys::LOG_TRACE_ID) else {
        return None;
    };
    let trace_id = TraceId::try_new(&trace_id.to_vec())?;
    let parent_id = Some(record.span_id?);
    let mut span = as_span(record, trace_id, parent_id);
    if span.name() == TOOL_MESSAGE {
        // Every request repeats the answers of all tools before it. Without a place and a time they
        // are one record, which is held once.
        let digest = Sha256::digest(answered_call_id(&span)?);
        span.span_id = SpanId::try_new(&digest[..8])?;
        span.parent_id = None;
        span.start_unix_nanos = 0;
        span.end_unix_nanos = 0;
    }
    Some(span)
}

/// The id of the call that a tool's message answers.
fn answered_call_id(record: &Span) -> Option<String> {
    let (Value::Str(text) | Value::Json(text)) = record.get(keys::LOG_BODY)? else {
        return None;
    };
    let body: Json = serde_json::from_str(text).ok()?;
    messages::answered_call_id(body.as_object()?).map(str::to_owned)
}

/// A record in the form of a span: its own id, and its time as start and end.
fn as_span(record: LogCall, trace_id: TraceId, parent_id: Option<SpanId>) -> Span {
    Span {
        trace_id,
        span_id: record.record_id,
        parent_id,
        start_unix_nanos: record.time_unix_nanos,
        end_unix_nanos: record.time_unix_nanos,
        flags: 0,
        n_attributes: 0,
        status: Status::Unset,
        resource: record.resource,
        kept: record.kept,
    }
}
