//! Pure. The evaluator `tool_order`: do the expected calls, with their parameters, occur in this
//! order?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::alignment::Alignment;
use super::arguments::{self, Agreement};
use super::capture::{Capture, Tri};
use super::score::{Explain, Explanation, Score, Verdict};
use super::spelling::read_with_hints;
use super::words::Numbers;
use super::{Evaluate, names_of};
use crate::extract::Trajectory;
use crate::text::counted;

/// Do the expected calls, with their parameters, occur in this order?
///
/// # What it checks
/// Whether the expected calls are a subsequence of the calls that were made: each in its turn, with
/// anything in between. The score is 1 or 0. With `exact_match` the calls must be these and no
/// others. Where `parameters` are given they must equal the call's arguments as JSON (1 = 1.0, true
/// ≠ 1); where they are not, any arguments will do.
///
/// # Why
/// Some orders allow no partial credit: a transfer without the authentication before it is wrong,
/// however much else is right.
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
/// - `expected_tools`: entries of `tool_name` and, optionally, `parameters`. Empty: the score is 1
///   (with `exact_match`: 1 if nothing was called); loads with a warning.
/// - `exact_match` (false): no other calls.
///
/// # When the trace was cut short
/// Further calls cannot take a subsequence away: 1 is certain, 0 never is. With `exact_match` 1 is
/// never certain, and 0 is certain once the calls made are no subsequence of those expected.
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
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExpectedTool {
    /// The tool's name.
    pub tool_name: String,
    /// Its arguments, equal as JSON; left out, any will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
}

read_with_hints!(ToolOrder);
read_with_hints!(ExpectedTool);

/// Positions (call, expected) that belong together for certain: the earliest ones.
type Pairs = Vec<(usize, usize)>;

impl Evaluate for ToolOrder {
    const NAME: &'static str = "tool_order";

    type Evidence = Pairs;

    fn evaluate(&self, trajectory: &Trajectory) -> Score<Pairs> {
        let capture = Capture::new(trajectory);
        let (n_calls, n_expected) = (trajectory.tool_calls.len(), self.expected_tools.len());
        let fits =
            |call_idx: usize, expected: usize| self.fits(&capture, trajectory, call_idx, expected);
        let pairs = earliest(n_expected, n_calls, |expected, call_idx| {
            fits(call_idx, expected) == Tri::Yes
        });
        let bit = |yes: bool| f64::from(u8::from(yes));
        let mut score = if self.exact_match {
            let same = |at_least: Tri| {
                n_calls == n_expected && (0..n_calls).all(|at| fits(at, at) >= at_least)
            };
            let value = bit(same(Tri::Yes));
            if trajectory.cut_short {
                let could_be_completed = earliest(n_calls, n_expected, |call_idx, at| {
                    fits(call_idx, at) >= Tri::Maybe
                })
                .len()
                    == n_calls;
                Score::between(value, 0.0, bit(could_be_completed), flipped(pairs))
            } else {
                Score::between(value, value, bit(same(Tri::Maybe)), flipped(pairs))
            }
        } else {
            let value = bit(pairs.len() == n_expected);
            let could_be = trajectory.cut_short
                || value == 1.0
                || earliest(n_expected, n_calls, |expected, call_idx| {
                    fits(call_idx, expected) >= Tri::Maybe
                })
                .len()
                    == n_expected;
            Score::between(value, value, bit(could_be), flipped(pairs))
        };
        score.missing = capture.missing();
        score.n_expected = n_expected;
        score
    }

    fn reads_order(&self) -> bool {
        true
    }

    fn explanation(
        &self,
        pairs: &Pairs,
        trajectory: &Trajectory,
        explain: &Explain,
    ) -> Explanation {
        let actual = names_of(trajectory);
        let expected: Vec<String> = self
            .expected_tools
            .iter()
            .map(|tool| tool.tool_name.clone())
            .collect();
        let capture = Capture::new(trajectory);
        let n_expected = counted(expected.len(), "expected call", "expected calls");
        if self.exact_match {
            let alignment = Alignment {
                actual: &actual,
                expected: &expected,
                pairs,
            };
            if let Some((sentence, call_idx)) = alignment.first_difference() {
                return Explanation {
                    text: format!("{sentence}. {alignment}"),
                    offending: call_idx.into_iter().collect(),
                };
            }
            let other =
                (0..actual.len()).find(|&at| self.fits(&capture, trajectory, at, at) != Tri::Yes);
            return match other {
                None => Explanation::from(format!("{n_expected} made in order, no other")),
                Some(at) => Explanation {
                    text: format!(
                        "call {}, `{}`, has other arguments than expected: {}",
                        at + 1,
                        actual[at],
                        self.differences(&capture, at, at, explain)
                    ),
                    offending: vec![at],
                },
            };
        }
        let gap = pairs.len();
        let Some(missing) = self.expected_tools.get(gap) else {
            return Explanation::from(match actual.len() - expected.len() {
                0 => format!("{n_expected} made in order, no other"),
                n_others => format!(
                    "{n_expected} made in order, {} besides",
                    counted(n_others, "other", "others")
                ),
            });
        };
        let from = pairs.last().map_or(0, |pair| pair.0 + 1);
        let after = pairs
            .last()
            .map(|pair| format!(" after `{}`", actual[pair.0]))
            .unwrap_or_default();
        let same_name =
            (from..actual.len()).find(|&call_idx| *actual[call_idx] == missing.tool_name);
        let alignment = Alignment {
            actual: &actual,
            expected: &expected,
            pairs,
        };
        match same_name {
            Some(call_idx) => Explanation {
                text: format!(
                    "`{}` was called{after} with other arguments than expected (call {}: {}). {alignment}",
                    missing.tool_name,
                    call_idx + 1,
                    self.differences(&capture, call_idx, gap, explain)
                ),
                offending: vec![call_idx],
            },
            None => Explanation {
                text: format!("`{}` was not called{after}. {alignment}", missing.tool_name),
                offending: (0..from)
                    .find(|&call_idx| *actual[call_idx] == missing.tool_name)
                    .into_iter()
                    .collect(),
            },
        }
    }

    fn details(&self, _: &Pairs, trajectory: &Trajectory, verdict: Verdict, _: &Explain) -> Value {
        let expected: Vec<&str> = self
            .expected_tools
            .iter()
            .map(|tool| tool.tool_name.as_str())
            .collect();
        json!({ "success": verdict.success(), "actual_tools": names_of(trajectory), "expected_tools": expected })
    }

    fn shown(&self, pairs: &Pairs, _: &Explain) -> Option<Numbers> {
        let reads_args = self
            .expected_tools
            .iter()
            .any(|tool| tool.parameters.is_some());
        let all_found = !self.exact_match && pairs.len() == self.expected_tools.len();
        (all_found || !reads_args).then(Numbers::new)
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
    fn fits(
        &self,
        capture: &Capture<'_>,
        trajectory: &Trajectory,
        call_idx: usize,
        expected: usize,
    ) -> Tri {
        let expected = &self.expected_tools[expected];
        if *trajectory.tool_calls[call_idx].name != *expected.tool_name {
            return Tri::No;
        }
        match &expected.parameters {
            None => Tri::Yes,
            Some(parameters) => {
                arguments::fit(parameters, capture.args(call_idx), Agreement::Equal)
            }
        }
    }

    fn differences(
        &self,
        capture: &Capture<'_>,
        call_idx: usize,
        expected: usize,
        explain: &Explain,
    ) -> String {
        let parameters = self.expected_tools[expected]
            .parameters
            .clone()
            .unwrap_or_default();
        arguments::differences(
            &parameters,
            capture.args(call_idx),
            Agreement::Equal,
            explain,
        )
        .1
    }
}

/// Each needle in turn with the first hay behind the one before that fits it, up to the first that
/// finds none. Taking the first is never worse, whatever the relation is.
fn earliest(
    n_needles: usize,
    n_hay: usize,
    fits: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let mut from = 0;
    for needle in 0..n_needles {
        let Some(found) = (from..n_hay).find(|&hay| fits(needle, hay)) else {
            break;
        };
        pairs.push((needle, found));
        from = found + 1;
    }
    pairs
}

fn flipped(pairs: Vec<(usize, usize)>) -> Pairs {
    pairs
        .into_iter()
        .map(|(expected, call_idx)| (call_idx, expected))
        .collect()
}
