//! Traceloop's OpenLLMetry, Python and JavaScript: a kind of its own beside GenAI attributes,
//! arguments wrapped with the run's metadata. Models are recognised by their GenAI marks.

use super::super::convention::{Convention, Kinds, SpanCall};
use super::super::key_bits::KeyBits;
use super::super::keys;
use super::super::shared_keys::own_agent;
use super::super::view::{View, name_after};
use crate::extract::values::Envelope;

/// - Tool call: `traceloop.span.kind` is `tool`, or `task` beside `gen_ai.operation.name` =
///   `execute_tool`; not where `gen_ai.operation.name` is `handoff`.
/// - Name: `gen_ai.tool.name`, else `traceloop.entity.name` of a `tool`. If nothing else names the
///   call, its name is taken from the span's name.
/// - Error: `gen_ai.task.status` is `failure`.
/// - Caller: `gen_ai.agent.name`, `traceloop.association.properties.lc_agent_name`, else
///   `traceloop.workflow.name` of a `task`.
pub(super) const TRACELOOP: Convention = Convention {
    name: "traceloop",
    marks: KeyBits::new(&[keys::TRACELOOP_KIND]),
    kinds: Kinds {
        kind: Some(keys::TRACELOOP_KIND),
        agent: &["workflow", "agent"],
        agent_name: &[keys::GEN_AI_AGENT, keys::TRACELOOP_ENTITY],
        ..Kinds::NONE
    },
    is_call: Some(is_call),
    call: Some(call),
    ..Convention::NONE
};

fn is_call(span: &View<'_>) -> bool {
    let is_operation = |operation| span.is(keys::OPERATION, operation);
    // JavaScript marks its tools as tasks.
    let is_task = || span.is(keys::TRACELOOP_KIND, "task") && is_operation("execute_tool");
    (is_tool(span) || is_task()) && !is_operation("handoff")
}

fn is_tool(span: &View<'_>) -> bool {
    span.is(keys::TRACELOOP_KIND, "tool")
}

fn call<'a>(span: &View<'a>) -> SpanCall<'a> {
    let is_tool = is_tool(span);
    // A task's entity is the class; Python names the tool there.
    let entity = || span.text(keys::TRACELOOP_ENTITY).filter(|_| is_tool);
    let workflow = || span.text(keys::TRACELOOP_WORKFLOW).filter(|_| !is_tool);
    SpanCall {
        name: span.text(keys::GEN_AI_TOOL_NAME).or_else(entity),
        poor_name: name_after(span.name(), "execute_tool")
            .or_else(|| span.name().strip_suffix(".tool")),
        call_id: span.text(keys::GEN_AI_CALL_ID),
        args: span.first_raw(&[keys::GEN_AI_ARGS, keys::TRACELOOP_INPUT]),
        args_in: Envelope::InputStr,
        result: span.first_raw(&[keys::GEN_AI_RESULT, keys::TRACELOOP_OUTPUT]),
        failed: span.is(keys::TASK_STATUS, "failure"),
        agent: own_agent(span).or_else(workflow),
        ..SpanCall::default()
    }
}
