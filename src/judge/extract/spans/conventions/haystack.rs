//! Haystack under OpenInference has no spans for tools, and in older releases none for models. The
//! output of an agent run's span contains the whole conversation, each message as the `repr` of a
//! `ChatMessage`; messages that are also in the run's input are older than the run.

use otlp::span::KeyBits;
use std::borrow::Cow;

use hashbrown::HashSet;
use serde_json::Value as Json;

use super::super::convention::{Convention, Prune};
use super::super::keys;
use super::super::view::View;
use crate::extract::values::{AnnouncedCall, Conversation, ConversationResult, payload, python};

/// - Tool call: has no span; calls are read from the conversation in `output.value` of the run.
/// - Agent run: a span `Agent.run` with `openinference.span.kind` = `CHAIN` and messages in
///   `output.value` or `input.value`.
/// - Model call: has a span only in newer releases.
pub(super) const HAYSTACK: Convention = Convention {
    name: "haystack",
    marks: KeyBits::new(&[keys::OI_KIND]),
    agent_run: Some(|span| is_run(span).then_some(Cow::Borrowed("Agent"))),
    prune: Some(Prune {
        key: keys::INPUT_VALUE,
        applies_to: |_, class| class.agent_run,
        shorten: |text| is_conversation(text).then_some(text),
    }),
    conversation: Some(conversation),
    ..Convention::NONE
};

fn is_run(span: &View<'_>) -> bool {
    let has_messages = |key| span.str(key).is_some_and(is_conversation);
    span.name() == "Agent.run"
        && span.is(keys::OI_KIND, "CHAIN")
        && (has_messages(keys::OUTPUT_VALUE) || has_messages(keys::INPUT_VALUE))
}

fn is_conversation(text: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), b"ChatMessage(_role=").is_some()
}

fn conversation(span: &View<'_>, max_size: usize) -> Option<Conversation> {
    if !is_run(span) {
        return None;
    }
    let is_cut = |key| span.attribute(key).is_some_and(|attribute| attribute.cut);
    let messages_in = |key| span.str(key).into_iter().flat_map(messages);
    let older: HashSet<String> = messages_in(keys::INPUT_VALUE).collect();
    let mut conversation = Conversation {
        // If the input is cut, older messages seem to be new.
        cut: is_cut(keys::OUTPUT_VALUE) || is_cut(keys::INPUT_VALUE) || span.has(keys::LOST_REPLY),
        ..Conversation::default()
    };
    for message in messages_in(keys::OUTPUT_VALUE) {
        if older.contains(&message) {
            continue;
        }
        let Some(message) = python::parse_objects(&message) else {
            // A message longer than the limit was cut.
            conversation.cut |= message.len() > max_size;
            continue;
        };
        let message = &message["ChatMessage"];
        let contents = || message["_content"].as_array().into_iter().flatten();
        if message["_role"] == "assistant" {
            let calls =
                contents().filter_map(|content| announced_call(content.get("ToolCall")?, max_size));
            conversation.replies.push(calls.collect());
        }
        let results =
            contents().filter_map(|content| tool_result(content.get("ToolCallResult")?, max_size));
        conversation.results.extend(results);
    }
    Some(conversation)
}

fn announced_call(call: &Json, max_size: usize) -> Option<AnnouncedCall> {
    Some(AnnouncedCall {
        name: call["tool_name"].as_str()?.to_owned(),
        call_id: call["id"].as_str().map(str::to_owned),
        args: call
            .get("arguments")
            .filter(|args| !args.is_null())
            .map(|args| payload::of_message(args.clone(), max_size)),
    })
}

fn tool_result(result: &Json, max_size: usize) -> Option<ConversationResult> {
    Some(ConversationResult {
        call_id: result["origin"]["ToolCall"]["id"].as_str()?.to_owned(),
        result: payload::of_message(result.get("result")?.clone(), max_size),
        failed: result["error"].as_bool(),
    })
}

/// Returns the items of the list `messages`; only those before the cut if the text was cut.
fn messages(text: &str) -> Vec<String> {
    let list = || {
        text.split_once("\"messages\"")?
            .1
            .trim_start()
            .strip_prefix(':')?
            .trim_start()
            .strip_prefix('[')
    };
    let mut rest = list().unwrap_or_default();
    let mut messages = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let Some(Ok(message)) = values.next() else {
            return messages;
        };
        rest = &rest[values.byte_offset()..];
        messages.push(message);
    }
}
