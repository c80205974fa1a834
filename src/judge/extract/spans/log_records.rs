//! Finds the trace of a log record. A reported tool call joins a trace whose id is derived from its
//! prompt or session, so that the pipeline treats it like any span. A model's messages join the
//! trace that the record names.

use otlp::span::{Span, SpanId, Status, StoredAttributesBuilder, TraceId, Value, WantedBody};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::conventions::log_calls::PROMPTS;
use super::keys;
use super::prune::pruning;
use super::view::{View, attribute_text};
use crate::extract::values::messages;

const TOOL_MESSAGE: &str = "gen_ai.tool.message";

/// Event names of records that contain a model's messages, as OpenTelemetry instrumentations write
/// them when they capture content in events. `gen_ai.assistant.message` is missing because it
/// repeats a model's answer to an earlier request.
pub(super) const MESSAGE_EVENTS: &[(&str, WantedBody)] = &[
    ("gen_ai.client.inference.operation.details", WantedBody::Not),
    ("gen_ai.choice", WantedBody::Reply),
    (TOOL_MESSAGE, WantedBody::Request),
];

fn is_message_event(name: &str) -> bool {
    MESSAGE_EVENTS.iter().any(|(event, _)| *event == name)
}

/// Finds the trace of a record, and sets the record's ids and times. A record with a model's
/// messages gets the class of a model's span; any other record reports a call. Returns `None` for a
/// call that names neither prompt nor session, for messages without a trace id or span id, and for
/// a complete tool result without the id of its call.
pub(super) fn place(record: &mut Span, kept: &mut StoredAttributesBuilder) -> Option<()> {
    let view = View::new(kept.current(), record);
    if is_message_event(view.name()) {
        place_messages(record, kept)
    } else {
        place_call(record, &view)
    }
}

fn place_call(record: &mut Span, view: &View<'_>) -> Option<()> {
    let id = view
        .first_text(PROMPTS)
        .or_else(|| view.first_text(keys::SESSIONS))?;
    record.trace_id = TraceId::try_new(&Sha256::digest(id.as_bytes())[..16])?;
    // The span that the record names is in another trace. Set a parent id that no record has, so
    // that no record is the root.
    record.parent_id = SpanId::try_new(&record.trace_id.as_bytes()[..8]);
    let duration_ms: f64 = view
        .get(keys::DURATION_MS)
        .and_then(attribute_text)
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    // The cast saturates: a duration that is negative or NaN counts as 0.
    let duration_nanos = (duration_ms * 1e6) as u64;
    record.start_unix_nanos = record.end_unix_nanos.saturating_sub(duration_nanos);
    if view.is_false(keys::SUCCESS) {
        record.status = Status::Error;
    }
    Some(())
}

fn place_messages(record: &mut Span, kept: &mut StoredAttributesBuilder) -> Option<()> {
    let view = View::new(kept.current(), record);
    record.trace_id = view.named_trace()?;
    record.parent_id?;
    record.class.model = true;
    if view.name() == TOOL_MESSAGE {
        // Every request repeats all earlier tool results. Derive the record's id from the call, and
        // drop the span in which the record was written, so that all repetitions become one record.
        // The record keeps its time, because in other traces it can answer only calls that ended
        // shortly before that time.
        let is_lost = view.has(keys::LOST_REQUEST);
        let digest = match answered_call_id(&view) {
            Some(call_id) => Sha256::digest(call_id),
            // All lost results of a trace share one record.
            None if is_lost => {
                kept.retain(|key| key != keys::LOST_REQUEST, |_| None, |_| false);
                Sha256::digest(Span::RECORD_BODY)
            }
            None => return None,
        };
        record.span_id = SpanId::try_new(&digest[..8])?;
        record.parent_id = None;
    }
    pruning(&View::new(kept.current(), record), record.class, usize::MAX)(kept);
    Some(())
}

fn answered_call_id(record: &View<'_>) -> Option<String> {
    let (Value::Str(text) | Value::Json(text)) = record.get(keys::LOG_BODY)? else {
        return None;
    };
    let body: Json = serde_json::from_str(text).ok()?;
    messages::answered_call_id(body.as_object()?).map(str::to_owned)
}
