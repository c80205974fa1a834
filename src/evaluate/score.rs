//! Pure. What an evaluator answers (a value, how far it could still move, and the evidence), and
//! the evaluation that is made of it. Knows no single evaluator.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::criterion::Criterion;
use super::words::{Shown, Words};
use crate::extract::Trajectory;
use crate::span::SpanId;
use crate::text::abbreviated;

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

    /// The reference's `success` and `passed`: `None` where nothing is known for certain.
    pub(super) fn success(self) -> Option<bool> {
        match self {
            Self::Pass => Some(true),
            Self::Fail => Some(false),
            Self::NotEvaluated | Self::Error => None,
        }
    }
}

/// `explain`: how much of values explanations show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Explain {
    /// Show argument and result values in explanations, details and score spans.
    pub values: bool,
    /// Longest value shown, in characters.
    pub max_value_length: usize,
}

impl Default for Explain {
    fn default() -> Self {
        Self {
            values: false,
            max_value_length: 256,
        }
    }
}

impl Explain {
    /// A value as far as it may be shown; `None` where values are private.
    pub(super) fn value(&self, text: &str) -> Option<String> {
        self.values
            .then(|| abbreviated(text, self.max_value_length).into_owned())
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

/// The revision before the one at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Previous {
    /// The span that was evaluated then: a trace's topmost span may have come late.
    pub subject: Option<SpanId>,
    /// Its label.
    pub verdict: Verdict,
    /// Its number.
    pub revision: u32,
}

/// One criterion's judgement of one trajectory.
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
    /// Only for the label `error`.
    pub error: Option<EvaluationError>,
    /// How many calls were expected; what `spanscore.calls.expected` says.
    pub n_expected: usize,
    /// What there is to say of it: read by [`Self::explanation`], [`Self::details`] and
    /// [`Self::offending`].
    pub words: Words,
    /// 0 for the first judgement, one more each time late spans change it. Set by the pipeline.
    pub revision: u32,
    /// What was reported before; `None` for revision 0. Set by the pipeline.
    pub previous: Option<Previous>,
}

impl Evaluation {
    /// For people, in one or two sentences.
    pub fn explanation(&self) -> &str {
        &self.words.of(self).explanation
    }

    /// The reference evaluator's own justification fields, a JSON object.
    pub fn details(&self) -> &serde_json::Value {
        &self.words.of(self).details
    }

    /// The calls to blame, positions in `trajectory.tool_calls`.
    pub fn offending(&self) -> &[usize] {
        &self.words.of(self).offending
    }

    /// What its words show beyond the names of the calls, its value and its label.
    pub fn shown(&self) -> Shown<'_> {
        self.words.shown(self)
    }
}

// === what an evaluator answers ===

/// What an evaluator found out about one trajectory, before it is held against the threshold and
/// put into words.
#[derive(Debug)]
pub(super) struct Score<E> {
    /// 0 to 1, as the trajectory stands; what is unknown counts as not matching.
    pub(super) value: f64,
    /// The least it can be, whatever evidence is missing and whatever further calls the rest of a
    /// cut trace brings.
    pub(super) least: f64,
    /// The most it can be.
    pub(super) most: f64,
    /// A call to which the criterion cannot be applied.
    pub(super) fault: Option<Fault>,
    /// The rest of a cut trace may bring such a call.
    pub(super) may_fault: bool,
    /// Evidence that was looked for and not captured.
    pub(super) missing: Missing,
    /// How many calls were expected.
    pub(super) n_expected: usize,
    /// What the text is made of; positions and counts only.
    pub(super) evidence: E,
}

impl<E> Score<E> {
    /// A score that nothing can move.
    pub(super) fn settled(value: f64, evidence: E) -> Self {
        Self::between(value, value, value, evidence)
    }

    /// A score that lies between two bounds whatever else comes to light.
    pub(super) fn between(value: f64, least: f64, most: f64, evidence: E) -> Self {
        Self {
            value,
            least,
            most,
            fault: None,
            may_fault: false,
            missing: Missing::default(),
            n_expected: 0,
            evidence,
        }
    }
}

/// A score in words.
#[derive(Debug, Default)]
pub(super) struct Explanation {
    /// For people, in one or two sentences.
    pub(super) text: String,
    /// The calls to blame, positions in the trajectory.
    pub(super) offending: Vec<usize>,
}

impl From<String> for Explanation {
    fn from(text: String) -> Self {
        Self {
            text,
            offending: Vec::new(),
        }
    }
}

/// A call that lacks what the criterion reads of it, and will whatever else comes to light.
#[derive(Debug)]
pub(super) struct Fault {
    /// The call, a position in the trajectory.
    pub(super) call_idx: usize,
    /// What is wrong and what to do about it.
    pub(super) error: EvaluationError,
}

/// Evidence that an evaluator looked for and that was not captured.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missing {
    /// No call of the trajectory carries arguments.
    pub(super) no_args: bool,
    /// No call of the trajectory carries a result.
    pub(super) no_results: bool,
    /// The first call of which only the beginning of a value was kept, or whose span had not ended.
    pub(super) cut: Option<usize>,
}

impl Missing {
    /// Was everything there?
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}
