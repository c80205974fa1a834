//! Pure. The outline of a trace that was cut short in, what its missing spans could still change
//! about what is known out. So that a verdict given early never changes: what further calls could
//! do to it the evaluators know, here it is about the calls that are listed already.
//!
//! It is taken for granted that a span which has ended stays as it is; that spans which tell of one
//! call by its id agree on its name and arguments, and on when it began as far as other calls go;
//! that a parent marked as local has its child's resource; that a root is alone; and that a span
//! beneath which a model was asked, an agent ran, or another tool was called is no mere wrapper of
//! a call beneath it.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::calls::Draft;
use super::handoffs::is_handoff;
use super::outline::Outline;
use super::recognise::Recogniser;
use super::settings::Handoffs;
use super::tool_call::Doubt;
use super::trajectory::Doubts;
use super::tree::SpanIdx;
use crate::span::{Span, SpanId};

/// Says of each call what could still change about it. The calls come in their order.
pub(super) fn cast(outline: &Outline<'_>, recogniser: &Recogniser, drafts: &mut [Draft]) {
    let gates = Gates::new(outline, recogniser);
    let lines = lines(outline);
    for draft in drafts.iter_mut() {
        let call = &mut draft.call;
        call.doubt.may_fold =
            gates.may_wrap(draft.span, &call.name) || (call.partial && call.call_id.is_none());
        call.doubt.may_go = draft.poorly_named || may_be_handoff(&call.name, recogniser);
        // The bare text of a tool's only argument gets its name from the model's reply.
        call.doubt.args |= call
            .args
            .as_ref()
            .is_some_and(|args| !args.json().is_object());
    }
    leave_one_of_each(drafts);
    // What could begin earlier than it seems, or at the same time as another call, is in line with
    // none.
    let mut numbers: HashMap<Line, u32> = HashMap::new();
    let mut starts: HashSet<(Line, u64)> = HashSet::new();
    for draft in drafts {
        let line = lines[draft.span];
        let stands_alone =
            draft.call.doubt.may_fold || !starts.insert((line, draft.call.start_unix_nanos));
        let next = numbers.len() as u32;
        draft.call.doubt.line = *numbers
            .entry(if stands_alone {
                Line::Alone(draft.span)
            } else {
                line
            })
            .or_insert(next);
    }
}

/// Which agent runs may turn out to be part of an outer one, by position.
pub(super) fn runs_that_may_merge(outline: &Outline<'_>, recogniser: &Recogniser) -> Vec<bool> {
    let gates = Gates::new(outline, recogniser);
    outline
        .runs
        .iter()
        .map(|run| gates.of_span[run.span].is_some())
        .collect()
}

/// What could still change about which span is evaluated.
pub(super) fn of_subject(outline: &Outline<'_>, evaluated: SpanIdx) -> Doubts {
    let (span, mark) = &outline.spans[evaluated];
    let is_run = outline.runs.iter().any(|run| run.span == evaluated);
    let is_root = span.parent_id.is_none() && is_run;
    let topmost = &outline.spans[outline.tree.topmost(evaluated)].0;
    Doubts {
        subject: !is_root || span.end_unix_nanos == 0 || mark.partial,
        root: !is_root,
        service: topmost.parent_id.is_some() && !parent_is_local(topmost),
        all: false,
    }
}

fn parent_is_local(span: &Span) -> bool {
    span.flags & (Span::HAS_IS_REMOTE | Span::IS_REMOTE) == Span::HAS_IS_REMOTE
}

/// An agent of this name may yet come.
fn may_be_handoff(name: &str, recogniser: &Recogniser) -> bool {
    matches!(recogniser.tools.handoffs, Handoffs::Auto)
        && is_handoff(name, &Handoffs::Auto, |_| true)
}

/// Calls that could turn out to be one and the same: all but one of them may go.
fn leave_one_of_each(drafts: &mut [Draft]) {
    let mut ids: HashSet<(Arc<str>, Arc<str>)> = HashSet::new();
    for call in drafts.iter_mut().map(|draft| &mut draft.call) {
        let Some(id) = &call.call_id else { continue };
        call.doubt.may_go |= !ids.insert((id.clone(), call.name.clone()));
    }
    let stays = |doubt: &Doubt| !doubt.may_go && !doubt.may_fold;
    let mut names: HashSet<Arc<str>> = drafts
        .iter()
        .filter(|draft| stays(&draft.call.doubt))
        .map(|draft| draft.call.name.clone())
        .collect();
    for call in drafts
        .iter_mut()
        .map(|draft| &mut draft.call)
        .filter(|call| call.doubt.may_fold && !call.doubt.may_go)
    {
        call.doubt.may_go = !names.insert(call.name.clone());
    }
}

// === Gates ===

/// Where spans that are still to come could lie around a call: the missing span above it, or one
/// above it that has not ended and is nothing yet, with no call and no agent run in between.
struct Gates<'a> {
    of_span: Vec<Option<SpanId>>,
    beneath: HashMap<SpanId, Beneath<'a>>,
}

/// What lies beneath a gate.
enum Beneath<'a> {
    /// Calls of one name.
    Calls(&'a str),
    /// More than that.
    Mixed,
}

impl<'a> Gates<'a> {
    fn new(outline: &'a Outline<'_>, recogniser: &Recogniser) -> Self {
        let runs: HashSet<SpanIdx> = outline.runs.iter().map(|run| run.span).collect();
        let mut of_span: Vec<Option<SpanId>> = vec![None; outline.spans.len()];
        let mut beneath: HashMap<SpanId, Beneath<'a>> = HashMap::new();
        for &span_idx in &outline.tree.parents_first {
            // A hand-off is no call, so that nothing that lies in one lies in a call.
            let stays_call = |span_idx: SpanIdx| {
                let call = outline.calls[span_idx].as_ref();
                call.is_some_and(|call| {
                    !call
                        .name
                        .as_deref()
                        .is_some_and(|name| may_be_handoff(name, recogniser))
                })
            };
            let gate = match outline.tree.parent[span_idx] {
                None => outline.spans[span_idx].0.parent_id,
                Some(parent) if stays_call(parent) || runs.contains(&parent) => None,
                Some(parent) => {
                    let (span, mark) = &outline.spans[parent];
                    let is_open = (span.end_unix_nanos == 0 || mark.partial)
                        && outline.model[parent] != Some(parent);
                    if is_open {
                        Some(span.span_id)
                    } else {
                        of_span[parent]
                    }
                }
            };
            of_span[span_idx] = gate;
            let Some(gate) = gate else { continue };
            let name = outline.calls[span_idx]
                .as_ref()
                .and_then(|call| call.name.as_deref());
            let is_tool = outline.calls[span_idx].is_some() || outline.left_out[span_idx].is_some();
            let is_more =
                is_tool || runs.contains(&span_idx) || outline.model[span_idx] == Some(span_idx);
            match (name, beneath.get(&gate)) {
                (Some(name), None) => drop(beneath.insert(gate, Beneath::Calls(name))),
                (Some(name), Some(Beneath::Calls(known))) if *known == name => {}
                (None, _) if !is_more => {}
                _ => drop(beneath.insert(gate, Beneath::Mixed)),
            }
        }
        Self { of_span, beneath }
    }

    /// Could a missing span be the call of this name that the span tells of, told from further out?
    fn may_wrap(&self, span_idx: SpanIdx, name: &str) -> bool {
        let gate = self.of_span[span_idx].and_then(|gate| self.beneath.get(&gate));
        gate.is_some_and(|beneath| matches!(beneath, Beneath::Calls(known) if *known == name))
    }
}

// === Line ===

/// Which spans can only be shifted together, when a parent of another resource turns out to have
/// begun later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Line {
    /// Those that cannot be shifted any more.
    Fixed,
    /// Those of one resource beneath a missing parent of the same resource.
    Beneath(SpanId),
    /// Those of one resource beneath this span.
    Under(SpanIdx),
    /// No other.
    Alone(SpanIdx),
}

fn lines(outline: &Outline<'_>) -> Vec<Line> {
    let mut lines = vec![Line::Fixed; outline.spans.len()];
    for &span_idx in &outline.tree.parents_first {
        let span = &outline.spans[span_idx].0;
        lines[span_idx] = match (outline.tree.parent[span_idx], span.parent_id) {
            // A span without a start takes its parent's, and those below it are as if it began at
            // no time.
            _ if span.start_unix_nanos == 0 => Line::Alone(span_idx),
            (None, None) => Line::Fixed,
            (None, Some(missing)) if parent_is_local(span) => Line::Beneath(missing),
            (None, Some(_)) => Line::Under(span_idx),
            (Some(parent), _) => {
                let above = &outline.spans[parent].0;
                let same = Arc::ptr_eq(&span.resource, &above.resource)
                    || span.resource.encoded == above.resource.encoded;
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
