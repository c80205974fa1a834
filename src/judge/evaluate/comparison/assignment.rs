//! Assigns expected calls, each with expected arguments or an expected result, to distinct calls in
//! any order. Scores the best assignment and describes it.

use serde_json::{Map, Value, json};
use text::{code, counted};

use super::alignment::{none_expected, times, was_called};
use super::arguments::{self, Agreement, ArgsDifference};
use super::bipartite::Bipartite;
use super::captured::{CapturedValues, Known, Tri};
use super::rows::{AlignmentRow, RowKind};
use super::score::{Explain, Judgement, Rendered, Score, all_or_nothing};
use crate::extract::Trajectory;

/// Maximum number of unmet expectations that a text describes.
const MAX_DESCRIBED: usize = 4;

/// The evidence for the text: which expectations are met, and the nearest calls for the first unmet
/// ones. The assigned calls are not stored because the text does not show them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Assignment {
    is_met: Vec<bool>,
    /// One entry for each of the first [`MAX_DESCRIBED`] unmet expectations, in order.
    nearest: Vec<Option<NearestCall>>,
}

/// The unassigned call with the expected name that differs least from an unmet expectation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NearestCall {
    call_idx: usize,
    difference: Difference,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Difference {
    Args(ArgsDifference),
    ResultUnknown,
    ResultEmpty,
    ResultDiffers,
}

#[derive(Clone, Copy)]
pub(crate) enum ExpectedPart<'e> {
    Args(&'e Map<String, Value>, Agreement),
    Result(&'e str),
}

impl ExpectedPart<'_> {
    /// Compares the arguments or the result of a call, but not its name.
    fn fits(self, call: usize, captured: &mut CapturedValues<'_>) -> Tri {
        match self {
            Self::Args(args, agreement) => arguments::fit(args, call, captured, agreement),
            Self::Result(text) => captured
                .result(call)
                .map_or(Tri::Maybe, |actual| Tri::from(actual == text)),
        }
    }

    /// Returns the difference between a call and the expectation, and the size of the difference.
    /// The call with the smallest size is the nearest call.
    fn difference(self, call: usize, captured: &mut CapturedValues<'_>) -> (usize, Difference) {
        match self {
            Self::Args(args, agreement) => {
                let difference = ArgsDifference::new(args, captured.args(call), agreement);
                (difference.n_keys(args), Difference::Args(difference))
            }
            Self::Result(_) => match captured.result(call) {
                None => (2, Difference::ResultUnknown),
                Some("") => (1, Difference::ResultEmpty),
                Some(_) => (1, Difference::ResultDiffers),
            },
        }
    }

    fn difference_text(
        self,
        call: usize,
        difference: &Difference,
        captured: &mut CapturedValues<'_>,
        explain: &Explain,
    ) -> String {
        match (self, difference) {
            (Self::Args(args, _), Difference::Args(difference)) => {
                difference.text(args, captured.args(call), explain)
            }
            (_, Difference::ResultUnknown) => "its result is not known".to_owned(),
            (Self::Result(expected), _) if explain.values => {
                let shown = |text: &str| explain.value(text).map(Value::from).unwrap_or_default();
                let actual = shown(captured.result(call).unwrap_or_default());
                format!("returned {actual}, expected {}", shown(expected))
            }
            (_, Difference::ResultEmpty) => "returned nothing".to_owned(),
            _ => "returned something else".to_owned(),
        }
    }

    /// Returns the expected value and, if known, the actual value in the form of UiPath's
    /// justification; `None` if values are private.
    fn values(
        self,
        call: Option<usize>,
        captured: &mut CapturedValues<'_>,
        explain: &Explain,
    ) -> Option<String> {
        let (expected, actual) = match self {
            _ if !explain.values => return None,
            Self::Args(args, _) => {
                let actual = match call.map(|call| captured.args(call)) {
                    Some(Known::Value(actual)) => Some(actual.to_string()),
                    _ => None,
                };
                (json!(args).to_string(), actual)
            }
            Self::Result(text) => {
                let actual = call.and_then(|call| captured.result(call));
                (text.to_owned(), actual.map(str::to_owned))
            }
        };
        let expected = explain.value(&expected)?;
        Some(match actual.and_then(|actual| explain.value(&actual)) {
            Some(actual) => format!("Actual: {actual}, Expected: {expected}"),
            None => format!("Expected: {expected}"),
        })
    }
}

pub(crate) struct ExpectedCalls<'e> {
    pub(crate) calls: Vec<(&'e str, ExpectedPart<'e>)>,
    /// True if the score is 1 or 0, without partial credit.
    pub(crate) strict: bool,
}

impl ExpectedCalls<'_> {
    /// Returns the share of expectations that a maximum matching meets; with `strict`, 1 or 0. If
    /// nothing is expected, the score is 1 if nothing was called, else 0.
    pub(crate) fn evaluate(&self, trajectory: &Trajectory) -> (Score, Assignment) {
        let n_expected = self.calls.len();
        if n_expected == 0 {
            let value = all_or_nothing(trajectory.tool_calls.is_empty());
            let least = if trajectory.cut_short { 0.0 } else { value };
            return (Score::between(value, least, value), Assignment::default());
        }
        let mut captured = CapturedValues::new(trajectory);
        let calls = self.assigned_calls(&mut captured, Tri::Yes);
        let value = |n_met: usize| {
            if self.strict {
                all_or_nothing(n_met == n_expected)
            } else {
                n_met as f64 / n_expected as f64
            }
        };
        let now = value(calls.iter().flatten().count());
        let missing = captured.missing.clone();
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
        let score = Score {
            missing,
            n_expected,
            ..Score::between(now, now, most)
        };
        (score, assignment)
    }

    /// Returns the call that a maximum matching assigns to each expectation. A call fits if
    /// [`ExpectedPart::fits`] returns at least `at_least`.
    fn assigned_calls(
        &self,
        captured: &mut CapturedValues<'_>,
        at_least: Tri,
    ) -> Vec<Option<usize>> {
        let tool_calls = &captured.trajectory().tool_calls;
        let fits = |expected: usize, call_idx: usize| {
            let (name, part) = self.calls[expected];
            *tool_calls[call_idx].name == *name && part.fits(call_idx, captured) >= at_least
        };
        Bipartite::new(self.calls.len(), tool_calls.len(), fits).matching()
    }

    /// Returns, for each of the first unmet expectations, the nearest unassigned call.
    fn nearest(
        &self,
        calls: &[Option<usize>],
        captured: &mut CapturedValues<'_>,
    ) -> Vec<Option<NearestCall>> {
        let tool_calls = &captured.trajectory().tool_calls;
        let nearest_of = |(name, part): (&str, ExpectedPart<'_>)| {
            let unassigned = (0..tool_calls.len()).filter(|&call_idx| {
                *tool_calls[call_idx].name == *name && !calls.contains(&Some(call_idx))
            });
            let differences = unassigned.map(|call_idx| {
                let (distance, difference) = part.difference(call_idx, captured);
                (distance, call_idx, difference)
            });
            let nearest = differences.min_by_key(|(distance, call_idx, _)| (*distance, *call_idx));
            nearest.map(|(_, call_idx, difference)| NearestCall {
                call_idx,
                difference,
            })
        };
        let unmet = (self.calls.iter().zip(calls)).filter(|(_, call)| call.is_none());
        let unmet = unmet.map(|(expected, _)| *expected).take(MAX_DESCRIBED);
        unmet.map(nearest_of).collect()
    }

    /// Renders the result: the number of met expectations, and a reason for each of the first
    /// [`MAX_DESCRIBED`] unmet ones. The details have one line per expectation, as in UiPath's
    /// evaluators; `justification` is their key.
    pub(crate) fn report(
        &self,
        found: &Assignment,
        judgement: &Judgement<'_>,
        justification: &str,
    ) -> Rendered {
        let Judgement {
            trajectory,
            explain,
            with_rows,
            ..
        } = *judgement;
        let mut captured = CapturedValues::new(trajectory);
        // The evidence does not store the assignment. It is computed again, but only if rows or
        // values show it.
        let calls = if with_rows || explain.values {
            self.assigned_calls(&mut captured, Tri::Yes)
        } else {
            vec![None; self.calls.len()]
        };
        let mut nearest = found.nearest.iter();
        let (mut rows, mut sentences) = (Vec::new(), Vec::new());
        let (mut lines, mut offending) = (Map::new(), Vec::new());
        for (expected, &(name, part)) in self.calls.iter().enumerate() {
            let is_named = |other: &&(&str, ExpectedPart<'_>)| other.0 == name;
            let call = calls[expected].filter(|_| found.is_met[expected]);
            let score = if found.is_met[expected] { "Score: 1.0" } else { "Score: 0.0" };
            let line = match part.values(call, &mut captured, explain) {
                Some(values) => format!("{values}, {score}"),
                None => score.to_owned(),
            };
            let n_before = self.calls[..expected].iter().filter(is_named).count();
            lines.insert(format!("{name}_{n_before}"), line.into());
            if found.is_met[expected] {
                rows.push(AlignmentRow::new(RowKind::Match).expecting(name).of(call));
                continue;
            }
            let is_described = nearest.len() > 0;
            let Some(near) = nearest.next().and_then(Option::as_ref) else {
                rows.push(AlignmentRow::new(RowKind::Missing).expecting(name));
                if is_described {
                    let n_expected = self.calls.iter().filter(is_named).count();
                    sentences.push(not_called(name, n_expected, trajectory));
                }
                continue;
            };
            let (call, difference) = (near.call_idx, &near.difference);
            let row = AlignmentRow::new(RowKind::WrongArguments);
            rows.push(row.expecting(name).of([call]));
            offending.push(call);
            let difference = part.difference_text(call, difference, &mut captured, explain);
            sentences.push(format!("{} (call {}): {difference}", code(name), call + 1));
        }
        Rendered {
            text: self.text(found, trajectory, sentences),
            offending,
            rows,
            details: json!({ justification: lines }),
        }
    }

    fn text(
        &self,
        found: &Assignment,
        trajectory: &Trajectory,
        mut sentences: Vec<String>,
    ) -> String {
        let n_expected = self.calls.len();
        if n_expected == 0 {
            return none_expected(trajectory.tool_calls.len());
        }
        let n_unmet = found.is_met.iter().filter(|is_met| !**is_met).count();
        let expected_calls = counted(n_expected, "expected call", "expected calls");
        if n_unmet == 0 {
            let all = if n_expected == 1 { "" } else { "all " };
            return format!("{all}{expected_calls} found");
        }
        if n_unmet > MAX_DESCRIBED {
            sentences.push(format!("… {} more", n_unmet - MAX_DESCRIBED));
        }
        sentences.dedup();
        let n_met = n_expected - n_unmet;
        format!(
            "{n_met} of {expected_calls} found. {}",
            sentences.join("; ")
        )
    }
}

fn not_called(name: &str, n_expected: usize, trajectory: &Trajectory) -> String {
    let of_name = trajectory.tool_calls.iter();
    match of_name.filter(|call| *call.name == *name).count() {
        0 => format!("{} was not called", code(name)),
        n_calls => {
            let (called, expected) = (was_called(n_calls), times(n_expected));
            format!("{} {called}, expected {expected}", code(name))
        }
    }
}
