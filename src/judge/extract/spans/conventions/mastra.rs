//! Mastra's exporter: GenAI attributes and Mastra's own span type. Spans for pieces of a model's
//! stream also name a tool, but are not calls. Runs and models are recognised by their GenAI
//! attributes.

use otlp::span::KeyBits;
use serde_json::Value as Json;

use super::super::convention::{Convention, Kinds};
use super::super::keys;
use super::super::view::{View, name_after};

/// - Error: `gen_ai.tool.call.result` begins with `{"error":true`.
pub(super) const MASTRA: Convention = Convention {
    name: "mastra",
    marks: KeyBits::new(&[keys::MASTRA_TYPE]),
    kinds: Kinds {
        kind: Some(keys::MASTRA_TYPE),
        tool: &["tool_call", "mcp_tool_call"],
        name: &[keys::GEN_AI_TOOL_NAME],
        poor_name_in_span: Some(|name| name_after(name, "execute_tool")),
        call_id: &[keys::GEN_AI_CALL_ID],
        args: &[keys::GEN_AI_ARGS],
        result: &[keys::GEN_AI_RESULT],
        failed: Some(refused_input),
        ..Kinds::NONE
    },
    ..Convention::NONE
};

/// Returns true for a call whose input does not match the tool's schema: it has the status OK, and
/// an error as its result.
fn refused_input(span: &View<'_>) -> bool {
    span.str(keys::GEN_AI_RESULT).is_some_and(|text| {
        text.starts_with("{\"error\":true")
            && serde_json::from_str::<Json>(text)
                .is_ok_and(|result| result.get("error") == Some(&Json::Bool(true)))
    })
}
