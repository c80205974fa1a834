//! Explains, span by span, how a trace was interpreted (`inspect --verbose`), so that a
//! framework that is not recognised is a five-minute configuration and not a mystery. Costs a
//! second pass, for people only.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use otlp::span::SpanId;

use super::calls;
use super::log_trajectory::ReadableTrace;
use super::span_roles::{Exclusion, SpanRoles};
use crate::assemble::Trace;
use crate::extract::spans::{Recogniser, SpanIdx};

/// The interpretation of one span.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanReport {
    /// The span.
    pub span_id: SpanId,
    /// The name.
    pub name: Arc<str>,
    /// Number of spans of the trace above it.
    pub depth: u32,
    /// The role in the trace.
    pub role: SpanRole,
    /// Number of log records with a model's messages that were written in it.
    pub n_records: usize,
}

/// The role of a span in its trace. Conventions are those that recognised it.
#[derive(Debug, Clone, PartialEq)]
pub enum SpanRole {
    /// A tool call of its own, recognised by this convention.
    Call(Arc<str>),
    /// Another span stands for this call.
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
    /// Marked like an agent's run, but it calls no tool itself: a plain completion, or a workflow
    /// around the runs of agents.
    Completion(Arc<str>),
    /// A call of a model, recognised by this convention.
    Model(Arc<str>),
    /// A model span within another: the same turn.
    InnerModel,
    /// No convention recognised it.
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

/// A report for each span: every span after its parent, siblings by their start.
pub fn span_reports(trace: &Trace, recogniser: &Recogniser) -> Vec<SpanReport> {
    let readable = ReadableTrace::new(trace);
    let trace = &*readable.trace;
    let roles = SpanRoles::new(&readable, recogniser);
    let repeated_calls = calls::repeated_calls(&roles, recogniser);
    let runs = roles.runs.iter();
    let run_names: HashMap<SpanIdx, &str> = runs.map(|run| (run.span, &*run.name)).collect();
    let report = |span_idx: SpanIdx| {
        let span = &trace.spans[span_idx];
        SpanReport {
            span_id: span.span_id,
            name: span.name().into(),
            depth: roles.tree.depth[span_idx],
            role: match repeated_calls.get(&span_idx) {
                Some(&original) => SpanRole::Folded(trace.spans[original].span_id),
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
    let recognised = recogniser.recall(&roles.recognised[span_idx].view, note);
    match recognised.agent {
        Some(_) => SpanRole::Completion(convention()),
        None => SpanRole::Other,
    }
}

/// Every span after its parent and before its parent's next child.
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
