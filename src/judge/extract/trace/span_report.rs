//! Explains for each span how it was interpreted, for `inspect --verbose`. Costs a second pass, so
//! it runs only on request.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use otlp::span::SpanId;

use super::calls;
use super::span_roles::{Exclusion, SpanRoles};
use crate::assemble::Trace;
use crate::extract::spans::{Recogniser, SpanIdx};

/// The interpretation of one span.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanReport {
    pub span_id: SpanId,
    pub name: Arc<str>,
    /// The number of spans above this span in the trace.
    pub depth: u32,
    pub role: SpanRole,
    /// The number of log records with a model's messages that were written in the span.
    pub n_records: usize,
}

/// The role of a span in its trace, with the convention that recognised it.
#[derive(Debug, Clone, PartialEq)]
pub enum SpanRole {
    /// A separate tool call.
    Call(Arc<str>),
    /// A report of another span's call.
    Folded(SpanId),
    /// A call that `tools.ignore` excludes.
    Ignored,
    /// A transfer between agents.
    Handoff,
    /// A call invented by the framework (`tool.synthesized`).
    Synthesized,
    AgentRun {
        name: Arc<str>,
        convention: Arc<str>,
    },
    /// A span that is marked as a run of this agent, directly within a run of this agent. The span
    /// is part of the enclosing run.
    InnerRun(Arc<str>),
    /// A span that a convention marks as an agent run, but that is none: for example, a plain
    /// completion, or a workflow around agent runs.
    Completion(Arc<str>),
    /// A model call.
    Model(Arc<str>),
    /// A model span within another one, or another report of a sibling's model call; part of the
    /// same turn.
    InnerModel,
    /// A span that no convention recognised.
    Other,
}

impl fmt::Display for SpanRole {
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
                write!(f, "no agent run: it calls no tool itself ({convention})")
            }
            Self::Model(convention) => write!(f, "model call ({convention})"),
            Self::InnerModel => f.write_str("model call within another"),
            Self::Other => f.write_str("not recognised"),
        }
    }
}

/// Returns a report for each span. Parents precede their children; siblings are ordered by start.
pub fn span_reports(trace: &Trace, recogniser: &Recogniser) -> Vec<SpanReport> {
    let roles = SpanRoles::new(trace, recogniser);
    let repeated_calls = calls::repeated_calls(&roles, recogniser);
    let runs = roles.runs.iter();
    let run_names: HashMap<SpanIdx, &str> = runs.map(|run| (run.span, &*run.name)).collect();
    let report = |span_idx: SpanIdx| {
        let span = &roles.spans[span_idx];
        SpanReport {
            span_id: span.span_id,
            name: roles.recognised[span_idx].view.name().into(),
            depth: roles.tree.depth[span_idx],
            role: match repeated_calls.get(&span_idx) {
                Some(&original) => SpanRole::Folded(roles.spans[original].span_id),
                None => role(&roles, recogniser, &run_names, span_idx),
            },
            n_records: roles.records_of.get(&span_idx).map_or(0, Vec::len),
        }
    };
    top_down(&roles).into_iter().map(report).collect()
}

fn role(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    run_names: &HashMap<SpanIdx, &str>,
    span_idx: SpanIdx,
) -> SpanRole {
    let convention = || Arc::from(roles.roles[span_idx].convention);
    match roles.roles[span_idx].excluded {
        Some(Exclusion::Folded(original)) => {
            return SpanRole::Folded(roles.spans[original].span_id);
        }
        Some(Exclusion::Ignored) => return SpanRole::Ignored,
        Some(Exclusion::Handoff) => return SpanRole::Handoff,
        Some(Exclusion::Synthesized) => return SpanRole::Synthesized,
        None if roles.recognised[span_idx].call.is_some() => return SpanRole::Call(convention()),
        None => {}
    }
    if let Some(&name) = run_names.get(&span_idx) {
        return SpanRole::AgentRun {
            name: name.into(),
            convention: convention(),
        };
    }
    if roles.is_inner_model(span_idx) {
        return SpanRole::InnerModel;
    }
    if roles.roles[span_idx].model_of == Some(span_idx) {
        return SpanRole::Model(convention());
    }
    if let Some(run) = roles.roles[span_idx].own_run {
        return SpanRole::InnerRun((&*roles.runs[run].name).into());
    }
    let note = roles.spans[span_idx].class.recognition;
    let found = recogniser.recall(&roles.recognised[span_idx].view, note);
    if found.agent == 0 {
        SpanRole::Other
    } else {
        SpanRole::Completion(convention())
    }
}

/// Returns the spans depth first: every span after its parent and before its parent's next child.
fn top_down(roles: &SpanRoles<'_>) -> Vec<SpanIdx> {
    let n_spans = roles.spans.len();
    let mut children: Vec<Vec<SpanIdx>> = vec![Vec::new(); n_spans];
    let mut open: Vec<SpanIdx> = roles.tree.tops().collect();
    for (span_idx, parent) in roles.tree.parent.iter().enumerate() {
        if let Some(parent) = *parent {
            children[parent].push(span_idx);
        }
    }
    let latest_first = |spans: &mut Vec<SpanIdx>| {
        spans.sort_by_key(|&span_idx| std::cmp::Reverse(roles.rank(span_idx)))
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
