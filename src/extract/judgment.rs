//! Pure. judgeval: the name of a tool is the span's name alone; every span is exported twice, first when it starts. A span in, the call,
//! run or model call it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, is, raw};
use super::keys;
use crate::span::Span;

pub(super) const JUDGMENT: Convention =
    Convention { name: "judgment", marks: keys::bit(keys::JUDGMENT_KIND), tool_call, agent_run, is_model };

fn tool_call(span: &Span) -> Option<Call<'_>> {
    is(span, keys::JUDGMENT_KIND, "tool").then(|| Call {
        name: Some(Cow::Borrowed(span.name())),
        args: raw(span, keys::JUDGMENT_INPUT),
        result: raw(span, keys::JUDGMENT_OUTPUT),
        ..Call::default()
    })
}

fn agent_run(span: &Span) -> Option<Cow<'_, str>> {
    is(span, keys::JUDGMENT_KIND, "agent").then_some(Cow::Borrowed(span.name()))
}

fn is_model(span: &Span) -> bool {
    is(span, keys::JUDGMENT_KIND, "llm")
}
