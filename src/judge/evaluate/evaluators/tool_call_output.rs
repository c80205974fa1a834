//! The evaluator `tool_call_output`: did the tools return what was expected?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Evaluate, ToolName};
use crate::evaluate::comparison::assignment::{Assignment, ExpectedCalls, ExpectedPart};
use crate::evaluate::comparison::score::{Judgement, Rendered, Score};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::extract::Trajectory;

/// Did the tools return what was expected?
///
/// # What it checks
/// Every expected result needs a separate call of the same name, whose result has exactly the
/// expected text. A framework's wrapper, such as `{"result": …}`, is removed; results sent as OTLP
/// arrays or maps are compact JSON. The order does not matter. The score is the number of expected
/// results found, divided by the number of expected results; with `strict` it is 1 or 0. Calls are
/// assigned so that as many expectations as possible are met.
///
/// # Why
/// A tool that wrongly answers `not found` spoils everything that the agent does next.
///
/// # Example
/// ```yaml
/// evaluate:
///   tool_call_output: { tool_outputs: [{ name: check_stock, output: "in stock" }] }
/// ```
/// A call `check_stock` that returned `in stock` matches; `In stock` does not.
///
/// # Parameters
/// - `tool_outputs`: entries with `name` and `output`, a text. An empty list loads with a warning,
///   and scores 1 if nothing was called, else 0.
/// - `strict` (false): 1 if every expected result was found, else 0.
///
/// Details: `explained_tool_calls_outputs`, a text per expected result, such as `Score: 1.0`, with
/// the values if `explain.values` is true.
///
/// # When the trace was cut short
/// Further calls can only add matches: a score that has reached the threshold certainly passes, and
/// a lower score may still rise. With an empty list, the criterion certainly fails once anything
/// was called. If results were not captured, were cut or have not arrived, there is a verdict only
/// if the missing results cannot change it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolCallOutput {
    /// The expected results, in any order.
    pub tool_outputs: Vec<ExpectedOutput>,
    /// The score is 1 or 0.
    #[serde(default)]
    pub strict: bool,
}

/// One expected result.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExpectedOutput {
    /// The tool's name.
    pub name: String,
    /// The text of the tool's result.
    pub output: String,
}

read_with_hints!(ToolCallOutput);
read_with_hints!(ExpectedOutput);

impl Evaluate for ToolCallOutput {
    const NAME: &'static str = "tool_call_output";

    type Evidence = Assignment;

    fn evaluate(&self, trajectory: &Trajectory, _: u64) -> (Score, Assignment) {
        self.expected().evaluate(trajectory)
    }

    fn report(&self, found: &Assignment, judgement: &Judgement<'_>) -> Rendered {
        self.expected()
            .report(found, judgement, "explained_tool_calls_outputs")
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        ToolName::all_expected(self.tool_outputs.iter().map(|it| &*it.name))
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
