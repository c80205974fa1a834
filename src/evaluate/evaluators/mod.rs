//! Pure. The evaluators, one file each, and the two enums that list them: [`Evaluator`] and the
//! [`Evidence`] that its explanation is rendered from. Knows neither thresholds nor criteria.

mod execution_order;
mod tool_call_args;
mod tool_call_count;
mod tool_call_order;
mod tool_call_output;
mod tool_calls;
mod tool_order;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::evaluate::comparison::assignment::Assignment;
use crate::evaluate::comparison::score::{self, Explain, Explanation, Verdict};
use crate::extract::Trajectory;

pub use execution_order::{ExecutionOrder, Over};
pub use tool_call_args::{ExpectedArgs, ToolCallArgs};
pub use tool_call_count::{Counts, ToolCallCount};
pub use tool_call_order::ToolCallOrder;
pub use tool_call_output::{ExpectedOutput, ToolCallOutput};
pub use tool_calls::ToolCalls;
pub use tool_order::{ExpectedTool, ToolOrder};

/// What is expected of the calls: one evaluator with its parameters.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Evaluator {
    /// Were the tools called in the expected order?
    ToolCallOrder(ToolCallOrder),
    /// Was each tool called as often as expected?
    ToolCallCount(ToolCallCount),
    /// Do the expected calls, with their parameters, occur in this order?
    ToolOrder(ToolOrder),
    /// How well do the tools called, or the nodes visited, match the expected ones?
    ExecutionOrder(ExecutionOrder),
    /// Were the required calls made, the disallowed ones not, and a sequence kept?
    ToolCalls(ToolCalls),
    /// Were the tools called with the expected arguments?
    ToolCallArgs(ToolCallArgs),
    /// Did the tools return what was expected?
    ToolCallOutput(ToolCallOutput),
}

/// What an evaluator found in a trajectory. Together with the names of the calls, the value and the
/// label it determines explanation and details, unless these show values; and it differs only where
/// they do. So its hash tells whether a late span changed what a reader sees.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Evidence {
    ToolCallOrder(tool_call_order::Matches),
    ToolCallCount(tool_call_count::CallCounts),
    ToolOrder(tool_order::OrderFound),
    ExecutionOrder(execution_order::VisitsFound),
    ToolCalls(tool_calls::EntriesFound),
    ToolCallArgs(Assignment),
    ToolCallOutput(Assignment),
}

/// An evaluator's answer.
pub(super) type Score = score::Score<Evidence>;

impl Evaluator {
    /// The evaluator itself; the one place that lists all of them.
    fn as_evaluate(&self) -> &dyn Evaluate {
        match self {
            Self::ToolCallOrder(evaluator) => evaluator,
            Self::ToolCallCount(evaluator) => evaluator,
            Self::ToolOrder(evaluator) => evaluator,
            Self::ExecutionOrder(evaluator) => evaluator,
            Self::ToolCalls(evaluator) => evaluator,
            Self::ToolCallArgs(evaluator) => evaluator,
            Self::ToolCallOutput(evaluator) => evaluator,
        }
    }

    /// Its name in the configuration, in `spanscore.evaluator` and in the jsonl lines.
    pub fn name(&self) -> &'static str {
        self.as_evaluate().name()
    }

    /// What loads but is hardly meant, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        self.as_evaluate().warnings()
    }

    /// The threshold that applies, given the one that was written (0 to 1).
    pub(super) fn threshold(&self, written: Option<f64>) -> f64 {
        self.as_evaluate().threshold(written)
    }

    /// Evaluates a trajectory.
    pub(super) fn evaluate(&self, trajectory: &Trajectory) -> Score {
        self.as_evaluate().evaluate(trajectory)
    }

    /// Does the order of the calls matter?
    pub(super) fn reads_order(&self) -> bool {
        self.as_evaluate().reads_order()
    }

    /// Renders evidence of this evaluator in words.
    pub(super) fn explanation(
        &self,
        evidence: &Evidence,
        trajectory: &Trajectory,
        explain: &Explain,
    ) -> Explanation {
        self.as_evaluate()
            .explanation(evidence, trajectory, explain)
    }

    /// Renders evidence of this evaluator as the reference evaluator's justification.
    pub(super) fn details(
        &self,
        evidence: &Evidence,
        trajectory: &Trajectory,
        verdict: Verdict,
        explain: &Explain,
    ) -> serde_json::Value {
        self.as_evaluate()
            .details(evidence, trajectory, verdict, explain)
    }
}

/// What each evaluator does. The serde struct is the evaluator; none of this can fail, wait, log or
/// count. The rendering methods answer evidence of other evaluators with nothing.
trait Evaluate {
    /// Its name in the configuration.
    fn name(&self) -> &'static str;

    /// How well the trajectory does, and how far missing evidence could still move that.
    fn evaluate(&self, trajectory: &Trajectory) -> Score;

    /// Does the order of the calls matter?
    fn reads_order(&self) -> bool;

    /// The evidence in words, with values only if `explain` allows them.
    fn explanation(
        &self,
        evidence: &Evidence,
        trajectory: &Trajectory,
        explain: &Explain,
    ) -> Explanation;

    /// The reference evaluator's own justification fields.
    fn details(
        &self,
        evidence: &Evidence,
        trajectory: &Trajectory,
        verdict: Verdict,
        explain: &Explain,
    ) -> serde_json::Value;

    /// What loads but is hardly meant.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The threshold that applies, given the one that was written (0 to 1).
    fn threshold(&self, written: Option<f64>) -> f64 {
        written.unwrap_or(1.0)
    }
}

/// The names of the calls, in the order they were made.
fn names_of(trajectory: &Trajectory) -> Vec<&str> {
    trajectory
        .tool_calls
        .iter()
        .map(|call| &*call.name)
        .collect()
}
