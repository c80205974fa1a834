//! Judges one run by the registered criteria, the run's case in an example file, and the run's own
//! expectations.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::evaluation::Evaluation;
use super::search_budget::SearchBudget;
use super::span_expectations::{FromSpans, SpanExpectations};
use super::{AppliedRef, apply, for_each_application};
use crate::evaluate::comparison::score::Explain;
use crate::evaluate::criterion::{Applied, Criterion, EXPECTED, Expectation};
use crate::extract::Trajectory;

/// Expectations of single runs, in addition to the criteria.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectations {
    /// The kinds of expectations that are read from spans.
    pub from_spans: FromSpans,
    /// Maximum bytes of the expectations in one span.
    pub max_size: usize,
    /// The cases of an example file, by id.
    pub cases: BTreeMap<String, Expectation>,
}

impl Default for Expectations {
    fn default() -> Self {
        Self {
            from_spans: FromSpans::Off,
            max_size: 0,
            cases: BTreeMap::new(),
        }
    }
}

impl Expectations {
    /// Returns the case with the run's id; `None` if there is none.
    pub fn case_of(&self, trajectory: &Trajectory) -> Option<&Expectation> {
        self.cases
            .get(trajectory.expectation_attributes.case_id.as_deref()?)
    }

    /// Parses the expectations on the run's spans.
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

/// Judges a run by the criteria that select it or that its spans name, with the fields of its case,
/// and by its own expectation. `case` comes from [`Expectations::case_of`], or from the run's
/// position in a file. Passes each evaluation to `take` immediately, because a run may have many.
pub fn judge_run(
    criteria: &[Arc<Criterion>],
    expectations: &Expectations,
    case: Option<&Expectation>,
    trajectory: &Arc<Trajectory>,
    explain: &Explain,
    take: &mut dyn FnMut(Evaluation),
) {
    // Most runs have no expectations and no case.
    let SpanExpectations { names, own } = if trajectory.expectation_attributes.is_empty() {
        SpanExpectations::default()
    } else {
        expectations.from_spans(trajectory, criteria)
    };
    // If another span becomes the evaluated span, the run may get another case and other
    // expectations.
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
    // Judge all criteria in one pass, so that the evaluations are in one order.
    let criteria = applied.iter().map(Result::as_ref);
    for_each_application(criteria, &names, depends_on_subject, trajectory, &mut take);
}

fn evaluator_of(applied: AppliedRef<'_>) -> &'static str {
    match applied {
        Ok(criterion) => criterion.evaluate.name(),
        Err(invalid) => invalid.evaluator,
    }
}
