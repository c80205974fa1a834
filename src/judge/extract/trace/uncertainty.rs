//! Decides how missing spans could change the known calls of a trace that was cut short, so that a
//! verdict given early never changes. Evaluators decide what further calls could change.
//!
//! Assumptions: a span that has ended does not change. Spans that report one call by its id agree
//! on its name, its arguments, and its start relative to other calls. A parent that is marked as
//! local has the same resource as its child. A trace has one root. A span above a model call, an
//! agent run or a call of another tool is not a mere wrapper of a call below it.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use otlp::span::SpanId;

use super::draft::Draft;
use super::handoffs::is_handoff;
use super::span_roles::SpanRoles;
use crate::extract::settings::Handoffs;
use crate::extract::spans::conventions::is_workflow;
use crate::extract::spans::{Recogniser, SpanIdx};
use crate::extract::uncertainty::{CallUncertainty, TrajectoryUncertainty};

/// Sets the uncertainty of each call. The drafts must be in order.
pub(crate) fn set_for_calls(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    gates: &Gates<'_>,
    drafts: &mut [Draft],
) {
    let lines = lines(roles);
    for draft in drafts.iter_mut() {
        let call = &mut draft.call;
        call.uncertainty.may_fold =
            gates.may_wrap(draft.span, &call.name) || (call.partial && call.call_id.is_none());
        // If the span has no status, other spans of the call determine whether it failed.
        call.uncertainty.error = !draft.settled;
        call.uncertainty.may_go = draft.poorly_named || may_be_handoff(&call.name, recogniser);
        // Only a map of arguments is certain, because the bare text of a tool's only argument gets
        // its name from the model's reply.
        call.uncertainty.outer_args = call.uncertainty.may_fold && !draft.has_clear_map;
        call.uncertainty.args |=
            call.partial || (call.args.as_ref()).is_some_and(|args| !args.json().is_object());
    }
    retain_one_of_each(drafts);
    // A call that could begin earlier than it seems, or that begins at the same time as an earlier
    // call of its line, gets a separate line.
    let mut numbers: HashMap<Line, u32> = HashMap::new();
    let mut starts: HashSet<(Line, u64)> = HashSet::new();
    for draft in drafts {
        let line = lines[draft.span];
        let stands_alone =
            draft.call.uncertainty.may_fold || !starts.insert((line, draft.call.start_unix_nanos));
        let next = numbers.len() as u32;
        draft.call.uncertainty.line = *numbers
            .entry(if stands_alone { Line::Alone(draft.span) } else { line })
            .or_insert(next);
    }
}

/// Returns true for each agent run that may turn out to be part of an outer run, or, as a workflow,
/// to be no run.
pub(crate) fn runs_that_may_merge(roles: &SpanRoles<'_>, gates: &Gates<'_>) -> Vec<bool> {
    roles
        .runs
        .iter()
        .map(|run| {
            gates.of_span[run.span].is_some() || is_workflow(&roles.recognised[run.span].view)
        })
        .collect()
}

pub(crate) fn of_trajectory(roles: &SpanRoles<'_>, evaluated: SpanIdx) -> TrajectoryUncertainty {
    let span = &roles.spans[evaluated];
    // A run without calls may turn out to be a workflow, which names no agent.
    let run = roles.roles[evaluated].own_run;
    let is_agents = run.is_some_and(|run| roles.runs_with_work()[run])
        && !is_workflow(&roles.recognised[evaluated].view);
    let is_run = run.is_some_and(|run| roles.runs[run].span == evaluated);
    let is_root = span.parent_id.is_none() && is_run;
    let topmost = &roles.spans[roles.tree.topmost(evaluated)];
    TrajectoryUncertainty {
        subject: !is_root || !is_agents || span.end_unix_nanos == 0 || span.class.partial,
        root: !is_root,
        service: topmost.parent_id.is_some() && !topmost.parent_is_local(),
        all: false,
    }
}

/// Returns true if the call may turn out to be a hand-off, because an agent with this name may
/// still arrive.
fn may_be_handoff(name: &str, recogniser: &Recogniser) -> bool {
    matches!(recogniser.tools.handoffs, Handoffs::Auto)
        && is_handoff(name, None, &Handoffs::Auto, |_| true)
}

/// Marks calls that could turn out to be the same call as an unmarked one.
fn retain_one_of_each(drafts: &mut [Draft]) {
    let mut ids: HashSet<(Arc<str>, Arc<str>)> = HashSet::new();
    for call in drafts.iter_mut().map(|draft| &mut draft.call) {
        let Some(id) = &call.call_id else { continue };
        call.uncertainty.may_go |= !ids.insert((id.clone(), call.name.clone()));
    }
    let stays = |call: &CallUncertainty| !call.may_go && !call.may_fold;
    let mut names: HashSet<Arc<str>> = drafts
        .iter()
        .filter(|draft| stays(&draft.call.uncertainty))
        .map(|draft| draft.call.name.clone())
        .collect();
    for call in drafts
        .iter_mut()
        .map(|draft| &mut draft.call)
        .filter(|call| call.uncertainty.may_fold && !call.uncertainty.may_go)
    {
        call.uncertainty.may_go = !names.insert(call.name.clone());
    }
}

// === Gates ===

/// The gates of a trace's spans. The gate of a span is a missing span above it, or a span above it
/// that has not ended and has no role. No call or agent run is in between. A gate may turn out to
/// report the same call as the span.
pub(crate) struct Gates<'a> {
    pub(crate) of_span: Vec<Option<SpanId>>,
    beneath: HashMap<SpanId, Beneath<'a>>,
}

/// The calls below a gate.
enum Beneath<'a> {
    /// Calls of one name.
    Calls(&'a str),
    Mixed,
}

impl<'a> Gates<'a> {
    pub(crate) fn new(roles: &'a SpanRoles<'_>, recogniser: &Recogniser) -> Self {
        let runs: HashSet<SpanIdx> = roles.runs.iter().map(|run| run.span).collect();
        let mut of_span: Vec<Option<SpanId>> = vec![None; roles.spans.len()];
        let mut beneath: HashMap<SpanId, Beneath<'a>> = HashMap::new();
        for &span_idx in &roles.tree.parents_first {
            // A hand-off is not a call, so a span within a hand-off is not within a call.
            let stays_call = |span_idx: SpanIdx| {
                let call = roles.recognised[span_idx].call.as_ref();
                call.is_some_and(|call| {
                    !call
                        .name
                        .as_deref()
                        .is_some_and(|name| may_be_handoff(name, recogniser))
                })
            };
            let gate = match roles.tree.parent[span_idx] {
                None => roles.spans[span_idx].parent_id,
                Some(parent) if stays_call(parent) || runs.contains(&parent) => None,
                Some(parent) => {
                    let span = &roles.spans[parent];
                    let is_open = (span.end_unix_nanos == 0 || span.class.partial)
                        && roles.roles[parent].model_of != Some(parent);
                    if is_open { Some(span.span_id) } else { of_span[parent] }
                }
            };
            of_span[span_idx] = gate;
            let Some(gate) = gate else { continue };
            let name = roles.recognised[span_idx]
                .call
                .as_ref()
                .and_then(|call| call.name.as_deref());
            // A span that names no tool and has no other role may be part of a sibling's report of
            // a call.
            let is_more = roles.roles[span_idx].excluded.is_some()
                || runs.contains(&span_idx)
                || roles.roles[span_idx].model_of == Some(span_idx);
            match (name, beneath.get(&gate)) {
                (Some(name), None) => drop(beneath.insert(gate, Beneath::Calls(name))),
                (Some(name), Some(Beneath::Calls(known))) if *known == name => {}
                (None, _) if !is_more => {}
                _ => drop(beneath.insert(gate, Beneath::Mixed)),
            }
        }
        Self { of_span, beneath }
    }

    /// Returns true if the gate of this span could report the same call.
    fn may_wrap(&self, span_idx: SpanIdx, name: &str) -> bool {
        let gate = self.of_span[span_idx].and_then(|gate| self.beneath.get(&gate));
        gate.is_some_and(|beneath| matches!(beneath, Beneath::Calls(known) if *known == name))
    }
}

// === Line ===

/// A set of spans that shift together if a parent of another resource turns out to have begun
/// later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Line {
    /// Spans that cannot shift.
    Fixed,
    /// Spans of one resource below a missing parent of the same resource.
    Beneath(SpanId),
    /// This span, and the spans of its resource below it.
    Under(SpanIdx),
    /// This span only.
    Alone(SpanIdx),
}

fn lines(roles: &SpanRoles<'_>) -> Vec<Line> {
    let mut lines = vec![Line::Fixed; roles.spans.len()];
    for &span_idx in &roles.tree.parents_first {
        let span = &roles.spans[span_idx];
        lines[span_idx] = match (roles.tree.parent[span_idx], span.parent_id) {
            // A span without a start has its parent's start, but its children do not shift with it.
            _ if span.start_unix_nanos == 0 => Line::Alone(span_idx),
            (None, None) => Line::Fixed,
            (None, Some(missing)) if span.parent_is_local() => Line::Beneath(missing),
            (None, Some(_)) => Line::Under(span_idx),
            (Some(parent), _) => {
                let above = &roles.spans[parent];
                let encoded = |span| &roles.trace.resource(span).encoded;
                let same =
                    span.resource_idx == above.resource_idx || encoded(span) == encoded(above);
                match lines[parent] {
                    Line::Alone(_) => Line::Under(span_idx),
                    line if same || line == Line::Fixed => line,
                    _ => Line::Under(span_idx),
                }
            }
        };
    }
    lines
}
