//! Coding agents that report tool calls only in log records: Claude Code
//! (`claude_code.tool_result`), Codex (`codex.tool_result`) and Gemini CLI
//! (`gemini_cli.tool_call`).

use otlp::span::KeyId;

use super::super::convention::{Convention, SpanCall};
use super::super::keys;
use super::super::view::View;

/// Coding agents that report tool calls only in log records: Claude Code, Codex and Gemini CLI.
///
/// - Tool call: a log record whose event is `claude_code.tool_result`, `tool_result`,
///   `codex.tool_result` or `gemini_cli.tool_call`. Records with the same `prompt.id` or
///   `prompt_id` form a run.
/// - Error: `success` is `false`.
pub(super) const LOG_CALLS: Convention = Convention {
    name: "log_calls",
    of_records: true,
    is_call: Some(|_| true),
    call: Some(call),
    ..Convention::NONE
};

/// Names of the events that report a call. The `tool_decision` records before a call are ignored.
pub(crate) const EVENTS: &[&str] = &[
    "claude_code.tool_result",
    "tool_result",
    "codex.tool_result",
    "gemini_cli.tool_call",
];

/// The attributes with the id of the prompt that caused a call.
pub(crate) const PROMPTS: &[KeyId] = &[keys::PROMPT_ID, keys::PROMPT_ID_FLAT];

const ARGS: &[KeyId] = &[
    keys::TOOL_PARAMETERS,
    keys::PLAIN_TOOL_INPUT,
    keys::PLAIN_ARGUMENTS,
    keys::PLAIN_FUNCTION_ARGS,
];

fn call<'a>(record: &View<'a>) -> SpanCall<'a> {
    SpanCall {
        name: record.first_text(&[keys::PLAIN_TOOL_NAME, keys::PLAIN_FUNCTION_NAME]),
        call_id: record.first_text(&[keys::TOOL_USE_ID, keys::PLAIN_CALL_ID]),
        args: record.first_raw(ARGS),
        result: record.raw(keys::PLAIN_OUTPUT),
        failed: record.is_false(keys::SUCCESS),
        ..SpanCall::default()
    }
}
