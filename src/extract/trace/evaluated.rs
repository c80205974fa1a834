//! Pure. Which span of a trace is evaluated, its session, and whether the trace was cut short.

use std::borrow::Cow;

use hashbrown::HashSet;

use super::span_roles::SpanRoles;
use crate::assemble::{CloseReason, Trace};
use crate::extract::spans::SpanIdx;
use crate::extract::spans::shared_keys::own_session;

/// The earliest agent run among the topmost; else the earliest top span; else the earliest topmost
/// span present.
pub(crate) fn evaluated_span(roles: &SpanRoles<'_>) -> Option<SpanIdx> {
    // Runs are in order, so that the first of the topmost is the earliest. A run that is a tool
    // call, or lies in one, was called by an agent above it, even if that has no run of its own
    // (some graph agents are marked as runs only if their name says so).
    let is_called =
        |span_idx: SpanIdx| roles.calls[span_idx].is_some() || roles.call_above[span_idx].is_some();
    let mut topmost_runs = roles.runs.iter().filter(|run| run.parent.is_none());
    if let Some(run) = topmost_runs.find(|run| !is_called(run.span)) {
        return Some(run.span);
    }
    let mut holds_agent = vec![false; roles.spans.len()];
    for &span_idx in roles.tree.parents_first.iter().rev() {
        holds_agent[span_idx] |=
            roles.calls[span_idx].is_some() || roles.model_of[span_idx] == Some(span_idx);
        if let Some(parent) = roles.tree.parent[span_idx] {
            holds_agent[parent] |= holds_agent[span_idx];
        }
    }
    let is_top = |span_idx: SpanIdx| {
        let span = &roles.spans[span_idx].0;
        span.parent_id.is_none()
            || (span.parent_is_remote() && roles.calls[span_idx].is_none() && holds_agent[span_idx])
    };
    let mut tops: Vec<SpanIdx> = roles.tree.tops().collect();
    tops.sort_by_key(|&span_idx| roles.rank(span_idx));
    let top = tops.iter().copied().find(|&span_idx| is_top(span_idx));
    top.or_else(|| tops.first().copied())
}

/// A closed trace is judged in full if its root has ended; without that, if nothing can be missing
/// above or beside its spans.
pub(crate) fn is_cut_short(trace: &Trace, roles: &SpanRoles<'_>) -> bool {
    match trace.reason {
        CloseReason::RootEnded => false,
        CloseReason::Inactive | CloseReason::NoRoot => {
            let runs: HashSet<SpanIdx> = roles.runs.iter().map(|run| run.span).collect();
            let is_finished_run = |span_idx: SpanIdx| {
                let (span, class) = &trace.spans[span_idx];
                span.end_unix_nanos != 0 && !class.partial && runs.contains(&span_idx)
            };
            trace.parent_missing && !roles.tree.tops().all(is_finished_run)
        }
        _ => true,
    }
}

/// The session of the evaluated span, else of those above it, else of the earliest span that names
/// one: often only model spans do.
pub(crate) fn session<'a>(roles: &SpanRoles<'a>, evaluated: SpanIdx) -> Option<Cow<'a, str>> {
    let session_of = |span_idx: SpanIdx| own_session(&roles.views[span_idx]);
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
