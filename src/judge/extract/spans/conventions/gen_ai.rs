//! The OpenTelemetry conventions for generative AI, with the variants of LiteLLM and of
//! normalisers: processors that copy a product's attributes to these conventions.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use otlp::span::{KeyBits, Value};

use super::super::convention::{
    Convention, OwnRoles, RecognisedSpan, RecognisedSpans, Refine, SpanCall, SpanIdx,
};
use super::super::keys;
use super::super::view::{View, event_value, is_word, name_after};
use super::openinference::bare_name;
use crate::extract::values::{Envelope, Raw};

/// The OpenTelemetry conventions for generative AI: pydantic-ai, Vercel AI SDK v7, Strands, ADK,
/// AutoGen, AG2, Microsoft's agent framework and others. If a span also has
/// `openinference.span.kind` or `traceloop.span.kind`, `gen_ai.operation.name` is only a copy, and
/// is ignored.
///
/// - Tool call: `gen_ai.operation.name` is `execute_tool` or `tool_call`; or the span has
///   `gen_ai.tool.name`, but neither `tool.name` nor an attribute that names a kind of span. Not a
///   call if `gen_ai.transfer.mode` is `pass_control` and `tools.handoffs` is `auto`.
/// - Agent run: `gen_ai.operation.name` is `invoke_agent`. LiteLLM overwrites the operation with
///   `chat`; for agent runs and tool calls, the operation at the start of the span's name is then
///   used. The agent is `gen_ai.agent.name`, `gen_ai.agent.id`, or follows `invoke_agent` in the
///   span's name; a run without any of them has the agent of the run above. `invoke_workflow` is
///   also a run unless an agent run is inside or above it; its name is `gen_ai.workflow.name`.
/// - Model call: `gen_ai.operation.name` is `chat`, `generate_content` or `text_completion`.
/// - Arguments: `gen_ai.tool.call.arguments`, `gcp.vertex.agent.tool_call_args`, `input.value`;
///   else `gen_ai.input.messages`, if it contains an object; else `content` of the event
///   `gen_ai.tool.message`.
/// - Result: `gen_ai.tool.call.result`, `gcp.vertex.agent.tool_response`,
///   `anthropic.tool_result.content`; else `gen_ai.output.messages`, if it contains an object; else
///   `message` of the event `gen_ai.choice`. With `gcp.vertex.agent.event_id`, or from
///   `gcp.vertex.agent.tool_response`, it is unwrapped from `{"result": …}`. If the span has
///   `gen_ai.tool.status` or `tool.status`, or the result is in `anthropic.tool_result.content` or
///   in an event, it is unwrapped from its content blocks.
/// - Error: `gen_ai.tool.status` or `tool.status` is `error`, `gen_ai.task.status` is `failure`, or
///   the result is the answer of ADK's plugin for retries.
pub(super) const GEN_AI: Convention = Convention {
    name: "gen_ai",
    marks: KeyBits::new(&[keys::OPERATION, keys::GEN_AI_TOOL_NAME]),
    written_by_many: true,
    roles: Some(roles),
    call: Some(call),
    agent_run: Some(agent_run),
    refine: Some(Refine {
        when: KeyBits::new(&[keys::OPERATION]),
        apply: settle_runs,
    }),
    ..Convention::NONE
};

fn roles(span: &View<'_>) -> OwnRoles {
    // If the span also has the kind of OpenInference or Traceloop, a normaliser copied the
    // operation.
    if span.has_any(keys::COPIED_KINDS) {
        return OwnRoles::default();
    }
    let Some(operation) = operation(span) else {
        return OwnRoles {
            // Older pydantic-ai spans name the tool but no operation. If `tool.name` is also
            // present, the key is a normaliser's copy, and the call's values have other keys.
            call: span.has(keys::GEN_AI_TOOL_NAME)
                && !span.has(keys::TOOL_NAME)
                && !span.names_kind(),
            ..OwnRoles::default()
        };
    };
    OwnRoles {
        // Gemini CLI writes `tool_call`.
        call: matches!(operation, "execute_tool" | "tool_call"),
        agent_run: is_word(operation, AGENT_RUN) || operation == WORKFLOW,
        model: matches!(operation, "chat" | "generate_content" | "text_completion"),
    }
}

const AGENT_RUN: &str = "invoke_agent";
const WORKFLOW: &str = "invoke_workflow";

/// Returns the span's operation. LiteLLM overwrites the operation of the enclosing span with
/// `chat`, but the span's name still begins with the original.
fn operation<'a>(span: &View<'a>) -> Option<&'a str> {
    let operation = span.str(keys::OPERATION)?;
    if operation != "chat" {
        return Some(operation);
    }
    let name = span.name();
    let is_kept = |word: &&str| is_word(name, word) || name_after(name, word).is_some();
    let mut words = [AGENT_RUN, WORKFLOW, "execute_tool"].into_iter();
    Some(words.find(is_kept).unwrap_or(operation))
}

fn call<'a>(span: &View<'a>) -> SpanCall<'a> {
    // Read literally: OpenTelemetry puts no quotes around a name, so quotes belong to the name.
    let literal_name = span.str(keys::GEN_AI_TOOL_NAME);
    let literal_name = literal_name.filter(|name| !name.trim_start().is_empty());
    let mut call = SpanCall {
        name: literal_name
            .map(Cow::Borrowed)
            .or_else(|| span.text(keys::GEN_AI_TOOL_NAME)),
        poor_name: match literal_name {
            Some(_) => None,
            None => tool_in_name(span),
        },
        call_id: span.text(keys::GEN_AI_CALL_ID),
        args: span.first_raw(&[keys::GEN_AI_ARGS, keys::ADK_ARGS]),
        result: span.first_raw(&[
            keys::GEN_AI_RESULT,
            keys::ADK_RESULT,
            keys::ANTHROPIC_RESULT,
        ]),
        failed: span.is(keys::TOOL_STATUS, "error") || span.is(keys::TASK_STATUS, "failure"),
        ..SpanCall::default()
    };
    // If a normaliser removes the original attributes, OpenInference's arguments stay in place, but
    // Traceloop's arguments and results are moved to messages.
    let is_object = |raw: &Raw<'_>| matches!(raw.value, Value::Str(text) if text.starts_with('{'));
    let is_traceloop = |text: &str| {
        text.starts_with("{\"input_str\"")
            && ["\"tags\"", "\"metadata\""]
                .iter()
                .all(|key| text.contains(key))
    };
    if span.str(keys::GEN_AI_ARGS).is_some_and(is_traceloop) {
        call.args_in = Envelope::InputStr;
    }
    if call.args.is_none() {
        let input = || span.raw(keys::INPUT_MESSAGES).filter(is_object);
        let kept = span
            .raw(keys::INPUT_VALUE)
            .map(|raw| (raw, Envelope::Kwargs));
        if let Some((raw, envelope)) = kept.or_else(|| Some((input()?, Envelope::InputStr))) {
            (call.args, call.args_in) = (Some(raw), envelope);
        }
    }
    if call.result.is_none() {
        call.result = span.raw(keys::OUTPUT_MESSAGES).filter(is_object);
    }
    // If ADK's plugin for retries answers instead of the tool, the span's status is not ERROR.
    call.failed |= [keys::ADK_RESULT, keys::GEN_AI_RESULT]
        .into_iter()
        .filter_map(|key| span.str(key))
        .any(is_guidance_to_retry);
    // Google's ADK wraps every result that is not an object, in Python and in JavaScript.
    let is_adk_result = !span.has(keys::GEN_AI_RESULT) && span.has(keys::ADK_RESULT);
    if is_adk_result || span.has(keys::ADK_EVENT) {
        call.result_in = Envelope::Result;
    }
    // Strands records content blocks, in an attribute or an event. Anthropic's SDK records them in
    // its own attribute.
    if span.has(keys::TOOL_STATUS)
        || span.has(keys::PLAIN_TOOL_STATUS)
        || span.has(keys::ANTHROPIC_RESULT)
    {
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

/// Returns the tool's name from the span's name, without the target of a transfer and without the
/// method that OpenInference appends.
fn tool_in_name<'a>(span: &View<'a>) -> Option<&'a str> {
    let Some(rest) = name_after(span.name(), "execute_tool") else {
        return Some(bare_name(span.name())).filter(|name| *name != span.name());
    };
    if span.has(keys::TRANSFER_MODE) { rest.split(' ').next() } else { Some(rest) }
}

/// Returns true if the result is the answer of ADK's `ReflectAndRetryToolPlugin` to a failed tool.
/// Searches the text, because its end may be cut off.
fn is_guidance_to_retry(result: &str) -> bool {
    // The answer is a JSON object, so a result in prose need not be searched.
    let is_object = result.trim_start().starts_with('{');
    let mut words = GUIDANCE_TO_RETRY.iter();
    is_object && words.all(|word| word.find(result.as_bytes()).is_some())
}

// Built once, because building the searchers takes a thousand instructions.
static GUIDANCE_TO_RETRY: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| {
    [
        "\"ERROR_HANDLED_BY_REFLECT_AND_RETRY_PLUGIN\"",
        "\"response_type\"",
    ]
    .map(Finder::new)
});

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    let workflow = || {
        span.text(keys::GEN_AI_WORKFLOW)
            .filter(|_| is_workflow(span))
    };
    let name = workflow().or_else(|| agent_name(span));
    name.or(Some(Cow::Borrowed(span.name())))
}

/// Returns true for the span of a workflow, which is a run only if no agent run is inside or above
/// it.
pub(crate) fn is_workflow(span: &View<'_>) -> bool {
    operation(span) == Some(WORKFLOW) && !span.has_any(keys::COPIED_KINDS)
}

fn agent_name<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    span.text(keys::GEN_AI_AGENT)
        .or_else(|| span.text(keys::GEN_AI_AGENT_ID))
        .or_else(|| name_after(span.name(), AGENT_RUN).map(Cow::Borrowed))
}

/// Gives nameless runs the name of the run above: Anthropic's SDK creates a nameless run for each
/// use of its tool runner. Drops workflows that have an agent run in them or a run above them.
fn settle_runs(spans: &mut RecognisedSpans<'_, '_>) {
    let is_nameless_run = |span: &RecognisedSpan<'_>| {
        let is_own = || span.agent == agent_run(&span.view);
        roles(&span.view).agent_run && is_own() && agent_name(&span.view).is_none()
    };
    // Check `agent` first, because this reads no attributes, and most spans have no agent.
    let is_unsettled = |span: &RecognisedSpan<'_>| {
        span.agent.is_some() && (is_workflow(&span.view) || is_nameless_run(span))
    };
    if !spans.spans.iter().any(is_unsettled) {
        return;
    }
    let is_agents = |span: &RecognisedSpan<'_>| span.agent.is_some() && !is_workflow(&span.view);
    let mut has_agent: Vec<bool> = spans.spans.iter().map(is_agents).collect();
    for &span_idx in spans.parents_first.iter().rev() {
        if let Some(parent) = spans.parent[span_idx] {
            has_agent[parent] |= has_agent[span_idx];
        }
    }
    let mut run_above: Vec<Option<SpanIdx>> = vec![None; spans.spans.len()];
    for &span_idx in spans.parents_first {
        let above = spans.parent[span_idx].and_then(|parent| {
            let is_run = spans.spans[parent].agent.is_some();
            if is_run { Some(parent) } else { run_above[parent] }
        });
        run_above[span_idx] = above;
        if !is_unsettled(&spans.spans[span_idx]) {
            continue;
        }
        if is_workflow(&spans.spans[span_idx].view) {
            if above.is_some() || has_agent[span_idx] {
                spans.spans[span_idx].agent = None;
            }
        } else if let Some(above) = above {
            spans.spans[span_idx].agent = spans.spans[above].agent.clone();
        }
    }
}
