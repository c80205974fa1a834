//! Traceloop's OpenLLMetry, Python and JavaScript: Traceloop's own kind and GenAI attributes, with
//! arguments wrapped in the run's metadata. Models are recognised by their GenAI attributes.

use otlp::span::KeyBits;
use std::borrow::Cow;

use hashbrown::HashMap;
use serde_json::Value as Json;

use super::super::convention::{
    Convention, Kinds, RecognisedSpan, RecognisedSpans, Refine, SpanCall, SpanIdx,
};
use super::super::keys;
use super::super::shared_keys::own_agent;
use super::super::view::{View, name_after};
use crate::extract::values::{AnnouncedCall, Envelope, equality, messages, payload};

/// - Tool call: `traceloop.span.kind` is `tool`, or `task` together with `gen_ai.operation.name` =
///   `execute_tool`; not if `gen_ai.operation.name` is `handoff`.
/// - Name: `gen_ai.tool.name`, else `traceloop.entity.name` of a `tool`. Else the name of a call
///   with the same arguments, in `traceloop.entity.output` of a sibling span; else a name taken
///   from the span's name.
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
    // The entity of a task is a class; the entity of a tool (Python) is the tool.
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

/// Maximum number of calls of a reply that are compared with a nameless failed call. Longer replies
/// are not searched for a name.
const MAX_ASKED: usize = 64;

/// Assigns names to failed calls. In JavaScript, the span of a failed call names only the tool's
/// class, and the model's span may not list the calls that the model requested. The requested calls
/// are in the output of a sibling span: the last sibling before the failed call whose output lists
/// calls.
fn name_failed_calls(spans: &mut RecognisedSpans<'_, '_>) {
    let is_nameless = |span: &RecognisedSpan<'_>| {
        let call = span.call.as_ref();
        call.is_some_and(|call| call.name.is_none() && call.result.is_none())
            && span.view.has(keys::TRACELOOP_KIND)
    };
    if !spans.spans.iter().any(is_nameless) {
        return;
    }
    let mut last_asked: HashMap<Option<SpanIdx>, Vec<AnnouncedCall>> = HashMap::new();
    for (span, &parent) in spans.spans.iter_mut().zip(spans.parent) {
        let asked = span.view.str(keys::TRACELOOP_OUTPUT).map(calls_in);
        if let Some(asked) = asked.filter(|asked| !asked.is_empty()) {
            last_asked.insert(parent, asked);
        }
        if is_nameless(span)
            && let Some(call) = &mut span.call
            && let Some(args) = call.args
            && let Some(asked) = last_asked.get(&parent)
            && asked.len() <= MAX_ASKED
        {
            let args = payload::open_args(args, Envelope::InputStr, usize::MAX);
            if let Some((name, call_id)) = announced_with(asked, args.json()) {
                call.name = Some(Cow::Owned(name));
                call.call_id = call.call_id.take().or(call_id.map(Cow::Owned));
            }
        }
    }
}

fn calls_in(reply: &str) -> Vec<AnnouncedCall> {
    let reply = messages::may_announce(reply).then(|| serde_json::from_str(reply).ok());
    let reply: Option<Json> = reply.flatten();
    reply.map_or_else(Vec::new, |reply| {
        messages::announced_calls(&reply, usize::MAX)
    })
}

/// Returns the tool that was called with these arguments, if there is only one, and the id of the
/// call; no id if several calls match, because any of them may be the failed one.
fn announced_with(asked: &[AnnouncedCall], args: &Json) -> Option<(String, Option<String>)> {
    let is_such = |call: &&AnnouncedCall| {
        let own = call.args.as_ref();
        own.is_some_and(|own| equality::equal(own.json(), args) == Some(true))
    };
    let such: Vec<&AnnouncedCall> = asked.iter().filter(is_such).collect();
    let (first, others) = such.split_first()?;
    let is_one_tool = others.iter().all(|other| other.name == first.name);
    let is_one_call = others.iter().all(|other| other.call_id == first.call_id);
    let call_id = first.call_id.clone().filter(|_| is_one_call);
    is_one_tool.then(|| (first.name.clone(), call_id))
}
