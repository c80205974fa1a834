//! Judges trajectories by criteria: splits trajectories into agent runs, applies selectors, and
//! turns scores into verdicts.

mod certain_subset;
mod coverage;
mod evaluation;
mod run;
mod search_budget;
mod span_expectations;
mod uncertainty;

use std::collections::BTreeSet;
use std::sync::Arc;

use otlp::span::SpanId;

use evaluation::Basis;

use crate::evaluate::comparison::score::{Explain, Score, Verdict};
use crate::evaluate::criterion::{Criterion, InvalidCriterion, Scope};
use crate::extract::Trajectory;

pub use coverage::{Coverage, CriterionCoverage};
pub use evaluation::{Evaluation, EvaluationText, Findings, JudgedBy, Previous, Stage};
pub use run::{Expectations, judge_run};
pub use search_budget::SearchBudget;
pub use span_expectations::{FromSpans, SpanExpectations, no_longer_expected, searched_size};

/// Judges one trajectory by every criterion whose selector matches.
///
/// Evaluations are ordered by the start of the agent run, then by criterion. Evaluations of the
/// whole trace are sorted with the agent run that is the evaluated span; if it is no agent run that
/// is judged, they are first.
pub fn judge(
    criteria: &[Arc<Criterion>],
    trajectory: &Arc<Trajectory>,
    explain: &Explain,
) -> Vec<Evaluation> {
    judge_within(criteria, trajectory, explain, &mut SearchBudget::default())
}

/// Like [`judge`], with a search budget shared by several trajectories.
pub fn judge_within(
    criteria: &[Arc<Criterion>],
    trajectory: &Arc<Trajectory>,
    explain: &Explain,
    budget: &mut SearchBudget,
) -> Vec<Evaluation> {
    let named = BTreeSet::new();
    let mut evaluations = Vec::new();
    for_each_application(
        criteria.iter().map(Ok),
        &named,
        |_, _| false,
        trajectory,
        |applied, trajectory| {
            evaluations.push(apply(applied, trajectory, explain, budget));
        },
    );
    evaluations
}

/// A criterion, or an unusable expectation of the run.
type AppliedRef<'a> = Result<&'a Arc<Criterion>, &'a Arc<InvalidCriterion>>;

/// Calls `visit` with each criterion and each trajectory that it judges (the whole trajectory or an
/// agent run), in the order of [`judge`]. The selectors of the criteria in `named` are ignored.
/// `depends_on_subject` gets the names of a criterion and of its evaluator; it returns true if the
/// criterion was derived from the evaluated span, and so is only as certain as that span.
fn for_each_application<'a>(
    criteria: impl Iterator<Item = AppliedRef<'a>> + Clone,
    named: &BTreeSet<String>,
    depends_on_subject: impl Fn(&str, &str) -> bool,
    trajectory: &Arc<Trajectory>,
    mut visit: impl FnMut(AppliedRef<'a>, &Arc<Trajectory>),
) {
    let subject_may_change = trajectory.uncertainty.subject;
    let mut visit_selected = |applied: AppliedRef<'a>, trajectory: &Arc<Trajectory>| {
        let (select, name, evaluator) = match applied {
            Ok(criterion) => (
                &criterion.select,
                &criterion.name,
                criterion.evaluate.name(),
            ),
            Err(invalid) => (&invalid.select, &invalid.name, invalid.evaluator),
        };
        let is_selected = select.matches(trajectory);
        if !is_selected && !named.contains(name) {
            return;
        }
        let is_doubtful =
            subject_may_change && (!is_selected || depends_on_subject(name, evaluator));
        let doubtful = is_doubtful.then(|| Arc::new(trajectory.as_uncertain()));
        visit(applied, doubtful.as_ref().unwrap_or(trajectory));
    };
    // Criteria with `scope: session` judge sessions, all other criteria judge the single turns.
    let is_session = trajectory.turns.is_some();
    let criteria = criteria.filter(move |it| (scope_of(*it) == Scope::Session) == is_session);
    let any_by_agent = criteria
        .clone()
        .any(|applied| scope_of(applied) == Scope::Agent);
    if !any_by_agent {
        criteria.for_each(|applied| visit_selected(applied, trajectory));
        return;
    }
    let judged_by_calls = trajectory.judged_agent_runs();
    let is_judged = |run: usize| judged_by_calls.binary_search(&run).is_ok();
    // A run that contains other runs, and made only model calls itself, is judged only by limits on
    // models.
    let any_of_models = criteria.clone().any(reads_models);
    let calls_models =
        |run: usize| any_of_models && trajectory.agent_runs[run].model_use.n_calls > 0;
    let runs: Vec<usize> = (0..trajectory.agent_runs.len())
        .filter(|&run| is_judged(run) || calls_models(run))
        .collect();
    let home = trajectory.subject.as_ref().and_then(|subject| {
        let is_subject =
            |run: &usize| trajectory.agent_runs[*run].subject.span_id == subject.span_id;
        (0..trajectory.agent_runs.len()).find(is_subject)
    });
    let calls_by_run = trajectory.calls_by_agent_run();
    let rows = (home.is_none() || !runs.iter().any(|run| Some(*run) == home))
        .then_some(None)
        .into_iter()
        .chain(runs.iter().copied().map(Some));
    for row in rows {
        let run = row.map(|run| Arc::new(trajectory.for_agent_run(run, &calls_by_run[run])));
        for applied in criteria.clone() {
            match (scope_of(applied), &run) {
                (Scope::Trace, _) if row == home || row.is_none() => {
                    visit_selected(applied, trajectory);
                }
                (Scope::Agent, Some(run))
                    if row.is_some_and(is_judged) || reads_models(applied) =>
                {
                    visit_selected(applied, run);
                }
                _ => {}
            }
        }
    }
}

fn reads_models(applied: AppliedRef<'_>) -> bool {
    let of_agents = |criterion: &Criterion| criterion.scope == Scope::Agent;
    applied.is_ok_and(|criterion| of_agents(criterion) && criterion.evaluate.reads_models())
}

fn scope_of(applied: AppliedRef<'_>) -> Scope {
    match applied {
        Ok(criterion) => criterion.scope,
        Err(invalid) => invalid.scope,
    }
}

fn apply(
    applied: AppliedRef<'_>,
    trajectory: &Arc<Trajectory>,
    explain: &Explain,
    budget: &mut SearchBudget,
) -> Evaluation {
    let criterion = match applied {
        Ok(criterion) => criterion,
        Err(invalid) => return error(invalid, trajectory),
    };
    let (score, evidence) = budget.evaluate(criterion, trajectory);
    let verdict = if trajectory.cut_short {
        match certain_verdict(criterion, trajectory, budget) {
            // A session passes only if all of its turns were seen (docs/design.md#sessions).
            Verdict::Pass if trajectory.turns.is_some() => Verdict::NotEvaluated,
            verdict => verdict,
        }
    } else {
        verdict(&score, criterion.threshold)
    };
    let fault = score.fault.filter(|_| verdict == Verdict::Error);
    let basis = Basis {
        evidence,
        missing: (verdict == Verdict::NotEvaluated).then(|| Box::new(score.missing)),
        unusable: score.unusable.map(Box::new),
        paths: score.paths,
        faulty_call: fault.as_ref().map(|fault| fault.call_idx),
        explain: *explain,
    };
    Evaluation {
        criterion: JudgedBy::Criterion(criterion.clone()),
        trajectory: trajectory.clone(),
        value: matches!(verdict, Verdict::Pass | Verdict::Fail).then_some(score.value),
        verdict,
        error: fault.map(|fault| fault.error),
        n_expected: score.n_expected,
        findings: basis.into(),
        revision: 0,
        previous: None,
        replayed: false,
        stage: Stage::Final,
    }
}

fn error(invalid: &Arc<InvalidCriterion>, trajectory: &Arc<Trajectory>) -> Evaluation {
    let explanation = invalid.error.message.clone();
    let criterion = JudgedBy::Invalid(invalid.clone());
    Evaluation {
        error: Some(invalid.error.clone()),
        ..without_score(criterion, trajectory.clone(), Verdict::Error, explanation)
    }
}

/// Withdraws the evaluation of a trace or of an agent run to which the criterion no longer applies,
/// so that no reported verdict remains. Late spans can show that the run is part of another run, or
/// can make a selector stop matching.
pub fn withdraw(
    criterion: JudgedBy,
    trajectory: &Arc<Trajectory>,
    agent_run: Option<SpanId>,
) -> Evaluation {
    let trajectory = match agent_run {
        None => Arc::clone(trajectory),
        Some(span_id) => {
            let run = trajectory
                .agent_runs
                .iter()
                .position(|run| run.subject.span_id == span_id);
            let mut narrowed = match run {
                Some(run) => trajectory.for_agent_run(run, &[]),
                None => trajectory.with_calls(Vec::new()),
            };
            // The span may not be a run any more, but the score was reported under its id.
            if let Some(subject) = &mut narrowed.subject {
                subject.span_id = span_id;
            }
            narrowed.into()
        }
    };
    let explanation =
        "withdrawn: after late spans this criterion does not apply here any more".to_owned();
    without_score(criterion, trajectory, Verdict::NotEvaluated, explanation)
}

/// Withdraws an alarm, because the criterion no longer judges the trace or raises no alarms any
/// more.
pub fn withdraw_alarm(criterion: JudgedBy, trajectory: &Arc<Trajectory>) -> Evaluation {
    let explanation =
        "withdrawn: the criterion no longer judges this run, or raises no alarms any more";
    Evaluation {
        stage: Stage::WithdrawnAlarm,
        ..without_score(
            criterion,
            Arc::clone(trajectory),
            Verdict::NotEvaluated,
            explanation.to_owned(),
        )
    }
}

/// Returns an evaluation that explains why there is no score.
fn without_score(
    criterion: JudgedBy,
    trajectory: Arc<Trajectory>,
    verdict: Verdict,
    explanation: String,
) -> Evaluation {
    Evaluation {
        criterion,
        trajectory,
        value: None,
        verdict,
        error: None,
        n_expected: 0,
        findings: EvaluationText::from(explanation).into(),
        revision: 0,
        previous: None,
        replayed: false,
        stage: Stage::Final,
    }
}

/// Returns the label: an error that is certain, or else pass or fail if missing evidence cannot
/// change it.
fn verdict(score: &Score, threshold: f64) -> Verdict {
    if score.fault.is_some() {
        Verdict::Error
    } else if score.may_fault {
        // The error would replace any other label.
        Verdict::NotEvaluated
    } else if score.least >= threshold {
        Verdict::Pass
    } else if score.most < threshold {
        Verdict::Fail
    } else {
        Verdict::NotEvaluated
    }
}

/// Returns the label that the rest of a cut trace cannot change. Evaluators allow for further calls
/// at any position. So a verdict on the calls that certainly do not change also holds for the whole
/// trajectory.
fn certain_verdict(
    criterion: &Criterion,
    trajectory: &Trajectory,
    budget: &mut SearchBudget,
) -> Verdict {
    // Calls read from messages are provisional: the first tool span replaces them all.
    if trajectory.from_messages
        || trajectory.uncertainty.all
        || !criterion.select.matches_for_good(trajectory)
    {
        return Verdict::NotEvaluated;
    }
    certain_subset::subsets(trajectory, criterion.evaluate.reads_order())
        .iter()
        .map(|subset| verdict(&budget.evaluate(criterion, subset).0, criterion.threshold))
        .find(|verdict| *verdict != Verdict::NotEvaluated)
        .unwrap_or(Verdict::NotEvaluated)
}
