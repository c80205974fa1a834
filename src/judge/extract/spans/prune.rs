//! Prunes arriving spans, so that the memory of an open trace depends on its calls, not on its
//! prompts. Drops the inputs of spans that are not calls, the outputs of spans that are neither
//! calls nor runs (except replies with calls), and all messages of a model's request except new
//! tool results. The `Prune` rules of conventions take precedence.

use otlp::span::{Attribute, SpanClass, StoredAttributesBuilder, Value, cut_at_char};
use smallvec::SmallVec;

use super::conventions::{ConventionId, prunes};
use super::keys;
use super::view::View;
use crate::extract::values::messages::{NewMessages, may_announce, new_messages};

/// Decides which long values and events of a span that is not a tool call are stored. The returned
/// function prunes the span; it also cuts results longer than `max_value_size`, except in a model
/// span or in a span that records a whole run.
pub(super) fn pruning(
    view: &View<'_>,
    class: SpanClass,
    max_value_size: usize,
) -> impl FnOnce(&mut StoredAttributesBuilder) + use<> {
    let run = ConventionId::from_number(class.recognition.agent);
    let has_run = run.is_some_and(|convention| convention.get().conversation.is_some());
    let requests = Requests::new(view);
    let rules: SmallVec<[_; 2]> = prunes()
        .filter(|rule| (rule.applies_to)(view, class))
        .collect();
    move |kept| {
        kept.retain(
            keys::is_payload,
            |attribute| {
                let rule = rules.iter().find(|rule| rule.key == attribute.key);
                if let (Some(rule), Value::Str(text)) = (rule, attribute.value) {
                    let value = Value::Str((rule.shorten)(text)?);
                    return Some(Attribute { value, ..attribute });
                }
                let kept = payload(attribute, class, requests)?;
                let is_reply = class.model || has_run;
                Some(if is_reply { kept } else { with_short_result(kept, max_value_size) })
            },
            // Some SDKs repeat the whole conversation in events; only `gen_ai.choice` is the
            // model's answer.
            |event| class.model && event == keys::CHOICE,
        );
    }
}

/// Cuts the results of a call to `max_size` bytes. The scan does not cut long values that mention
/// tools, because they may be a model's reply.
pub(super) fn cut_results(kept: &mut StoredAttributesBuilder, max_size: usize) {
    if kept.current_size() > max_size {
        kept.retain(
            keys::is_result,
            |attribute| Some(with_short_result(attribute, max_size)),
            |_| true,
        );
    }
}

fn with_short_result(attribute: Attribute<'_>, max_size: usize) -> Attribute<'_> {
    let short = match attribute.value {
        Value::Str(text) | Value::Json(text) if text.len() > max_size => {
            text.get(..cut_at_char(text.as_bytes(), max_size).len())
        }
        _ => None,
    };
    let Some(short) = short.filter(|_| keys::is_result(attribute.key)) else {
        return attribute;
    };
    Attribute {
        value: match attribute.value {
            Value::Json(_) => Value::Json(short),
            _ => Value::Str(short),
        },
        cut: true,
        ..attribute
    }
}

fn payload(
    attribute: Attribute<'_>,
    class: SpanClass,
    requests: Requests,
) -> Option<Attribute<'_>> {
    let is_kept = match attribute.key {
        keys::INPUT_MESSAGES => {
            let is_kept = class.model && !requests.request_is_copied;
            return is_kept.then(|| new_results(attribute))?;
        }
        keys::OUTPUT_MESSAGES => class.model && !requests.reply_is_copied,
        keys::OI_INPUT_MESSAGES => {
            class.model
                && flattened_message(attribute)
                    .is_some_and(|(idx, field)| idx >= requests.first_new && is_tool_field(field))
        }
        keys::LOST_REQUEST => class.model && !requests.follow_answer,
        keys::LOST_REPLY => class.model || class.agent_run,
        keys::OI_OUTPUT_ROLE => class.model && requests.reply_is_lost,
        key if keys::is_message(key) => class.model,
        key if keys::is_result(key) => {
            class.agent_run
                || class.model
                    && matches!(
                        attribute.value,
                        Value::Str(text) | Value::Json(text) if may_announce(text)
                    )
        }
        _ => false,
    };
    is_kept.then_some(attribute)
}

/// Returns the messages after the model's last answer, without the list's brackets, because
/// `gen_ai.input.messages` repeats the whole conversation. The value is marked as cut if a message
/// may be missing.
fn new_results(attribute: Attribute<'_>) -> Option<Attribute<'_>> {
    let (Value::Str(text) | Value::Json(text)) = attribute.value else {
        return None;
    };
    let Some(new) = new_messages(text) else {
        return Some(attribute);
    };
    let cut = !new.is_whole || (attribute.cut && !new.follow_answer);
    let rest = text.get(new.start..new.end)?;
    (cut || may_announce(rest)).then_some(Attribute {
        value: Value::Str(rest),
        cut,
        ..attribute
    })
}

/// The state of a model span's messages, derived from all its attributes.
#[derive(Debug, Clone, Copy)]
struct Requests {
    /// Index of the first new flattened message: the message after the model's last answer.
    first_new: usize,
    /// True if the stored messages include an answer, so that no message after the answer is
    /// missing.
    follow_answer: bool,
    /// True if a part of the reply is missing.
    reply_is_lost: bool,
    /// True if the flattened messages are complete. Messages under OpenTelemetry's keys are then
    /// copies by a normaliser.
    request_is_copied: bool,
    reply_is_copied: bool,
}

impl Requests {
    fn new(span: &View<'_>) -> Self {
        let has = |key| span.has(key);
        let reply_is_lost = has(keys::LOST_REPLY);
        let mut requests = Self {
            first_new: 0,
            follow_answer: false,
            reply_is_lost,
            request_is_copied: has(keys::OI_INPUT_MESSAGES) && !has(keys::LOST_REQUEST),
            reply_is_copied: has(keys::OI_OUTPUT_ROLE) && !reply_is_lost,
        };
        if !has(keys::INPUT_MESSAGES) && !has(keys::OI_INPUT_MESSAGES) {
            return requests;
        }
        for attribute in span.attributes() {
            match (attribute.key, attribute.value) {
                (keys::OI_INPUT_MESSAGES, Value::Str("assistant")) => {
                    if let Some((idx, "role")) = flattened_message(attribute) {
                        requests.first_new = requests.first_new.max(idx + 1);
                        requests.follow_answer = true;
                    }
                }
                (keys::INPUT_MESSAGES, Value::Str(text) | Value::Json(text)) if attribute.cut => {
                    requests.follow_answer |= matches!(
                        new_messages(text),
                        Some(NewMessages {
                            follow_answer: true,
                            is_whole: true,
                            ..
                        })
                    );
                }
                _ => {}
            }
        }
        requests
    }
}

/// Parses a flattened key: `3.message.tool_call_id` is the field `tool_call_id` of message 3.
fn flattened_message(attribute: Attribute<'_>) -> Option<(usize, &str)> {
    let (idx, field) = attribute.suffix.split_once(".message.")?;
    Some((idx.parse().ok()?, field))
}

fn is_tool_field(field: &str) -> bool {
    matches!(
        field,
        "tool_call_id" | "content" | "contents.0.message_content.text"
    )
}
