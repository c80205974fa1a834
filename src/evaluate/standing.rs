//! Pure. A trajectory that was cut short in, the parts of it that stay as they are whatever the
//! rest of the trace brings out. Knows what is doubtful of a call; knows neither expectations nor
//! why it is doubtful.

use std::collections::BTreeMap;

use crate::extract::{ToolCall, Trajectory};

/// Most lines of calls that are looked at, the longest ones: each costs a copy of the trajectory.
const MAX_LINES: usize = 32;

/// The calls that stay calls of their names. In order means that they stay in order too: then there
/// is a part for each line of calls, since between lines the order may change.
pub(super) fn parts(trajectory: &Trajectory, in_order: bool) -> Vec<Trajectory> {
    let mut lines: BTreeMap<u32, Vec<ToolCall>> = BTreeMap::new();
    for call in trajectory
        .tool_calls
        .iter()
        .filter(|call| !call.doubt.may_go)
    {
        let line = if in_order { call.doubt.line } else { 0 };
        lines.entry(line).or_default().push(call.clone());
    }
    let mut lines: Vec<Vec<ToolCall>> = if lines.is_empty() {
        vec![Vec::new()]
    } else {
        lines.into_values().collect()
    };
    lines.sort_by_key(|calls| std::cmp::Reverse(calls.len()));
    lines.truncate(MAX_LINES);
    let part = |mut tool_calls: Vec<ToolCall>| {
        // An outer call that stands for this one tells its own values, and may never end.
        tool_calls
            .iter_mut()
            .for_each(|call| call.partial |= call.doubt.may_fold);
        Trajectory {
            tool_calls,
            ..trajectory.clone()
        }
    };
    lines.into_iter().map(part).collect()
}
