//! Pure. A closed trace in, what extraction made of every span of it, and why, out: for `inspect
//! --verbose`, so that a framework that is not recognised is a five-minute configuration and not a
//! mystery. Costs a second pass, and is asked for by people only.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;

use super::calls;
use super::outline::{LeftOut, Outline};
use super::recognise::Recogniser;
use super::tree::SpanIdx;
use crate::assemble::Trace;
use crate::span::SpanId;

/// What became of one span.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The span.
    pub span_id: SpanId,
    /// Its name.
    pub name: Arc<str>,
    /// How many spans of the trace lie above it.
    pub depth: u32,
    /// What it was taken for.
    pub taken_for: TakenFor,
    /// How many log records with messages of a model were written in it.
    pub n_records: usize,
}

/// What a span was taken for. Conventions are those that recognised it.
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
    /// The run of an agent.
    AgentRun {
        /// The agent's name.
        name: Arc<str>,
        /// The convention.
        convention: Arc<str>,
    },
    /// Directly within a run of this agent, and so the same run.
    InnerRun(Arc<str>),
    /// Marked like an agent's run, but nothing in it uses tools.
    Completion(Arc<str>),
    /// A call of a model, recognised by this convention.
    Model(Arc<str>),
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
            Self::Handoff => {
                f.write_str("no call: it hands over to another agent (tools.handoffs)")
            }
            Self::Synthesized => f.write_str("no call: tool.synthesized is set"),
            Self::AgentRun { name, convention } => {
                write!(f, "run of the agent {name} ({convention})")
            }
            Self::InnerRun(name) => write!(f, "the same run of the agent {name}"),
            Self::Completion(convention) => {
                write!(f, "no agent run: nothing in it uses tools ({convention})")
            }
            Self::Model(convention) => write!(f, "model call ({convention})"),
            Self::InnerModel => f.write_str("model call within another"),
            Self::Other => f.write_str("not recognised"),
        }
    }
}

/// A note for each span: every span after its parent, siblings by their start.
pub fn notes(trace: &Trace, recogniser: &Recogniser) -> Vec<Note> {
    let outline = Outline::new(trace, recogniser);
    let told_twice = calls::told_twice(&outline, recogniser);
    let runs: HashMap<SpanIdx, &str> = outline
        .runs
        .iter()
        .map(|run| (run.span, &*run.name))
        .collect();
    let note = |span_idx: SpanIdx| {
        let span = &trace.spans[span_idx].0;
        let taken_for = match told_twice.get(&span_idx) {
            Some(&twin) => TakenFor::Folded(trace.spans[twin].0.span_id),
            None => taken_for(&outline, recogniser, &runs, span_idx),
        };
        let n_records = outline.records_of.get(&span_idx).map_or(0, Vec::len);
        Note {
            span_id: span.span_id,
            name: span.name().into(),
            depth: outline.tree.depth[span_idx],
            taken_for,
            n_records,
        }
    };
    top_down(&outline).into_iter().map(note).collect()
}

fn taken_for(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
    runs: &HashMap<SpanIdx, &str>,
    span_idx: SpanIdx,
) -> TakenFor {
    let convention = || Arc::from(outline.convention(span_idx, recogniser));
    match outline.left_out[span_idx] {
        Some(LeftOut::Folded(into)) => return TakenFor::Folded(outline.spans[into].0.span_id),
        Some(LeftOut::Ignored) => return TakenFor::Ignored,
        Some(LeftOut::Handoff) => return TakenFor::Handoff,
        Some(LeftOut::Synthesized) => return TakenFor::Synthesized,
        None if outline.calls[span_idx].is_some() => return TakenFor::Call(convention()),
        None => {}
    }
    if let Some(&name) = runs.get(&span_idx) {
        return TakenFor::AgentRun {
            name: name.into(),
            convention: convention(),
        };
    }
    if outline.models_below[span_idx] {
        return TakenFor::InnerModel;
    }
    if outline.model[span_idx] == Some(span_idx) {
        return TakenFor::Model(convention());
    }
    match recogniser.recognise(&outline.views[span_idx]).agent {
        Some(name)
            if outline.run_above[span_idx].is_some_and(|run| outline.runs[run].name == name) =>
        {
            TakenFor::InnerRun((&*name).into())
        }
        Some(_) => TakenFor::Completion(convention()),
        None => TakenFor::Other,
    }
}

/// Every span after its parent and before its parent's next child.
fn top_down(outline: &Outline<'_>) -> Vec<SpanIdx> {
    let n_spans = outline.spans.len();
    let mut children: Vec<Vec<SpanIdx>> = vec![Vec::new(); n_spans];
    let mut open: Vec<SpanIdx> = outline.tree.tops().collect();
    for (span_idx, parent) in outline.tree.parent.iter().enumerate() {
        if let Some(parent) = *parent {
            children[parent].push(span_idx);
        }
    }
    let latest_first = |spans: &mut Vec<SpanIdx>| {
        spans.sort_by_key(|&span_idx| std::cmp::Reverse(outline.rank(span_idx)))
    };
    latest_first(&mut open);
    let mut order = Vec::with_capacity(n_spans);
    while let Some(span_idx) = open.pop() {
        order.push(span_idx);
        latest_first(&mut children[span_idx]);
        open.append(&mut children[span_idx]);
    }
    order
}
