//! The evaluator `tool_call_output`: did the tools return what was expected?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Evaluate, Evidence, Judgement, NamedTool, Score};
use crate::evaluate::comparison::assignment::{Difference, ExpectedCalls};
use crate::evaluate::comparison::captured::{CapturedValues, Tri};
use crate::evaluate::comparison::rows::AlignmentRow;
use crate::evaluate::comparison::score::Explanation;
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
/// none fails for certain (but an empty expectation, once anything was called). Where no call
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
    fn name(&self) -> &'static str {
        "tool_call_output"
    }

    fn evaluate(&self, trajectory: &Trajectory) -> Score {
        self.score(trajectory).map(Evidence::ToolCallOutput)
    }

    fn named_tools(&self) -> Vec<NamedTool<'_>> {
        let expected = self.tool_outputs.iter();
        expected
            .map(|expected| NamedTool::expected(&expected.name))
            .collect()
    }

    fn reads_order(&self) -> bool {
        false
    }

    fn explanation(&self, evidence: &Evidence, judgement: &Judgement<'_>) -> Explanation {
        let Judgement {
            trajectory,
            explain,
            ..
        } = *judgement;
        let Evidence::ToolCallOutput(assignment) = evidence else {
            return Explanation::default();
        };
        let shown = |text: &str| explain.value(text).map(Value::from);
        ExpectedCalls::explanation(
            self,
            assignment,
            trajectory,
            |expected, call_idx, difference, captured| {
                if *difference == Difference::ResultUnknown {
                    return "its result is not known".to_owned();
                }
                let expected = shown(&self.tool_outputs[expected].output);
                match (captured.result(call_idx).and_then(shown), expected) {
                    (Some(actual), Some(expected)) => {
                        format!("returned {actual}, expected {expected}")
                    }
                    _ if *difference == Difference::ResultEmpty => "returned nothing".to_owned(),
                    _ => "returned something else".to_owned(),
                }
            },
        )
    }

    fn rows(&self, evidence: &Evidence, trajectory: &Trajectory) -> Vec<AlignmentRow> {
        match evidence {
            Evidence::ToolCallOutput(assignment) => self.assignment_rows(assignment, trajectory),
            _ => Vec::new(),
        }
    }

    fn details(&self, evidence: &Evidence, judgement: &Judgement<'_>) -> Value {
        let Judgement {
            trajectory,
            explain,
            ..
        } = *judgement;
        let Evidence::ToolCallOutput(assignment) = evidence else {
            return json!({});
        };
        let values =
            |expected: usize, call_idx: Option<usize>, captured: &mut CapturedValues<'_>| {
                let expected = explain.value(&self.tool_outputs[expected].output)?;
                let actual = call_idx.and_then(|call_idx| captured.result(call_idx));
                Some(match actual {
                    Some(actual) => {
                        format!("Actual: {}, Expected: {expected}", explain.value(actual)?)
                    }
                    None => format!("Expected: {expected}"),
                })
            };
        let explained = self.justification(assignment, trajectory, explain, values);
        json!({ "explained_tool_calls_outputs": explained })
    }

    fn warnings(&self) -> Vec<String> {
        match self.tool_outputs.is_empty() {
            true => vec![
                "`tool_outputs` is empty: the score is 1 if nothing was called, else 0".to_owned(),
            ],
            false => Vec::new(),
        }
    }
}

impl ExpectedCalls for ToolCallOutput {
    fn names(&self) -> Vec<&str> {
        self.tool_outputs
            .iter()
            .map(|expected| expected.name.as_str())
            .collect()
    }

    fn fits(&self, expected: usize, call_idx: usize, captured: &mut CapturedValues<'_>) -> Tri {
        captured.result(call_idx).map_or(Tri::Maybe, |actual| {
            Tri::from(*actual == *self.tool_outputs[expected].output)
        })
    }

    fn difference(
        &self,
        _: usize,
        call_idx: usize,
        captured: &mut CapturedValues<'_>,
    ) -> (usize, Difference) {
        match captured.result(call_idx) {
            None => (2, Difference::ResultUnknown),
            Some("") => (1, Difference::ResultEmpty),
            Some(_) => (1, Difference::ResultDiffers),
        }
    }

    fn strict(&self) -> bool {
        self.strict
    }
}
