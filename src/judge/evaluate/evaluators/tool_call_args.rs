//! The evaluator `tool_call_args`: were the tools called with the expected arguments?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Evaluate, ToolName};
use crate::evaluate::comparison::arguments::Agreement;
use crate::evaluate::comparison::assignment::{Assignment, ExpectedCalls, ExpectedPart};
use crate::evaluate::comparison::score::{Judgement, Rendered, Score};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::extract::Trajectory;

/// Were the tools called with the expected arguments?
///
/// # What it checks
/// Every expected call needs a separate call of the same name, in which every expected key is
/// present and its value equal as JSON (1 = 1.0, true ≠ 1, nested values included). The order does
/// not matter. The score is the number of expected calls with a match, divided by the number of
/// expected calls; with `strict` it is 1 or 0. Calls are assigned so that as many expectations as
/// possible are met.
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
/// - `tool_calls`: entries with `name` and `args`. An empty list loads with a warning, and scores 1
///   if nothing was called, else 0.
/// - `strict` (false): 1 if every expected call has a match, else 0.
/// - `subset` (false): no effect; accepted because UiPath's evaluator has it.
/// - `exact` (false): further keys are forbidden.
///
/// Details: `explained_tool_calls_args`, a text per expected call, such as `Score: 1.0`, with the
/// values if `explain.values` is true.
///
/// # When the trace was cut short
/// Further calls can only add matches: a score that has reached the threshold certainly passes, and
/// a lower score may still rise. With an empty list, the criterion certainly fails once anything
/// was called. If arguments were not captured or were cut, there is a verdict only if the missing
/// arguments cannot change it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolCallArgs {
    /// The expected calls, in any order.
    pub tool_calls: Vec<ExpectedArgs>,
    /// The score is 1 or 0.
    #[serde(default)]
    pub strict: bool,
    /// No effect; further keys are allowed unless `exact` is set.
    #[serde(default)]
    pub subset: bool,
    /// Further keys are forbidden.
    #[serde(default)]
    pub exact: bool,
}

/// One expected call.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExpectedArgs {
    /// The tool's name.
    pub name: String,
    /// Arguments that must be present and equal.
    pub args: Map<String, Value>,
}

read_with_hints!(ToolCallArgs);
read_with_hints!(ExpectedArgs);

impl Evaluate for ToolCallArgs {
    const NAME: &'static str = "tool_call_args";

    type Evidence = Assignment;

    fn evaluate(&self, trajectory: &Trajectory, _: u64) -> (Score, Assignment) {
        self.expected().evaluate(trajectory)
    }

    fn report(&self, found: &Assignment, judgement: &Judgement<'_>) -> Rendered {
        self.expected()
            .report(found, judgement, "explained_tool_calls_args")
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        ToolName::all_expected(self.tool_calls.iter().map(|it| &*it.name))
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
