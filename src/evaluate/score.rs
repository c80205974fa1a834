//! Pure. What an evaluator answers: a value, a verdict, the evidence, and the text rendered from it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::criterion::Criterion;
use crate::extract::Trajectory;

/// The label of a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The score reached the threshold.
    Pass,
    /// It did not.
    Fail,
    /// Evidence is missing, or the trace was cut short and more calls could change the verdict.
    NotEvaluated,
    /// The criterion cannot be applied to this trajectory.
    Error,
}

impl Verdict {
    /// The word in `gen_ai.evaluation.score.label`, in metrics and in the jsonl lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotEvaluated => "not_evaluated",
            Self::Error => "error",
        }
    }
}

/// `explain`: how much of values explanations show.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Explain {
    /// Show argument and result values in explanations, details and score spans.
    pub values: bool,
    /// Longest value shown, in characters.
    pub max_value_length: usize,
}

impl Default for Explain {
    fn default() -> Self {
        Self { values: false, max_value_length: 256 }
    }
}

/// Why an evaluation has the label `error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluationError {
    /// A short word for `error.type`, such as `missing_argument`.
    pub kind: &'static str,
    /// What went wrong and what to do about it.
    pub message: String,
}

/// One criterion's judgement of one trajectory, rendered.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// What was expected.
    pub criterion: Arc<Criterion>,
    /// What was judged; for `scope: agent`, narrowed to that agent run.
    pub trajectory: Arc<Trajectory>,
    /// 0 to 1; `None` for `not_evaluated` and `error`.
    pub value: Option<f64>,
    /// The label.
    pub verdict: Verdict,
    /// For people, in one or two sentences.
    pub explanation: String,
    /// Only for the label `error`.
    pub error: Option<EvaluationError>,
    /// The reference evaluator's own justification fields, a JSON object.
    pub details: serde_json::Value,
    /// How many calls were expected; what `spanscore.calls.expected` says.
    pub n_expected: usize,
    /// The calls to blame, positions in `trajectory.tool_calls`.
    pub offending: Vec<usize>,
    /// 0 for the first judgement, one more each time late spans change it. Set by the pipeline.
    pub revision: u32,
    /// The label of the revision before; `None` for revision 0. Set by the pipeline.
    pub previous: Option<Verdict>,
}
