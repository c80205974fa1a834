//! The budget for searching texts with patterns while one trace or one query is judged. Evaluations
//! spend it in order. A search that would exceed the remaining budget is skipped, and its answer is
//! open.

use crate::evaluate::comparison::captured::MAX_SEARCH;
use crate::evaluate::comparison::score::Score;
use crate::evaluate::criterion::{Criterion, EXPECTED};
use crate::evaluate::evaluators::Evidence;
use crate::extract::Trajectory;

/// Maximum work of all registered criteria together: two seconds of one core with ordinary
/// patterns, sixteen at worst. The heartbeat continues between evaluations.
const MAX_OF_TRACE: u64 = 4 * MAX_SEARCH;

/// The remaining budget for one trace, or for all trajectories of one query.
#[derive(Debug)]
pub struct SearchBudget {
    registered: u64,
    /// A separate budget for the run's own expectations, which must not use up the budget of the
    /// registered criteria.
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
    pub(super) fn evaluate(
        &mut self,
        criterion: &Criterion,
        trajectory: &Trajectory,
    ) -> (Score, Evidence) {
        let left = if criterion.name == EXPECTED {
            &mut self.carried
        } else {
            &mut self.registered
        };
        let (score, evidence) = criterion.evaluate.evaluate(trajectory, *left);
        *left = left.saturating_sub(score.searched);
        (score, evidence)
    }
}
