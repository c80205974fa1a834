//! Pure. Hand-written spans: `tool.name`, or an attribute named in `tools.name_attributes`, on a
//! span without a kind of any convention; `agent.name` for an agent run. A span in, the call or run
//! it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, View, first_raw, first_text, no_model, text};
use super::keys;
use crate::span::KeyId;

pub(super) const TOOL_NAME: Convention = Convention {
    name: "tool_name",
    marks: keys::bit(keys::TOOL_NAME) | keys::bit(keys::AGENT_NAME),
    is_call,
    call,
    agent_run,
    is_model: no_model,
};

fn is_call(span: &View<'_>) -> bool {
    is_named_in(span, keys::TOOL_NAME)
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    named_in(span, keys::TOOL_NAME)
}

/// Is this a span that names its tool in an attribute of the author's choice?
pub(super) fn is_named_in(span: &View<'_>, key: KeyId) -> bool {
    !span.has_any(keys::KINDS) && text(span, key).is_some()
}

/// The call of such a span.
pub(super) fn named_in<'a>(span: &View<'a>, key: KeyId) -> Call<'a> {
    Call {
        name: text(span, key),
        call_id: first_text(
            span,
            &[
                keys::TOOL_CALL_ID,
                keys::TOOL_CALL_ID_FLAT,
                keys::OI_CALL_ID,
                keys::TOOL_ID,
            ],
        ),
        args: first_raw(
            span,
            &[
                keys::TOOL_ARGUMENTS,
                keys::TOOL_ARGS,
                keys::TOOL_INPUT,
                keys::INPUT_VALUE,
                keys::VOLTAGENT_INPUT,
            ],
        ),
        result: first_raw(
            span,
            &[
                keys::TOOL_RESULT,
                keys::TOOL_OUTPUT,
                keys::OUTPUT_VALUE,
                keys::VOLTAGENT_OUTPUT,
            ],
        ),
        ..Call::default()
    }
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    let name = text(span, keys::AGENT_NAME)?;
    (!span.has_any(keys::KINDS) && !span.has(keys::TOOL_NAME) && !span.has(keys::GEN_AI_TOOL_NAME))
        .then_some(name)
}
