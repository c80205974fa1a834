//! Judges one run by the registered criteria, by the case of an example file that it belongs to,
//! and by the expectations that it carries itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::evaluation::Evaluation;
use super::search_budget::SearchBudget;
use super::span_expectations::{FromSpans, SpanExpectations};
use super::{AppliedRef, apply, for_each_application};
use crate::evaluate::comparison::score::Explain;
use crate::evaluate::criterion::{Applied, Criterion, EXPECTED, Expectation};
use crate::extract::Trajectory;

/// Expectations of single runs, beside the criteria.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectations {
    /// The expectations that runs may carry themselves.
    pub from_spans: FromSpans,
    /// Most bytes of expectations that one span may carry.
    pub max_size: usize,
    /// The cases of an example file, by id.
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
    /// The case that a run belongs to.
    pub fn case_of(&self, trajectory: &Trajectory) -> Option<&Expectation> {
        self.cases
            .get(trajectory.expectation_attributes.case_id.as_deref()?)
    }

    /// The expectations that a run itself adds to its judgement.
    pub fn from_spans(
        &self,
        trajectory: &Trajectory,
        criteria: &[Arc<Criterion>],
    ) -> SpanExpectations {
        let is_registered = |name: &str| criteria.iter().any(|criterion| criterion.name == name);
        SpanExpectations::read(
            &trajectory.expectation_attributes,
            &trajectory.tool_calls,
            is_registered,
            self.max_size,
        )
    }
}

/// Judges a run by the criteria that select it, with the fields of its case, and by its own
/// expectations. `case` is [`Expectations::case_of`] the run, or the case that belongs to it by its
/// position in a file. `take` gets each evaluation as soon as it is made: a run may have many.
pub fn judge_run(
    criteria: &[Arc<Criterion>],
    expectations: &Expectations,
    case: Option<&Expectation>,
    trajectory: &Arc<Trajectory>,
    explain: &Explain,
    take: &mut dyn FnMut(Evaluation),
) {
    // Most runs carry no expectations and belong to no case.
    let SpanExpectations { names, own } = if trajectory.expectation_attributes.is_empty() {
        SpanExpectations::default()
    } else {
        expectations.from_spans(trajectory, criteria)
    };
    // If another span turns out to be the evaluated one, the run may belong to another case, and
    // carry other expectations.
    let depends_on_subject = |name: &str, evaluator: &str| {
        name == EXPECTED
            || expectations
                .cases
                .values()
                .any(|case| case.evaluator_name() == evaluator)
    };
    let mut budget = SearchBudget::default();
    let mut take = |applied: AppliedRef<'_>, trajectory: &Arc<Trajectory>| {
        take(apply(applied, trajectory, explain, &mut budget));
    };
    if case.is_none() && own.is_none() {
        let criteria = criteria.iter().map(Ok);
        return for_each_application(criteria, &names, depends_on_subject, trajectory, take);
    }
    let mut applied: Vec<Applied> = match case {
        Some(case) => case.replace(criteria),
        None => criteria.iter().cloned().map(Ok).collect(),
    };
    if let Some(case) = case {
        let mut is_judged = false;
        let criteria = applied.iter().map(Result::as_ref);
        for_each_application(criteria, &names, depends_on_subject, trajectory, |it, _| {
            is_judged |= evaluator_of(it) == case.evaluator_name();
        });
        if !is_judged {
            applied.push(case.on_its_own());
        }
    }
    applied.extend(own);
    // All together, because evaluations have one order.
    let criteria = applied.iter().map(Result::as_ref);
    for_each_application(criteria, &names, depends_on_subject, trajectory, &mut take);
}

fn evaluator_of(applied: AppliedRef<'_>) -> &'static str {
    match applied {
        Ok(criterion) => criterion.evaluate.name(),
        Err(invalid) => invalid.evaluator,
    }
}
