//! The baseline of good runs, which is stored in a file: for each group of runs, the sequences of
//! tool names and one row per stored run. It contains no arguments or results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{GroupKey, names};
use crate::extract::Trajectory;

const VERSION: u64 = 1;

/// Maximum number of rows in a group. That number suffices for a comparison, and needs about 20 KB.
const MAX_ROWS: usize = 1000;

/// The tool sequences and effort of good runs, by group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    version: u64,
    pub(super) groups: Vec<BaselineGroup>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BaselineGroup {
    pub(super) root: String,
    pub(super) agent: Option<String>,
    /// The number of runs in the group. At most 1,000 of them are stored in `runs`.
    pub(super) n_runs: usize,
    /// The distinct sequences of tool names of the stored runs.
    pub(super) sequences: Vec<Vec<String>>,
    pub(super) runs: Vec<RunRow>,
}

/// A run: the index of its sequence, its number of failed calls, and its duration in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(expecting = "`[position in sequences, failed calls, milliseconds or null]`")]
pub(super) struct RunRow(pub(super) usize, pub(super) usize, pub(super) Option<u64>);

/// The reason why a baseline cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaselineError(String);

impl fmt::Display for BaselineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Baseline {
    /// Creates the baseline of groups of runs. The order of the runs does not matter.
    pub fn new(groups: &BTreeMap<GroupKey, Vec<&Trajectory>>) -> Self {
        Self {
            version: VERSION,
            groups: groups
                .iter()
                .map(|(key, runs)| BaselineGroup::new(key, runs))
                .collect(),
        }
    }

    /// Parses a baseline file.
    ///
    /// # Errors
    /// Returns an error if the text is not a baseline of this version, or if it contradicts itself.
    pub fn parse(text: &str) -> Result<Self, BaselineError> {
        let remedy = "write it anew with `spanscore learn --baseline FILE`";
        let refuse = |why: String| BaselineError(format!("{why}; {remedy}"));
        let value: Value =
            serde_json::from_str(text).map_err(|error| refuse(format!("is not JSON: {error}")))?;
        match value.get("version").map(Value::as_u64) {
            Some(Some(VERSION)) => {}
            Some(Some(version)) => {
                return Err(refuse(format!(
                    "has version {version}, and this program reads version {VERSION}"
                )));
            }
            Some(None) => {
                return Err(refuse(
                    "is not a baseline: its `version` is not a number".to_owned(),
                ));
            }
            None => return Err(refuse("is not a baseline: it has no `version`".to_owned())),
        }
        let baseline: Self = serde_json::from_str(text)
            .map_err(|error| refuse(format!("is not a baseline: {error}")))?;
        let mut keys = BTreeSet::new();
        for (group_idx, group) in baseline.groups.iter().enumerate() {
            let place = format!("groups[{group_idx}]");
            if !keys.insert(group.key()) {
                return Err(refuse(format!(
                    "{place} has the root and agent of another group"
                )));
            }
            if group.runs.len() > group.n_runs {
                return Err(refuse(format!(
                    "{place} has {} runs, and `n_runs` says {}",
                    group.runs.len(),
                    group.n_runs
                )));
            }
            let n_rows = n_rows(group.n_runs);
            if group.runs.len() != n_rows {
                return Err(refuse(format!(
                    "{place} has {} runs, where a baseline of {} runs has {n_rows}",
                    group.runs.len(),
                    group.n_runs
                )));
            }
            for (run_idx, RunRow(sequence, errors, _)) in group.runs.iter().enumerate() {
                let Some(names) = group.sequences.get(*sequence) else {
                    return Err(refuse(format!(
                        "{place}.runs[{run_idx}] has sequence {sequence}, and there are only {}",
                        group.sequences.len()
                    )));
                };
                if *errors > names.len() {
                    return Err(refuse(format!(
                        "{place}.runs[{run_idx}] has {errors} failed calls among {}",
                        names.len()
                    )));
                }
            }
        }
        Ok(baseline)
    }

    /// Returns the file's text.
    ///
    /// # Errors
    /// No error is possible in practice, because all keys are text.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut text = String::from("{\"version\":1,\"groups\":[");
        for (group_idx, group) in self.groups.iter().enumerate() {
            text.push_str(if group_idx == 0 { "\n" } else { ",\n" });
            text.push_str(&serde_json::to_string(group)?);
        }
        text.push_str("\n]}\n");
        Ok(text)
    }

    /// Returns a seed that depends only on the content, so that permutations are reproducible.
    pub(super) fn seed(&self) -> u64 {
        let text = self.to_json().unwrap_or_default();
        let mut first = [0; 8];
        first.copy_from_slice(&Sha256::digest(text.as_bytes())[..8]);
        u64::from_be_bytes(first)
    }
}

/// Returns the step between stored runs: every `step`-th of the sorted runs is stored.
fn step(n_runs: usize) -> usize {
    n_runs.div_ceil(MAX_ROWS).max(1)
}

/// Returns the number of rows that store `n_runs` runs.
fn n_rows(n_runs: usize) -> usize {
    n_runs.div_ceil(step(n_runs))
}

impl BaselineGroup {
    fn new(key: &GroupKey, runs: &[&Trajectory]) -> Self {
        let distinct: BTreeSet<Vec<&str>> = runs.iter().map(|run| names(run)).collect();
        let position: BTreeMap<&Vec<&str>, usize> = distinct
            .iter()
            .enumerate()
            .map(|(sequence_idx, sequence)| (sequence, sequence_idx))
            .collect();
        let mut rows: Vec<RunRow> = runs
            .iter()
            .map(|run| RunRow(position[&names(run)], n_failed(run), duration_ms(run)))
            .collect();
        rows.sort_unstable();
        // Taking runs at regular steps from the sorted list nearly preserves the shares of all
        // runs.
        let step = step(rows.len());
        let mut rows: Vec<RunRow> = rows.into_iter().step_by(step).collect();
        let used: BTreeSet<usize> = rows.iter().map(|row| row.0).collect();
        for row in &mut rows {
            row.0 = used.range(..row.0).count();
        }
        let sequences = distinct
            .iter()
            .enumerate()
            .filter(|(sequence_idx, _)| used.contains(sequence_idx))
            .map(|(_, names)| names.iter().map(|name| (*name).to_owned()).collect())
            .collect();
        Self {
            root: key.root.clone(),
            agent: key.agent.clone(),
            n_runs: runs.len(),
            sequences,
            runs: rows,
        }
    }

    pub(super) fn key(&self) -> GroupKey {
        GroupKey {
            root: self.root.clone(),
            agent: self.agent.clone(),
        }
    }
}

pub(super) fn n_failed(run: &Trajectory) -> usize {
    run.tool_calls.iter().filter(|call| call.error).count()
}

/// Returns the duration of the evaluated span. If there is none, returns the time from the first
/// start to the last end of the calls. `None` if the time is unknown.
pub(super) fn duration_ms(run: &Trajectory) -> Option<u64> {
    let (start, end) = match &run.subject {
        Some(subject) => (subject.start_unix_nanos, subject.end_unix_nanos),
        None if run.tool_calls.iter().any(|call| call.untimed) => return None,
        None => {
            let starts = run.tool_calls.iter().map(|call| call.start_unix_nanos);
            let ends = run.tool_calls.iter().map(|call| call.end_unix_nanos);
            (starts.min()?, ends.max()?)
        }
    };
    // The start or the end is invalid if the span has not ended, or if the calls were read from
    // messages.
    (start > 0 && end >= start).then(|| (end - start) / 1_000_000)
}
