//! Pure. Spans of which nothing but the name tells: `execute_tool X` (Google's ADK for JavaScript drops all attributes of a failed
//! call), `invoke_agent X`. A span in, the call or run it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, SPAN_NAME, View, name_after, no_model};
use super::keys;

pub(super) const SPAN_NAMES: Convention = Convention { name: "span_name", marks: SPAN_NAME, tool_call, agent_run, is_model: no_model };

fn tool_call<'a>(span: &View<'a>) -> Option<Call<'a>> {
    let name = name_after(span, "execute_tool")?;
    (!span.has_any(keys::KINDS)).then(|| Call { name: Some(Cow::Borrowed(name)), ..Call::default() })
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    let name = name_after(span, "invoke_agent")?;
    (!span.has_any(keys::KINDS)).then_some(Cow::Borrowed(name))
}
