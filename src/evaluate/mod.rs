//! Pure. A trajectory and criteria in, evaluations out. Knows what is expected; does not know how a
//! tool call was spelled, where a criterion was written, or who reads the scores.

mod judge;

mod criterion;
mod expectation;
mod expectations;
mod selector;

mod execution_order;
mod tool_call_args;
mod tool_call_count;
mod tool_call_order;
mod tool_call_output;
mod tool_calls;
mod tool_order;

mod alignment;
mod arguments;
mod brought;
mod capture;
mod json;
pub mod lcs;
mod matching;
mod names;
mod pairing;
mod pattern;
mod score;
mod spelling;
mod standing;
mod tool_pattern;
mod unusable;
mod words;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extract::Trajectory;

pub use brought::{Added, EXPECTED, FromSpans, no_longer_expected, searched_size};
pub use criterion::{Criterion, Scope};
pub use execution_order::{ExecutionOrder, Over};
pub use expectation::{EXAMPLE, Expectation, Unfit, pair};
pub use expectations::{Expectations, judge_run};
pub use judge::{judge, withdraw};
pub use names::{Names, NonEmptyNames};
pub use pattern::{Pattern, attempt, frugally};
pub use score::{Evaluation, EvaluationError, Explain, Previous, Verdict};
pub use selector::{Glob, Selector};
pub use spelling::stands_for;
pub use tool_call_args::{ExpectedArgs, ToolCallArgs};
pub use tool_call_count::{Counts, ToolCallCount};
pub use tool_call_order::ToolCallOrder;
pub use tool_call_output::{ExpectedOutput, ToolCallOutput};
pub use tool_calls::ToolCalls;
pub use tool_order::{ExpectedTool, ToolOrder};
pub use tool_pattern::{
    AtStep, BeforeStep, DisallowedCall, Entry, MinCount, RequiredCall, SequenceCall, Written,
};
pub use unusable::Unusable;
pub use words::{Numbers, Said, Shown, Words};

use judge::Judge;
use score::{Explanation, Score};

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
    /// None: what came with a run and cannot be held to. It is never read from a file.
    #[serde(skip_deserializing)]
    Unusable(Unusable),
}

impl Evaluator {
    /// Its name in the configuration, in `spanscore.evaluator` and in the jsonl lines.
    pub fn name(&self) -> &'static str {
        self.as_judge().name()
    }

    /// What will load but is hardly meant, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        self.as_judge().warnings()
    }

    /// Whichever it is: the one place where the enum is told apart.
    fn as_judge(&self) -> &dyn Judge {
        match self {
            Self::ToolCallOrder(evaluator) => evaluator,
            Self::ToolCallCount(evaluator) => evaluator,
            Self::ToolOrder(evaluator) => evaluator,
            Self::ExecutionOrder(evaluator) => evaluator,
            Self::ToolCalls(evaluator) => evaluator,
            Self::ToolCallArgs(evaluator) => evaluator,
            Self::ToolCallOutput(evaluator) => evaluator,
            Self::Unusable(unusable) => unusable,
        }
    }
}

/// What each evaluator does. The serde struct is the evaluator; none of this can fail, wait, log or
/// count.
trait Evaluate {
    /// Its name in the configuration.
    const NAME: &'static str;

    /// What its text is made of: positions and counts, no copies of names or values.
    type Evidence: Send + Sync + 'static;

    /// How well the trajectory does, and how far what is unknown could still move that.
    fn evaluate(&self, trajectory: &Trajectory) -> Score<Self::Evidence>;

    /// Does it matter in which order the calls were made?
    fn reads_order(&self) -> bool;

    /// The score in words, values shown only as `explain` allows.
    fn explanation(
        &self,
        evidence: &Self::Evidence,
        trajectory: &Trajectory,
        explain: &Explain,
    ) -> Explanation;

    /// The reference evaluator's own justification fields.
    fn details(
        &self,
        evidence: &Self::Evidence,
        trajectory: &Trajectory,
        verdict: Verdict,
        explain: &Explain,
    ) -> serde_json::Value;

    /// Numbers from which, with the names of the calls and the label, explanation and details
    /// follow; they differ only where those do. `None` where the words show more than that.
    fn shown(&self, evidence: &Self::Evidence, explain: &Explain) -> Option<Numbers>;

    /// What will load but is hardly meant.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The threshold, given what was written (0 to 1).
    fn threshold(&self, written: Option<f64>) -> f64 {
        written.unwrap_or(1.0)
    }
}

/// The names of the calls, as they were made.
fn names_of(trajectory: &Trajectory) -> Vec<&str> {
    trajectory
        .tool_calls
        .iter()
        .map(|call| &*call.name)
        .collect()
}
