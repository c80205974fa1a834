//! Pure. The Vercel AI SDK's own spans (v6, and v7 with its legacy telemetry). A span in, the call,
//! run or model call it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, View, is, raw, text};
use super::keys;

pub(super) const VERCEL_AI: Convention = Convention {
    name: "vercel_ai",
    marks: keys::bit(keys::AI_OPERATION),
    is_call,
    call,
    agent_run,
    is_model,
};

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::AI_OPERATION, "ai.toolCall")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: text(span, keys::AI_TOOL_NAME),
        call_id: text(span, keys::AI_CALL_ID),
        args: raw(span, keys::AI_ARGS),
        result: raw(span, keys::AI_RESULT),
        agent: text(span, keys::AI_FUNCTION),
        // openinference-vercel copies the first error of a trace onto every later span: the
        // exception event alone tells.
        status_lies: span.get(keys::OI_KIND).is_some(),
        ..Call::default()
    }
}

/// A plain completion looks the same: [`is_plain_completion`] is asked once the spans below are
/// known.
fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    is_run(span).then(|| text(span, keys::AI_FUNCTION).unwrap_or(Cow::Borrowed(span.name())))
}

/// Could this span be a plain completion? It is an agent run only if a tool call lies beneath it or
/// a child offers tools to the model.
pub(super) fn is_run(span: &View<'_>) -> bool {
    is(span, keys::AI_OPERATION, "ai.generateText") || is(span, keys::AI_OPERATION, "ai.streamText")
}

/// Did the model have tools to choose from?
pub(super) fn offers_tools(span: &View<'_>) -> bool {
    span.get(keys::AI_PROMPT_TOOLS).is_some()
}

fn is_model(span: &View<'_>) -> bool {
    span.text(keys::AI_OPERATION).is_some_and(|operation| {
        operation.ends_with(".doGenerate") || operation.ends_with(".doStream")
    })
}
