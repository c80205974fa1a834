//! Finds the trace with which a log record is held: a reported tool call joins the trace that
//! stands for its prompt or session, so that one machine holds, judges and forgets it; the messages
//! of a model join the trace that the record names.

use otlp::span::{LogRecord, SpanId, TraceId, Value, WantedBody};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::conventions::log_calls::PROMPTS;
use super::keys;
use super::prune::prune_messages;
use super::view::View;
use crate::extract::values::messages;

const TOOL_MESSAGE: &str = "gen_ai.tool.message";

/// Event names of the records that hold messages of a model: OpenTelemetry's instrumentations put
/// messages there when content is captured as events. `gen_ai.assistant.message` is left out: it
/// repeats what a model had answered to an earlier request.
pub(super) const MESSAGE_EVENTS: &[(&str, WantedBody)] = &[
    ("gen_ai.client.inference.operation.details", WantedBody::Not),
    ("gen_ai.choice", WantedBody::Reply),
    (TOOL_MESSAGE, WantedBody::Request),
];

fn is_message_event(name: &str) -> bool {
    MESSAGE_EVENTS.iter().any(|(event, _)| *event == name)
}

/// A log record, and the trace with which it is held.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedRecord {
    /// The trace.
    pub trace_id: TraceId,
    /// The record, pruned.
    pub record: LogRecord,
}

/// Finds the trace of a record. `None` for a record that cannot be placed: a call that names
/// neither its prompt nor its session, or messages without a trace, a span or a call.
pub fn place(record: LogRecord) -> Option<PlacedRecord> {
    if holds_messages(&record) {
        place_messages(record)
    } else {
        place_call(record)
    }
}

/// The trace of a record, if it can have one: see [`place`].
pub fn trace_of_record(record: &LogRecord) -> Option<TraceId> {
    if holds_messages(record) {
        record.named_trace()
    } else {
        trace_of_call(record)
    }
}

/// Returns true if this record holds messages of a model. Any other record reports a call.
pub(crate) fn holds_messages(record: &LogRecord) -> bool {
    is_message_event(record.name())
}

fn trace_of_call(record: &LogRecord) -> Option<TraceId> {
    let view = View::of_record(record);
    let id = view
        .first_text(PROMPTS)
        .or_else(|| view.first_text(keys::SESSIONS))?;
    TraceId::try_new(&Sha256::digest(id.as_bytes())[..16])
}

fn place_call(mut record: LogRecord) -> Option<PlacedRecord> {
    let trace_id = trace_of_call(&record)?;
    // The span in which it was written is in another trace.
    record.span_id = None;
    Some(PlacedRecord { trace_id, record })
}

fn place_messages(mut record: LogRecord) -> Option<PlacedRecord> {
    let trace_id = record.named_trace()?;
    record.span_id?;
    if record.name() == TOOL_MESSAGE {
        // Every request repeats the answers of all tools before it. Without a place they are one
        // record, which is held once. Its time says to which calls of other traces it can belong.
        let is_lost = record.kept.attribute(keys::LOST_REQUEST).is_some();
        let digest = match answered_call_id(&record) {
            Some(call_id) => Sha256::digest(call_id),
            // A lost result is noted once.
            None if is_lost => {
                record.kept.retain(
                    |attribute| (attribute.key == keys::LOST_REQUEST).then_some(attribute),
                    |_| false,
                );
                Sha256::digest(LogRecord::BODY)
            }
            None => return None,
        };
        record.record_id = SpanId::try_new(&digest[..8])?;
        record.span_id = None;
    }
    prune_messages(&mut record.kept);
    Some(PlacedRecord { trace_id, record })
}

/// The id of the call that a tool's message answers.
fn answered_call_id(record: &LogRecord) -> Option<String> {
    let (Value::Str(text) | Value::Json(text)) = record.get(keys::LOG_BODY)? else {
        return None;
    };
    let body: Json = serde_json::from_str(text).ok()?;
    messages::answered_call_id(body.as_object()?).map(str::to_owned)
}
