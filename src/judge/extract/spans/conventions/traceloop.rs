//! Traceloop's OpenLLMetry, Python and JavaScript: a kind of its own beside GenAI attributes,
//! arguments wrapped with the run's metadata. Models are recognised by their GenAI marks.

use std::borrow::Cow;

use hashbrown::HashMap;
use serde_json::Value as Json;

use super::super::convention::{
    Convention, Kinds, RecognisedSpan, RecognisedSpans, Refine, SpanCall, SpanIdx,
};
use super::super::key_bits::KeyBits;
use super::super::keys;
use super::super::shared_keys::own_agent;
use super::super::view::{View, name_after};
use crate::extract::values::{AnnouncedCall, Envelope, equality, messages, payload};

/// - Tool call: `traceloop.span.kind` is `tool`, or `task` beside `gen_ai.operation.name` =
///   `execute_tool`; not where `gen_ai.operation.name` is `handoff`.
/// - Name: `gen_ai.tool.name`, else `traceloop.entity.name` of a `tool`. If nothing else names the
///   call, its name is that of a call with its arguments in `traceloop.entity.output` of a span
///   beside it, else taken from the span's name.
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
    refine: Some(Refine {
        when: KeyBits::new(&[keys::TRACELOOP_OUTPUT]),
        apply: name_failed_calls,
    }),
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

/// How many spans before a call are searched for the reply that asked for it.
const MAX_SIBLINGS: usize = 8;

/// In JavaScript a failed call has only the name of its class, and the model's span no calls. The
/// reply is in the output of a span beside the call's.
fn name_failed_calls(spans: &mut RecognisedSpans<'_, '_>) {
    let is_nameless = |span: &RecognisedSpan<'_>| {
        let call = span.call.as_ref();
        call.is_some_and(|call| call.name.is_none() && call.result.is_none())
            && span.view.has(keys::TRACELOOP_KIND)
    };
    if !spans.spans.iter().any(is_nameless) {
        return;
    }
    let mut outputs: HashMap<Option<SpanIdx>, Vec<&str>> = HashMap::new();
    for span_idx in 0..spans.spans.len() {
        let siblings = outputs.entry(spans.parent[span_idx]).or_default();
        let span = &mut spans.spans[span_idx];
        siblings.extend(span.view.str(keys::TRACELOOP_OUTPUT));
        if is_nameless(span)
            && let Some(call) = &mut span.call
            && let Some(args) = call.args
        {
            let args = payload::open_args(args, Envelope::InputStr, usize::MAX);
            let mut replies = siblings.iter().rev().take(MAX_SIBLINGS);
            if let Some(asked) = replies.find_map(|reply| asked_with(reply, args.json())) {
                call.name = Some(Cow::Owned(asked.name));
                call.call_id = asked.call_id.map(Cow::Owned);
            }
        }
    }
}

/// The call in a reply that has these arguments, if all that have them are of one tool.
fn asked_with(reply: &str, args: &Json) -> Option<AnnouncedCall> {
    let reply: Json = messages::may_announce(reply).then(|| serde_json::from_str(reply).ok())??;
    let mut calls = messages::announced_calls(&reply, usize::MAX);
    calls.retain(|call| {
        let own = call.args.as_ref();
        own.is_some_and(|own| equality::equal(own.json(), args) == Some(true))
    });
    let asked = calls.pop()?;
    calls
        .iter()
        .all(|call| call.name == asked.name)
        .then_some(asked)
}
