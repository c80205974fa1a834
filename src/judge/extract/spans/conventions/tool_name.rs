//! Hand-written spans: `tool.name`, or an attribute named in `tools.name_attributes`, on a span
//! without a kind of any convention; `agent.name` for an agent run.

use otlp::span::{KeyBits, KeyId};

use super::super::convention::{Convention, SpanCall};
use super::super::keys;
use super::super::view::View;

/// - Tool call: the span has `tool.name`, or an attribute of `tools.name_attributes`, but no
///   attribute that names a kind of span.
/// - Agent run: the span has `agent.name`, but neither `tool.name`, `gen_ai.tool.name` nor an
///   attribute that names a kind of span.
/// - Name: `tool.name`, or the attribute of `tools.name_attributes`.
pub(super) const TOOL_NAME: Convention = Convention {
    name: "tool_name",
    marks: KeyBits::new(&[keys::TOOL_NAME, keys::AGENT_NAME]),
    is_call: Some(|span| is_named_in(span, keys::TOOL_NAME)),
    call: Some(|span| named_in(span, keys::TOOL_NAME)),
    agent_run: Some(|span| {
        let name = span.text(keys::AGENT_NAME)?;
        let names_tool = span.has(keys::TOOL_NAME) || span.has(keys::GEN_AI_TOOL_NAME);
        (!span.names_kind() && !names_tool).then_some(name)
    }),
    ..Convention::NONE
};

/// Returns true for a span that names its tool in an attribute of the author's choice.
pub(crate) fn is_named_in(span: &View<'_>, key: KeyId) -> bool {
    !span.names_kind() && span.text(key).is_some()
}

pub(crate) fn named_in<'a>(span: &View<'a>, key: KeyId) -> SpanCall<'a> {
    SpanCall {
        name: span.text(key),
        call_id: span.first_text(&[
            keys::TOOL_CALL_ID,
            keys::TOOL_CALL_ID_FLAT,
            keys::OI_CALL_ID,
            keys::TOOL_ID,
        ]),
        args: span.first_raw(&[
            keys::TOOL_ARGUMENTS,
            keys::TOOL_ARGS,
            keys::TOOL_INPUT,
            keys::INPUT_VALUE,
            keys::PLAIN_INPUT,
        ]),
        result: span.first_raw(&[
            keys::TOOL_RESULT,
            keys::TOOL_OUTPUT,
            keys::OUTPUT_VALUE,
            keys::PLAIN_OUTPUT,
        ]),
        ..SpanCall::default()
    }
}
