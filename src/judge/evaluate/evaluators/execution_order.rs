//! The evaluator `execution_order`: how well do the tools called, or the nodes visited, match
//! the expected ones?

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use text::counted;

use super::{Evaluate, ToolName, names_of};
use crate::evaluate::comparison::alignment::{Alignment, absent, quoted};
use crate::evaluate::comparison::lcs::{Subsequence, UNEXPECTED};
use crate::evaluate::comparison::rows::{self, AlignmentRow, RowKind};
use crate::evaluate::comparison::score::{Judgement, Rendered, Score, all_or_nothing};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::evaluate::parameters::names::Names;
use crate::evaluate::parameters::pattern::FieldError;
use crate::extract::Trajectory;

/// How well do the tools called, or the nodes visited, match the expected ones?
///
/// # What it checks
/// Compares the names of the calls (or, with `over: nodes`, of the agents and graph nodes visited)
/// with the expected names, in one of three ways. The default compares sets: the score is the
/// number of distinct names in both, divided by the number of expected names. With
/// `should_consider_ordering`, the score is the length of the longest common subsequence, divided
/// by the number of expected names. With `should_exact_match`, the score is 1 if both lists are
/// equal, else 0; this field overrides `should_consider_ordering`.
///
/// # Why
/// How strictly the order of steps matters differs between workflows.
///
/// # Example
/// ```yaml
/// evaluate:
///   execution_order: { expected_output: [plan, search, write], should_consider_ordering: true }
/// ```
/// Calls `plan, write, search` score 2/3.
///
/// # Parameters
/// - `expected_output`: the expected names. May be empty only with `should_exact_match`; the score
///   is then 1 if nothing was called.
/// - `should_exact_match`, `should_consider_ordering` (both false): see above.
/// - `strict_mode` (false): the threshold is 1, and a score below it becomes 0.
/// - `over` (`tools`): `nodes` compares agent runs and graph nodes in the order of the visits;
///   immediate repeats count as one visit.
///
/// The criterion's `threshold` defaults to 0.5 here, as in judgeval.
///
/// # When the trace was cut short
/// Further calls can only raise the score of a set or an ordering, so a score that has reached the
/// threshold certainly passes, and a lower score may still rise. If expected names repeat, the
/// score of a set is at most (distinct expected names) / (expected names), and the criterion
/// certainly fails if the threshold is higher. With `should_exact_match`, a pass is never certain,
/// and the criterion certainly fails once the calls are not a subsequence of the expected names.
/// With `over: nodes` nothing is certain.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExecutionOrder {
    /// The expected names, in order.
    pub expected_output: Names,
    /// The two lists must be equal.
    #[serde(default)]
    pub should_exact_match: bool,
    /// The order matters.
    #[serde(default)]
    pub should_consider_ordering: bool,
    /// The threshold is 1, and a score below it becomes 0.
    #[serde(default)]
    pub strict_mode: bool,
    /// The names to compare.
    #[serde(default)]
    pub over: Over,
}

/// The names that `execution_order` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// The tool calls.
    #[default]
    Tools,
    /// Agent runs and graph nodes; immediate repeats count as one visit.
    Nodes,
}

read_with_hints!(ExecutionOrder);

enum Mode {
    Exact,
    Ordering,
    Set,
}

impl Over {
    fn noun(self) -> &'static str {
        match self {
            Self::Tools => "call",
            Self::Nodes => "visit",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::evaluate) struct VisitsFound {
    /// Index pairs (actual, expected) of the longest common subsequence; empty if sets are
    /// compared.
    pairs: Subsequence,
    /// The nodes visited; empty if calls are compared.
    nodes: Arc<[Arc<str>]>,
}

impl Evaluate for ExecutionOrder {
    const NAME: &'static str = "execution_order";

    /// `None` if the comparison exceeded its limit.
    type Evidence = Option<VisitsFound>;

    fn evaluate(&self, trajectory: &Trajectory, _: u64) -> (Score, Option<VisitsFound>) {
        let expected = self.expected_output.ids();
        let actual = self.expected_output.ids_of(self.actual(trajectory));
        let (mut score, pairs) = match self.mode() {
            Mode::Set => {
                let share = |n: usize| n as f64 / expected.len() as f64;
                let value = share(self.n_in_both(&actual));
                let n_distinct = self.expected_output.n_distinct();
                let most = if trajectory.cut_short { share(n_distinct) } else { value };
                (Score::between(value, value, most), Some(Vec::new()))
            }
            mode => {
                let is_exact = matches!(mode, Mode::Exact);
                Score::of_order(&actual, expected, is_exact, trajectory.cut_short)
            }
        };
        score.n_expected = expected.len();
        let Some(pairs) = pairs else {
            return (score, None);
        };
        if trajectory.cut_short && self.over == Over::Nodes {
            // A late span that encloses visits of a node merges them into one visit.
            (score.least, score.most) = (0.0, 1.0);
        }
        if self.strict_mode {
            for value in [&mut score.value, &mut score.least, &mut score.most] {
                *value = all_or_nothing(*value >= 1.0);
            }
        }
        let nodes = match self.over {
            Over::Tools => Arc::default(),
            Over::Nodes => trajectory.node_visits.clone(),
        };
        let found = VisitsFound { pairs, nodes };
        (score, Some(found))
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        match self.over {
            Over::Tools => ToolName::all_expected(self.expected_output.to_strs()),
            Over::Nodes => Vec::new(),
        }
    }

    fn reads_order(&self) -> bool {
        !matches!(self.mode(), Mode::Set)
    }

    fn report(&self, found: &Option<VisitsFound>, judgement: &Judgement<'_>) -> Rendered {
        let actual = self.actual(judgement.trajectory);
        let expected = self.expected_output.to_strs();
        let found_pairs = found.as_ref().map(|found| &*found.pairs);
        let pairs = found_pairs.unwrap_or_default();
        let mut details = json!({
            "success": judgement.verdict.success(),
            "actual_output": actual,
            "expected_output": expected,
        });
        if let Mode::Ordering = self.mode() {
            details["lcs"] = pairs.iter().map(|pair| actual[pair.0]).collect();
        }
        let (text, call, mut rows) = match self.mode() {
            Mode::Set => {
                let rows = judgement.rows(|| set_rows(&actual, &expected));
                (self.set_text(&actual), None, rows)
            }
            mode => {
                let is_exact = matches!(mode, Mode::Exact);
                let (text, call) = self.order_text(&actual, &expected, found_pairs, is_exact);
                let rows = judgement.rows(|| match found_pairs {
                    Some(pairs) => rows::sequence(&actual, &expected, pairs, is_exact),
                    None => Vec::new(),
                });
                (text, call, rows)
            }
        };
        let mut offending: Vec<usize> = call.into_iter().collect();
        if self.over == Over::Nodes {
            // A visit of a node is not a call, so no call caused the failure.
            offending.clear();
            for row in &mut rows {
                let visit = row.calls.first().map(|at| actual[*at].to_owned());
                (row.visited, row.calls) = (visit, Vec::new());
            }
        }
        Rendered {
            text,
            offending,
            rows,
            details,
        }
    }

    fn check(&self) -> Result<(), FieldError> {
        if self.expected_output.as_slice().is_empty() && !self.should_exact_match {
            Err(FieldError::of_key(
                &["expected_output"],
                "`expected_output` is empty: name what is expected, or set `should_exact_match: \
                 true` to expect that nothing is called",
            ))
        } else {
            Ok(())
        }
    }

    fn warnings(&self) -> Vec<String> {
        let n_expected = self.expected_output.ids().len();
        match self.mode() {
            Mode::Set if self.expected_output.n_distinct() < n_expected => vec![format!(
                "`expected_output` repeats a name and is compared as a set: no trajectory can \
                 score more than {}/{n_expected}; set `should_consider_ordering: true` to count \
                 repeats",
                self.expected_output.n_distinct()
            )],
            _ => Vec::new(),
        }
    }

    fn threshold(&self, written: Option<f64>) -> f64 {
        if self.strict_mode { 1.0 } else { written.unwrap_or(0.5) }
    }
}

/// Returns one row per distinct expected name, with all calls of that name.
fn set_rows(actual: &[&str], expected: &[&str]) -> Vec<AlignmentRow> {
    let mut rows: Vec<AlignmentRow> = Vec::new();
    for name in expected {
        if rows
            .iter()
            .any(|row| row.expected.as_deref() == Some(*name))
        {
            continue;
        }
        let found: Vec<usize> = (0..actual.len())
            .filter(|at| actual[*at] == *name)
            .collect();
        let kind = if found.is_empty() { RowKind::Missing } else { RowKind::Match };
        rows.push(AlignmentRow::new(kind).expecting(*name).of(found));
    }
    rows
}

impl ExecutionOrder {
    fn mode(&self) -> Mode {
        match (self.should_exact_match, self.should_consider_ordering) {
            (true, _) => Mode::Exact,
            (false, true) => Mode::Ordering,
            (false, false) => Mode::Set,
        }
    }

    fn actual<'a>(&self, trajectory: &'a Trajectory) -> Vec<&'a str> {
        match self.over {
            Over::Tools => names_of(trajectory),
            Over::Nodes => trajectory.node_visits.iter().map(|name| &**name).collect(),
        }
    }

    fn n_in_both(&self, actual: &[u32]) -> usize {
        let mut seen = vec![false; self.expected_output.n_distinct()];
        for &id in actual.iter().filter(|&&id| id != UNEXPECTED) {
            seen[id as usize] = true;
        }
        seen.into_iter().filter(|seen| *seen).count()
    }

    /// Describes whether the expected names came in order. Also returns the call or visit to blame.
    fn order_text(
        &self,
        actual: &[&str],
        expected: &[&str],
        found: Option<&[(usize, usize)]>,
        is_exact: bool,
    ) -> (String, Option<usize>) {
        let pairs = found.unwrap_or_default();
        let alignment = Alignment {
            actual,
            expected,
            pairs,
            noun: self.over.noun(),
        };
        let n_expected = match self.over {
            Over::Tools => counted(expected.len(), "expected call", "expected calls"),
            Over::Nodes => counted(expected.len(), "expected visit", "expected visits"),
        };
        match (alignment.departure(is_exact), is_exact) {
            (departure, _) if found.is_none() => (
                alignment.unaligned(is_exact),
                departure.and_then(|(_, at)| at),
            ),
            (None, true) => (format!("{n_expected} in order, no other"), None),
            (None, false) => (format!("{n_expected} in order"), None),
            (Some((sentence, at)), true) => (format!("{sentence}. {alignment}"), at),
            (Some((sentence, at)), false) => {
                let n_in_order = pairs.len();
                let text =
                    format!("{sentence}; {n_in_order} of {n_expected} in order. {alignment}");
                (text, at)
            }
        }
    }

    fn set_text(&self, actual: &[&str]) -> String {
        let absent = absent(&self.expected_output.to_strs(), actual);
        let n_expected = self.expected_output.ids().len();
        let n_distinct = self.expected_output.n_distinct();
        match (absent.is_empty(), n_distinct < n_expected) {
            (true, false) => format!(
                "all {} found, in any order",
                counted(n_expected, "expected name", "expected names")
            ),
            (true, true) => format!(
                "all {n_distinct} names found, but {n_expected} expected: \
                 a set counts a repeated name once"
            ),
            (false, _) => format!(
                "{} not found; {} of {} found, in any order",
                quoted(&absent),
                n_distinct - absent.len(),
                counted(n_expected, "expected name", "expected names")
            ),
        }
    }
}
