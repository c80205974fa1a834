//! Pure. A trajectory and criteria in, evaluations out. Knows what is expected; does not know how a tool call was spelled,
//! where a criterion was written, or who reads the scores.

mod judge;

mod criterion;
mod selector;

mod tool_call_order;

mod alignment;
pub mod lcs;
mod names;
mod score;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extract::Trajectory;

pub use criterion::{Criterion, Scope};
pub use judge::judge;
pub use score::{Evaluation, EvaluationError, Explain, Previous, Verdict};
pub use selector::{Glob, Selector};
pub use tool_call_order::ToolCallOrder;

use score::{Explanation, Score};

/// What is expected of the calls: one evaluator with its parameters.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Evaluator {
    /// Were the tools called in the expected order?
    ToolCallOrder(ToolCallOrder),
}

/// Calls `$do` with the evaluator, whichever it is: the one place where the enum is told apart.
macro_rules! with_evaluator {
    ($evaluator:expr, $name:ident => $do:expr) => {
        match $evaluator {
            Evaluator::ToolCallOrder($name) => $do,
        }
    };
}
use with_evaluator;

impl Evaluator {
    /// Its name in the configuration, in `spanscore.evaluator` and in the jsonl lines.
    pub fn name(&self) -> &'static str {
        with_evaluator!(self, evaluator => name_of(evaluator))
    }

    /// What will load but is hardly meant.
    pub fn warnings(&self) -> Vec<String> {
        with_evaluator!(self, evaluator => evaluator.warnings())
    }

    /// The threshold of a criterion with this evaluator, given what was written.
    fn threshold(&self, written: Option<f64>) -> f64 {
        with_evaluator!(self, evaluator => evaluator.threshold(written))
    }
}

/// What each evaluator does. The serde struct is the evaluator; none of this can fail, wait, log or count.
trait Evaluate {
    /// Its name in the configuration.
    const NAME: &'static str;

    /// What its text is made of: positions and counts, no copies of names or values.
    type Evidence;

    /// How well the trajectory does, and how far what is unknown could still move that.
    fn evaluate(&self, trajectory: &Trajectory) -> Score<Self::Evidence>;

    /// The score in words, values shown only as `explain` allows.
    fn explanation(&self, evidence: &Self::Evidence, trajectory: &Trajectory, explain: &Explain) -> Explanation;

    /// The reference evaluator's own justification fields.
    fn details(&self, evidence: &Self::Evidence, trajectory: &Trajectory, verdict: Verdict, explain: &Explain) -> serde_json::Value;

    /// What will load but is hardly meant.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The threshold, given what was written (0 to 1).
    fn threshold(&self, written: Option<f64>) -> f64 {
        written.unwrap_or(1.0)
    }
}

fn name_of<E: Evaluate>(_: &E) -> &'static str {
    E::NAME
}

/// The names of the calls, as they were made.
fn names_of(trajectory: &Trajectory) -> Vec<&str> {
    trajectory.tool_calls.iter().map(|call| &*call.name).collect()
}
