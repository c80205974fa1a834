//! Pure. One run, the registered criteria and what else is expected of it in; its evaluations out.
//! Joins what an example file says of the run's case with what the run itself adds. Does not know
//! where either was written.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::brought::{Added, EXPECTED, FromSpans};
use super::criterion::Criterion;
use super::expectation::Expectation;
use super::judge::judge_named;
use super::score::{Evaluation, Explain};
use crate::extract::Trajectory;

/// What is expected of single runs, beside the criteria.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectations {
    /// How much runs may say about their own judgement.
    pub from_spans: FromSpans,
    /// Most bytes of that, of one span.
    pub max_size: usize,
    /// What an example file expects of the runs of a case, by its id.
    pub cases: BTreeMap<String, Expectation>,
}

impl Default for Expectations {
    /// Nothing is expected of single runs.
    fn default() -> Self {
        Self {
            from_spans: FromSpans::Off,
            max_size: 0,
            cases: BTreeMap::new(),
        }
    }
}

impl Expectations {
    /// What the example file says of the case that a run is one of.
    pub fn case_of(&self, trajectory: &Trajectory) -> Option<&Expectation> {
        self.cases.get(trajectory.brought.case_id.as_deref()?)
    }

    /// What a run itself adds to its judgement.
    pub fn added(&self, trajectory: &Trajectory, criteria: &[Arc<Criterion>]) -> Added {
        let is_registered = |name: &str| criteria.iter().any(|criterion| criterion.name == name);
        Added::of(
            &trajectory.brought,
            &trajectory.tool_calls,
            is_registered,
            self.max_size,
        )
    }
}

/// Judges a run by the criteria that select it, as its case has them, and by what it adds itself.
/// `case` is [`Expectations::case_of`] the run, or the one that it is held to by its place in a
/// file.
pub fn judge_run(
    criteria: &[Arc<Criterion>],
    expectations: &Expectations,
    case: Option<&Expectation>,
    trajectory: &Arc<Trajectory>,
    explain: &Explain,
) -> Vec<Evaluation> {
    // Most runs bring nothing and are of no case.
    let Added { names, own } = match trajectory.brought.asks_nothing() {
        true => Added::default(),
        false => expectations.added(trajectory, criteria),
    };
    // Another span that turns out to be the evaluated one may be a run of another case, and bring
    // something else.
    let of_subject = |criterion: &Criterion| {
        criterion.name == EXPECTED
            || expectations
                .cases
                .values()
                .any(|case| case.is_for(criterion))
    };
    if case.is_none() && own.is_none() {
        return judge_named(criteria, &names, of_subject, trajectory, explain);
    }
    let mut criteria = criteria.to_vec();
    if let Some(case) = case {
        criteria = case.replace(&criteria);
        let evaluations = judge_named(&criteria, &names, of_subject, trajectory, explain);
        if !evaluations
            .iter()
            .any(|evaluation| case.is_for(&evaluation.criterion))
        {
            criteria.push(Arc::new(case.on_its_own()));
        } else if own.is_none() {
            return evaluations;
        }
    }
    criteria.extend(own.map(Arc::new));
    // All together, so that evaluations come in the order in which they always come.
    judge_named(&criteria, &names, of_subject, trajectory, explain)
}
