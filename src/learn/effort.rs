//! Pure. Finds the limits of effort that a group of runs keeps.

use crate::extract::Trajectory;

/// The limits of `efficiency` that all runs of a group keep: the most seen.
pub fn limits(_runs: &[&Trajectory]) -> Vec<(&'static str, u64)> {
    Vec::new()
}
