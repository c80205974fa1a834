//! Finds the trace of a log record. A reported tool call joins a trace whose id is derived from its
//! prompt or session, so that the pipeline handles reported calls like any trace. A model's
//! messages join the trace that the record names.

use otlp::span::{LogRecord, SpanId, TraceId, Value, WantedBody};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::conventions::log_calls::PROMPTS;
use super::keys;
use super::prune::prune_messages;
use super::view::View;
use crate::extract::values::messages;

const TOOL_MESSAGE: &str = "gen_ai.tool.message";

/// Event names of records that contain a model's messages. OpenTelemetry instrumentations that
/// capture content as events write them. `gen_ai.assistant.message` is missing because it repeats a
/// model's answer to an earlier request.
pub(super) const MESSAGE_EVENTS: &[(&str, WantedBody)] = &[
    ("gen_ai.client.inference.operation.details", WantedBody::Not),
    ("gen_ai.choice", WantedBody::Reply),
    (TOOL_MESSAGE, WantedBody::Request),
];

fn is_message_event(name: &str) -> bool {
    MESSAGE_EVENTS.iter().any(|(event, _)| *event == name)
}

/// A log record and its trace.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedRecord {
    /// The trace.
    pub trace_id: TraceId,
    /// The pruned record.
    pub record: LogRecord,
}

/// Finds the trace of a record. Returns `None` for a call that names neither prompt nor session,
/// and for messages that lack a trace id, a span id or the id of the answered call.
pub fn place(record: LogRecord) -> Option<PlacedRecord> {
    if holds_messages(&record) {
        place_messages(record)
    } else {
        place_call(record)
    }
}

/// Returns the trace of a record, if any: see [`place`].
pub fn trace_of_record(record: &LogRecord) -> Option<TraceId> {
    if holds_messages(record) {
        record.named_trace()
    } else {
        trace_of_call(record)
    }
}

/// Returns true if the record contains a model's messages. Any other record reports a call.
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
    // The named span is in another trace.
    record.span_id = None;
    Some(PlacedRecord { trace_id, record })
}

fn place_messages(mut record: LogRecord) -> Option<PlacedRecord> {
    let trace_id = record.named_trace()?;
    record.span_id?;
    if record.name() == TOOL_MESSAGE {
        // Every request repeats all earlier tool results. With an id derived from the call and
        // without a span id, the repetitions are one record. The record's time limits which calls
        // of other traces it can answer.
        let is_lost = record.kept.attribute(keys::LOST_REQUEST).is_some();
        let digest = match answered_call_id(&record) {
            Some(call_id) => Sha256::digest(call_id),
            // All lost results of a trace share one record.
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
