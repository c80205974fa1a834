//! Pure. A model's span, or a log record with its messages: the calls that its reply asks for, and
//! the tool results that its request repeats. Knows under which keys messages lie; leaves reading
//! their JSON to `values`.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::key_bits::KeyBits;
use super::keys;
use super::view::View;
use crate::extract::tool_call::Payload;
use crate::extract::values::{AnnouncedCall, messages, payload};
use crate::span::Value;

/// Keys without which a span, if it has no events either, announces nothing.
const MAY_ANNOUNCE: KeyBits = KeyBits::new(keys::REPLIES).union(KeyBits::new(&[
    keys::OI_OUTPUT_MESSAGES,
    keys::COMPLETION_CALLS,
    keys::COMPLETION_FUNCTIONS,
]));
/// Keys without which a span holds no results.
const MAY_HOLD_RESULTS: KeyBits = KeyBits::new(&[
    keys::INPUT_MESSAGES,
    keys::LOG_BODY,
    keys::OI_INPUT_MESSAGES,
]);

/// The calls that the reply of this model span asks for, in its order.
pub(crate) fn announced_calls(span: &View<'_>, max_size: usize) -> Vec<AnnouncedCall> {
    if !span.has_any(MAY_ANNOUNCE) && span.events().next().is_none() {
        return Vec::new();
    }
    let mut calls = flattened_calls(span, max_size);
    let texts = keys::REPLIES
        .iter()
        .filter_map(|&key| json_text(span.get(key)?));
    let choices = span
        .events()
        .filter(|event| event.name == keys::CHOICE)
        .filter_map(|event| {
            let message = event.attributes().find(|part| part.key == keys::MESSAGE)?;
            json_text(message.value)
        });
    for text in texts.chain(choices) {
        if !calls.is_empty() {
            break;
        }
        if messages::may_announce(text)
            && let Ok(json) = serde_json::from_str::<Json>(text)
        {
            calls = messages::announced_calls(&json, max_size);
        }
    }
    // One reply can hold its calls in several spellings (`tool_calls` and `additional_kwargs`).
    let mut seen = hashbrown::HashSet::new();
    calls.retain(|call| {
        let id = call.call_id.as_ref();
        id.is_none_or(|id| seen.insert(id.clone()))
    });
    calls
}

/// Is a part of the reply missing because it was too long?
pub(crate) fn is_cut(span: &View<'_>) -> bool {
    let replies = [
        keys::OUTPUT_MESSAGES,
        keys::AI_TOOL_CALLS,
        keys::ADK_RESPONSE,
        keys::LOG_BODY,
    ];
    span.attributes()
        .any(|attribute| attribute.cut && replies.contains(&attribute.key))
}

/// The tool results among the messages that this model span was asked with: call id and content.
pub(crate) fn tool_results(span: &View<'_>, max_size: usize) -> Vec<(String, Payload)> {
    let mut found = Vec::new();
    if !span.has_any(MAY_HOLD_RESULTS) {
        return found;
    }
    if let Some(text) = span.get(keys::INPUT_MESSAGES).and_then(json_text) {
        // `prune` keeps the end of the list: its last messages, and the bracket that closes it.
        let list = if text.starts_with('{') {
            Cow::Owned(format!("[{text}"))
        } else {
            Cow::Borrowed(text)
        };
        if let Ok(json) = serde_json::from_str::<Json>(&list) {
            found = messages::tool_results(&json, max_size);
        }
    }
    // A log record `gen_ai.tool.message` is one such message.
    if let Some(text) = span.get(keys::LOG_BODY).and_then(json_text)
        && let Ok(Json::Object(message)) = serde_json::from_str(text)
    {
        found.extend(messages::tool_result(&message, max_size));
    }
    flattened_results(span, max_size, &mut found);
    found
}

fn json_text(value: Value<'_>) -> Option<&str> {
    match value {
        Value::Str(text) | Value::Json(text) => Some(text),
        _ => None,
    }
}

// === flattened attributes ===

/// `llm.output_messages.0.message.tool_calls.1.tool_call.function.name`, the older
/// `gen_ai.completion.0.tool_calls.1.name`, and `gen_ai.completion.1.function_call.name`, whose
/// number counts the calls.
fn flattened_calls(span: &View<'_>, max_size: usize) -> Vec<AnnouncedCall> {
    let mut calls: Vec<(&str, AnnouncedCall)> = Vec::new();
    let attributes = span.attributes().filter(|attribute| {
        matches!(
            attribute.key,
            keys::OI_OUTPUT_MESSAGES | keys::COMPLETION_CALLS | keys::COMPLETION_FUNCTIONS
        )
    });
    for attribute in attributes {
        let Value::Str(text) = attribute.value else {
            continue;
        };
        let Some((place, field)) = split_call(attribute.suffix) else {
            continue;
        };
        let known = calls.iter().position(|(other, _)| *other == place);
        let call_idx = known.unwrap_or_else(|| {
            calls.push((place, AnnouncedCall::default()));
            calls.len() - 1
        });
        let call = &mut calls[call_idx].1;
        match field {
            "id" | "tool_call.id" => call.call_id = Some(text.to_owned()),
            "name" | "tool_call.function.name" => call.name = text.to_owned(),
            "arguments" | "tool_call.function.arguments" => {
                let args = payload::of_message(Json::String(text.to_owned()), max_size);
                call.args = Some(if attribute.cut {
                    Payload::new(args.text.clone(), args.json().clone(), true)
                } else {
                    args
                });
            }
            _ => {}
        }
    }
    calls
        .into_iter()
        .map(|(_, call)| call)
        .filter(|call| !call.name.is_empty())
        .collect()
}

/// `0.message.tool_calls.1.tool_call.id` is the field `tool_call.id` of `0.message.tool_calls.1`,
/// and `1.function_call.name` the field `name` of `1`.
fn split_call(suffix: &str) -> Option<(&str, &str)> {
    if let Some(parts) = suffix.split_once(".function_call.") {
        return Some(parts);
    }
    let word = "tool_calls.";
    let number = suffix.find(word)? + word.len();
    let dot = number + suffix[number..].find('.')?;
    Some((&suffix[..dot], &suffix[dot + 1..]))
}

/// `llm.input_messages.3.message.tool_call_id`, with the content of the same message beside it.
fn flattened_results(span: &View<'_>, max_size: usize, found: &mut Vec<(String, Payload)>) {
    struct Field<'a> {
        message: &'a str,
        name: &'a str,
        text: &'a str,
    }
    let fields = || {
        let messages = span
            .attributes()
            .filter(|attribute| attribute.key == keys::OI_INPUT_MESSAGES);
        messages.filter_map(|attribute| {
            let (message, name) = attribute.suffix.split_once(".message.")?;
            let Value::Str(text) = attribute.value else {
                return None;
            };
            Some(Field {
                message,
                name,
                text,
            })
        })
    };
    let ids: Vec<Field<'_>> = fields()
        .filter(|field| field.name == "tool_call_id")
        .collect();
    for content in fields() {
        if matches!(content.name, "content" | "contents.0.message_content.text")
            && let Some(id) = ids.iter().find(|id| id.message == content.message)
        {
            let result = payload::of_message(Json::String(content.text.to_owned()), max_size);
            found.push((id.text.to_owned(), result));
        }
    }
}
