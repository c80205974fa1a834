//! Pure. AutoGen: a tool's span has neither arguments nor a result. Its runtime hands both around
//! in messages, which it tells of in spans `autogen process …` of yet other traces. Such a span in,
//! what it tells of calls out; the calls themselves are recognised by their GenAI marks.

use serde_json::Value as Json;

use super::answers::Told;
use super::keys;
use super::payload;
use crate::assemble::Trace;
use crate::span::{Span, Value};

/// Is this the runtime handing on a message?
pub(super) fn hands_on(span: &Span) -> bool {
    span.name().starts_with("autogen process ")
}

/// Did the runtime take part in this trace? Then what its calls lack is told elsewhere.
pub(super) fn takes_part(trace: &Trace) -> bool {
    trace.spans.iter().any(|(span, _)| hands_on(span))
}

/// What the message tells of calls, by their ids.
pub(super) fn told(span: &Span, max_size: usize) -> Vec<(String, Told)> {
    let mut told = Vec::new();
    if hands_on(span)
        && let Some(Value::Str(text)) = span.get(keys::MESSAGE)
        && let Ok(message) = serde_json::from_str(text)
    {
        read(&message, max_size, &mut told);
    }
    told
}

/// Requests and executions, wherever in the message they are; serde_json stops at 128 levels, so
/// that this recursion is bounded.
fn read(message: &Json, max_size: usize, told: &mut Vec<(String, Told)>) {
    match message {
        Json::Array(items) => items.iter().for_each(|item| read(item, max_size, told)),
        Json::Object(map) => {
            let contents = map
                .get("content")
                .and_then(Json::as_array)
                .into_iter()
                .flatten();
            let value = |content: &Json, key: &str| {
                Some(payload::of_message(content.get(key)?.clone(), max_size))
            };
            let entry = |id: &Json, what: Option<Told>| Some((id.as_str()?.to_owned(), what?));
            match map.get("type").and_then(Json::as_str) {
                Some("ToolCallRequestEvent") => {
                    told.extend(contents.filter_map(|call| {
                        entry(&call["id"], value(call, "arguments").map(Told::Args))
                    }));
                }
                Some("ToolCallExecutionEvent") => {
                    told.extend(contents.filter_map(|result| {
                        entry(
                            &result["call_id"],
                            value(result, "content").map(Told::Result),
                        )
                    }));
                }
                _ => map.values().for_each(|value| read(value, max_size, told)),
            }
        }
        _ => {}
    }
}
