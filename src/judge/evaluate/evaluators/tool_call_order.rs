//! The evaluator `tool_call_order`: were the tools called in the expected order?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use text::counted;

use super::{Evaluate, Evidence, Judgement, NamedTool, Score, names_of};
use crate::evaluate::comparison::alignment::{Alignment, quoted};
use crate::evaluate::comparison::lcs;
use crate::evaluate::comparison::rows::{self, AlignmentRow};
use crate::evaluate::comparison::score::{Explanation, all_or_nothing};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::evaluate::parameters::names::NonEmptyNames;
use crate::extract::Trajectory;

/// Were the tools called in the expected order?
///
/// # What it checks
/// The names of all calls, in the order they were made, against the expected order. The score is
/// the length of the longest common subsequence divided by the number of expected calls: calls in
/// between cost nothing, an expected call that is missing or out of order costs its share. With
/// `strict` the two orders must be equal, which scores 1, anything else 0. Where nothing was called
/// the score is 0. Names compare by code point, case-sensitively.
///
/// # Why
/// Agents that do the right things in the wrong order create the order before checking the stock. A
/// share instead of yes or no shows how far a run strayed, so a threshold can allow one slip.
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
/// Details: `actual_tool_calls_order`, `expected_tool_calls_order`, `lcs` (strict: the order if
/// equal, else empty).
///
/// # When the trace was cut short
/// Further calls can only lengthen a common subsequence, so a score that has reached the threshold
/// passes for certain, and no score fails for certain. Strict: fails for certain once the calls are
/// no subsequence of the expected order (whatever comes between them, they can no longer become
/// equal), and never passes for certain.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolCallOrder {
    /// The expected names, in order.
    pub tool_calls_order: NonEmptyNames,
    /// The orders must be equal.
    #[serde(default)]
    pub strict: bool,
}

read_with_hints!(ToolCallOrder);

/// Positions (call, expected) of the longest common subsequence.
pub(super) type Matches = Vec<(usize, usize)>;

impl Evaluate for ToolCallOrder {
    fn name(&self) -> &'static str {
        "tool_call_order"
    }

    fn evaluate(&self, trajectory: &Trajectory) -> Score {
        let expected = self.tool_calls_order.names();
        let actual = expected.ids_of(trajectory.tool_calls.iter().map(|call| &*call.name));
        let pairs = lcs::common_subsequence(&actual, expected.ids());
        let n_expected = expected.ids().len();
        let (value, least, most) = if self.strict {
            let could_become_equal = pairs.len() == actual.len();
            let value = all_or_nothing(actual == expected.ids());
            (value, 0.0, all_or_nothing(could_become_equal))
        } else {
            let value = pairs.len() as f64 / n_expected as f64;
            (value, value, 1.0)
        };
        let evidence = Evidence::ToolCallOrder(pairs);
        let mut score = match trajectory.cut_short {
            true => Score::between(value, least, most, evidence),
            false => Score::settled(value, evidence),
        };
        score.n_expected = n_expected;
        score
    }

    fn named_tools(&self) -> Vec<NamedTool<'_>> {
        let names = self.tool_calls_order.names().as_slice().iter();
        names.map(|name| NamedTool::expected(name)).collect()
    }

    fn reads_order(&self) -> bool {
        true
    }

    fn explanation(&self, evidence: &Evidence, judgement: &Judgement<'_>) -> Explanation {
        let trajectory = judgement.trajectory;
        let Evidence::ToolCallOrder(pairs) = evidence else {
            return Explanation::default();
        };
        let actual = names_of(trajectory);
        let expected = self.tool_calls_order.names().as_slice();
        let alignment = Alignment {
            actual: &actual,
            expected,
            pairs,
            noun: "call",
        };
        let n_expected = counted(expected.len(), "expected call", "expected calls");
        let departure = if self.strict {
            alignment.first_difference()
        } else {
            alignment.first_gap()
        };
        let Some((sentence, call_idx)) = departure else {
            return Explanation::from(match actual.len() - expected.len() {
                0 => format!("{n_expected} made in order, no other"),
                n_others => format!(
                    "{n_expected} made in order, {} besides",
                    counted(n_others, "other", "others")
                ),
            });
        };
        let text = match (actual.is_empty(), self.strict) {
            (true, _) => format!(
                "no tool was called; expected {}",
                quoted(expected.iter().map(String::as_str))
            ),
            (false, true) => format!("{sentence}. {alignment}"),
            (false, false) => format!(
                "{sentence}; {} of {n_expected} made in order. {alignment}",
                pairs.len()
            ),
        };
        Explanation {
            text,
            offending: call_idx.into_iter().collect(),
        }
    }

    fn rows(&self, evidence: &Evidence, trajectory: &Trajectory) -> Vec<AlignmentRow> {
        let Evidence::ToolCallOrder(pairs) = evidence else {
            return Vec::new();
        };
        let expected = self.tool_calls_order.names().as_slice().iter();
        let expected: Vec<&str> = expected.map(String::as_str).collect();
        rows::sequence(&names_of(trajectory), &expected, pairs, self.strict)
    }

    fn details(&self, evidence: &Evidence, judgement: &Judgement<'_>) -> Value {
        let trajectory = judgement.trajectory;
        let Evidence::ToolCallOrder(pairs) = evidence else {
            return json!({});
        };
        let actual = names_of(trajectory);
        let expected = self.tool_calls_order.names().as_slice();
        let equal = pairs.len() == actual.len() && pairs.len() == expected.len();
        let lcs: Vec<&str> = if self.strict && !equal {
            Vec::new()
        } else {
            pairs.iter().map(|pair| actual[pair.0]).collect()
        };
        json!({
            "actual_tool_calls_order": actual,
            "expected_tool_calls_order": expected,
            "lcs": lcs,
        })
    }
}
