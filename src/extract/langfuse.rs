//! Pure. The Langfuse SDK: the name of a tool is the span's name alone. A span in, the call, run or
//! model call it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, View, first_text, is, raw, text};
use super::keys;

pub(super) const LANGFUSE: Convention = Convention {
    name: "langfuse",
    marks: keys::bit(keys::LANGFUSE_TYPE),
    is_call,
    call,
    agent_run,
    is_model,
};

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::LANGFUSE_TYPE, "tool")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: Some(Cow::Borrowed(span.name())),
        call_id: text(span, keys::LANGFUSE_CALL_ID),
        args: raw(span, keys::LANGFUSE_INPUT),
        result: raw(span, keys::LANGFUSE_OUTPUT),
        ..Call::default()
    }
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    // The trace's agent is the root's: below it each agent has its own name.
    let names = [keys::LANGFUSE_AGENT, keys::LANGFUSE_TRACE_AGENT];
    is(span, keys::LANGFUSE_TYPE, "agent")
        .then(|| first_text(span, &names).unwrap_or(Cow::Borrowed(span.name())))
}

fn is_model(span: &View<'_>) -> bool {
    is(span, keys::LANGFUSE_TYPE, "generation")
}
