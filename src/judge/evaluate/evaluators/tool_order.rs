//! The evaluator `tool_order`: do the expected calls, with their parameters, occur in this
//! order?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use text::code;

use super::{Evaluate, ToolName, names_of};
use crate::evaluate::comparison::alignment::{Alignment, made_in_order};
use crate::evaluate::comparison::arguments::{self, Agreement, ArgsDifference};
use crate::evaluate::comparison::captured::{CapturedValues, Tri};
use crate::evaluate::comparison::order::earliest;
use crate::evaluate::comparison::rows::{self, AlignmentRow, RowKind};
use crate::evaluate::comparison::score::{Judgement, Rendered, Score, all_or_nothing};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::evaluate::parameters::optional::not_judged;
use crate::extract::Trajectory;

/// Do the expected calls, with their parameters, occur in this order?
///
/// # What it checks
/// The expected calls must be a subsequence of the calls that were made, with any calls in between.
/// The score is 1 or 0. With `exact_match` there must be no other calls. If an expected call has
/// `parameters`, they must equal the call's arguments as JSON (1 = 1.0, true ≠ 1); without
/// `parameters`, any arguments match.
///
/// # Why
/// Some orders allow no partial credit: a transfer without prior authentication is wrong, however
/// much else is right.
///
/// # Example
/// ```yaml
/// evaluate:
///   tool_order:
///     expected_tools:
///       - { tool_name: search, parameters: { query: flights } }
///       - { tool_name: edit }
/// ```
/// Calls `edit, search` score 0: `edit` was not called after `search`.
///
/// # Parameters
/// - `expected_tools`: entries with `tool_name` and, optionally, `parameters`. `null` counts as
///   absent. `agent_name`, `result_dependencies`, `action_dependencies` and `require_all` are
///   accepted if they are `null`. An empty list scores 1 (with `exact_match` only if nothing was
///   called) and loads with a warning.
/// - `exact_match` (false): no other calls.
///
/// # When the trace was cut short
/// Further calls cannot destroy a subsequence: a score of 1 is final, a score of 0 may still rise.
/// With `exact_match` a score of 1 is never certain, and a score of 0 is certain once the calls are
/// not a subsequence of the expected calls.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolOrder {
    /// The expected calls, in order.
    pub expected_tools: Vec<ExpectedTool>,
    /// No other calls.
    #[serde(default)]
    pub exact_match: bool,
}

/// One expected call.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExpectedTool {
    /// The tool's name.
    pub tool_name: String,
    /// The arguments, equal as JSON; any arguments if left out or null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
    /// Not judged; only null is accepted.
    #[serde(default, deserialize_with = "not_judged", skip_serializing)]
    pub agent_name: (),
    /// Not judged; only null is accepted.
    #[serde(default, deserialize_with = "not_judged", skip_serializing)]
    pub result_dependencies: (),
    /// Not judged; only null is accepted.
    #[serde(default, deserialize_with = "not_judged", skip_serializing)]
    pub action_dependencies: (),
    /// Not judged; only null is accepted.
    #[serde(default, deserialize_with = "not_judged", skip_serializing)]
    pub require_all: (),
}

read_with_hints!(ToolOrder);
read_with_hints!(ExpectedTool);

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::evaluate) struct OrderFound {
    /// True if all expected calls were found; with `exact_match`, there is no other call.
    is_whole: bool,
    /// Index pairs (call, expected) of the earliest calls that certainly match; empty if
    /// `is_whole`.
    pairs: Vec<(usize, usize)>,
    /// The call that has the name of the first missing call, but other arguments. With
    /// `exact_match` only if all names match.
    other: Option<OtherArguments>,
}

/// A call whose arguments differ from the expected arguments, or are unknown.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OtherArguments {
    call_idx: usize,
    expected: usize,
    difference: ArgsDifference,
}

impl Evaluate for ToolOrder {
    const NAME: &'static str = "tool_order";

    type Evidence = OrderFound;

    fn evaluate(&self, trajectory: &Trajectory, _: u64) -> (Score, OrderFound) {
        let mut captured = CapturedValues::new(trajectory);
        let (n_calls, n_expected) = (trajectory.tool_calls.len(), self.expected_tools.len());
        let mut fits =
            |call_idx: usize, expected: usize| self.fits(&mut captured, call_idx, expected);
        let pairs = earliest(n_expected, n_calls, |expected, call_idx| {
            fits(call_idx, expected) == Tri::Yes
        });
        let (value, least, most) = if self.exact_match {
            let mut all = |at_least: Tri| {
                n_calls == n_expected && (0..n_calls).all(|at| fits(at, at) >= at_least)
            };
            let value = all_or_nothing(all(Tri::Yes));
            if trajectory.cut_short {
                let could_be_completed = earliest(n_calls, n_expected, |call_idx, at| {
                    fits(call_idx, at) >= Tri::Maybe
                })
                .len()
                    == n_calls;
                (value, 0.0, all_or_nothing(could_be_completed))
            } else {
                (value, value, all_or_nothing(all(Tri::Maybe)))
            }
        } else {
            let value = all_or_nothing(pairs.len() == n_expected);
            let could_hold = trajectory.cut_short
                || value == 1.0
                || earliest(n_expected, n_calls, |expected, call_idx| {
                    fits(call_idx, expected) >= Tri::Maybe
                })
                .len()
                    == n_expected;
            (value, value, all_or_nothing(could_hold))
        };
        let missing = captured.missing.clone();
        let found = self.found(flipped(pairs), &mut captured);
        let score = Score {
            missing,
            n_expected,
            ..Score::between(value, least, most)
        };
        (score, found)
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        ToolName::all_expected(self.expected_tools.iter().map(|it| &*it.tool_name))
    }

    fn reads_order(&self) -> bool {
        true
    }

    fn report(&self, found: &OrderFound, judgement: &Judgement<'_>) -> Rendered {
        let Judgement {
            trajectory,
            verdict,
            explain,
            ..
        } = *judgement;
        let actual = names_of(trajectory);
        let expected = self.expected_tools.iter();
        let expected: Vec<&str> = expected.map(|tool| tool.tool_name.as_str()).collect();
        let mut captured = CapturedValues::new(trajectory);
        let mut pairs = found.pairs.clone();
        if found.is_whole && judgement.with_rows {
            pairs = flipped(earliest(
                expected.len(),
                actual.len(),
                |expected, call_idx| self.fits(&mut captured, call_idx, expected) == Tri::Yes,
            ));
        }
        let mut rows =
            judgement.rows(|| rows::sequence(&actual, &expected, &pairs, self.exact_match));
        if let Some(other) = &found.other {
            let (call, at) = ([other.call_idx], other.expected);
            rows.retain(|row| row.expected.is_some() || row.calls != call);
            // The rows with an expected call are in the order of the expected calls.
            let of_expected = rows.iter_mut().filter(|row| row.expected.is_some()).nth(at);
            if let Some(row) = of_expected {
                let row_of_call = AlignmentRow::new(RowKind::WrongArguments);
                *row = row_of_call.expecting(expected[at]).of(call);
            }
        }
        let difference = found.other.as_ref().map(|other| {
            let parameters = self.parameters(other.expected);
            let args = captured.args(other.call_idx);
            let text = other.difference.text(&parameters, args, explain);
            (other.call_idx, text)
        });
        let alignment = Alignment {
            actual: &actual,
            expected: &expected,
            pairs: &pairs,
            noun: "call",
        };
        let (text, call) = if found.is_whole {
            let n_others = actual.len() - expected.len();
            (made_in_order(expected.len(), n_others), None)
        } else {
            self.departure_text(&alignment, difference)
        };
        Rendered {
            text,
            offending: call.into_iter().collect(),
            rows,
            details: json!({
                "success": verdict.success(),
                "actual_tools": actual,
                "expected_tools": expected,
            }),
        }
    }

    fn warnings(&self) -> Vec<String> {
        match (self.expected_tools.is_empty(), self.exact_match) {
            (false, _) => Vec::new(),
            (true, false) => {
                vec!["`expected_tools` is empty: every trajectory scores 1".to_owned()]
            }
            (true, true) => vec![
                "`expected_tools` is empty: the score is 1 if nothing was called, else 0"
                    .to_owned(),
            ],
        }
    }
}

impl ToolOrder {
    /// Describes the first difference from the expected calls, and returns the call to blame.
    /// `difference` is a call with unexpected arguments, and its description.
    fn departure_text(
        &self,
        alignment: &Alignment<'_>,
        difference: Option<(usize, String)>,
    ) -> (String, Option<usize>) {
        let (actual, pairs) = (alignment.actual, alignment.pairs);
        if self.exact_match {
            let Some((call_idx, difference)) = difference else {
                let (sentence, call) = alignment.departure(true).unwrap_or_default();
                return (format!("{sentence}. {alignment}"), call);
            };
            let (number, name) = (call_idx + 1, code(actual[call_idx]));
            let text =
                format!("call {number}, {name}, has other arguments than expected: {difference}");
            return (text, Some(call_idx));
        }
        let missing = alignment.expected[pairs.len()];
        let last = pairs.last().map(|pair| pair.0);
        let after = last.map(|call| format!(" after {}", alignment.named(call)));
        let (name, after) = (code(missing), after.unwrap_or_default());
        match difference {
            Some((call_idx, difference)) => (
                format!(
                    "{name} was called{after} with other arguments than expected (call {}: \
                     {difference}). {alignment}",
                    call_idx + 1
                ),
                Some(call_idx),
            ),
            None => (
                format!("{name} was not called{after}. {alignment}"),
                (0..last.map_or(0, |call| call + 1)).find(|&call| actual[call] == missing),
            ),
        }
    }

    fn fits(&self, captured: &mut CapturedValues<'_>, call_idx: usize, expected: usize) -> Tri {
        let expected = &self.expected_tools[expected];
        if *captured.trajectory().tool_calls[call_idx].name != *expected.tool_name {
            return Tri::No;
        }
        match &expected.parameters {
            None => Tri::Yes,
            Some(parameters) => arguments::fit(parameters, call_idx, captured, Agreement::Equal),
        }
    }

    /// Builds the result from index pairs (call, expected).
    fn found(&self, pairs: Vec<(usize, usize)>, captured: &mut CapturedValues<'_>) -> OrderFound {
        let tool_calls = &captured.trajectory().tool_calls;
        let (n_calls, n_expected) = (tool_calls.len(), self.expected_tools.len());
        let is_named = |call_idx: usize, expected: usize| {
            *tool_calls[call_idx].name == *self.expected_tools[expected].tool_name
        };
        let whole = OrderFound {
            is_whole: true,
            ..OrderFound::default()
        };
        if self.exact_match && n_calls == n_expected && (0..n_calls).all(|at| is_named(at, at)) {
            let other = (0..n_calls).find(|&at| self.fits(captured, at, at) != Tri::Yes);
            return other.map_or(whole, |other| OrderFound {
                is_whole: false,
                pairs: (0..n_calls)
                    .filter(|at| *at != other)
                    .map(|at| (at, at))
                    .collect(),
                other: Some(self.other_arguments(other, other, captured)),
            });
        }
        let missing = pairs.len();
        if !self.exact_match && missing == n_expected {
            return whole;
        }
        let from = pairs.last().map_or(0, |pair| pair.0 + 1);
        let namesake = (from..n_calls)
            .filter(|_| !self.exact_match)
            .find(|&call_idx| is_named(call_idx, missing));
        OrderFound {
            is_whole: false,
            other: namesake.map(|call_idx| self.other_arguments(call_idx, missing, captured)),
            pairs,
        }
    }

    fn parameters(&self, expected: usize) -> Map<String, Value> {
        let parameters = &self.expected_tools[expected].parameters;
        parameters.clone().unwrap_or_default()
    }

    fn other_arguments(
        &self,
        call_idx: usize,
        expected: usize,
        captured: &mut CapturedValues<'_>,
    ) -> OtherArguments {
        let (parameters, args) = (self.parameters(expected), captured.args(call_idx));
        OtherArguments {
            call_idx,
            expected,
            difference: ArgsDifference::new(&parameters, args, Agreement::Equal),
        }
    }
}

fn flipped(pairs: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    pairs
        .into_iter()
        .map(|(expected, call_idx)| (call_idx, expected))
        .collect()
}
