//! Pure. A model's span in, the tool calls that its reply asks for and the tool results that its
//! request brings out. Knows how messages are spelled; such calls tell what was asked for, not what
//! was done.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::convention::{AnyOf, View};
use super::keys;
use super::payload;
use super::tool_call::Payload;
use crate::span::{KeyId, Value};

/// A call that a model's reply asks for.
#[derive(Debug, Clone)]
pub(super) struct Announced {
    pub(super) name: String,
    pub(super) call_id: Option<String>,
    pub(super) args: Option<Payload>,
}

/// Where replies are kept, in the order in which they are tried.
const REPLIES: &[KeyId] = &[
    keys::OUTPUT_MESSAGES,
    keys::AI_TOOL_CALLS,
    keys::LANGFUSE_OUTPUT,
    keys::GENKIT_OUTPUT,
    keys::MLFLOW_OUTPUT,
    keys::JUDGMENT_OUTPUT,
    keys::ADK_RESPONSE,
    keys::GEN_AI_COMPLETION,
    keys::OUTPUT_VALUE,
    keys::TRACELOOP_OUTPUT,
    keys::LOG_BODY,
];

/// Keys without which a span, if it has no events either, announces nothing.
const MAY_ANNOUNCE: AnyOf = AnyOf::new(REPLIES).or(AnyOf::new(&[
    keys::OI_OUTPUT_MESSAGES,
    keys::COMPLETION_CALLS,
]));
/// Keys without which a span brings no results.
const MAY_ANSWER: AnyOf = AnyOf::new(&[
    keys::INPUT_MESSAGES,
    keys::LOG_BODY,
    keys::OI_INPUT_MESSAGES,
]);

/// The calls that the reply of this model span asks for, in its order.
pub(super) fn announced(span: &View<'_>, max_size: usize) -> Vec<Announced> {
    if !span.has_any_of(MAY_ANNOUNCE) && span.events().next().is_none() {
        return Vec::new();
    }
    let mut calls = flattened(span, max_size);
    let texts = REPLIES.iter().filter_map(|&key| json_text(span.get(key)?));
    let events = span
        .events()
        .filter(|event| event.name == keys::CHOICE)
        .filter_map(|event| {
            event
                .attributes()
                .find(|attribute| attribute.key == keys::MESSAGE)
                .and_then(|attribute| json_text(attribute.value))
        });
    for text in texts.chain(events) {
        if !calls.is_empty() {
            break;
        }
        if may_announce(text)
            && let Ok(json) = serde_json::from_str::<Json>(text)
        {
            find_calls(&json, false, max_size, &mut calls);
        }
    }
    // One reply can hold its calls in several spellings (LangChain's `tool_calls` and
    // `additional_kwargs`).
    let mut seen = hashbrown::HashSet::new();
    calls.retain(|call| {
        call.call_id
            .as_ref()
            .is_none_or(|id| seen.insert(id.clone()))
    });
    calls
}

/// Is a part of the reply missing, for its length?
pub(super) fn is_cut(span: &View<'_>) -> bool {
    let holds_reply = |key| {
        matches!(
            key,
            keys::OUTPUT_MESSAGES | keys::AI_TOOL_CALLS | keys::ADK_RESPONSE | keys::LOG_BODY
        )
    };
    span.span
        .kept
        .attributes()
        .any(|attribute| attribute.cut && holds_reply(attribute.key))
}

/// The tool results among the messages that this model span was asked with: call id and content.
pub(super) fn responses(span: &View<'_>, max_size: usize) -> Vec<(String, Payload)> {
    let mut found = Vec::new();
    if !span.has_any_of(MAY_ANSWER) {
        return found;
    }
    if let Some(text) = span.get(keys::INPUT_MESSAGES).and_then(json_text) {
        // `slim` leaves the end of the list: its last messages, and the bracket that closes it.
        let list = if text.starts_with('{') {
            Cow::Owned(format!("[{text}"))
        } else {
            Cow::Borrowed(text)
        };
        if let Ok(json) = serde_json::from_str::<Json>(&list) {
            find_responses(&json, max_size, &mut found);
        }
    }
    // A log record `gen_ai.tool.message` is one such message.
    if let Some(text) = span.get(keys::LOG_BODY).and_then(json_text)
        && let Ok(Json::Object(map)) = serde_json::from_str(text)
        && let (Some(id), Some(content)) = (answered(&map), answer(&map))
    {
        found.push((
            id.to_owned(),
            payload::of_message(content.clone(), max_size),
        ));
    }
    let mut ids: Vec<(&str, &str)> = Vec::new();
    for attribute in span
        .span
        .kept
        .attributes()
        .filter(|attribute| attribute.key == keys::OI_INPUT_MESSAGES)
    {
        let (Some((message, field)), Value::Str(text)) =
            (attribute.suffix.split_once(".message."), attribute.value)
        else {
            continue;
        };
        if field == "tool_call_id" {
            ids.push((message, text));
        }
    }
    for attribute in span
        .span
        .kept
        .attributes()
        .filter(|attribute| attribute.key == keys::OI_INPUT_MESSAGES)
    {
        let (Some((message, field)), Value::Str(text)) =
            (attribute.suffix.split_once(".message."), attribute.value)
        else {
            continue;
        };
        if matches!(field, "content" | "contents.0.message_content.text")
            && let Some((_, id)) = ids.iter().find(|(of, _)| *of == message)
        {
            found.push((
                (*id).to_owned(),
                payload::of_message(Json::String(text.to_owned()), max_size),
            ));
        }
    }
    found
}

/// Is there a call in it at all? Looked at before anything is parsed.
pub(super) fn may_announce(text: &str) -> bool {
    ["tool", "function", "Tool"]
        .iter()
        .any(|word| memchr::memmem::find(text.as_bytes(), word.as_bytes()).is_some())
}

fn json_text(value: Value<'_>) -> Option<&str> {
    match value {
        Value::Str(text) | Value::Json(text) => Some(text),
        _ => None,
    }
}

// === flattened attributes ===

/// `llm.output_messages.0.message.tool_calls.1.tool_call.function.name`, and Traceloop's older
/// `gen_ai.completion.0.tool_calls.1.name`.
fn flattened(span: &View<'_>, max_size: usize) -> Vec<Announced> {
    let mut calls: Vec<(&str, Announced)> = Vec::new();
    for attribute in span.span.kept.attributes().filter(|attribute| {
        matches!(
            attribute.key,
            keys::OI_OUTPUT_MESSAGES | keys::COMPLETION_CALLS
        )
    }) {
        let Value::Str(text) = attribute.value else {
            continue;
        };
        let Some((at, field)) = split_call(attribute.suffix) else {
            continue;
        };
        let call_idx = calls
            .iter()
            .position(|(of, _)| *of == at)
            .unwrap_or_else(|| {
                calls.push((
                    at,
                    Announced {
                        name: String::new(),
                        call_id: None,
                        args: None,
                    },
                ));
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

/// `0.message.tool_calls.1.tool_call.id` is the field `tool_call.id` of `0.message.tool_calls.1`.
fn split_call(suffix: &str) -> Option<(&str, &str)> {
    let word = "tool_calls.";
    let number = suffix.find(word)? + word.len();
    let dot = number + suffix[number..].find('.')?;
    Some((&suffix[..dot], &suffix[dot + 1..]))
}

// === JSON ===

/// serde_json stops at 128 levels, so that this recursion is bounded.
fn find_calls(json: &Json, in_list_of_calls: bool, max_size: usize, calls: &mut Vec<Announced>) {
    match json {
        Json::Array(items) => items
            .iter()
            .for_each(|item| find_calls(item, in_list_of_calls, max_size, calls)),
        Json::Object(map) => {
            if let Some(call) = call_of(map, in_list_of_calls, max_size) {
                calls.push(call);
                return;
            }
            for (key, value) in map {
                match key.as_str() {
                    // A second spelling of the same calls; what a model was asked with; how tools
                    // are declared.
                    "additional_kwargs" | "input" | "inputs" | "request" | "tools"
                    | "tool_definitions" | "response_metadata" | "custom" => {}
                    "tool_calls" | "toolCalls" => find_calls(value, true, max_size, calls),
                    _ => find_calls(value, false, max_size, calls),
                }
            }
        }
        _ => {}
    }
}

fn call_of(map: &Map<String, Json>, in_list_of_calls: bool, max_size: usize) -> Option<Announced> {
    let text = |key: &str| {
        map.get(key)
            .and_then(Json::as_str)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let kind = map.get("type").and_then(Json::as_str).unwrap_or_default();
    let make = |name: Option<String>, call_id: Option<String>, args: Option<&Json>| {
        Some(Announced {
            name: name?,
            call_id,
            args: args
                .filter(|args| !args.is_null())
                .map(|args| payload::of_message(args.clone(), max_size)),
        })
    };
    // OpenAI, and everybody who copies it: `{"id": …, "function": {"name": …, "arguments": "…"}}`.
    if let Some(Json::Object(function)) = map.get("function")
        && function.get("arguments").is_some()
    {
        return make(
            function
                .get("name")
                .and_then(Json::as_str)
                .map(str::to_owned),
            text("id"),
            function.get("arguments"),
        );
    }
    // Gemini, Bedrock (Strands) and Genkit name the kind in the key.
    for (key, id, args) in [
        ("functionCall", "id", "args"),
        ("function_call", "id", "args"),
        ("toolUse", "toolUseId", "input"),
        ("toolRequest", "ref", "input"),
    ] {
        if let Some(Json::Object(inner)) = map.get(key) {
            let id = inner.get(id).and_then(Json::as_str).map(str::to_owned);
            return make(
                inner.get("name").and_then(Json::as_str).map(str::to_owned),
                id,
                inner.get(args).or_else(|| inner.get("arguments")),
            );
        }
    }
    // Vercel.
    if map.contains_key("toolName") {
        return make(
            text("toolName"),
            text("toolCallId"),
            map.get("input").or_else(|| map.get("args")),
        );
    }
    let is_call = matches!(
        kind,
        "tool_call" | "tool-call" | "tool_use" | "toolUse" | "function_call"
    ) || (in_list_of_calls && map.contains_key("name"));
    if !is_call {
        return None;
    }
    let args = ["arguments", "args", "input", "parameters"]
        .iter()
        .find_map(|key| map.get(*key));
    // OpenAI's Responses call their item `id` and the call `call_id`.
    make(
        text("name"),
        text("call_id")
            .or_else(|| text("toolUseId"))
            .or_else(|| text("id")),
        args,
    )
}

fn find_responses(json: &Json, max_size: usize, found: &mut Vec<(String, Payload)>) {
    match json {
        Json::Array(items) => items
            .iter()
            .for_each(|item| find_responses(item, max_size, found)),
        Json::Object(map) => {
            let text = |key: &str| map.get(key).and_then(Json::as_str);
            let content = match text("type") {
                Some("tool_call_response" | "tool_result" | "function_call_output") => answer(map),
                _ if text("role") == Some("tool") => map.get("content"),
                _ => None,
            };
            match (answered(map), content) {
                (Some(id), Some(content)) => found.push((
                    id.to_owned(),
                    payload::of_message(content.clone(), max_size),
                )),
                _ => map
                    .values()
                    .for_each(|value| find_responses(value, max_size, found)),
            }
        }
        _ => {}
    }
}

/// The id of the call that a message answers.
pub(super) fn answered(map: &Map<String, Json>) -> Option<&str> {
    ["id", "tool_call_id", "tool_use_id", "call_id"]
        .iter()
        .find_map(|key| map.get(*key)?.as_str())
}

fn answer(map: &Map<String, Json>) -> Option<&Json> {
    ["response", "result", "content", "output"]
        .iter()
        .find_map(|key| map.get(*key))
}
