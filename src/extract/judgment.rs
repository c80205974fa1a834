//! Pure. judgeval: the name of a tool is the span's name alone; every span is exported twice, first
//! when it starts. A span in, the call, run or model call it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, View, is, raw};
use super::keys;

pub(super) const JUDGMENT: Convention = Convention {
    name: "judgment",
    marks: keys::bit(keys::JUDGMENT_KIND),
    is_call,
    call,
    agent_run,
    is_model,
};

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::JUDGMENT_KIND, "tool")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: Some(Cow::Borrowed(span.name())),
        args: raw(span, keys::JUDGMENT_INPUT),
        result: raw(span, keys::JUDGMENT_OUTPUT),
        ..Call::default()
    }
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    is(span, keys::JUDGMENT_KIND, "agent").then_some(Cow::Borrowed(span.name()))
}

fn is_model(span: &View<'_>) -> bool {
    is(span, keys::JUDGMENT_KIND, "llm")
}
