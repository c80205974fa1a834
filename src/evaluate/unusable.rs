//! Pure. What stands in the place of an evaluator that there is none of: an expectation that came
//! with a run, and cannot be held to or holds no longer. A trajectory in, the label `error` out.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::criterion::Criterion;
use super::judge::{Judge, without_score};
use super::score::{Evaluation, EvaluationError, Explain, Verdict};
use super::words::{Numbers, Said, Unsaid};
use crate::extract::Trajectory;

/// An expectation that cannot be held to. It is never read from anywhere.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Unusable {
    /// The evaluator that was meant; `unknown` where nobody can tell.
    pub(super) evaluator: &'static str,
    /// The text that nobody can read: the criterion's revision is made of it.
    pub(super) text: String,
    #[serde(skip)]
    pub(super) error: EvaluationError,
}

impl Unusable {
    /// Why it cannot be held to.
    pub fn message(&self) -> &str {
        &self.error.message
    }
}

impl Judge for Unusable {
    fn name(&self) -> &'static str {
        self.evaluator
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn threshold(&self, written: Option<f64>) -> f64 {
        written.unwrap_or(1.0)
    }

    fn judge(
        &self,
        criterion: &Arc<Criterion>,
        trajectory: &Arc<Trajectory>,
        _: &Explain,
    ) -> Evaluation {
        let explanation = self.error.message.clone();
        Evaluation {
            error: Some(self.error.clone()),
            ..without_score(criterion, trajectory, Verdict::Error, explanation)
        }
    }

    fn say(&self, _: &Unsaid, _: &Evaluation) -> Said {
        Said::from(self.error.message.clone())
    }

    fn shown(&self, _: &Unsaid, _: &Evaluation) -> Option<Numbers> {
        None
    }
}
