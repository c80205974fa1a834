//! Pure. What was reported of a trace, remembered with it so that late spans report only what they
//! change. Evaluations in; those that are new or look different, with their revision, out. Does not
//! know what makes them.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;

use crate::assemble::Memo;
use crate::evaluate::{self, Criterion, Evaluation, JudgedBy, Previous, Scope, Verdict};
use crate::extract::Trajectory;
use crate::span::SpanId;

/// What was reported of one trace.
#[derive(Debug, Default, Clone)]
pub(super) struct Reported(Vec<ReportedEvaluation>);

#[derive(Debug, Clone)]
struct ReportedEvaluation {
    criterion: Held,
    /// The agent run of `scope: agent`. A whole trace is judged once, whichever span turns out to
    /// be its topmost.
    agent_run: Option<SpanId>,
    fingerprint: u64,
    /// It was certain although the trace was cut short: it stays so, also where more of the trace
    /// makes it harder to see.
    for_good: bool,
    previous: Previous,
    /// Does it stand? Asked anew each time the trace is judged: what does not apply any more is
    /// withdrawn.
    stands: Stands,
}

/// The criterion of what was reported. One that came with a run, or was made for it, is not held on
/// to: it may be as large as its author likes, and there is one for each trace.
#[derive(Debug, Clone)]
enum Held {
    Registered(Arc<Criterion>),
    OfTheRun {
        name: &'static str,
        evaluator: &'static str,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Confirmed,
    Unconfirmed,
    Withdrawn,
}

// === impl Reported ===

impl Reported {
    /// Leaves the evaluations that were not reported as they stand, each with its revision. How
    /// many were.
    pub(super) fn revise(
        &mut self,
        evaluations: &mut Vec<Evaluation>,
        registered: &[Arc<Criterion>],
        trajectory: &Arc<Trajectory>,
        hasher: &DefaultHashBuilder,
    ) -> usize {
        // One judgement holds nothing twice, so what it adds itself need not be looked through.
        let n_known = self.0.len();
        let n_evaluations = evaluations.len();
        self.0.reserve_exact(n_evaluations.saturating_sub(n_known));
        // Most evaluations are of this trajectory itself.
        let of_whole = hash_of(trajectory, hasher);
        evaluations.retain_mut(|evaluation| {
            let is_whole = Arc::ptr_eq(&evaluation.trajectory, trajectory);
            let of_trajectory = if is_whole {
                of_whole
            } else {
                hash_of(&evaluation.trajectory, hasher)
            };
            let fingerprint = fingerprint(evaluation, of_trajectory, hasher);
            self.is_news(evaluation, fingerprint, n_known, registered)
        });
        n_evaluations - evaluations.len()
    }

    /// Gives the evaluation its revision, unless it was reported as it stands.
    fn is_news(
        &mut self,
        evaluation: &mut Evaluation,
        fingerprint: u64,
        n_known: usize,
        registered: &[Arc<Criterion>],
    ) -> bool {
        let subject = evaluation
            .trajectory
            .subject
            .as_ref()
            .map(|subject| subject.span_id);
        let agent_run = if evaluation.criterion.scope() == Scope::Agent {
            subject
        } else {
            None
        };
        let is_known = |known: &&mut ReportedEvaluation| {
            known.agent_run == agent_run && known.criterion.name() == evaluation.criterion.name()
        };
        let known = self.0[..n_known].iter_mut().find(is_known);
        let (cut_short, is_judged) = (
            evaluation.trajectory.cut_short,
            evaluation.verdict != Verdict::NotEvaluated,
        );
        match known {
            Some(known) => {
                known.stands = Stands::Confirmed;
                if known.fingerprint == fingerprint || (known.for_good && cut_short && !is_judged) {
                    return false;
                }
                known.for_good = cut_short && is_judged;
                evaluation.revision = known.previous.revision + 1;
                evaluation.previous = Some(known.previous);
                known.fingerprint = fingerprint;
                known.previous = Previous {
                    subject,
                    verdict: evaluation.verdict,
                    revision: evaluation.revision,
                };
            }
            None => self.0.push(ReportedEvaluation {
                criterion: Held::new(&evaluation.criterion, registered),
                agent_run,
                fingerprint,
                for_good: cut_short && is_judged,
                previous: Previous {
                    subject,
                    verdict: evaluation.verdict,
                    revision: 0,
                },
                stands: Stands::Confirmed,
            }),
        }
        true
    }

    /// Revisions that take back what was reported before and was not judged this time.
    pub(super) fn withdraw(
        &mut self,
        registered: &[Arc<Criterion>],
        trajectory: &Arc<Trajectory>,
        hasher: &DefaultHashBuilder,
    ) -> impl Iterator<Item = Evaluation> {
        self.0
            .iter_mut()
            .filter_map(move |known| match known.stands {
                Stands::Withdrawn => None,
                Stands::Confirmed => {
                    known.stands = Stands::Unconfirmed;
                    None
                }
                Stands::Unconfirmed if known.for_good && trajectory.cut_short => None,
                Stands::Unconfirmed => {
                    let criterion = known.criterion.for_withdrawal(registered)?;
                    let mut evaluation = evaluate::withdraw(criterion, trajectory, known.agent_run);
                    evaluation.revision = known.previous.revision + 1;
                    evaluation.previous = Some(known.previous);
                    let subject = evaluation
                        .trajectory
                        .subject
                        .as_ref()
                        .map(|subject| subject.span_id);
                    known.previous = Previous {
                        subject,
                        verdict: evaluation.verdict,
                        revision: evaluation.revision,
                    };
                    known.fingerprint =
                        fingerprint(&evaluation, hash_of(&evaluation.trajectory, hasher), hasher);
                    known.stands = Stands::Withdrawn;
                    Some(evaluation)
                }
            })
    }
}

impl Memo for Reported {
    fn size(&self) -> usize {
        self.0.capacity() * size_of::<ReportedEvaluation>()
    }
}

// === impl Held ===

impl Held {
    fn new(criterion: &JudgedBy, registered: &[Arc<Criterion>]) -> Self {
        // Most are judged by a criterion as it is registered; an example's fields make another one
        // of the same name.
        let as_it_is = registered.iter().find(|registered| match criterion {
            JudgedBy::Criterion(criterion) => Arc::ptr_eq(registered, criterion),
            JudgedBy::Invalid(_) => false,
        });
        match as_it_is.or_else(|| {
            registered
                .iter()
                .find(|registered| registered.name == criterion.name())
        }) {
            Some(registered) => Self::Registered(registered.clone()),
            None => {
                let name = if criterion.name() == evaluate::EXAMPLE {
                    evaluate::EXAMPLE
                } else {
                    evaluate::EXPECTED
                };
                Self::OfTheRun {
                    name,
                    evaluator: criterion.evaluator(),
                }
            }
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Registered(criterion) => &criterion.name,
            Self::OfTheRun { name, .. } => name,
        }
    }

    /// The criterion in whose name something is taken back. One that is no longer registered stays
    /// quiet: what it said was right when it said it.
    fn for_withdrawal(&self, registered: &[Arc<Criterion>]) -> Option<JudgedBy> {
        match self {
            Self::Registered(_) => registered
                .iter()
                .find(|criterion| criterion.name == self.name())
                .cloned()
                .map(JudgedBy::Criterion),
            Self::OfTheRun { name, evaluator } => {
                let invalid = evaluate::no_longer_expected(name, evaluator);
                Some(JudgedBy::Invalid(invalid.into()))
            }
        }
    }
}

// === hashes ===

/// Two evaluations with the same fingerprint look the same to whoever reads them.
fn fingerprint(evaluation: &Evaluation, of_trajectory: u64, hasher: &DefaultHashBuilder) -> u64 {
    let mut state = hasher.build_hasher();
    // What a run says of itself, and which case it is one of, may come late.
    evaluation.criterion.revision().hash(&mut state);
    of_trajectory.hash(&mut state);
    evaluation.hash_shown(&mut state);
    state.finish()
}

/// What every evaluation of a trajectory shows of it.
fn hash_of(trajectory: &Trajectory, hasher: &DefaultHashBuilder) -> u64 {
    let mut state = hasher.build_hasher();
    (
        trajectory.completeness,
        trajectory.subject.as_ref().map(|subject| subject.span_id),
    )
        .hash(&mut state);
    for call in &trajectory.tool_calls {
        (&call.name, call.error).hash(&mut state);
    }
    state.finish()
}
