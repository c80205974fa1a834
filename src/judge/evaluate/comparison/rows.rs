//! Rows that show expectations next to calls, so that a person finds differences immediately.

use serde::Serialize;

/// Maximum number of rows of one evaluation: a runaway agent makes thousands of calls.
pub(crate) const MAX_ROWS: usize = 2_000;
/// Maximum number of calls that one row names.
const MAX_CALLS: usize = 100;

/// The result for an expectation, or for an unexpected call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// Expected and called, or a satisfied rule or limit.
    Match,
    /// Expected, but not called.
    Missing,
    /// Called, but not expected.
    Extra,
    /// Expected and called, but at another position.
    Moved,
    /// Called, but forbidden.
    Forbidden,
    /// Called with other arguments or another result than expected.
    WrongArguments,
    /// Another call was made instead.
    Replaced,
    /// A violated rule or limit.
    Broken,
    /// Open: evidence is missing.
    Open,
}

/// One row of an alignment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AlignmentRow {
    pub kind: RowKind,
    /// The expectation: the name of a tool or a node, a rule, a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// The calls, as indices in the judged trajectory, counted from 0.
    pub calls: Vec<usize>,
    /// The name that was called or visited, if it is not a call of the trajectory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visited: Option<String>,
    /// Numbers or a reason, if the row needs them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// True if outputs mark the row as a fault.
    pub fault: bool,
}

impl AlignmentRow {
    pub(crate) fn new(kind: RowKind) -> Self {
        Self {
            kind,
            expected: None,
            calls: Vec::new(),
            visited: None,
            note: None,
            fault: !matches!(kind, RowKind::Match | RowKind::Extra | RowKind::Open),
        }
    }

    /// Creates a row for a rule or a limit; `None` means open.
    pub(crate) fn kept(kept: Option<bool>, expected: impl Into<String>) -> Self {
        let kind = match kept {
            Some(true) => RowKind::Match,
            Some(false) => RowKind::Broken,
            None => RowKind::Open,
        };
        Self::new(kind).expecting(expected)
    }

    pub(crate) fn expecting(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    pub(crate) fn of(mut self, calls: impl IntoIterator<Item = usize>) -> Self {
        self.calls.extend(calls.into_iter().take(MAX_CALLS));
        self
    }

    pub(crate) fn noting(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    pub(crate) fn at_fault(mut self, fault: bool) -> Self {
        self.fault = fault;
        self
    }
}

/// Returns the rows for two sequences of names. `pairs` are the matches (index called, index
/// expected). With `is_exact`, an unexpected call is a fault. An expected name that was called at
/// another position gets the kind `Moved`.
pub(crate) fn sequence(
    actual: &[&str],
    expected: &[&str],
    pairs: &[(usize, usize)],
    is_exact: bool,
) -> Vec<AlignmentRow> {
    let (mut is_paired, mut matched) = (vec![false; actual.len()], vec![false; expected.len()]);
    for (call, at) in pairs {
        (is_paired[*call], matched[*at]) = (true, true);
    }
    // An unmatched expectation most likely refers to the first unpaired call of its name.
    let mut moved: Vec<Option<usize>> = vec![None; expected.len()];
    for (at, name) in expected.iter().enumerate().filter(|(at, _)| !matched[*at]) {
        let free = (0..actual.len()).find(|&call| !is_paired[call] && actual[call] == *name);
        if let Some(call) = free {
            is_paired[call] = true;
            moved[at] = Some(call);
        }
    }
    let mut rows = Vec::new();
    let (mut call, mut at) = (0, 0);
    let ends = [(actual.len(), expected.len())];
    for &(pair_call, pair_at) in pairs.iter().chain(&ends) {
        let extra = (call..pair_call).filter(|call| !is_paired[*call]);
        rows.extend(extra.map(|call| {
            AlignmentRow::new(RowKind::Extra)
                .of([call])
                .at_fault(is_exact)
        }));
        rows.extend((at..pair_at).map(|at| {
            let kind = match moved[at] {
                Some(_) => RowKind::Moved,
                None => RowKind::Missing,
            };
            AlignmentRow::new(kind)
                .expecting(expected[at])
                .of(moved[at])
        }));
        if pair_call < actual.len() && pair_at < expected.len() {
            let row = AlignmentRow::new(RowKind::Match);
            rows.push(row.expecting(expected[pair_at]).of([pair_call]));
        }
        (call, at) = (pair_call + 1, pair_at + 1);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(rows: &[AlignmentRow]) -> Vec<String> {
        let show = |row: &AlignmentRow| {
            let expected = row.expected.as_deref().unwrap_or("-");
            format!("{:?} {expected} {:?} {}", row.kind, row.calls, row.fault)
        };
        rows.iter().map(show).collect()
    }

    #[test]
    fn a_call_that_came_too_early_has_moved() {
        let actual = ["validate", "create", "check", "log"];
        let expected = ["validate", "check", "create"];
        let rows = sequence(&actual, &expected, &[(0, 0), (2, 1)], false);
        assert_eq!(
            shown(&rows),
            [
                "Match validate [0] false",
                "Match check [2] false",
                "Extra - [3] false",
                "Moved create [1] true",
            ]
        );
    }

    #[test]
    fn what_was_not_called_is_missing_and_with_exact_others_are_faults() {
        let rows = sequence(&["a", "x"], &["a", "b"], &[(0, 0)], true);
        assert_eq!(
            shown(&rows),
            ["Match a [0] false", "Extra - [1] true", "Missing b [] true"]
        );
        assert!(sequence(&[], &[], &[], true).is_empty());
    }
}
