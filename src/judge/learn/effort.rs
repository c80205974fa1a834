//! Learns limits of effort from a group of runs.

use crate::evaluate::effort;
use crate::extract::Trajectory;

/// Returns the limits of `efficiency` that no run of the group exceeds: the highest numbers seen. A
/// number that is unknown for some run gives no limit.
pub fn limits(runs: &[&Trajectory]) -> Vec<(&'static str, u64)> {
    let mut limits: Vec<(&'static str, Option<u64>)> = Vec::new();
    for run in runs {
        for (limit_idx, (key, number)) in effort(run).into_iter().enumerate() {
            match limits.get_mut(limit_idx) {
                Some((_, most)) => *most = most.zip(number).map(|(most, n)| most.max(n)),
                None => limits.push((key, number)),
            }
        }
    }
    limits
        .into_iter()
        .filter_map(|(key, most)| Some((key, most?)))
        .collect()
}
