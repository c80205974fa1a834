//! DSPy under OpenInference: agents are modules marked as chains like all other modules, so only
//! the class name identifies them.

use otlp::span::KeyBits;
use std::borrow::Cow;

use super::super::convention::Convention;
use super::super::keys;
use super::super::view::View;

/// - Agent run: `openinference.span.kind` is `CHAIN`, and the span's name is `ReAct.forward`,
///   `CodeAct.forward`, or their `.acall` or `.aforward`; the agent is the class. Everything else
///   is recognised as `openinference`.
pub(super) const DSPY: Convention = Convention {
    name: "dspy",
    marks: KeyBits::new(&[keys::OI_KIND]),
    agent_run: Some(agent_run),
    ..Convention::NONE
};

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    let (class, method) = span.name().split_once('.')?;
    let is_run = matches!(class, "ReAct" | "CodeAct")
        && matches!(method, "forward" | "aforward" | "acall")
        && span.is(keys::OI_KIND, "CHAIN");
    is_run.then_some(Cow::Borrowed(class))
}
