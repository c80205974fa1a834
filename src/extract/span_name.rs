//! Pure. Spans of which nothing but the name tells: `execute_tool X` (Google's ADK for JavaScript
//! drops all attributes of a failed call), `invoke_agent X`. A span in, the call or run it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, SPAN_NAME, View, name_after, no_model};
use super::keys;

pub(super) const SPAN_NAMES: Convention = Convention {
    name: "span_name",
    marks: SPAN_NAME,
    is_call,
    call,
    agent_run,
    is_model: no_model,
};

fn is_call(span: &View<'_>) -> bool {
    name_after(span, "execute_tool").is_some() && !span.has_any(keys::KINDS)
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: name_after(span, "execute_tool").map(Cow::Borrowed),
        ..Call::default()
    }
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    let name = name_after(span, "invoke_agent")?;
    (!span.has_any(keys::KINDS)).then_some(Cow::Borrowed(name))
}
