//! Pure. Genkit: tools, models and flows share the key of their name, so that the subtype alone
//! tells them apart; a failed tool fails all spans above it too. A span in, the call, run or model
//! call it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, View, is, raw, text};
use super::keys;

pub(super) const GENKIT: Convention = Convention {
    name: "genkit",
    marks: keys::bit(keys::GENKIT_SUBTYPE),
    is_call,
    call,
    agent_run,
    is_model,
};

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::GENKIT_SUBTYPE, "tool")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: text(span, keys::GENKIT_NAME),
        last_name: Some(span.name()),
        args: raw(span, keys::GENKIT_INPUT),
        result: raw(span, keys::GENKIT_OUTPUT),
        failed: is(span, keys::GENKIT_STATE, "error"),
        ..Call::default()
    }
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    is(span, keys::GENKIT_SUBTYPE, "flow")
        .then(|| text(span, keys::GENKIT_NAME).unwrap_or(Cow::Borrowed(span.name())))
}

fn is_model(span: &View<'_>) -> bool {
    is(span, keys::GENKIT_SUBTYPE, "model")
}
