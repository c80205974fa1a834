//! Claude Code's own spans (beta): `claude_code.interaction` is one turn of the user,
//! `claude_code.tool` a call. Below a call, `claude_code.tool.execution` records success or
//! failure, and `claude_code.tool.blocked_on_user` the time spent waiting for the user.

use otlp::span::KeyBits;
use std::borrow::Cow;

use super::super::convention::{Convention, RecognisedSpans, Refine, SpanCall};
use super::super::keys;
use super::super::view::View;

/// - Tool call: the span's name is `claude_code.tool`.
/// - Agent run: the span's name is `claude_code.interaction`; the agent is `claude_code`.
/// - Model call: the span's name is `claude_code.llm_request`.
/// - Error: `success` is `false`, on the call's span or on the span `claude_code.tool.execution`
///   below it.
pub(super) const CLAUDE_CODE: Convention = Convention {
    name: "claude_code",
    span_names: &["claude_code."],
    is_call: Some(|span| span.name() == "claude_code.tool"),
    call: Some(call),
    agent_run: Some(|span| {
        (span.name() == "claude_code.interaction").then_some(Cow::Borrowed("claude_code"))
    }),
    is_model: Some(|span| span.name() == "claude_code.llm_request"),
    refine: Some(Refine {
        when: KeyBits::new(&[keys::SUCCESS]),
        apply: fail_calls,
    }),
    ..Convention::NONE
};

fn call<'a>(span: &View<'a>) -> SpanCall<'a> {
    SpanCall {
        name: span.first_text(&[keys::PLAIN_TOOL_NAME, keys::GEN_AI_TOOL_NAME]),
        call_id: span.first_text(&[keys::TOOL_USE_ID, keys::GEN_AI_CALL_ID]),
        args: span.first_raw(&[
            keys::GEN_AI_ARGS,
            keys::PLAIN_TOOL_INPUT,
            keys::TOOL_PARAMETERS,
        ]),
        result: span.raw(keys::GEN_AI_RESULT),
        failed: span.is_false(keys::SUCCESS),
        ..SpanCall::default()
    }
}

/// Marks a call as failed if a span directly below the call's span records the failure.
fn fail_calls(spans: &mut RecognisedSpans<'_, '_>) {
    for (span_idx, parent) in spans.parent.iter().enumerate() {
        let view = &spans.spans[span_idx].view;
        let failed = view.name() == "claude_code.tool.execution" && view.is_false(keys::SUCCESS);
        if let Some(call) = parent.and_then(|parent| spans.spans[parent].call.as_mut()) {
            call.failed |= failed;
        }
    }
}
