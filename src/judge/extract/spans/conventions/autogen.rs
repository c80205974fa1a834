//! AutoGen: joins arguments and results from the runtime's messages to the calls.

use otlp::span::Value;
use serde_json::Value as Json;

use super::super::convention::{Convention, CrossTrace, Prune};
use super::super::keys;
use super::super::view::View;
use crate::extract::tool_call::CallPart;
use crate::extract::values::{messages, payload};

/// AutoGen's tool spans have neither arguments nor a result. Its runtime passes both in messages,
/// which other traces record in the attribute `message` of spans `autogen process …`. Call ids join
/// them to the calls. The calls themselves are recognised as `gen_ai`.
pub(super) const AUTOGEN: Convention = Convention {
    name: "autogen",
    prune: Some(Prune {
        key: keys::MESSAGE,
        applies_to: |span, _| is_runtime_message(span.name()),
        shorten: |text| messages::may_announce(text).then_some(text),
    }),
    cross_trace: Some(CrossTrace {
        carries: is_runtime_message,
        parts: call_parts,
    }),
    ..Convention::NONE
};

/// Returns true for a span in which the runtime delivers a message.
fn is_runtime_message(span_name: &str) -> bool {
    span_name.starts_with("autogen process ")
}

fn call_parts(span: &View<'_>, max_size: usize) -> Vec<(String, CallPart)> {
    let mut parts = Vec::new();
    if let Some(Value::Str(text)) = span.get(keys::MESSAGE)
        && let Ok(message) = serde_json::from_str(text)
    {
        find_parts(&message, max_size, &mut parts);
    }
    parts
}

/// Finds `ToolCallRequestEvent` and `ToolCallExecutionEvent` objects anywhere in the message. The
/// recursion is bounded, because serde_json rejects more than 128 levels.
fn find_parts(message: &Json, max_size: usize, parts: &mut Vec<(String, CallPart)>) {
    match message {
        Json::Array(items) => items
            .iter()
            .for_each(|item| find_parts(item, max_size, parts)),
        Json::Object(map) => {
            let contents = map.get("content").and_then(Json::as_array);
            let contents = contents.into_iter().flatten();
            let payload_at = |content: &Json, key: &str| {
                Some(payload::of_message(content.get(key)?.clone(), max_size))
            };
            match map.get("type").and_then(Json::as_str) {
                Some("ToolCallRequestEvent") => parts.extend(contents.filter_map(|call| {
                    let args = payload_at(call, "arguments")?;
                    Some((call["id"].as_str()?.to_owned(), CallPart::Args(args)))
                })),
                Some("ToolCallExecutionEvent") => parts.extend(contents.filter_map(|execution| {
                    let result = payload_at(execution, "content")?;
                    let call_id = execution["call_id"].as_str()?.to_owned();
                    Some((call_id, CallPart::Result(result)))
                })),
                _ => map
                    .values()
                    .for_each(|value| find_parts(value, max_size, parts)),
            }
        }
        _ => {}
    }
}
