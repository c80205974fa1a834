//! Spans that are identified only by their names: `execute_tool X` (Google's ADK for JavaScript
//! drops all attributes of a failed call), `invoke_agent X`.

use std::borrow::Cow;

use super::super::convention::{Convention, SpanCall};
use super::super::view::{View, name_after};

/// - Tool call: the span's name is `execute_tool X`, and no attribute names a kind of span.
/// - Agent run: the span's name is `invoke_agent X`, and no attribute names a kind of span.
pub(super) const SPAN_NAMES: Convention = Convention {
    name: "span_name",
    span_names: &["execute_tool", "invoke_agent"],
    is_call: Some(|span| tool_name(span).is_some() && !span.names_kind()),
    call: Some(|span| SpanCall {
        name: tool_name(span).map(Cow::Borrowed),
        ..SpanCall::default()
    }),
    agent_run: Some(|span| {
        let name = name_after(span.name(), "invoke_agent")?;
        (!span.names_kind()).then_some(Cow::Borrowed(name))
    }),
    ..Convention::NONE
};

fn tool_name<'a>(span: &View<'a>) -> Option<&'a str> {
    name_after(span.name(), "execute_tool")
}
