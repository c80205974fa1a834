//! Pure. Genkit: tools, models and flows share the key of their name, so that the subtype alone tells them apart; a failed tool fails all
//! spans above it too. A span in, the call, run or model call it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, is, raw, text};
use super::keys;
use crate::span::Span;

pub(super) const GENKIT: Convention = Convention { name: "genkit", marks: keys::bit(keys::GENKIT_SUBTYPE), tool_call, agent_run, is_model };

fn tool_call(span: &Span) -> Option<Call<'_>> {
    is(span, keys::GENKIT_SUBTYPE, "tool").then(|| Call {
        name: text(span, keys::GENKIT_NAME),
        last_name: Some(span.name()),
        args: raw(span, keys::GENKIT_INPUT),
        result: raw(span, keys::GENKIT_OUTPUT),
        failed: is(span, keys::GENKIT_STATE, "error"),
        ..Call::default()
    })
}

fn agent_run(span: &Span) -> Option<Cow<'_, str>> {
    is(span, keys::GENKIT_SUBTYPE, "flow").then(|| text(span, keys::GENKIT_NAME).unwrap_or(Cow::Borrowed(span.name())))
}

fn is_model(span: &Span) -> bool {
    is(span, keys::GENKIT_SUBTYPE, "model")
}
