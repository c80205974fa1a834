//! Pure. VoltAgent: `span.type` marks tools and agents; a sub-agent's spans carry its parent's name
//! beside its own. A span in, the call or run it is out; its one `llm` span covers the whole run,
//! so that it makes no turns.

use std::borrow::Cow;

use super::convention::{Call, Convention, View, first_text, is, no_model, raw, text};
use super::keys;

pub(super) const VOLTAGENT: Convention = Convention {
    name: "voltagent",
    marks: keys::bit(keys::VOLTAGENT_TYPE),
    is_call,
    call,
    agent_run,
    is_model: no_model,
};

const AGENTS: &[crate::span::KeyId] = &[keys::SUBAGENT_NAME, keys::ENTITY_NAME, keys::AGENT_NAME];

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::VOLTAGENT_TYPE, "tool")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: text(span, keys::TOOL_NAME),
        last_name: span.name().strip_prefix("tool.execution:"),
        call_id: text(span, keys::TOOL_CALL_ID),
        // `tool.parameters` is the schema.
        args: raw(span, keys::VOLTAGENT_INPUT),
        result: raw(span, keys::VOLTAGENT_OUTPUT),
        failed: span.get(keys::ERROR_MESSAGE).is_some(),
        agent: first_text(span, AGENTS),
        ..Call::default()
    }
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    is(span, keys::VOLTAGENT_TYPE, "agent")
        .then(|| first_text(span, AGENTS).unwrap_or(Cow::Borrowed(span.name())))
}
