//! Completes a call from the keys that any convention may use, and reads a span's own agent,
//! session and graph node.

use std::borrow::Cow;

use otlp::span::{KeyBits, KeyId};

use super::convention::SpanCall;
use super::keys;
use super::view::View;
use crate::extract::values::Raw;

/// Fills in fields of a call that the convention's own keys lack, and replaces a cut value with a
/// normaliser's uncut copy.
pub(crate) fn complete_call<'a>(call: &mut SpanCall<'a>, span: &View<'a>, is_agent_run: bool) {
    if call.name.is_none() {
        call.name = span.first_text(keys::TOOL_NAMES);
    }
    if (call.name.as_ref()).is_some_and(|name| name.trim_start().is_empty()) {
        call.name = None;
    }
    if call.call_id.is_none() {
        call.call_id = span.first_text(keys::CALL_IDS);
    }
    let take_whole = |part: &mut Option<Raw<'a>>, copy: KeyId| {
        if part.is_some_and(|part| part.is_cut()) {
            let whole = span.raw(copy).filter(|copy| !copy.is_cut());
            *part = whole.or(*part);
        }
    };
    if span.has_any(keys::COPIED_KINDS) {
        take_whole(&mut call.args, keys::GEN_AI_ARGS);
        take_whole(&mut call.result, keys::GEN_AI_RESULT);
    }
    let shared = |keys: &[KeyId]| span.names_kind().then(|| span.first_raw(keys)).flatten();
    if call.args.is_none() {
        call.args = shared(keys::ARGS);
    }
    if call.result.is_none() {
        call.result = shared(keys::RESULTS);
    }
    if call.agent.is_none() {
        // The agent of a call that is also a run is the callee; only LangChain's metadata names the
        // caller.
        call.agent = if is_agent_run {
            metadata_entry(span, keys::METADATA_AGENT)
        } else {
            own_agent(span)
        };
    }
    // A normaliser copies the name of a span's entity to the agent's name.
    if call.agent.is_some() && call.agent == call.name && span.is(keys::OPERATION, "execute_tool") {
        call.agent = None;
    }
    call.failed |= failed(span);
}

/// Keys that can show that a call failed; an event can also show it.
const MAY_TELL_FAILURE: KeyBits =
    KeyBits::of_pairs(keys::FAILURES).union(KeyBits::new(&[keys::ERROR_TYPE, keys::TOOL_SUCCESS]));

/// Returns true if the span has a failure mark that counts in every convention.
fn failed(span: &View<'_>) -> bool {
    let by_attribute = || {
        span.has(keys::ERROR_TYPE)
            || keys::FAILURES.iter().any(|&(key, word)| span.is(key, word))
            || span.is_false(keys::TOOL_SUCCESS)
    };
    span.has_any(MAY_TELL_FAILURE) && by_attribute()
        || span.events().any(|event| event.name == keys::EXCEPTION)
}

const MAY_NAME_AGENT: KeyBits = KeyBits::new(keys::AGENTS).union(KeyBits::new(&[keys::METADATA]));

pub(crate) fn own_agent<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    if !span.has_any(MAY_NAME_AGENT) {
        return None;
    }
    let copied = span.text(keys::COPIED_TO_AGENT);
    let is_own =
        |&key: &KeyId| key != keys::GEN_AI_AGENT || copied.is_none() || span.text(key) != copied;
    let mut agents = keys::AGENTS.iter().copied().filter(is_own);
    agents
        .find_map(|key| span.text(key))
        .or_else(|| metadata_entry(span, keys::METADATA_AGENT))
}

const MAY_NAME_SESSION: KeyBits =
    KeyBits::new(keys::SESSIONS).union(KeyBits::new(&[keys::SESSION_BESIDE.1]));

pub(crate) fn own_session<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    if !span.has_any(MAY_NAME_SESSION) {
        return None;
    }
    let (key, beside) = keys::SESSION_BESIDE;
    let shared = span.first_text(keys::SESSIONS);
    shared.or_else(|| span.has(beside).then(|| span.text(key))?)
}

/// A node of an agent graph. Every span within the node repeats its name and step.
#[derive(Debug, PartialEq)]
pub(crate) struct GraphNode<'a> {
    pub(crate) name: Cow<'a, str>,
    step: Option<Cow<'a, str>>,
}

pub(crate) const MAY_NAME_NODE: KeyBits =
    KeyBits::of_pairs(keys::NODES).union(KeyBits::new(&[keys::METADATA]));

pub(crate) fn graph_node<'a>(span: &View<'a>) -> Option<GraphNode<'a>> {
    if !span.has_any(MAY_NAME_NODE) {
        return None;
    }
    let in_attributes = keys::NODES.iter().find_map(|&(node, step)| {
        Some(GraphNode {
            name: span.text(node)?,
            step: span.text(step),
        })
    });
    in_attributes.or_else(|| {
        Some(GraphNode {
            name: metadata_entry(span, keys::METADATA_NODE)?,
            step: metadata_entry(span, keys::METADATA_STEP),
        })
    })
}

/// Returns an entry of LangChain's `metadata`, which is JSON text, without parsing all of it.
fn metadata_entry<'a>(span: &View<'a>, name: &str) -> Option<Cow<'a, str>> {
    let text = span.str(keys::METADATA)?;
    let at = text.find(&format!("\"{name}\""))?;
    let rest = text[at + name.len() + 2..]
        .trim_start()
        .strip_prefix(':')?
        .trim_start();
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<serde_json::Value>();
    match values.next()?.ok()? {
        serde_json::Value::String(text) if !text.is_empty() => Some(Cow::Owned(text)),
        serde_json::Value::Number(number) => Some(Cow::Owned(number.to_string())),
        _ => None,
    }
}
