//! Finds the calls of a trajectory cut short that stay as they are, whatever the rest of the
//! trace holds. Reads the uncertainty that extraction noted on each call; knows no expectations.

use std::collections::BTreeMap;

use crate::extract::{ToolCall, Trajectory};

/// Most lines of calls that are evaluated, the longest ones: each is evaluated anew.
const MAX_LINES: usize = 32;

/// The calls that certainly stay calls of their names. With `in_order` their order must be certain
/// too: then there is one subset per line of calls, since the order between lines may change.
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
        // An outer call may replace this one; it has values of its own and may never end.
        tool_calls
            .iter_mut()
            .for_each(|call| call.partial |= call.uncertainty.may_fold);
        trajectory.with_calls(tool_calls)
    };
    lines.into_iter().map(subset_of).collect()
}
