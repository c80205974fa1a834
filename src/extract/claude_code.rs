//! Pure. Claude Code's own spans (beta): `claude_code.interaction` is one turn of its user,
//! `claude_code.tool` a call, below which `claude_code.tool.execution` tells whether it succeeded
//! and `claude_code.tool.blocked_on_user` how long somebody was asked. A span in, the call, run or
//! model call it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, SPAN_NAME, View, first_raw, first_text};
use super::keys;
use super::log_calls;

pub(super) const CLAUDE_CODE: Convention = Convention {
    name: "claude_code",
    marks: SPAN_NAME,
    is_call,
    call,
    agent_run,
    is_model,
};

fn is_call(span: &View<'_>) -> bool {
    span.name() == "claude_code.tool"
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: first_text(span, &[keys::FUNCTION_NAME, keys::GEN_AI_TOOL_NAME]),
        call_id: first_text(span, &[keys::TOOL_USE_ID, keys::GEN_AI_CALL_ID]),
        args: first_raw(
            span,
            &[keys::GEN_AI_ARGS, keys::CLAUDE_INPUT, keys::CLAUDE_ARGS],
        ),
        result: first_raw(span, &[keys::GEN_AI_RESULT]),
        failed: log_calls::has_failed(span),
        ..Call::default()
    }
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    (span.name() == "claude_code.interaction").then_some(Cow::Borrowed("claude_code"))
}

fn is_model(span: &View<'_>) -> bool {
    span.name() == "claude_code.llm_request"
}

/// Is this the part of a call that ran the tool, in vain?
pub(super) fn is_failed_execution(span: &View<'_>) -> bool {
    span.name() == "claude_code.tool.execution" && log_calls::has_failed(span)
}
