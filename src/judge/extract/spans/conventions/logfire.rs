//! Logfire's own instrumentation of the OpenAI Agents SDK: the template of a span's message
//! identifies the span. Models are also recognised by their GenAI attributes.

use std::borrow::Cow;

use hashbrown::HashMap;
use otlp::span::{KeyBits, KeyId, ScopeHash, Value};

use super::super::convention::{Convention, RecognisedSpans, Refine, SpanCall, SpanIdx};
use super::super::keys;
use super::super::view::View;
use crate::extract::values::Raw;

/// - Tool call: `logfire.msg_template` is `Function: {name}`.
/// - Agent run: `logfire.msg_template` is `Agent run: {name!r}`.
/// - Model call: `logfire.msg_template` begins with `Chat completion with ` or
///   `Responses API with `. For a streamed call, the span `streaming response from …` counts, not
///   the preceding span, which has no `gen_ai.response.finish_reasons`.
/// - Name: `name`; if it was scrubbed, the name in `logfire.msg`.
/// - Arguments: `input`. A value that was scrubbed counts as cut.
/// - Result: `output`.
/// - Error: the span has `error`.
pub(super) const LOGFIRE: Convention = Convention {
    name: "logfire",
    marks: KeyBits::new(&[keys::LOGFIRE_TEMPLATE]),
    is_call: Some(|span| {
        span.is(keys::LOGFIRE_TEMPLATE, "Function: {name}") && span.scope() == OPENAI_AGENTS
    }),
    call: Some(|span| SpanCall {
        name: name(span, "Function: "),
        args: value(span, keys::PLAIN_INPUT),
        result: value(span, keys::PLAIN_OUTPUT),
        // The level of a Logfire span does not always become a status.
        failed: span.has(keys::PLAIN_ERROR),
        ..SpanCall::default()
    }),
    agent_run: Some(|span| {
        let is_run = span.is(keys::LOGFIRE_TEMPLATE, "Agent run: {name!r}");
        let is_run = is_run && span.scope() == OPENAI_AGENTS;
        is_run.then(|| name(span, "Agent run: '"))?
    }),
    is_model: Some(|span| {
        let template = span.str(keys::LOGFIRE_TEMPLATE);
        template.is_some_and(|template| {
            template.starts_with("Chat completion with ")
                || template.starts_with("Responses API with ")
        })
    }),
    refine: Some(Refine {
        when: KeyBits::new(&[keys::LOGFIRE_TEMPLATE]),
        apply: count_streams_once,
    }),
    ..Convention::NONE
};

/// The scope excludes Logfire's other spans, which may use the same templates.
const OPENAI_AGENTS: ScopeHash = ScopeHash::new(b"logfire.openai_agents");

fn is_scrubbed(text: &str) -> bool {
    text.starts_with("[Scrubbed due to ")
}

/// Returns the name of a tool or agent. Logfire scrubs a name that contains a suspicious word, such
/// as the `auth` in `authenticate`, but not the same name in the message.
fn name<'a>(span: &View<'a>, before: &str) -> Option<Cow<'a, str>> {
    let name = span.text(keys::PLAIN_NAME)?;
    if !is_scrubbed(&name) {
        return Some(name);
    }
    let message = span.str(keys::LOGFIRE_MESSAGE)?.strip_prefix(before)?;
    let name = message.split(" failed: ").next()?;
    Some(Cow::Borrowed(name.trim_end_matches('\'')))
}

fn value<'a>(span: &View<'a>, key: KeyId) -> Option<Raw<'a>> {
    let raw = span.raw(key)?;
    let scrubbed = matches!(raw.value, Value::Str(text) if is_scrubbed(text));
    Some(Raw {
        cut: raw.cut || scrubbed,
        ..raw
    })
}

/// Counts a streamed model call once. Logfire records it in two spans: one with the request, and
/// `streaming response from …` with the request and the reply. Only the second span counts.
fn count_streams_once(spans: &mut RecognisedSpans<'_, '_>) {
    let mut asked: HashMap<Option<SpanIdx>, Vec<SpanIdx>> = HashMap::new();
    for span_idx in 0..spans.spans.len() {
        let span = &spans.spans[span_idx];
        let Some(template) = span
            .view
            .str(keys::LOGFIRE_TEMPLATE)
            .filter(|_| span.is_model)
        else {
            continue;
        };
        let siblings = asked.entry(spans.parent[span_idx]).or_default();
        if template.starts_with("streaming response from ") {
            if let Some(asked) = siblings.pop() {
                spans.spans[asked].is_model = false;
            }
        } else if !span.view.has(keys::FINISH_REASONS) {
            siblings.push(span_idx);
        }
    }
}
