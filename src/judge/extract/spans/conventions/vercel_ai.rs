//! The Vercel AI SDK's own spans (v6, and v7 with its legacy telemetry). A plain completion is
//! marked like an agent run; it is a run only if there is a tool call below it, or if tools were
//! offered to the model.

use otlp::span::KeyBits;

use super::super::convention::{Convention, Kinds, RecognisedSpans, Refine};
use super::super::keys;
use super::super::view::View;

/// - Agent run: `ai.operationId` is `ai.generateText` or `ai.streamText`, and there is a tool call
///   below it, or `ai.prompt.tools` offered tools to the model.
/// - Model call: `ai.operationId` ends with `.doGenerate` or `.doStream`.
/// - Error: the status ERROR. If the span has `openinference.span.kind`, only an `exception` event
///   marks an error.
pub(super) const VERCEL_AI: Convention = Convention {
    name: "vercel_ai",
    marks: KeyBits::new(&[keys::AI_OPERATION]),
    kinds: KINDS,
    is_model: Some(is_model),
    refine: Some(Refine {
        when: KeyBits::new(&[keys::AI_OPERATION]),
        apply: drop_plain_completions,
    }),
    ..Convention::NONE
};

const KINDS: Kinds = Kinds {
    kind: Some(keys::AI_OPERATION),
    tool: &["ai.toolCall"],
    agent: &["ai.generateText", "ai.streamText"],
    name: &[keys::AI_TOOL_NAME],
    call_id: &[keys::AI_CALL_ID],
    args: &[keys::AI_ARGS],
    result: &[keys::AI_RESULT],
    caller: &[keys::AI_FUNCTION],
    agent_name: &[keys::AI_FUNCTION],
    // openinference-vercel copies the first error of a trace to every later span, so only the
    // exception event proves a failure.
    error_status_ignored_beside: Some(keys::OI_KIND),
    ..Kinds::NONE
};

fn is_model(span: &View<'_>) -> bool {
    span.str(keys::AI_OPERATION).is_some_and(|operation| {
        operation.ends_with(".doGenerate") || operation.ends_with(".doStream")
    })
}

fn drop_plain_completions(spans: &mut RecognisedSpans<'_, '_>) {
    let mut uses_tools: Vec<bool> = (spans.spans.iter())
        .map(|span| span.call.is_some())
        .collect();
    for &span_idx in spans.parents_first.iter().rev() {
        let span = &mut spans.spans[span_idx];
        if let Some(parent) = spans.parent[span_idx] {
            uses_tools[parent] |= uses_tools[span_idx] || span.view.has(keys::AI_PROMPT_TOOLS);
        }
        let is_run = span.agent.is_some();
        if is_run && !uses_tools[span_idx] && KINDS.is(&span.view, KINDS.agent) {
            span.agent = None;
        }
    }
}
