//! In a trace that was cut short, finds the calls that the missing part cannot change. Uses the
//! uncertainty that extraction recorded on each call.

use std::collections::BTreeMap;

use crate::extract::{ToolCall, Trajectory};

/// Maximum number of lines that are evaluated, the longest first. A line is a list of calls whose
/// order is certain. Each line costs one evaluation.
const MAX_LINES: usize = 32;

/// Returns subsets of the calls that missing spans can neither remove nor rename. Without
/// `in_order`, returns one subset; else one for each line, because the order of calls in different
/// lines may change.
pub(super) fn subsets(trajectory: &Trajectory, in_order: bool) -> Vec<Trajectory> {
    let mut lines: BTreeMap<u32, Vec<ToolCall>> = BTreeMap::new();
    for call in trajectory
        .tool_calls
        .iter()
        .filter(|call| !call.uncertainty.may_go)
    {
        let line = if in_order { call.uncertainty.line } else { 0 };
        lines.entry(line).or_default().push(call.clone());
    }
    let mut lines: Vec<Vec<ToolCall>> =
        if lines.is_empty() { vec![Vec::new()] } else { lines.into_values().collect() };
    lines.sort_by_key(|calls| std::cmp::Reverse(calls.len()));
    lines.truncate(MAX_LINES);
    let subset_of = |mut tool_calls: Vec<ToolCall>| {
        for call in tool_calls
            .iter_mut()
            .filter(|call| call.uncertainty.may_fold)
        {
            // An outer call, which may never end, may replace this call.
            call.partial = true;
            call.uncertainty.args |= call.uncertainty.outer_args;
        }
        trajectory.with_calls(tool_calls)
    };
    lines.into_iter().map(subset_of).collect()
}
