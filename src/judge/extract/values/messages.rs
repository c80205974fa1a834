//! Reads the calls and tool results in a model's messages from JSON. A call in a message was
//! requested, and perhaps not made.

use std::borrow::Cow;
use std::ops::Range;

use otlp::span::is_unfinished_json;
use serde::de::IgnoredAny;
use serde_json::{Map, Value as Json};

use super::payload;
use crate::extract::tool_call::Payload;

/// The calls that a model's reply requests, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Announcement {
    pub(crate) calls: Vec<AnnouncedCall>,
    /// True if a part of the reply is missing, which may contain more calls or arguments.
    pub(crate) cut: bool,
}

/// The tool results in a model's request: call id and content.
#[derive(Debug, Default)]
pub(crate) struct RepeatedResults {
    pub(crate) results: Vec<(String, Payload)>,
    /// True if messages are missing, so that there may be more results.
    pub(crate) cut: bool,
}

/// The messages of a list after the model's last answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewMessages {
    /// The byte position of the first message in the list's text.
    pub(crate) start: usize,
    /// The byte position after the last complete message.
    pub(crate) end: usize,
    /// True if an answer precedes the messages.
    pub(crate) follow_answer: bool,
    /// True if the list is complete.
    pub(crate) is_whole: bool,
}

/// A call that a model's reply requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnnouncedCall {
    pub(crate) name: String,
    pub(crate) call_id: Option<String>,
    pub(crate) args: Option<Payload>,
}

/// A whole agent run recorded in one span: replies and tool results, in order.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// The calls of each reply; none for a reply that is only text.
    pub(crate) replies: Vec<Vec<AnnouncedCall>>,
    pub(crate) results: Vec<ConversationResult>,
    /// True if replies or results may be missing, because a text was cut.
    pub(crate) cut: bool,
}

#[derive(Debug)]
pub(crate) struct ConversationResult {
    pub(crate) call_id: String,
    pub(crate) result: Payload,
    /// True if the call failed; `None` if the result does not report it.
    pub(crate) failed: Option<bool>,
}

/// Returns true if the text may contain a call, or may have contained one before an SDK's attribute
/// limit cut it. Searching is cheaper than parsing.
pub(crate) fn may_announce(text: &str) -> bool {
    let mut words = ["tool", "function", "Tool"].iter();
    words.any(|word| memchr::memmem::find(text.as_bytes(), word.as_bytes()).is_some())
        || is_unfinished_json(text.as_bytes())
}

/// Returns the messages after the model's last answer; `None` for text that is not a list. Builds
/// JSON trees only of the messages from the last answer on.
pub(crate) fn new_messages(list: &str) -> Option<NewMessages> {
    let mut rest = list.trim_start().strip_prefix('[')?.trim_start();
    let at = |rest: &str| list.len() - rest.len();
    let mut items = Vec::new();
    let is_whole = loop {
        if rest.starts_with(']') {
            break true;
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        if !matches!(values.next(), Some(Ok(_))) {
            break false;
        }
        let start = at(rest);
        rest = &rest[values.byte_offset()..];
        let end = at(rest);
        rest = rest.trim_start();
        // A number at the end of the text may be cut.
        if rest.is_empty() {
            break false;
        }
        items.push(start..end);
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    };
    let is_answer = |item: &Range<usize>| {
        let message: Option<Json> = serde_json::from_str(&list[item.clone()]).ok();
        message.is_some_and(|message| message["role"] == "assistant")
    };
    let answer = items.iter().rposition(is_answer);
    let new = &items[answer.map_or(0, |answer| answer + 1)..];
    let end = new.last().map_or(list.len(), |item| item.end);
    Some(NewMessages {
        start: new.first().map_or(end, |item| item.start),
        end,
        follow_answer: answer.is_some(),
        is_whole,
    })
}

pub(crate) fn announced_calls(reply: &Json, max_size: usize) -> Vec<AnnouncedCall> {
    let mut calls = Vec::new();
    find_calls(reply, false, max_size, &mut calls);
    calls
}

pub(crate) fn tool_results(request: &Json, max_size: usize) -> Vec<(String, Payload)> {
    let mut found = Vec::new();
    find_results(request, max_size, &mut found);
    found
}

pub(crate) fn tool_result(
    message: &Map<String, Json>,
    max_size: usize,
) -> Option<(String, Payload)> {
    let call_id = answered_call_id(message)?.to_owned();
    let content = result_content(message)?.into_owned();
    Some((call_id, payload::of_message(content, max_size)))
}

pub(crate) fn answered_call_id(message: &Map<String, Json>) -> Option<&str> {
    ["id", "tool_call_id", "tool_use_id", "call_id"]
        .iter()
        .find_map(|key| message.get(*key)?.as_str())
}

fn result_content(message: &Map<String, Json>) -> Option<Cow<'_, Json>> {
    let content = ["response", "result", "content", "output"]
        .iter()
        .find_map(|key| message.get(*key));
    content.map(Cow::Borrowed).or_else(|| text_parts(message))
}

/// Returns the text of a message with a call id next to its `parts`: LiteLLM writes `{"role":
/// "tool", "parts": [{"type": "text", "content": "…"}], "tool_call_id": "…"}`. The texts of several
/// parts are a list.
fn text_parts(message: &Map<String, Json>) -> Option<Cow<'_, Json>> {
    message.get("tool_call_id")?;
    let parts = message.get("parts")?.as_array()?;
    let text = |part: &'_ Json| -> Option<_> {
        let text = part.get("content").or_else(|| part.get("text"))?;
        (part["type"] == "text").then(|| text.clone())
    };
    let mut texts: Vec<Json> = parts.iter().map(text).collect::<Option<_>>()?;
    match texts.len() {
        0 => None,
        1 => texts.pop().map(Cow::Owned),
        _ => Some(Cow::Owned(Json::Array(texts))),
    }
}

/// Finds calls at any depth. The recursion is bounded, because serde_json rejects more than 128
/// levels.
fn find_calls(
    json: &Json,
    in_list_of_calls: bool,
    max_size: usize,
    calls: &mut Vec<AnnouncedCall>,
) {
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
                    // These keys contain a second form of the same calls, a model's request, or
                    // declarations of tools.
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

fn call_of(
    map: &Map<String, Json>,
    in_list_of_calls: bool,
    max_size: usize,
) -> Option<AnnouncedCall> {
    let text = |key: &str| {
        map.get(key)
            .and_then(Json::as_str)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let kind = map.get("type").and_then(Json::as_str).unwrap_or_default();
    let make = |name: Option<String>, call_id: Option<String>, args: Option<&Json>| {
        Some(AnnouncedCall {
            name: name?,
            call_id,
            args: args
                .filter(|args| !args.is_null())
                .map(|args| payload::of_message(args.clone(), max_size)),
        })
    };
    // OpenAI and compatible APIs: `{"id": …, "function": {"name": …, "arguments": "…"}}`. Without
    // content capture, OpenTelemetry's instrumentations omit the arguments; outside a list of
    // calls, the same form declares a tool.
    if let Some(Json::Object(function)) = map.get("function")
        && (in_list_of_calls || function.get("arguments").is_some())
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
    // Several providers put a call into an object whose only key names its kind, as in
    // `{"functionCall": {…}}`.
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
    // A JavaScript SDK has the tool's name in `toolName`.
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
    // In OpenAI's Responses API, `id` identifies the item, and `call_id` the call.
    make(
        text("name"),
        text("call_id")
            .or_else(|| text("toolUseId"))
            .or_else(|| text("id")),
        args,
    )
}

fn find_results(json: &Json, max_size: usize, found: &mut Vec<(String, Payload)>) {
    match json {
        Json::Array(items) => items
            .iter()
            .for_each(|item| find_results(item, max_size, found)),
        Json::Object(map) => {
            let text = |key: &str| map.get(key).and_then(Json::as_str);
            let content = match text("type") {
                Some("tool_call_response" | "tool_result" | "function_call_output") => {
                    result_content(map)
                }
                _ if text("role") == Some("tool") => {
                    let content = map.get("content").map(Cow::Borrowed);
                    content.or_else(|| text_parts(map))
                }
                _ => None,
            };
            match (answered_call_id(map), content) {
                (Some(id), Some(content)) => found.push((
                    id.to_owned(),
                    payload::of_message(content.into_owned(), max_size),
                )),
                _ => map
                    .values()
                    .for_each(|value| find_results(value, max_size, found)),
            }
        }
        _ => {}
    }
}
