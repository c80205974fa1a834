//! OpenInference (Arize Phoenix): LangChain, LlamaIndex, OpenAI Agents, smolagents, DSPy, Agno,
//! CrewAI, UiPath and others. LangGraph's agents are marked as runs only if their name says so.

use std::borrow::Cow;

use otlp::span::{KeyBits, ScopeHash};

use super::super::convention::{Convention, RecognisedSpans, Refine, SpanCall};
use super::super::keys;
use super::super::shared_keys::graph_node;
use super::super::view::View;
use crate::extract::values::Envelope;

/// - Tool call: `openinference.span.kind` is `TOOL`, or `AGENT` together with `tool.name`.
/// - Agent run: `openinference.span.kind` is `AGENT`, or `span_type` is `agentRun`. The agent is
///   `ai.telemetry.functionId`, `agent.name`, `gen_ai.agent.name`, `graph.node.id`, or the span's
///   name. A span that its `metadata` names as the LangGraph node `agent` belongs to the run above.
/// - Model call: `openinference.span.kind` is `LLM`, except for spans `…._prepare_chat_with_tools`;
///   or `span_type` is `completion`.
/// - Name: `tool.name`, else the span's name without a method such as `.run` or `.__call__`.
/// - Error: the status ERROR. If the span has `ai.operationId` or the instrumentation scope
///   `gen_ai`, only an `exception` event marks an error.
pub(super) const OPENINFERENCE: Convention = Convention {
    name: "openinference",
    marks: KeyBits::new(&[keys::OI_KIND, keys::SPAN_TYPE_FLAT]),
    written_by_many: true,
    is_call: Some(is_call),
    call: Some(call),
    agent_run: Some(agent_run),
    is_model: Some(is_model),
    refine: Some(Refine {
        when: KeyBits::new(&[keys::METADATA]),
        apply: join_model_nodes,
    }),
    ..Convention::NONE
};

fn is_call(span: &View<'_>) -> bool {
    span.is(keys::OI_KIND, "TOOL") || (span.is(keys::OI_KIND, "AGENT") && span.has(keys::TOOL_NAME))
}

fn call<'a>(span: &View<'a>) -> SpanCall<'a> {
    let bare_name = || Cow::Borrowed(bare_name(span.name()));
    SpanCall {
        name: Some(span.text(keys::TOOL_NAME).unwrap_or_else(bare_name)),
        call_id: span.first_text(&[keys::OI_CALL_ID, keys::TOOL_ID]),
        args: span.raw(keys::INPUT_VALUE),
        args_in: Envelope::Kwargs,
        result: span.raw(keys::OUTPUT_VALUE),
        // openinference-vercel copies the first error of a trace to every later span, so only the
        // exception event proves a failure.
        ignores_error_status: span.has(keys::AI_OPERATION) || span.scope() == AI_SDK_7,
        ..SpanCall::default()
    }
}

/// The scope of the Vercel AI SDK's own telemetry since version 7, whose spans have no
/// `ai.operationId`.
const AI_SDK_7: ScopeHash = ScopeHash::new(b"gen_ai");

/// Returns a span's name without the method or `invocation […]` that some instrumentations add.
pub(super) fn bare_name(name: &str) -> &str {
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
    // UiPath marks its agent runs in another attribute.
    if span.is(keys::SPAN_TYPE_FLAT, "agentRun") {
        return Some(Cow::Borrowed(span.name()));
    }
    let names = &[
        keys::AI_FUNCTION,
        keys::AGENT_NAME,
        keys::GEN_AI_AGENT,
        keys::GRAPH_NODE,
    ];
    span.is(keys::OI_KIND, "AGENT").then(|| {
        let name = span.first_text(names);
        name.unwrap_or_else(|| Cow::Borrowed(bare_name(span.name()).trim()))
    })
}

fn is_model(span: &View<'_>) -> bool {
    // LlamaIndex marks the preparation of a request as a model call.
    (span.is(keys::OI_KIND, "LLM") && !span.name().ends_with("._prepare_chat_with_tools"))
        || span.is(keys::SPAN_TYPE_FLAT, "completion")
}

/// Joins model nodes to the run above. In a prebuilt LangGraph agent, the node that calls the model
/// is named `agent`, and so marked as an agent run.
fn join_model_nodes(spans: &mut RecognisedSpans<'_, '_>) {
    for &span_idx in spans.parents_first {
        let span = &spans.spans[span_idx];
        if span.agent.as_deref() != Some(NODE)
            || graph_node(&span.view).is_none_or(|node| node.name != NODE)
        {
            continue;
        }
        let parent = spans.parent[span_idx].map(|parent| &spans.spans[parent]);
        if let Some(agent) = parent.and_then(|parent| parent.agent.clone()) {
            spans.spans[span_idx].agent = Some(agent);
        }
    }
}

const NODE: &str = "agent";
