//! Pure. Holds trajectories against criteria: narrows to agent runs, asks selectors, turns scores into verdicts and words.
//! Knows no single evaluator.

use std::sync::Arc;

use super::criterion::{Criterion, Scope};
use super::score::{Evaluation, Explain, Missing, Score, Verdict};
use super::{Evaluate, Evaluator, with_evaluator};
use crate::extract::Trajectory;

/// Judges one trajectory by every criterion whose selector matches.
///
/// Evaluations come by agent run in start order, and within a run as the criteria stand in the list; what covers the whole trace
/// comes with the run that is the evaluated span, or first where that is none.
pub fn judge(criteria: &[Arc<Criterion>], trajectory: &Arc<Trajectory>, explain: &Explain) -> Vec<Evaluation> {
    let any_by_agent = criteria.iter().any(|criterion| criterion.scope == Scope::Agent);
    if !any_by_agent {
        return criteria.iter().filter_map(|criterion| judge_one(criterion, trajectory, explain)).collect();
    }
    let runs = judged_runs(trajectory);
    let home = trajectory.subject.as_ref().and_then(|subject| {
        let is_subject = |run: &usize| trajectory.agent_runs[*run].subject.span_id == subject.span_id;
        (0..trajectory.agent_runs.len()).find(is_subject)
    });
    let mut evaluations = Vec::new();
    let rows =
        (home.is_none() || !runs.iter().any(|run| Some(*run) == home)).then_some(None).into_iter().chain(runs.iter().copied().map(Some));
    for row in rows {
        let run = row.map(|run| Arc::new(narrowed(trajectory, run)));
        for criterion in criteria {
            let judged = match (criterion.scope, &run) {
                (Scope::Trace, _) if row == home || row.is_none() => Some(trajectory),
                (Scope::Agent, Some(run)) => Some(run),
                _ => None,
            };
            evaluations.extend(judged.and_then(|trajectory| judge_one(criterion, trajectory, explain)));
        }
    }
    evaluations
}

fn judge_one(criterion: &Arc<Criterion>, trajectory: &Arc<Trajectory>, explain: &Explain) -> Option<Evaluation> {
    criterion
        .select
        .matches(trajectory)
        .then(|| with_evaluator!(&criterion.evaluate, evaluator => render(evaluator, criterion, trajectory, explain)))
}

fn render<E: Evaluate>(evaluator: &E, criterion: &Arc<Criterion>, trajectory: &Arc<Trajectory>, explain: &Explain) -> Evaluation {
    let score = evaluator.evaluate(trajectory);
    let verdict = verdict(&score, criterion.threshold, trajectory);
    let mut words = evaluator.explanation(&score.evidence, trajectory, explain);
    let mut error = None;
    match verdict {
        Verdict::Pass => words.offending.clear(),
        Verdict::Fail => {}
        Verdict::NotEvaluated => {
            words.offending.clear();
            words.text = format!("not evaluated: {}. So far: {}", doubt(score.missing, trajectory), words.text);
        }
        Verdict::Error => {
            if let Some(fault) = score.fault {
                words.offending = vec![fault.call_idx];
                words.text.clone_from(&fault.error.message);
                error = Some(fault.error);
            }
        }
    }
    Evaluation {
        criterion: criterion.clone(),
        trajectory: trajectory.clone(),
        value: matches!(verdict, Verdict::Pass | Verdict::Fail).then_some(score.value),
        verdict,
        explanation: words.text,
        error,
        details: evaluator.details(&score.evidence, trajectory, verdict, explain),
        n_expected: score.n_expected,
        offending: words.offending,
        revision: 0,
        previous: None,
    }
}

/// The label: an error that is certain, else pass or fail where nothing unknown could change it.
fn verdict<E>(score: &Score<E>, threshold: f64, trajectory: &Trajectory) -> Verdict {
    // The first tool span will replace calls taken from messages, whatever they say.
    if trajectory.cut_short && trajectory.from_messages {
        Verdict::NotEvaluated
    } else if score.fault.is_some() && !(trajectory.cut_short && score.most < threshold) {
        // In a cut trace a disallowed call that was seen is the stronger word: it holds whether or not faulty calls are still to come.
        Verdict::Error
    } else if score.least >= threshold {
        Verdict::Pass
    } else if score.most < threshold {
        Verdict::Fail
    } else {
        Verdict::NotEvaluated
    }
}

/// Why a verdict is not given.
fn doubt(missing: Missing, trajectory: &Trajectory) -> String {
    let mut reasons = Vec::new();
    let capture = "turn on content capture in the agent's instrumentation";
    if missing.no_args {
        reasons.push(format!("no call of this trajectory carries arguments ({capture})"));
    }
    if missing.no_results {
        reasons.push(format!("no call of this trajectory carries a result ({capture})"));
    }
    if let Some(call) = missing.cut.and_then(|call_idx| trajectory.tool_calls.get(call_idx)) {
        reasons.push(if call.partial && trajectory.cut_short {
            format!("the call of `{}` had not ended", call.name)
        } else {
            format!("a value of the call of `{}` was cut (raise `tools.max_value_size`)", call.name)
        });
    }
    if trajectory.cut_short {
        let reason = trajectory.completeness.as_str();
        reasons.push(match trajectory.from_messages {
            true => format!("the trace was cut short ({reason}) and its calls are known from model messages only"),
            false => format!("the trace was cut short ({reason}) and further calls could change the verdict"),
        });
    }
    reasons.join("; ")
}

// === agent runs (DESIGN 6, `scope: agent`) ===

/// The runs to judge, by start: runs of one name directly nested fold into the outermost, and one without calls of its own that
/// contains another is not judged.
fn judged_runs(trajectory: &Trajectory) -> Vec<usize> {
    let runs = &trajectory.agent_runs;
    let folded: Vec<usize> = (0..runs.len()).map(|run| outermost(trajectory, run)).collect();
    let has_calls = |run: usize| trajectory.tool_calls.iter().any(|call| call.agent_run.is_some_and(|own| folded[own] == run));
    let contains =
        |run: usize| (0..runs.len()).any(|inner| folded[inner] != run && runs[inner].parent.is_some_and(|outer| folded[outer] == run));
    (0..runs.len()).filter(|&run| folded[run] == run && (has_calls(run) || !contains(run))).collect()
}

fn outermost(trajectory: &Trajectory, run: usize) -> usize {
    let runs = &trajectory.agent_runs;
    let mut outer = run;
    while let Some(parent) = runs[outer].parent.filter(|&parent| parent != outer && runs[parent].name == runs[run].name) {
        outer = parent;
    }
    outer
}

/// The trajectory as far as it is this run's own: its calls, its span, its agent.
fn narrowed(trajectory: &Trajectory, run: usize) -> Trajectory {
    let agent_run = &trajectory.agent_runs[run];
    let own = |call_run: Option<usize>| call_run.is_some_and(|call_run| outermost(trajectory, call_run) == run);
    Trajectory {
        subject: Some(agent_run.subject.clone()),
        service: agent_run.subject.resource.service.as_ref().into(),
        agent: Some(agent_run.name.clone()),
        session: agent_run.session.clone().or_else(|| trajectory.session.clone()),
        tool_calls: trajectory.tool_calls.iter().filter(|call| own(call.agent_run)).cloned().collect(),
        ..trajectory.clone()
    }
}
