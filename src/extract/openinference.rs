//! Pure. OpenInference (Arize Phoenix): LangChain, LlamaIndex, OpenAI Agents, smolagents, DSPy,
//! Agno, CrewAI, UiPath and others. A span in, the call, run or model call it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, Envelope, View, first_text, is, raw};
use super::keys;

pub(super) const OPENINFERENCE: Convention = Convention {
    name: "openinference",
    marks: keys::bit(keys::OI_KIND) | keys::bit(keys::UIPATH_TYPE),
    is_call,
    call,
    agent_run,
    is_model,
};

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::OI_KIND, "TOOL")
        || (is(span, keys::OI_KIND, "AGENT") && span.get(keys::TOOL_NAME).is_some())
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: first_text(span, &[keys::TOOL_NAME])
            .or_else(|| Some(Cow::Borrowed(bare(span.name())))),
        call_id: first_text(span, &[keys::OI_CALL_ID, keys::TOOL_ID]),
        args: raw(span, keys::INPUT_VALUE),
        args_in: Envelope::Kwargs,
        result: raw(span, keys::OUTPUT_VALUE),
        // openinference-vercel copies the first error of a trace onto every later span, so that
        // only the exception event tells.
        status_lies: span.get(keys::AI_OPERATION).is_some(),
        ..Call::default()
    }
}

/// A span's name without the method that some instrumentations add.
pub(super) fn bare(name: &str) -> &str {
    let name = name
        .strip_prefix("invocation [")
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    [".__call__", ".acall", ".run", "._execute_core"]
        .iter()
        .find_map(|method| name.strip_suffix(method))
        .unwrap_or(name)
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    // UiPath marks the run of its agent with a kind of its own.
    if is(span, keys::UIPATH_TYPE, "agentRun") {
        return Some(Cow::Borrowed(span.name()));
    }
    is(span, keys::OI_KIND, "AGENT").then(|| {
        first_text(
            span,
            &[
                keys::AI_FUNCTION,
                keys::AGENT_NAME,
                keys::GEN_AI_AGENT,
                keys::GRAPH_NODE,
            ],
        )
        .unwrap_or_else(|| Cow::Borrowed(bare(span.name()).trim()))
    })
}

fn is_model(span: &View<'_>) -> bool {
    // LlamaIndex marks the preparation of a request as a call of the model.
    (is(span, keys::OI_KIND, "LLM") && !span.name().ends_with("._prepare_chat_with_tools"))
        || is(span, keys::UIPATH_TYPE, "completion")
}

/// smolagents: a managed agent, when it runs below another agent, is a call that has no span of its
/// own.
pub(super) fn managed_agent<'a>(span: &View<'a>) -> Option<Call<'a>> {
    span.get(keys::SMOLAGENTS_STEPS)?;
    Some(Call {
        name: Some(Cow::Borrowed(bare(span.name()))),
        result: raw(span, keys::OUTPUT_VALUE),
        failed: false,
        ..Call::default()
    })
}
