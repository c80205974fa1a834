//! Pure. What extraction made of every span of a trace, and why: for `inspect --verbose`, so that a framework that is not recognised is a
//! five-minute configuration and not a mystery. Costs a second pass, and is asked for by people only.

use std::fmt;
use std::sync::Arc;

use super::outline::{LeftOut, Outline};
use super::recognise::Recogniser;
use crate::assemble::Trace;
use crate::span::SpanId;

/// What became of one span.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The span.
    pub span_id: SpanId,
    /// Its name.
    pub name: Arc<str>,
    /// What it was taken for.
    pub taken_for: TakenFor,
}

/// What a span was taken for.
#[derive(Debug, Clone, PartialEq)]
pub enum TakenFor {
    /// A tool call of its own, recognised by this convention.
    Call(Arc<str>),
    /// The same call as that of another span.
    Folded(SpanId),
    /// `tools.ignore` names it.
    Ignored,
    /// A transfer between agents.
    Handoff,
    /// Made up by the framework (`tool.synthesized`).
    Synthesized,
    /// The run of an agent of this name.
    AgentRun(Arc<str>),
    /// A call of a model.
    Model,
    /// A model span within another: the same turn.
    InnerModel,
    /// Nothing that extraction knows.
    Other,
}

impl fmt::Display for TakenFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(convention) => write!(f, "tool call ({convention})"),
            Self::Folded(into) => write!(f, "the same call as span {into}"),
            Self::Ignored => f.write_str("no call: tools.ignore names it"),
            Self::Handoff => f.write_str("no call: it hands over to another agent (tools.handoffs)"),
            Self::Synthesized => f.write_str("no call: tool.synthesized is set"),
            Self::AgentRun(name) => write!(f, "run of the agent {name}"),
            Self::Model => f.write_str("model call"),
            Self::InnerModel => f.write_str("model call within another"),
            Self::Other => f.write_str("not recognised"),
        }
    }
}

/// A note for each span, in the order of the trace.
pub fn notes(trace: &Trace, recogniser: &Recogniser) -> Vec<Note> {
    let outline = Outline::new(&trace.spans, recogniser);
    let id = |span_idx: usize| trace.spans[span_idx].0.span_id;
    let taken_for = |span_idx: usize| match outline.left_out[span_idx] {
        Some(LeftOut::Folded(into)) => TakenFor::Folded(id(into)),
        Some(LeftOut::Ignored) => TakenFor::Ignored,
        Some(LeftOut::Handoff) => TakenFor::Handoff,
        Some(LeftOut::Synthesized) => TakenFor::Synthesized,
        None if outline.calls[span_idx].is_some() => TakenFor::Call(outline.conventions[span_idx].into()),
        None => match outline.runs.iter().find(|run| run.span == span_idx) {
            Some(run) => TakenFor::AgentRun((&*run.name).into()),
            None if outline.model[span_idx] == Some(span_idx) => TakenFor::Model,
            None if outline.models_below[span_idx] => TakenFor::InnerModel,
            None => TakenFor::Other,
        },
    };
    (trace.spans.iter().enumerate())
        .map(|(span_idx, (span, _))| Note { span_id: span.span_id, name: span.name().into(), taken_for: taken_for(span_idx) })
        .collect()
}
