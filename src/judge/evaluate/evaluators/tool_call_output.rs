//! The evaluator `tool_call_output`: did the tools return what was expected?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Evaluate, Judgement, NamedTool};
use crate::evaluate::comparison::assignment::{Assignment, ExpectedCalls, ExpectedPart};
use crate::evaluate::comparison::score::{Rendered, Score};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::extract::Trajectory;

/// Did the tools return what was expected?
///
/// # What it checks
/// Every expected result needs a call of its own: of the same name, whose result's text equals the
/// expected text. The text is the one that was received; results that came as OTLP arrays or maps
/// are compact JSON. The order does not matter. The score is the number of expected results found,
/// divided by their number; with `strict` all or nothing. The assignment is the best possible.
///
/// # Why
/// A tool that answers `not found` where it should have found something spoils everything the agent
/// does next.
///
/// # Example
/// ```yaml
/// evaluate:
///   tool_call_output: { tool_outputs: [{ name: check_stock, output: "in stock" }] }
/// ```
/// A call `check_stock` that returned `in stock` matches; `In stock` does not.
///
/// # Parameters
/// - `tool_outputs`: entries of `name` and `output`, a text. Empty: the score is 1 if nothing was
///   called, else 0 (loads with a warning).
/// - `strict` (false): all or nothing.
///
/// Details: `explained_tool_calls_outputs`, per expected result `Score: 1.0`, with the values where
/// `explain.values` shows them.
///
/// # When the trace was cut short
/// Further calls can only add pairs: a score that has reached the threshold passes for certain, and
/// none fails for certain (except an empty expectation, once anything was called). Where no call
/// carries a result, or those in question were cut or are still to come, the verdict is given only
/// if they could not change it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolCallOutput {
    /// The expected results, in any order.
    pub tool_outputs: Vec<ExpectedOutput>,
    /// All or nothing.
    #[serde(default)]
    pub strict: bool,
}

/// One expected result.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExpectedOutput {
    /// The tool's name.
    pub name: String,
    /// The text of its result.
    pub output: String,
}

read_with_hints!(ToolCallOutput);
read_with_hints!(ExpectedOutput);

impl Evaluate for ToolCallOutput {
    const NAME: &'static str = "tool_call_output";

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
            "explained_tool_calls_outputs",
        )
    }

    fn named_tools(&self) -> Vec<NamedTool<'_>> {
        NamedTool::all_expected(self.tool_outputs.iter().map(|it| &*it.name))
    }

    fn reads_order(&self) -> bool {
        false
    }

    fn warnings(&self) -> Vec<String> {
        if self.tool_outputs.is_empty() {
            vec!["`tool_outputs` is empty: the score is 1 if nothing was called, else 0".to_owned()]
        } else {
            Vec::new()
        }
    }
}

impl ToolCallOutput {
    fn expected(&self) -> ExpectedCalls<'_> {
        let calls = self.tool_outputs.iter();
        ExpectedCalls {
            calls: calls
                .map(|call| (&*call.name, ExpectedPart::Result(&call.output)))
                .collect(),
            strict: self.strict,
        }
    }
}
