//! Pure. Traceloop's OpenLLMetry, Python and JavaScript: a kind of its own beside GenAI attributes,
//! arguments wrapped with the run's metadata. A span in, the call or run it is out; models are
//! recognised by their GenAI marks.

use std::borrow::Cow;

use super::convention::{
    Call, Convention, Envelope, View, first_raw, first_text, is, name_after, no_model, text,
};
use super::keys;

pub(super) const TRACELOOP: Convention = Convention {
    name: "traceloop",
    marks: keys::bit(keys::TRACELOOP_KIND),
    is_call,
    call,
    agent_run,
    is_model: no_model,
};

fn is_call(span: &View<'_>) -> bool {
    // JavaScript marks its tools as tasks.
    let is_task =
        || is(span, keys::TRACELOOP_KIND, "task") && is(span, keys::OPERATION, "execute_tool");
    (is_tool(span) || is_task()) && !is(span, keys::OPERATION, "handoff")
}

fn is_tool(span: &View<'_>) -> bool {
    is(span, keys::TRACELOOP_KIND, "tool")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    let is_tool = is_tool(span);
    Call {
        // A task's entity is the class; Python names the tool there.
        name: text(span, keys::GEN_AI_TOOL_NAME)
            .or_else(|| text(span, keys::TRACELOOP_ENTITY).filter(|_| is_tool)),
        last_name: name_after(span, "execute_tool").or_else(|| span.name().strip_suffix(".tool")),
        call_id: text(span, keys::GEN_AI_CALL_ID),
        args: first_raw(span, &[keys::GEN_AI_ARGS, keys::TRACELOOP_INPUT]),
        args_in: Envelope::InputStr,
        result: first_raw(span, &[keys::GEN_AI_RESULT, keys::TRACELOOP_OUTPUT]),
        failed: is(span, keys::TASK_STATUS, "failure"),
        agent: first_text(span, &[keys::GEN_AI_AGENT, keys::TRACELOOP_AGENT])
            .or_else(|| text(span, keys::TRACELOOP_WORKFLOW).filter(|_| !is_tool)),
        ..Call::default()
    }
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    let is_run =
        is(span, keys::TRACELOOP_KIND, "workflow") || is(span, keys::TRACELOOP_KIND, "agent");
    is_run.then(|| {
        first_text(span, &[keys::GEN_AI_AGENT, keys::TRACELOOP_ENTITY])
            .unwrap_or(Cow::Borrowed(span.name()))
    })
}
