//! Pure. A span with its mark in, the same without what nobody will read out: inputs and outputs of
//! what is no call, and all of a model's request but the tool results that are new in it. So that
//! an open trace costs by its calls, not by its prompts.

use super::autogen;
use super::haystack;
use super::keys;
use super::llama_index;
use super::messages;
use crate::assemble::Mark;
use crate::span::{Attribute, Span, Value};

/// Lets go of what a span turned out not to need. Asked once for each span that arrives, after
/// [`mark`](super::mark()).
pub fn slim(span: &mut Span, mark: Mark) {
    let has_events = || span.kept.events().next().is_some();
    if mark.tool_call || !(span.kept.keys().any(keys::is_payload) || has_events()) {
        return;
    }
    // What a model's log record holds is what a model's span would.
    let mark = Mark {
        model: mark.model || mark.record,
        ..mark
    };
    let new_messages = new_messages(span);
    let begins_turn = llama_index::begins_turn(span.name());
    let hands_on = autogen::hands_on(span);
    span.kept.retain(
        |attribute| match attribute.value {
            Value::Str(text) if begins_turn && attribute.key == keys::INPUT_VALUE => {
                llama_index::name_in(text).map(|name| Attribute {
                    value: Value::Str(name),
                    ..attribute
                })
            }
            Value::Str(text) if mark.agent_run && attribute.key == keys::INPUT_VALUE => {
                haystack::is_conversation(text).then_some(attribute)
            }
            Value::Str(text) if hands_on && attribute.key == keys::MESSAGE => {
                messages::may_announce(text).then_some(attribute)
            }
            _ if keys::is_payload(attribute.key) => wanted(attribute, mark, new_messages),
            _ => Some(attribute),
        },
        // Strands repeats the whole conversation in events; what the model answered is the
        // `gen_ai.choice`.
        |event| mark.model && event == keys::CHOICE,
    );
}

fn wanted(attribute: Attribute<'_>, mark: Mark, new_messages: usize) -> Option<Attribute<'_>> {
    let is_wanted = match attribute.key {
        keys::INPUT_MESSAGES => return mark.model.then(|| new_results(attribute))?,
        keys::OI_INPUT_MESSAGES => {
            mark.model
                && message_idx(attribute).is_some_and(|(message_idx, field)| {
                    message_idx >= new_messages && is_tool_field(field)
                })
        }
        key if keys::is_message(key) => mark.model,
        key if keys::is_result(key) => {
            let may_announce = |value: Value<'_>| matches!(value, Value::Str(text) | Value::Json(text) if messages::may_announce(text));
            mark.agent_run || (mark.model && may_announce(attribute.value))
        }
        _ => false,
    };
    is_wanted.then_some(attribute)
}

/// Of `gen_ai.input.messages`, which repeat the whole conversation, what follows the model's last
/// word. Of messages cut at their end nothing.
fn new_results(attribute: Attribute<'_>) -> Option<Attribute<'_>> {
    let (Value::Str(text) | Value::Json(text)) = attribute.value else {
        return None;
    };
    if attribute.cut {
        return None;
    }
    let last_word = memchr::memmem::rfind(text.as_bytes(), b"\"assistant\"").unwrap_or_default();
    let Some(next) = memchr::memmem::find(&text.as_bytes()[last_word..], b"{\"role\"") else {
        return Some(attribute);
    };
    let rest = text.get(last_word + next..)?;
    messages::may_announce(rest).then_some(Attribute {
        value: Value::Str(rest),
        ..attribute
    })
}

/// The first of the flattened messages that is new: the one after the model's last word.
fn new_messages(span: &Span) -> usize {
    (span.kept.attributes())
        .filter(|attribute| {
            attribute.key == keys::OI_INPUT_MESSAGES && attribute.value == Value::Str("assistant")
        })
        .filter_map(message_idx)
        .map(|(message_idx, _)| message_idx + 1)
        .max()
        .unwrap_or_default()
}

fn message_idx(attribute: Attribute<'_>) -> Option<(usize, &str)> {
    let (message_idx, field) = attribute.suffix.split_once(".message.")?;
    Some((message_idx.parse().ok()?, field))
}

fn is_tool_field(field: &str) -> bool {
    matches!(
        field,
        "tool_call_id" | "content" | "contents.0.message_content.text"
    )
}
