//! Pure. The OpenTelemetry conventions for generative AI: pydantic-ai, Vercel AI SDK v7, Strands,
//! ADK, AutoGen, AG2, Microsoft's agent framework and others. A span in, the call, run or model
//! call it is out.

use std::borrow::Cow;

use crate::span::{Event, KeyId, Value};

use super::convention::{
    Call, Convention, Envelope, Raw, View, first_raw, is, name_after, raw, text,
};
use super::keys;

pub(super) const GEN_AI: Convention = Convention {
    name: "gen_ai",
    marks: keys::bit(keys::OPERATION) | keys::bit(keys::GEN_AI_TOOL_NAME),
    is_call,
    call,
    agent_run,
    is_model,
};

fn is_call(span: &View<'_>) -> bool {
    match span.text(keys::OPERATION) {
        // Gemini's command line says `tool_call`.
        Some(operation) => operation == "execute_tool" || operation == "tool_call",
        // Older pydantic-ai spans name the tool and no operation.
        None => span.has(keys::GEN_AI_TOOL_NAME) && !span.has_any(keys::KINDS),
    }
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    let mut call = Call {
        // As it stands: OpenTelemetry puts no quotes around a name, so quotes that are there belong
        // to it.
        name: (span
            .text(keys::GEN_AI_TOOL_NAME)
            .filter(|name| !name.trim_start().is_empty())
            .map(Cow::Borrowed))
        .or_else(|| text(span, keys::GEN_AI_TOOL_NAME)),
        last_name: name_after(span, "execute_tool"),
        call_id: text(span, keys::GEN_AI_CALL_ID),
        args: first_raw(span, &[keys::GEN_AI_ARGS, keys::ADK_ARGS]),
        result: first_raw(span, &[keys::GEN_AI_RESULT, keys::ADK_RESULT]),
        failed: is(span, keys::TOOL_STATUS, "error") || is(span, keys::TASK_STATUS, "failure"),
        ..Call::default()
    };
    // Google's ADK wraps what is no object, in Python and in JavaScript.
    if (raw(span, keys::GEN_AI_RESULT).is_none() && call.result.is_some())
        || span.has(keys::ADK_EVENT)
    {
        call.result_in = Envelope::Result;
    }
    // Strands answers with content blocks, in an attribute or in an event.
    if span.has(keys::TOOL_STATUS) {
        call.result_in = Envelope::Blocks;
    }
    for event in span.events() {
        match event.name {
            keys::TOOL_MESSAGE if call.args.is_none() => {
                call.args = event_value(event, keys::CONTENT)
            }
            keys::CHOICE if call.result.is_none() => {
                call.result = event_value(event, keys::MESSAGE);
                call.result_in = Envelope::Blocks;
            }
            _ => {}
        }
    }
    call
}

fn event_value(event: Event<'_>, key: KeyId) -> Option<Raw<'_>> {
    let attribute = event.attributes().find(|attribute| attribute.key == key)?;
    Some(Raw {
        value: attribute.value,
        cut: attribute.cut,
        plain: false,
    })
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    if !is(span, keys::OPERATION, "invoke_agent") {
        return None;
    }
    text(span, keys::GEN_AI_AGENT)
        .or_else(|| text(span, keys::GEN_AI_AGENT_ID))
        .or_else(|| name_after(span, "invoke_agent").map(Cow::Borrowed))
        .or(Some(Cow::Borrowed(span.name())))
}

fn is_model(span: &View<'_>) -> bool {
    matches!(
        span.get(keys::OPERATION),
        Some(Value::Str("chat" | "generate_content" | "text_completion"))
    )
}
