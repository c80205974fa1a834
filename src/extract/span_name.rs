//! Pure. Spans of which nothing but the name tells: `execute_tool X` (Google's ADK for JavaScript drops all attributes of a failed
//! call), `invoke_agent X`. A span in, the call or run it is out.

use std::borrow::Cow;

use crate::span::Span;

use super::convention::{Call, Convention, SPAN_NAME, name_after, no_model};
use super::keys;

pub(super) const SPAN_NAMES: Convention = Convention { name: "span_name", marks: SPAN_NAME, tool_call, agent_run, is_model: no_model };

fn tool_call(span: &Span) -> Option<Call<'_>> {
    let name = name_after(span, "execute_tool")?;
    unmarked(span).then(|| Call { name: Some(Cow::Borrowed(name)), ..Call::default() })
}

fn agent_run(span: &Span) -> Option<Cow<'_, str>> {
    let name = name_after(span, "invoke_agent")?;
    unmarked(span).then_some(Cow::Borrowed(name))
}

fn unmarked(span: &Span) -> bool {
    !span.facts.attributes().any(|attribute| keys::bit(attribute.key) & keys::KINDS != 0)
}
