//! Pure. Prunes a span on arrival to what its judgement may read: drops inputs and outputs of spans
//! that are no calls, and all of a model's request but the tool results that are new in it. So an
//! open trace costs by its calls, not by its prompts.

use super::conventions::prunes;
use super::keys;
use crate::extract::values::messages::may_announce;
use crate::span::SpanClass;
use crate::span::{Attribute, KeptAttributes, Span, Value};

/// Prunes a span by what it was recognised as. Called once for each span that arrives, after
/// [`classify`](super::recognise::classify).
pub fn prune(span: &mut Span, class: SpanClass) {
    let has_events = || span.kept.events().next().is_some();
    if class.tool_call || !(span.kept.keys().any(keys::is_payload) || has_events()) {
        return;
    }
    let first_new = first_new_message(&span.kept);
    let rules: smallvec::SmallVec<[_; 2]> = prunes()
        .filter(|rule| (rule.applies_to)(span, class))
        .collect();
    span.kept.retain(
        |attribute| {
            let rule = rules.iter().find(|rule| rule.key == attribute.key);
            match (rule, attribute.value) {
                (Some(rule), Value::Str(text)) => (rule.keep)(text).map(|text| Attribute {
                    value: Value::Str(text),
                    ..attribute
                }),
                _ if keys::is_payload(attribute.key) => {
                    payload(attribute, class.model, class.agent_run, first_new)
                }
                _ => Some(attribute),
            }
        },
        // Some SDKs repeat the whole conversation in events; the model's answer is the
        // `gen_ai.choice`.
        |event| class.model && event == keys::CHOICE,
    );
}

/// Prunes a log record with messages like a model's span.
pub(super) fn prune_messages(kept: &mut KeptAttributes) {
    if !kept.keys().any(keys::is_payload) {
        return;
    }
    let first_new = first_new_message(kept);
    kept.retain(
        |attribute| {
            if keys::is_payload(attribute.key) {
                payload(attribute, true, false, first_new)
            } else {
                Some(attribute)
            }
        },
        |_| false,
    );
}

fn payload(
    attribute: Attribute<'_>,
    is_model: bool,
    is_agent_run: bool,
    first_new: usize,
) -> Option<Attribute<'_>> {
    let is_kept = match attribute.key {
        keys::INPUT_MESSAGES => return is_model.then(|| new_results(attribute))?,
        keys::OI_INPUT_MESSAGES => {
            is_model
                && flattened_message(attribute)
                    .is_some_and(|(idx, field)| idx >= first_new && is_tool_field(field))
        }
        key if keys::is_message(key) => is_model,
        key if keys::is_result(key) => {
            is_agent_run
                || is_model
                    && matches!(
                        attribute.value,
                        Value::Str(text) | Value::Json(text) if may_announce(text)
                    )
        }
        _ => false,
    };
    is_kept.then_some(attribute)
}

/// The part of `gen_ai.input.messages`, which repeat the whole conversation, that follows the
/// model's last answer. Nothing of messages that were cut at their end.
fn new_results(attribute: Attribute<'_>) -> Option<Attribute<'_>> {
    let (Value::Str(text) | Value::Json(text)) = attribute.value else {
        return None;
    };
    if attribute.cut {
        return None;
    }
    let last_answer = memchr::memmem::rfind(text.as_bytes(), b"\"assistant\"").unwrap_or_default();
    let Some(next) = memchr::memmem::find(&text.as_bytes()[last_answer..], b"{\"role\"") else {
        return Some(attribute);
    };
    let rest = text.get(last_answer + next..)?;
    may_announce(rest).then_some(Attribute {
        value: Value::Str(rest),
        ..attribute
    })
}

/// The first of the flattened messages that is new: the one after the model's last answer.
fn first_new_message(kept: &KeptAttributes) -> usize {
    (kept.attributes())
        .filter(|attribute| {
            attribute.key == keys::OI_INPUT_MESSAGES && attribute.value == Value::Str("assistant")
        })
        .filter_map(flattened_message)
        .map(|(idx, _)| idx + 1)
        .max()
        .unwrap_or_default()
}

/// `3.message.tool_call_id` is the field `tool_call_id` of message 3.
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
