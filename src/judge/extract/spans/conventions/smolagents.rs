//! smolagents under OpenInference: the model calls a managed agent like a tool, but the call has no
//! span, only the agent's run below another agent's run.

use otlp::span::KeyBits;
use std::borrow::Cow;

use super::super::convention::{Convention, RecognisedSpans, Refine, SpanCall};
use super::super::keys;
use super::super::view::View;
use super::openinference::bare_name;

/// - Tool call: an agent run below another agent's run, with `smolagents.max_steps`. The span's
///   name is the tool's name, and `output.value` the result. Everything else is recognised as
///   `openinference`.
pub(super) const SMOLAGENTS: Convention = Convention {
    name: "smolagents",
    refine: Some(Refine {
        when: KeyBits::new(&[keys::SMOLAGENTS_STEPS]),
        apply: add_managed_agents,
    }),
    ..Convention::NONE
};

fn add_managed_agents(spans: &mut RecognisedSpans<'_, '_>) {
    let mut is_below_agent = vec![false; spans.spans.len()];
    for &span_idx in spans.parents_first {
        let Some(parent) = spans.parent[span_idx] else {
            continue;
        };
        is_below_agent[span_idx] = is_below_agent[parent] || spans.spans[parent].agent.is_some();
        let span = &mut spans.spans[span_idx];
        if is_below_agent[span_idx] && span.agent.is_some() && span.call.is_none() {
            span.call = managed_agent(&span.view);
        }
    }
}

fn managed_agent<'a>(span: &View<'a>) -> Option<SpanCall<'a>> {
    span.has(keys::SMOLAGENTS_STEPS).then(|| SpanCall {
        name: Some(Cow::Borrowed(bare_name(span.name()))),
        result: span.raw(keys::OUTPUT_VALUE),
        ..SpanCall::default()
    })
}
