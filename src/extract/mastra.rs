//! Pure. Mastra's exporter: GenAI attributes with a type of its own; pieces of a model's stream
//! carry a tool's name too, and are no calls. A span in, the call it is out; runs and models are
//! recognised by their GenAI marks.

use serde_json::Value as Json;

use super::convention::{
    Call, Convention, View, is, name_after, no_agent_run, no_model, raw, text,
};
use super::keys;
use crate::span::Value;

pub(super) const MASTRA: Convention = Convention {
    name: "mastra",
    marks: keys::bit(keys::MASTRA_TYPE),
    is_call,
    call,
    agent_run: no_agent_run,
    is_model: no_model,
};

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::MASTRA_TYPE, "tool_call") || is(span, keys::MASTRA_TYPE, "mcp_tool_call")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: text(span, keys::GEN_AI_TOOL_NAME),
        last_name: name_after(span, "execute_tool"),
        call_id: text(span, keys::GEN_AI_CALL_ID),
        args: raw(span, keys::GEN_AI_ARGS),
        result: raw(span, keys::GEN_AI_RESULT),
        failed: refused_input(span),
        ..Call::default()
    }
}

/// A call whose input does not fit the tool's schema has the status OK and a result that says so.
fn refused_input(span: &View<'_>) -> bool {
    let Some(Value::Str(text)) = span.get(keys::GEN_AI_RESULT) else {
        return false;
    };
    text.starts_with("{\"error\":true")
        && serde_json::from_str::<Json>(text)
            .is_ok_and(|result| result.get("error") == Some(&Json::Bool(true)))
}
