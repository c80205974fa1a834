//! The evaluator `tool_call_args`: were the tools called with the expected arguments?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Evaluate, Judgement, NamedTool};
use crate::evaluate::comparison::arguments::Agreement;
use crate::evaluate::comparison::assignment::{Assignment, ExpectedCalls, ExpectedPart};
use crate::evaluate::comparison::score::{Rendered, Score};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::extract::Trajectory;

/// Were the tools called with the expected arguments?
///
/// # What it checks
/// Every expected call needs a call of its own: of the same name, with every expected key present
/// and equal as JSON (1 = 1.0, true ≠ 1, nested values included). The order does not matter. The
/// score is the number of expected calls that found one, divided by their number; with `strict` all
/// or nothing. The assignment is the best possible, so a call that two expectations could claim
/// goes to the one that has no other.
///
/// # Why
/// The right tool with the wrong argument books the wrong flight.
///
/// # Example
/// ```yaml
/// evaluate:
///   tool_call_args:
///     tool_calls:
///       - { name: book_flight, args: { from: TXL, seats: 2 } }
/// ```
/// A call `book_flight` with `from: TXL, seats: 2.0, class: economy` matches; one with `seats: 3`
/// does not.
///
/// # Parameters
/// - `tool_calls`: entries of `name` and `args`. Empty: the score is 1 if nothing was called, else
///   0 (loads with a warning).
/// - `strict` (false): all or nothing.
/// - `subset` (false): accepted as the reference has it; further keys are allowed with and without
///   it.
/// - `exact` (false): no further keys.
///
/// Details: `explained_tool_calls_args`, per expected call `Score: 1.0`, with the values where
/// `explain.values` shows them.
///
/// # When the trace was cut short
/// Further calls can only add pairs: a score that has reached the threshold passes for certain, and
/// none fails for certain (except an empty expectation, once anything was called). Where no call
/// carries arguments, or those in question were cut, the verdict is given only if they could not
/// change it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolCallArgs {
    /// The expected calls, in any order.
    pub tool_calls: Vec<ExpectedArgs>,
    /// All or nothing.
    #[serde(default)]
    pub strict: bool,
    /// Further keys are allowed, with and without it.
    #[serde(default)]
    pub subset: bool,
    /// No further keys.
    #[serde(default)]
    pub exact: bool,
}

/// One expected call.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExpectedArgs {
    /// The tool's name.
    pub name: String,
    /// Arguments that must be there and equal.
    pub args: Map<String, Value>,
}

read_with_hints!(ToolCallArgs);
read_with_hints!(ExpectedArgs);

impl Evaluate for ToolCallArgs {
    const NAME: &'static str = "tool_call_args";

    type Evidence = Assignment;

    fn evaluate(&self, trajectory: &Trajectory, _: u64) -> Score<Assignment> {
        self.expected().evaluate(trajectory)
    }

    fn report(&self, found: &Assignment, judgement: &Judgement<'_>) -> Rendered {
        let (trajectory, explain) = (judgement.trajectory, judgement.explain);
        let expected = self.expected();
        expected.report(
            found,
            trajectory,
            explain,
            judgement.with_rows,
            "explained_tool_calls_args",
        )
    }

    fn named_tools(&self) -> Vec<NamedTool<'_>> {
        NamedTool::all_expected(self.tool_calls.iter().map(|it| &*it.name))
    }

    fn reads_order(&self) -> bool {
        false
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.tool_calls.is_empty() {
            warnings.push(
                "`tool_calls` is empty: the score is 1 if nothing was called, else 0".to_owned(),
            );
        }
        if self.exact && self.subset {
            warnings.push(
                "`exact` forbids what `subset` allows, and wins: leave one of them out".to_owned(),
            );
        }
        warnings
    }
}

impl ToolCallArgs {
    fn expected(&self) -> ExpectedCalls<'_> {
        let agreement = if self.exact { Agreement::Equal } else { Agreement::Contained };
        let calls = self.tool_calls.iter();
        ExpectedCalls {
            calls: calls
                .map(|call| (&*call.name, ExpectedPart::Args(&call.args, agreement)))
                .collect(),
            strict: self.strict,
        }
    }
}
