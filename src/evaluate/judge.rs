//! Pure. Holds trajectories against criteria: narrows to agent runs, asks selectors, turns scores
//! into verdicts, and into words once they are read. Knows no single evaluator.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Evaluate;
use super::criterion::{Criterion, Scope};
use super::score::{Evaluation, Explain, Explanation, Missing, Score, Verdict};
use super::standing;
use super::words::{Numbers, Said, Unsaid, Words};
use crate::extract::{Payload, Trajectory};
use crate::span::SpanId;

/// Judges one trajectory by every criterion whose selector matches.
///
/// Evaluations come by agent run in start order, and within a run as the criteria stand in the
/// list; what covers the whole trace comes with the run that is the evaluated span, or first where
/// that is none.
pub fn judge(
    criteria: &[Arc<Criterion>],
    trajectory: &Arc<Trajectory>,
    explain: &Explain,
) -> Vec<Evaluation> {
    judge_named(criteria, &BTreeSet::new(), |_| false, trajectory, explain)
}

/// The same; the criteria that are `named` apply whatever their selectors. Those `of_subject` are
/// as they are because of what the evaluated span says, and no more certain than it is.
pub(super) fn judge_named(
    criteria: &[Arc<Criterion>],
    named: &BTreeSet<String>,
    of_subject: impl Fn(&Criterion) -> bool,
    trajectory: &Arc<Trajectory>,
    explain: &Explain,
) -> Vec<Evaluation> {
    let subject_may_change = trajectory.doubts.subject;
    let judge_one = |criterion: &Arc<Criterion>, trajectory: &Arc<Trajectory>| {
        let is_selected = criterion.select.matches(trajectory);
        let is_doubtful = subject_may_change && (!is_selected || of_subject(criterion));
        let doubtful = is_doubtful.then(|| Arc::new(trajectory.doubtful()));
        let trajectory = doubtful.as_ref().unwrap_or(trajectory);
        let applies = is_selected || named.contains(&criterion.name);
        applies.then(|| {
            criterion
                .evaluate
                .as_judge()
                .judge(criterion, trajectory, explain)
        })
    };
    let any_by_agent = criteria
        .iter()
        .any(|criterion| criterion.scope == Scope::Agent);
    if !any_by_agent {
        return criteria
            .iter()
            .filter_map(|criterion| judge_one(criterion, trajectory))
            .collect();
    }
    let runs = trajectory.judged_agent_runs();
    let home = trajectory.subject.as_ref().and_then(|subject| {
        let is_subject =
            |run: &usize| trajectory.agent_runs[*run].subject.span_id == subject.span_id;
        (0..trajectory.agent_runs.len()).find(is_subject)
    });
    let mut evaluations = Vec::new();
    let rows = (home.is_none() || !runs.iter().any(|run| Some(*run) == home))
        .then_some(None)
        .into_iter()
        .chain(runs.iter().copied().map(Some));
    for row in rows {
        let run = row.map(|run| Arc::new(trajectory.for_agent_run(run)));
        for criterion in criteria {
            let judged = match (criterion.scope, &run) {
                (Scope::Trace, _) if row == home || row.is_none() => Some(trajectory),
                (Scope::Agent, Some(run)) => Some(run),
                _ => None,
            };
            evaluations.extend(judged.and_then(|trajectory| judge_one(criterion, trajectory)));
        }
    }
    evaluations
}

/// Takes back what was said of a trace, or of one of its agent runs: with the spans that came
/// since, the criterion no longer applies there. A run may have turned out to be part of another,
/// or a selector to match no longer; a `fail` must not stand for that.
pub fn withdraw(
    criterion: &Arc<Criterion>,
    trajectory: &Arc<Trajectory>,
    agent_run: Option<SpanId>,
) -> Evaluation {
    let trajectory = match agent_run {
        None => trajectory.clone(),
        Some(span_id) => {
            let run = trajectory
                .agent_runs
                .iter()
                .position(|run| run.subject.span_id == span_id);
            let mut narrowed = run.map_or_else(
                || trajectory.as_ref().clone(),
                |run| trajectory.for_agent_run(run),
            );
            narrowed.tool_calls.clear();
            // Of a run that is none any more its id is left, under which the score stands.
            if let Some(subject) = &mut narrowed.subject {
                subject.span_id = span_id;
            }
            narrowed.into()
        }
    };
    let explanation =
        "withdrawn: with the spans that came late this criterion no longer applies here".to_owned();
    without_score(criterion, &trajectory, Verdict::NotEvaluated, explanation)
}

/// An evaluation that says why there is no score.
pub(super) fn without_score(
    criterion: &Arc<Criterion>,
    trajectory: &Arc<Trajectory>,
    verdict: Verdict,
    explanation: String,
) -> Evaluation {
    Evaluation {
        criterion: criterion.clone(),
        trajectory: trajectory.clone(),
        value: None,
        verdict,
        error: None,
        n_expected: 0,
        words: Said::from(explanation).into(),
        revision: 0,
        previous: None,
    }
}

/// Any evaluator, whatever its evidence.
pub(super) trait Judge {
    fn name(&self) -> &'static str;

    fn warnings(&self) -> Vec<String>;

    fn threshold(&self, written: Option<f64>) -> f64;

    fn judge(
        &self,
        criterion: &Arc<Criterion>,
        trajectory: &Arc<Trajectory>,
        explain: &Explain,
    ) -> Evaluation;

    /// The words of an evaluation that this evaluator made.
    fn say(&self, unsaid: &Unsaid, evaluation: &Evaluation) -> Said;

    /// Numbers in place of its words, if there are any.
    fn shown(&self, unsaid: &Unsaid, evaluation: &Evaluation) -> Option<Numbers>;
}

impl<E: Evaluate> Judge for E {
    fn name(&self) -> &'static str {
        E::NAME
    }

    fn warnings(&self) -> Vec<String> {
        Evaluate::warnings(self)
    }

    fn threshold(&self, written: Option<f64>) -> f64 {
        Evaluate::threshold(self, written)
    }

    fn judge(
        &self,
        criterion: &Arc<Criterion>,
        trajectory: &Arc<Trajectory>,
        explain: &Explain,
    ) -> Evaluation {
        let score = self.evaluate(trajectory);
        let verdict = match trajectory.cut_short {
            true => verdict_for_good(self, criterion, trajectory),
            false => verdict(&score, criterion.threshold),
        };
        let fault = score.fault.as_ref().filter(|_| verdict == Verdict::Error);
        Evaluation {
            criterion: criterion.clone(),
            trajectory: trajectory.clone(),
            value: matches!(verdict, Verdict::Pass | Verdict::Fail).then_some(score.value),
            verdict,
            error: fault.map(|fault| fault.error.clone()),
            n_expected: score.n_expected,
            words: Words::later(Unsaid {
                score: Arc::new(score),
                explain: *explain,
            }),
            revision: 0,
            previous: None,
        }
    }

    fn say(&self, unsaid: &Unsaid, evaluation: &Evaluation) -> Said {
        let Evaluation {
            trajectory,
            verdict,
            ..
        } = evaluation;
        let Unsaid { score, explain } = unsaid;
        let evaluated;
        let score: &Score<E::Evidence> = match score.downcast_ref() {
            Some(score) => score,
            // Of another evaluator, if somebody gave the evaluation another criterion.
            None => {
                evaluated = self.evaluate(trajectory);
                &evaluated
            }
        };
        let Explanation {
            mut text,
            mut offending,
        } = self.explanation(&score.evidence, trajectory, explain);
        match (verdict, &score.fault) {
            (Verdict::Pass, _) => offending.clear(),
            (Verdict::NotEvaluated, _) => {
                offending.clear();
                text = format!(
                    "not evaluated: {}. So far: {text}",
                    doubt(score.missing, trajectory)
                );
            }
            (Verdict::Error, Some(fault)) => {
                offending = vec![fault.call_idx];
                text.clone_from(&fault.error.message);
            }
            (Verdict::Fail | Verdict::Error, _) => {}
        }
        Said {
            explanation: text,
            details: self.details(&score.evidence, trajectory, *verdict, explain),
            offending,
        }
    }

    fn shown(&self, unsaid: &Unsaid, evaluation: &Evaluation) -> Option<Numbers> {
        match evaluation.verdict {
            Verdict::Pass | Verdict::Fail => {
                let score: &Score<E::Evidence> = unsaid.score.downcast_ref()?;
                Evaluate::shown(self, &score.evidence, &unsaid.explain)
            }
            // Their words say why there is no score, and not all that an evaluator found out.
            Verdict::NotEvaluated | Verdict::Error => None,
        }
    }
}

/// The label: an error that is certain, else pass or fail where nothing unknown could change it.
fn verdict<E>(score: &Score<E>, threshold: f64) -> Verdict {
    if score.fault.is_some() {
        Verdict::Error
    } else if score.may_fault {
        // An error would take the place of whatever is certain so far.
        Verdict::NotEvaluated
    } else if score.least >= threshold {
        Verdict::Pass
    } else if score.most < threshold {
        Verdict::Fail
    } else {
        Verdict::NotEvaluated
    }
}

/// The label that the rest of a trace which was cut short cannot change. Evaluators reckon with
/// further calls anywhere in the list; so what they say of any part of it that stays as it is,
/// holds for the whole.
fn verdict_for_good<E: Evaluate>(
    evaluator: &E,
    criterion: &Criterion,
    trajectory: &Trajectory,
) -> Verdict {
    // The first tool span will replace calls taken from messages, whatever they say.
    if trajectory.from_messages
        || trajectory.doubts.all
        || !criterion.select.matches_for_good(trajectory)
    {
        return Verdict::NotEvaluated;
    }
    let of = |part: &Trajectory| verdict(&evaluator.evaluate(part), criterion.threshold);
    let parts = standing::parts(trajectory, evaluator.reads_order());
    parts
        .iter()
        .map(of)
        .find(|verdict| *verdict != Verdict::NotEvaluated)
        .unwrap_or(Verdict::NotEvaluated)
}

/// Why a verdict is not given.
fn doubt(missing: Missing, trajectory: &Trajectory) -> String {
    let mut reasons = Vec::new();
    let capture = "turn on content capture in the agent's instrumentation";
    if missing.no_args {
        reasons.push(format!(
            "no call of this trajectory carries arguments ({capture})"
        ));
    }
    if missing.no_results {
        reasons.push(format!(
            "no call of this trajectory carries a result ({capture})"
        ));
    }
    if let Some(call) = missing
        .cut
        .and_then(|call_idx| trajectory.tool_calls.get(call_idx))
    {
        let was_cut = [&call.args, &call.result]
            .into_iter()
            .flatten()
            .any(Payload::is_cut);
        if call.partial && trajectory.cut_short {
            reasons.push(format!("the call of `{}` had not ended", call.name));
        } else if was_cut {
            reasons.push(format!(
                "a value of the call of `{}` was cut (raise `tools.max_value_size`)",
                call.name
            ));
        }
    }
    if trajectory.cut_short {
        let reason = trajectory.completeness.as_str();
        reasons.push(match trajectory.from_messages {
            true => format!("the trace was cut short ({reason}) and its calls are known from model messages only"),
            false => format!("the trace was cut short ({reason}) and its rest could change the verdict"),
        });
    }
    reasons.join("; ")
}
