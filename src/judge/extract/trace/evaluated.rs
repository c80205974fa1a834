//! Finds the evaluated span of a trace and its session, and decides whether the trace was cut
//! short.

use std::borrow::Cow;

use super::span_roles::SpanRoles;
use crate::assemble::{CloseReason, Trace};
use crate::extract::spans::SpanIdx;
use crate::extract::spans::shared_keys::own_session;

/// Returns the earliest topmost agent run that is neither a call nor within one, else the earliest
/// top span (see `is_top_span`), else the earliest span without a parent in the trace.
pub(crate) fn evaluated_span(roles: &SpanRoles<'_>) -> Option<SpanIdx> {
    // Runs are in order, so the first topmost run is the earliest. A run that is a tool call, or is
    // within one, was called by an agent above it, even if that agent has no run (some graph agents
    // are marked as runs only if their name says so).
    let is_called = |span_idx: SpanIdx| {
        roles.recognised[span_idx].call.is_some() || roles.roles[span_idx].call_above.is_some()
    };
    let mut topmost_runs = roles.runs.iter().filter(|run| run.parent.is_none());
    if let Some(run) = topmost_runs.find(|run| !is_called(run.span)) {
        return Some(run.span);
    }
    let is_top = is_top_span(roles);
    let mut tops: Vec<SpanIdx> = roles.tree.tops().collect();
    tops.sort_by_key(|&span_idx| roles.rank(span_idx));
    let top = tops.iter().copied().find(|&span_idx| is_top(span_idx));
    top.or_else(|| tops.first().copied())
}

/// Returns true if the trace was cut short. A trace is whole if its root has ended; a trace that
/// was closed as inactive, or at the end of replay's input, is whole if no span is visibly missing
/// (`docs/design.md#when-is-a-trace-done`).
pub(crate) fn is_cut_short(trace: &Trace, roles: &SpanRoles<'_>) -> bool {
    match trace.reason {
        CloseReason::RootEnded => false,
        CloseReason::Inactive | CloseReason::NoRoot => shows_hole(trace, roles),
        _ => true,
    }
}

/// Returns true if a topmost span has not ended, or if a span above it seems to be missing.
fn shows_hole(trace: &Trace, roles: &SpanRoles<'_>) -> bool {
    let has_ended = |span_idx: SpanIdx| {
        let span = &roles.spans[span_idx];
        span.end_unix_nanos != 0 && !span.class.partial
    };
    let mut tops = roles.tree.tops();
    if !roles.tree.tops().all(has_ended) {
        return true;
    }
    if !trace.parent_missing {
        // A tool server's sidecar sees calls and no agent; the agent's other calls went to other
        // servers.
        return !tops.any(is_top_span(roles));
    }
    // The missing parent is not marked as remote, but many SDKs do not mark parents at all. If the
    // only topmost span is an agent run, its parent may well be in another process.
    let (Some(top), None) = (tops.next(), tops.next()) else {
        return true;
    };
    roles.spans[top].parent_is_local() || !roles.runs.iter().any(|run| run.span == top)
}

/// Returns a test for top spans among the topmost spans. Every span without a parent id is a top
/// span. So is a span with a remote parent if it is no tool call and an agent run or a model call
/// is at or below it.
fn is_top_span(roles: &SpanRoles<'_>) -> impl Fn(SpanIdx) -> bool {
    let mut has_agent = vec![false; roles.spans.len()];
    for run in &roles.runs {
        has_agent[run.span] = true;
    }
    for &span_idx in roles.tree.parents_first.iter().rev() {
        has_agent[span_idx] |= roles.roles[span_idx].model_of == Some(span_idx);
        if let Some(parent) = roles.tree.parent[span_idx] {
            has_agent[parent] |= has_agent[span_idx];
        }
    }
    move |span_idx| {
        let span = &roles.spans[span_idx];
        span.parent_id.is_none()
            || (span.parent_is_remote()
                && roles.recognised[span_idx].call.is_none()
                && has_agent[span_idx])
    }
}

/// Returns true if the first captured model request contains an answer from an earlier turn of the
/// session. `None` if no request was captured, or if a model span without a captured request ended
/// before that request.
pub(crate) fn continues_session(roles: &SpanRoles<'_>) -> Option<bool> {
    let models = || (0..roles.spans.len()).filter(|&span_idx| roles.recognised[span_idx].is_model);
    let repeats_answers = |span_idx: SpanIdx| roles.spans[span_idx].repeats_answers;
    let asked = models().filter(|&span_idx| repeats_answers(span_idx).is_some());
    let first = asked.min_by_key(|&span_idx| roles.rank(span_idx))?;
    // The answer may be the reply of a model span in this trace whose messages were not captured.
    let is_before = |span_idx: SpanIdx| {
        repeats_answers(span_idx).is_none() && roles.tree.end[span_idx] <= roles.tree.start[first]
    };
    repeats_answers(first).filter(|_| !models().any(is_before))
}

/// Returns the session of the evaluated span, else of the nearest span above it, else of the
/// earliest span that names one, because often only model spans do.
pub(crate) fn session<'a>(roles: &SpanRoles<'a>, evaluated: SpanIdx) -> Option<Cow<'a, str>> {
    let session_of = |span_idx: SpanIdx| own_session(&roles.recognised[span_idx].view);
    let anywhere = || {
        let named = (0..roles.spans.len()).filter_map(|span_idx| {
            let session = session_of(span_idx)?;
            Some((roles.rank(span_idx), session))
        });
        named
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, session)| session)
    };
    session_of(evaluated)
        .or_else(|| roles.tree.ancestors(evaluated).find_map(session_of))
        .or_else(anywhere)
}
