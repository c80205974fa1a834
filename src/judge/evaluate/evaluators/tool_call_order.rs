//! The evaluator `tool_call_order`: were the tools called in the expected order?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use text::counted;

use super::{Evaluate, ToolName, names_of};
use crate::evaluate::comparison::alignment::{Alignment, made_in_order, quoted};
use crate::evaluate::comparison::lcs::Subsequence;
use crate::evaluate::comparison::rows;
use crate::evaluate::comparison::score::{Judgement, Rendered, Score};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::evaluate::parameters::names::{Names, at_least_one_name};
use crate::extract::Trajectory;

/// Were the tools called in the expected order?
///
/// # What it checks
/// Compares the names of all calls, in the order of the calls, with the expected order. The score
/// is the length of the longest common subsequence divided by the number of expected calls: calls
/// in between do not lower it, a missing or misplaced call does. With `strict` the score is 1 if
/// the two orders are equal, else 0. Names are compared by code point, case-sensitively. Without
/// `strict`, if (number of calls) × (number of expected names) exceeds 16,777,216, there is a
/// verdict only if all expected names occur in order.
///
/// # Why
/// An agent that does the right things in the wrong sequence may ship a purchase before it checks
/// the stock. A score between 0 and 1 shows how far a run strayed, so a threshold can allow one
/// mistake.
///
/// # Example
/// ```yaml
/// evaluate:
///   tool_call_order: { tool_calls_order: [validate_user, check_inventory, create_order] }
/// ```
/// Calls `validate_user, create_order, check_inventory` score 2/3: `create_order` was called before
/// `check_inventory`.
///
/// # Parameters
/// - `tool_calls_order`: the expected names, at least one.
/// - `strict` (false): the orders must be equal, with no call in between.
///
/// Details: `actual_tool_calls_order`, `expected_tool_calls_order`, `lcs` (with `strict`: the whole
/// order if the two are equal, else empty).
///
/// # When the trace was cut short
/// Further calls can only lengthen a common subsequence, so a score that has reached the threshold
/// certainly passes, and a lower score may still rise. With `strict`, the criterion certainly fails
/// once the calls are not a subsequence of the expected order, and a pass is never certain.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolCallOrder {
    /// The expected names, in order.
    #[serde(deserialize_with = "at_least_one_name")]
    #[schemars(length(min = 1))]
    pub tool_calls_order: Names,
    /// The orders must be equal.
    #[serde(default)]
    pub strict: bool,
}

read_with_hints!(ToolCallOrder);

/// Index pairs (call, expected) of the longest common subsequence; `None` if the comparison
/// exceeded its limit.
pub(super) type Matches = Option<Subsequence>;

impl Evaluate for ToolCallOrder {
    const NAME: &'static str = "tool_call_order";

    type Evidence = Matches;

    fn evaluate(&self, trajectory: &Trajectory, _: u64) -> (Score, Matches) {
        let expected = &self.tool_calls_order;
        let actual = expected.ids_of(trajectory.tool_calls.iter().map(|call| &*call.name));
        Score::of_order(&actual, expected.ids(), self.strict, trajectory.cut_short)
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        ToolName::all_expected(self.tool_calls_order.to_strs())
    }

    fn reads_order(&self) -> bool {
        true
    }

    fn report(&self, found: &Matches, judgement: &Judgement<'_>) -> Rendered {
        let pairs = found.as_deref().unwrap_or_default();
        let actual = names_of(judgement.trajectory);
        let expected = self.tool_calls_order.to_strs();
        let alignment = Alignment {
            actual: &actual,
            expected: &expected,
            pairs,
            noun: "call",
        };
        let departure = alignment.departure(self.strict);
        let text = match &departure {
            _ if found.is_none() => alignment.unaligned(self.strict),
            None => made_in_order(expected.len(), actual.len() - expected.len()),
            Some(_) if actual.is_empty() => {
                format!("no tool was called; expected {}", quoted(&expected))
            }
            Some((sentence, _)) if self.strict => format!("{sentence}. {alignment}"),
            Some((sentence, _)) => format!(
                "{sentence}; {} of {} made in order. {alignment}",
                pairs.len(),
                counted(expected.len(), "expected call", "expected calls")
            ),
        };
        let is_shown = !self.strict || departure.is_none();
        let lcs = pairs.iter().filter(|_| is_shown).map(|pair| actual[pair.0]);
        Rendered {
            text,
            offending: departure.and_then(|(_, call)| call).into_iter().collect(),
            rows: judgement.rows(|| match found {
                Some(pairs) => rows::sequence(&actual, &expected, pairs, self.strict),
                None => Vec::new(),
            }),
            details: json!({
                "actual_tool_calls_order": actual,
                "expected_tool_calls_order": expected,
                "lcs": lcs.collect::<Vec<_>>(),
            }),
        }
    }
}
