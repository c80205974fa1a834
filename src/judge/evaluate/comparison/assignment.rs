//! Expected calls that each need a call of their own, in any order: the best assignment, its
//! score and its text. Shared by the evaluators of arguments and of results; knows neither.

use serde_json::{Map, Value};
use text::{code, counted};

use super::alignment::{times, was_called};
use super::arguments::ArgsDifference;
use super::bipartite::Bipartite;
use super::captured::{CapturedValues, Tri};
use super::rows::{AlignmentRow, RowKind};
use super::score::{Explain, Explanation, ScoreWith, all_or_nothing};
use crate::extract::Trajectory;

/// Most unmet expectations that a text describes.
const MAX_DESCRIBED: usize = 4;

/// Which expectations are met, and how near the first few others came. Which call meets an
/// expectation is not part of it: the text does not show that.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Assignment {
    is_met: Vec<bool>,
    /// Of the first [`MAX_DESCRIBED`] unmet expectations, in order.
    nearest: Vec<Option<NearestCall>>,
}

/// The call of the right name, not assigned to another expectation, that differs least.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NearestCall {
    call_idx: usize,
    difference: Difference,
}

/// How a call of the right name fails to meet an expectation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Difference {
    Args(ArgsDifference),
    ResultUnknown,
    ResultEmpty,
    ResultDiffers,
}

/// Expectations of calls, each for a certain name.
pub(crate) trait ExpectedCalls {
    /// The names, one per expectation.
    fn names(&self) -> Vec<&str>;

    /// Does a call, of the right name, meet the expectation?
    fn fits(&self, expected: usize, call_idx: usize, captured: &mut CapturedValues<'_>) -> Tri;

    /// How a call, of the right name, fails to meet the expectation, and how far off it is.
    fn difference(
        &self,
        expected: usize,
        call_idx: usize,
        captured: &mut CapturedValues<'_>,
    ) -> (usize, Difference);

    /// All or nothing?
    fn strict(&self) -> bool;

    /// The number of met expectations divided by that of all, or all or nothing, by a maximum
    /// matching. Nothing expected: 1 if nothing was called, else 0.
    fn score(&self, trajectory: &Trajectory) -> ScoreWith<Assignment> {
        let names = self.names();
        let n_expected = names.len();
        if n_expected == 0 {
            let value = all_or_nothing(trajectory.tool_calls.is_empty());
            let least = if trajectory.cut_short { 0.0 } else { value };
            return ScoreWith::between(value, least, value, Assignment::default());
        }
        let mut captured = CapturedValues::new(trajectory);
        let calls = self.assigned_calls(&mut captured, Tri::Yes);
        let value = |n_met: usize| match self.strict() {
            true => all_or_nothing(n_met == n_expected),
            false => n_met as f64 / n_expected as f64,
        };
        let now = value(calls.iter().flatten().count());
        let missing = captured.missing();
        let most = match (trajectory.cut_short, missing.is_empty()) {
            (true, _) => 1.0,
            (false, true) => now,
            (false, false) => {
                let at_most = self.assigned_calls(&mut captured, Tri::Maybe);
                value(at_most.iter().flatten().count())
            }
        };
        let assignment = Assignment {
            nearest: self.nearest(&calls, &mut captured),
            is_met: calls.iter().map(Option::is_some).collect(),
        };
        let mut score = ScoreWith::between(now, now, most, assignment);
        score.missing = missing;
        score.n_expected = n_expected;
        score
    }

    /// The call of each expectation, of as many as possible.
    fn assigned_calls(
        &self,
        captured: &mut CapturedValues<'_>,
        at_least: Tri,
    ) -> Vec<Option<usize>> {
        let names = self.names();
        let tool_calls = &captured.trajectory().tool_calls;
        let fits = |expected: usize, call_idx: usize| {
            *tool_calls[call_idx].name == *names[expected]
                && self.fits(expected, call_idx, captured) >= at_least
        };
        Bipartite::new(names.len(), tool_calls.len(), fits).matching()
    }

    /// The nearest call of each of the first few unmet expectations.
    fn nearest(
        &self,
        calls: &[Option<usize>],
        captured: &mut CapturedValues<'_>,
    ) -> Vec<Option<NearestCall>> {
        let names = self.names();
        let tool_calls = &captured.trajectory().tool_calls;
        let unmet = (0..names.len()).filter(|&expected| calls[expected].is_none());
        let nearest_of = |expected: usize| {
            let unassigned = (0..tool_calls.len()).filter(|&call_idx| {
                *tool_calls[call_idx].name == *names[expected] && !calls.contains(&Some(call_idx))
            });
            let differences = unassigned.map(|call_idx| {
                let (distance, difference) = self.difference(expected, call_idx, captured);
                (
                    distance,
                    NearestCall {
                        call_idx,
                        difference,
                    },
                )
            });
            let nearest = differences.min_by_key(|(distance, call)| (*distance, call.call_idx));
            nearest.map(|(_, call)| call)
        };
        unmet.take(MAX_DESCRIBED).map(nearest_of).collect()
    }

    /// How many expectations were met, and for the first few others, why not. `difference_text`
    /// describes the difference between an expectation and a call.
    fn explanation(
        &self,
        assignment: &Assignment,
        trajectory: &Trajectory,
        difference_text: impl Fn(usize, usize, &Difference, &mut CapturedValues<'_>) -> String,
    ) -> Explanation {
        let names = self.names();
        let mut captured = CapturedValues::new(trajectory);
        if names.is_empty() {
            return Explanation::from(match trajectory.tool_calls.len() {
                0 => "no tool was called, as expected".to_owned(),
                n => format!("{} made, none expected", counted(n, "call", "calls")),
            });
        }
        let expected_calls = counted(names.len(), "expected call", "expected calls");
        let unmet: Vec<usize> = (0..names.len())
            .filter(|&expected| !assignment.is_met[expected])
            .collect();
        if unmet.is_empty() {
            let all = if names.len() == 1 { "" } else { "all " };
            return Explanation::from(format!("{all}{expected_calls} found"));
        }
        let mut offending = Vec::new();
        let mut sentences = Vec::new();
        for (&expected, nearest) in unmet.iter().zip(&assignment.nearest) {
            let name = names[expected];
            if let Some(NearestCall {
                call_idx,
                difference,
            }) = nearest
            {
                offending.push(*call_idx);
                let difference = difference_text(expected, *call_idx, difference, &mut captured);
                sentences.push(format!(
                    "{} (call {}): {difference}",
                    code(name),
                    call_idx + 1
                ));
                continue;
            }
            let n_calls = trajectory
                .tool_calls
                .iter()
                .filter(|call| *call.name == *name)
                .count();
            sentences.push(match n_calls {
                0 => format!("{} was not called", code(name)),
                _ => {
                    let n_expected = names.iter().filter(|other| **other == name).count();
                    let (called, expected) = (was_called(n_calls), times(n_expected));
                    format!("{} {called}, expected {expected}", code(name))
                }
            });
        }
        if unmet.len() > MAX_DESCRIBED {
            sentences.push(format!("… {} more", unmet.len() - MAX_DESCRIBED));
        }
        sentences.dedup();
        offending.sort_unstable();
        offending.dedup();
        let n_met = names.len() - unmet.len();
        let text = format!(
            "{n_met} of {expected_calls} found. {}",
            sentences.join("; ")
        );
        Explanation { text, offending }
    }

    /// A row for each expectation. One that no call meets is aligned with the call that came
    /// nearest.
    fn assignment_rows(
        &self,
        assignment: &Assignment,
        trajectory: &Trajectory,
    ) -> Vec<AlignmentRow> {
        let calls = self.assigned_calls(&mut CapturedValues::new(trajectory), Tri::Yes);
        let mut nearest = assignment.nearest.iter();
        let row = |(expected, name): (usize, &str)| {
            let is_met = assignment.is_met.get(expected).copied().unwrap_or_default();
            let nearest = match is_met {
                true => None,
                false => nearest.next().and_then(Option::as_ref),
            };
            let row = match (is_met, nearest) {
                (true, _) => {
                    let call = calls.get(expected).copied().flatten();
                    AlignmentRow::new(RowKind::Match).of(call)
                }
                (false, Some(nearest)) => {
                    AlignmentRow::new(RowKind::WrongArguments).of([nearest.call_idx])
                }
                (false, None) => AlignmentRow::new(RowKind::Missing),
            };
            row.expecting(name)
        };
        self.names().into_iter().enumerate().map(row).collect()
    }

    /// The reference's justification: one line per expectation, by name and number. Where values
    /// are shown, `values` describes those of an expectation and of the call that meets it.
    fn justification(
        &self,
        assignment: &Assignment,
        trajectory: &Trajectory,
        explain: &Explain,
        values: impl Fn(usize, Option<usize>, &mut CapturedValues<'_>) -> Option<String>,
    ) -> Map<String, Value> {
        let names = self.names();
        let mut captured = CapturedValues::new(trajectory);
        // Which call meets an expectation shows only with the values, so it is not remembered.
        let calls = match explain.values {
            true => self.assigned_calls(&mut captured, Tri::Yes),
            false => Vec::new(),
        };
        let mut line = |expected: usize| {
            let name = names[expected];
            let n_before = names[..expected]
                .iter()
                .filter(|other| **other == name)
                .count();
            let score = match assignment.is_met[expected] {
                true => "Score: 1.0",
                false => "Score: 0.0",
            };
            let call_idx = calls.get(expected).copied();
            let values = call_idx.and_then(|call_idx| values(expected, call_idx, &mut captured));
            let text = match values {
                Some(values) => format!("{values}, {score}"),
                None => score.to_owned(),
            };
            (format!("{name}_{n_before}"), Value::from(text))
        };
        (0..names.len()).map(&mut line).collect()
    }
}
