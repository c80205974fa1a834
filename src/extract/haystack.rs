//! Pure. Haystack under OpenInference: there are no spans of models or tools. The span of an
//! agent's run holds the whole conversation in its output, each message as the `repr` of a
//! `ChatMessage`; what stands in its input too is older than the run. A span in, the agent's run or
//! what was said in it out.

use std::borrow::Cow;

use hashbrown::HashSet;
use serde_json::Value as Json;

use super::convention::{Convention, View, is, is_never_call, no_call, no_model};
use super::keys;
use super::messages::Announced;
use super::payload;
use super::python;
use super::tool_call::Payload;

pub(super) const HAYSTACK: Convention = Convention {
    name: "haystack",
    marks: keys::bit(keys::OI_KIND),
    is_call: is_never_call,
    call: no_call,
    agent_run,
    is_model: no_model,
};

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    is_run(span).then_some(Cow::Borrowed("Agent"))
}

fn is_run(span: &View<'_>) -> bool {
    let converses = |key| span.text(key).is_some_and(is_conversation);
    span.name() == "Agent.run"
        && is(span, keys::OI_KIND, "CHAIN")
        && (converses(keys::OUTPUT_VALUE) || converses(keys::INPUT_VALUE))
}

/// Does this text hold messages?
pub(super) fn is_conversation(text: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), b"ChatMessage(_role=").is_some()
}

/// What was said in a run.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The calls of each of the model's replies; none in one that is mere text.
    pub(super) replies: Vec<Vec<Announced>>,
    /// The tools' answers.
    pub(super) answers: Vec<Answer>,
    /// Its end is missing.
    pub(super) cut: bool,
}

/// What a tool answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) call_id: String,
    pub(super) result: Payload,
    pub(super) failed: bool,
}

/// What was said in the run that this span is.
pub(super) fn conversation(span: &View<'_>, max_size: usize) -> Option<Conversation> {
    let output = span
        .attribute(keys::OUTPUT_VALUE)
        .filter(|_| is_run(span))?;
    let older: HashSet<String> = span
        .text(keys::INPUT_VALUE)
        .into_iter()
        .flat_map(messages)
        .collect();
    let mut conversation = Conversation {
        cut: output.cut,
        ..Conversation::default()
    };
    for message in span
        .text(keys::OUTPUT_VALUE)
        .into_iter()
        .flat_map(messages)
        .filter(|message| !older.contains(message))
    {
        let Some(message) = python::parse_objects(&message) else {
            continue;
        };
        let message = &message["ChatMessage"];
        let contents = || message["_content"].as_array().into_iter().flatten();
        if message["_role"] == "assistant" {
            conversation.replies.push(
                contents()
                    .filter_map(|content| announced(content.get("ToolCall")?, max_size))
                    .collect(),
            );
        }
        conversation.answers.extend(
            contents().filter_map(|content| answer(content.get("ToolCallResult")?, max_size)),
        );
    }
    Some(conversation)
}

fn announced(call: &Json, max_size: usize) -> Option<Announced> {
    Some(Announced {
        name: call["tool_name"].as_str()?.to_owned(),
        call_id: call["id"].as_str().map(str::to_owned),
        args: call
            .get("arguments")
            .filter(|args| !args.is_null())
            .map(|args| payload::of_message(args.clone(), max_size)),
    })
}

fn answer(result: &Json, max_size: usize) -> Option<Answer> {
    Some(Answer {
        call_id: result["origin"]["ToolCall"]["id"].as_str()?.to_owned(),
        result: payload::of_message(result.get("result")?.clone(), max_size),
        failed: result["error"] == Json::Bool(true),
    })
}

/// The items of the list `messages`, up to where the text was cut.
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
