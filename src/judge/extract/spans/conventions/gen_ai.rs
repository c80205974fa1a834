//! The OpenTelemetry conventions for generative AI: pydantic-ai, Vercel AI SDK v7, Strands,
//! ADK, AutoGen, AG2, Microsoft's agent framework and others.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::super::convention::{Convention, OwnRoles, SpanCall};
use super::super::key_bits::KeyBits;
use super::super::keys;
use super::super::view::{View, event_value, is_word, name_after};
use crate::extract::values::Envelope;

/// - Tool call: `gen_ai.operation.name` is `execute_tool` or `tool_call`; or `gen_ai.tool.name` is
///   there, and no attribute that names a kind of span.
/// - Agent run: `gen_ai.operation.name` is `invoke_agent`. The agent is `gen_ai.agent.name`,
///   `gen_ai.agent.id`, or follows `invoke_agent` in the span's name.
/// - Model call: `gen_ai.operation.name` is `chat`, `generate_content` or `text_completion`.
/// - Arguments: `gen_ai.tool.call.arguments`, `gcp.vertex.agent.tool_call_args`; else `content` of
///   the event `gen_ai.tool.message`.
/// - Result: `gen_ai.tool.call.result`, `gcp.vertex.agent.tool_response`; else `message` of the
///   event `gen_ai.choice`. A result beside `gcp.vertex.agent.event_id` is unwrapped from
///   `{"result": …}`; one beside `gen_ai.tool.status` or `tool.status`, or in an event, from its
///   content blocks.
/// - Error: `gen_ai.tool.status` or `tool.status` is `error`, `gen_ai.task.status` is `failure`, or
///   the result is the answer of ADK's plugin for retries.
pub(super) const GEN_AI: Convention = Convention {
    name: "gen_ai",
    marks: KeyBits::new(&[keys::OPERATION, keys::GEN_AI_TOOL_NAME]),
    written_by_many: true,
    roles: Some(roles),
    call: Some(call),
    agent_run: Some(agent_run),
    ..Convention::NONE
};

fn roles(span: &View<'_>) -> OwnRoles {
    let Some(operation) = span.str(keys::OPERATION) else {
        return OwnRoles {
            // Older pydantic-ai spans name the tool and no operation.
            call: span.has(keys::GEN_AI_TOOL_NAME) && !span.names_kind(),
            ..OwnRoles::default()
        };
    };
    OwnRoles {
        // Gemini's command line says `tool_call`.
        call: matches!(operation, "execute_tool" | "tool_call"),
        agent_run: is_word(operation, AGENT_RUN),
        model: matches!(operation, "chat" | "generate_content" | "text_completion"),
    }
}

const AGENT_RUN: &str = "invoke_agent";

fn call<'a>(span: &View<'a>) -> SpanCall<'a> {
    // Taken literally: OpenTelemetry puts no quotes around a name, so quotes that are there belong
    // to it.
    let literal_name = span.str(keys::GEN_AI_TOOL_NAME);
    let literal_name = literal_name.filter(|name| !name.trim_start().is_empty());
    let mut call = SpanCall {
        name: literal_name
            .map(Cow::Borrowed)
            .or_else(|| span.text(keys::GEN_AI_TOOL_NAME)),
        poor_name: match literal_name {
            Some(_) => None,
            None => name_after(span.name(), "execute_tool"),
        },
        call_id: span.text(keys::GEN_AI_CALL_ID),
        args: span.first_raw(&[keys::GEN_AI_ARGS, keys::ADK_ARGS]),
        result: span.first_raw(&[keys::GEN_AI_RESULT, keys::ADK_RESULT]),
        failed: span.is(keys::TOOL_STATUS, "error") || span.is(keys::TASK_STATUS, "failure"),
        ..SpanCall::default()
    };
    // A span of ADK's does not fail when its plugin for retries answers in the tool's place.
    call.failed |= [keys::ADK_RESULT, keys::GEN_AI_RESULT]
        .into_iter()
        .filter_map(|key| span.str(key))
        .any(is_guidance_to_retry);
    // Google's ADK wraps any result that is no object, in Python and in JavaScript.
    let is_adk_result = !span.has(keys::GEN_AI_RESULT) && call.result.is_some();
    if is_adk_result || span.has(keys::ADK_EVENT) {
        call.result_in = Envelope::Result;
    }
    // Strands answers with content blocks, in an attribute or in an event.
    if span.has(keys::TOOL_STATUS) || span.has(keys::PLAIN_TOOL_STATUS) {
        call.result_in = Envelope::Blocks;
    }
    for event in span.events() {
        match event.name {
            keys::TOOL_MESSAGE if call.args.is_none() => {
                call.args = event_value(event, keys::CONTENT);
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

/// The answer of ADK's `ReflectAndRetryToolPlugin` for a tool that failed. A text search, since the
/// end of the answer may be cut off.
fn is_guidance_to_retry(result: &str) -> bool {
    // It is an object: a result in prose need not be searched.
    let is_object = result.trim_start().starts_with('{');
    let mut words = GUIDANCE_TO_RETRY.iter();
    is_object && words.all(|word| word.find(result.as_bytes()).is_some())
}

// Made once: making one takes a thousand instructions.
static GUIDANCE_TO_RETRY: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| {
    [
        "\"ERROR_HANDLED_BY_REFLECT_AND_RETRY_PLUGIN\"",
        "\"response_type\"",
    ]
    .map(Finder::new)
});

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    span.text(keys::GEN_AI_AGENT)
        .or_else(|| span.text(keys::GEN_AI_AGENT_ID))
        .or_else(|| name_after(span.name(), AGENT_RUN).map(Cow::Borrowed))
        .or(Some(Cow::Borrowed(span.name())))
}
