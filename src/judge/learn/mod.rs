//! Learns rules and a baseline from good runs, and compares later runs with the baseline.

mod baseline;
mod drift;
mod effort;
mod rules;
#[cfg(test)]
mod tests;

pub use baseline::{Baseline, BaselineError};
pub use drift::{DriftReport, GroupDrift, Measure, Measurement, compare};
pub use effort::limits;
pub use rules::{LearnedRule, Template, learn_rules, n_tools_left_out};

use std::collections::BTreeMap;

use crate::extract::Trajectory;

/// The key of a group of runs that are compared: one agent under one root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupKey {
    /// A glob that matches the name of the root.
    pub root: String,
    /// A glob that matches the name of the agent.
    pub agent: Option<String>,
}

/// Groups runs by root and agent. `key` returns the group of a run.
pub fn group_runs<'a>(
    runs: impl IntoIterator<Item = &'a Trajectory>,
    key: impl Fn(&Trajectory) -> GroupKey,
) -> BTreeMap<GroupKey, Vec<&'a Trajectory>> {
    let mut groups: BTreeMap<GroupKey, Vec<&Trajectory>> = BTreeMap::new();
    for run in runs {
        groups.entry(key(run)).or_default().push(run);
    }
    groups
}

fn names(run: &Trajectory) -> Vec<&str> {
    run.tool_calls.iter().map(|call| &*call.name).collect()
}
