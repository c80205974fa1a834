//! Reads the calls that a model's reply requests, and the tool results that its request repeats,
//! from a model span or a log record with messages.

use hashbrown::HashMap;
use otlp::span::{KeyBits, KeyId, Value};
use serde_json::Value as Json;

use super::keys;
use super::view::View;
use crate::extract::tool_call::Payload;
use crate::extract::values::{
    AnnouncedCall, Announcement, RepeatedResults, messages, payload, python,
};

/// Keys of replies. A span with none of them and without events requests no calls.
const MAY_ANNOUNCE: KeyBits = KeyBits::new(keys::REPLIES).union(KeyBits::new(&[
    keys::OI_OUTPUT_MESSAGES,
    keys::COMPLETION_CALLS,
    keys::COMPLETION_FUNCTIONS,
    keys::LOST_REPLY,
]));
/// Keys of requests that can contain tool results.
const MAY_HOLD_RESULTS: KeyBits = KeyBits::new(&[
    keys::INPUT_MESSAGES,
    keys::LOG_BODY,
    keys::OI_INPUT_MESSAGES,
    keys::LOST_REQUEST,
]);

/// Returns the calls that the reply in this model span or log record requests, in order. If a reply
/// is recorded in several forms, reads the first complete form with calls, or else the first cut
/// form.
pub(crate) fn announcement(span: &View<'_>, max_size: usize) -> Announcement {
    if !span.has_any(MAY_ANNOUNCE) && span.events().next().is_none() {
        return Announcement::default();
    }
    let flattened = flattened_reply(span, max_size);
    // A flattened reply contains all calls of the provider's raw answer. The raw answer is often
    // much longer; if it is cut, no call is lost.
    let is_flattened = span.has(keys::OI_OUTPUT_ROLE) && !flattened.cut;
    let replies = keys::REPLIES.iter().map(|&key| {
        let attribute = span.attribute(key);
        let cut = attribute.is_some_and(|attribute| attribute.cut && !keys::is_result(key));
        // The scan cuts a result without recording a lost reply only if its text mentions no call.
        let whole = attribute.filter(|attribute| !attribute.cut);
        let reply = whole.and_then(|attribute| json_text(attribute.value));
        let mut reply = reply.map_or_else(Announcement::default, |text| read_reply(text, max_size));
        reply.cut |= cut || is_lost(span, key);
        reply.cut &= !(is_flattened && keys::is_result(key));
        reply
    });
    let choices = span
        .events()
        .filter(|event| event.name == keys::CHOICE)
        .filter_map(|event| {
            let message = event.attributes().find(|part| part.key == keys::MESSAGE)?;
            Some(read_reply(json_text(message.value)?, max_size))
        });
    let lost_choice = Announcement {
        calls: Vec::new(),
        cut: is_lost(span, keys::MESSAGE) || is_lost(span, keys::CHOICE),
    };
    let mut found = Announcement::default();
    let spellings = std::iter::once(flattened).chain(replies).chain(choices);
    for spelling in spellings.chain([lost_choice]) {
        if spelling.cut {
            found = if found.cut { found } else { spelling };
        } else if !spelling.calls.is_empty() {
            found = spelling;
            break;
        }
    }
    // A reply can contain its calls in several forms (`tool_calls` and `additional_kwargs`).
    let mut seen = hashbrown::HashSet::new();
    found.calls.retain(|call| {
        let id = call.call_id.as_ref();
        id.is_none_or(|id| seen.insert(id.clone()))
    });
    found.cut |= is_torn(span);
    if found.cut {
        for call in &mut found.calls {
            call.args.get_or_insert_with(Payload::lost);
        }
    }
    found
}

fn read_reply(text: &str, max_size: usize) -> Announcement {
    if !messages::may_announce(text) {
        return Announcement::default();
    }
    match serde_json::from_str::<Json>(text) {
        Ok(json) => Announcement {
            calls: messages::announced_calls(&json, max_size),
            cut: false,
        },
        Err(error) => match python::parse(text) {
            Some(json) => Announcement {
                calls: messages::announced_calls(&json, max_size),
                cut: false,
            },
            // An attribute limit of the SDK has cut the text.
            None => Announcement {
                calls: Vec::new(),
                cut: error.is_eof() || is_python_list(text),
            },
        },
    }
}

/// Returns true if the text begins like Python's `repr` of a list of messages.
fn is_python_list(text: &str) -> bool {
    text.starts_with("[{'")
}

/// Returns true if the scan did not store the whole reply under this key.
fn is_lost(span: &View<'_>, key: KeyId) -> bool {
    let lost = Value::Int(key.0.into());
    span.has(keys::LOST_REPLY)
        && span
            .attributes()
            .any(|attribute| attribute.key == keys::LOST_REPLY && attribute.value == lost)
}

/// Returns true if the SDK dropped attributes or events, which may have contained parts of the
/// reply.
fn is_torn(span: &View<'_>) -> bool {
    span.has(keys::LOST_REPLY)
        && span
            .attributes()
            .any(|attribute| attribute.key == keys::LOST_REPLY && attribute.value == Value::Str(""))
}

pub(crate) fn tool_results(span: &View<'_>, max_size: usize) -> RepeatedResults {
    let mut found = RepeatedResults::default();
    if !span.has_any(MAY_HOLD_RESULTS) {
        return found;
    }
    found.cut = span.has(keys::LOST_REQUEST);
    if let Some(attribute) = span.attribute(keys::INPUT_MESSAGES)
        && let Some(text) = json_text(attribute.value)
    {
        found.cut |= attribute.cut;
        // `prune` stores the last messages of the list without the list's brackets.
        let list = format!("[{text}]");
        if let Ok(json) = serde_json::from_str::<Json>(&list) {
            found.results = messages::tool_results(&json, max_size);
        }
    }
    // A log record `gen_ai.tool.message` is a single message with a result.
    if let Some(text) = span.get(keys::LOG_BODY).and_then(json_text)
        && let Ok(Json::Object(message)) = serde_json::from_str(text)
    {
        let result = messages::tool_result(&message, max_size);
        found.results.extend(result);
    }
    flattened_results(span, max_size, &mut found.results);
    found
}

fn json_text(value: Value<'_>) -> Option<&str> {
    match value {
        Value::Str(text) | Value::Json(text) => Some(text),
        _ => None,
    }
}

// === flattened attributes ===

/// Reads flattened replies: `llm.output_messages.0.message.tool_calls.1.tool_call.function.name`,
/// the older `gen_ai.completion.0.tool_calls.1.name`, and `gen_ai.completion.1.function_call.name`,
/// in which 1 is the number of the call.
fn flattened_reply(span: &View<'_>, max_size: usize) -> Announcement {
    const SPELLINGS: [KeyId; 3] = [
        keys::OI_OUTPUT_MESSAGES,
        keys::COMPLETION_CALLS,
        keys::COMPLETION_FUNCTIONS,
    ];
    let cut = SPELLINGS.iter().any(|&key| is_lost(span, key));
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
        let known = calls.iter().rposition(|(other, _)| *other == place);
        let call_idx = known.unwrap_or_else(|| {
            calls.push((place, AnnouncedCall::default()));
            calls.len() - 1
        });
        let call = &mut calls[call_idx].1;
        match field {
            "id" | "tool_call.id" => call.call_id = Some(text.to_owned()),
            "name" | "tool_call.function.name" => call.name = text.to_owned(),
            "arguments" | "tool_call.function.arguments" => {
                call.args = Some(field_payload(text, attribute.cut, max_size));
            }
            _ => {}
        }
    }
    let calls = calls
        .into_iter()
        .map(|(_, call)| call)
        .filter(|call| !call.name.is_empty());
    Announcement {
        calls: calls.collect(),
        cut,
    }
}

fn field_payload(text: &str, cut: bool, max_size: usize) -> Payload {
    let payload = payload::of_message(Json::String(text.to_owned()), max_size);
    if cut { payload.into_cut() } else { payload }
}

/// Splits a key's suffix into call and field: `0.message.tool_calls.1.tool_call.id` is the field
/// `tool_call.id` of `0.message.tool_calls.1`, and `1.function_call.name` the field `name` of `1`.
fn split_call(suffix: &str) -> Option<(&str, &str)> {
    if let Some(parts) = suffix.split_once(".function_call.") {
        return Some(parts);
    }
    let word = "tool_calls.";
    let number = suffix.find(word)? + word.len();
    let dot = number + suffix[number..].find('.')?;
    Some((&suffix[..dot], &suffix[dot + 1..]))
}

/// Reads results from `llm.input_messages.3.message.tool_call_id` and the content of the same
/// message.
fn flattened_results(span: &View<'_>, max_size: usize, found: &mut Vec<(String, Payload)>) {
    struct Field<'a> {
        message: &'a str,
        name: &'a str,
        text: &'a str,
        cut: bool,
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
                cut: attribute.cut,
            })
        })
    };
    let ids: HashMap<&str, &str> = fields()
        .filter(|field| field.name == "tool_call_id" && !field.cut)
        .map(|field| (field.message, field.text))
        .collect();
    for content in fields() {
        if matches!(content.name, "content" | "contents.0.message_content.text")
            && let Some(&id) = ids.get(content.message)
        {
            let result = field_payload(content.text, content.cut, max_size);
            found.push((id.to_owned(), result));
        }
    }
}
