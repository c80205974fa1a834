//! The work that the judgement of one trace, or of one question, may spend on searching texts with
//! patterns: evaluations take from it in their order, and those for which too little is left cannot
//! decide.

use crate::evaluate::comparison::captured::MAX_SEARCH;
use crate::evaluate::comparison::score::Score;
use crate::evaluate::criterion::{Criterion, EXPECTED};
use crate::evaluate::evaluators::Evidence;
use crate::extract::Trajectory;

/// For all registered criteria together: two seconds of one core with most patterns, fifteen at
/// worst, with signs of life between the evaluations.
const MAX_OF_TRACE: u64 = 4 * MAX_SEARCH;

/// The work that is left for one trace, or for all trajectories of one question.
#[derive(Debug)]
pub struct SearchBudget {
    registered: u64,
    /// For expectations that the run carries itself, apart: they must not keep registered criteria
    /// from deciding.
    carried: u64,
}

impl Default for SearchBudget {
    fn default() -> Self {
        Self {
            registered: MAX_OF_TRACE,
            carried: MAX_SEARCH,
        }
    }
}

impl SearchBudget {
    /// Evaluates a trajectory with the work that is left.
    pub(super) fn evaluate(
        &mut self,
        criterion: &Criterion,
        trajectory: &Trajectory,
    ) -> Score<Evidence> {
        let left = if criterion.name == EXPECTED {
            &mut self.carried
        } else {
            &mut self.registered
        };
        let score = criterion.evaluate.evaluate(trajectory, *left);
        *left = left.saturating_sub(score.searched);
        score
    }
}
