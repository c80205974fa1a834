//! Stores the reported evaluations of a trace or session, so that late spans cause reports of
//! changes only: new evaluations, and revisions of evaluations that look different.

mod marks;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::FixedState;
use otlp::span::SpanId;

use crate::assemble::Memo;
use crate::evaluate::{self, Criterion, Evaluation, JudgedBy, Previous, Scope, Verdict};
use crate::extract::Trajectory;

pub(super) use marks::Marked;
pub use marks::{Marks, TraceMark};

#[derive(Debug, Default, Clone)]
pub(super) struct Reported(Vec<ReportedEvaluation>);

/// Maximum number of stored evaluations of one trace, at most 8 MiB, because a trace can have as
/// many agent runs as spans. Further evaluations are reported at most once and never revised.
const MAX_REPORTED: usize = 65_536;

#[derive(Debug)]
pub(super) struct Revising<'a> {
    reported: &'a mut Reported,
    /// The number of evaluations before this judgement. Only these are searched, because no
    /// judgement makes an evaluation twice.
    n_known: usize,
    /// True if a raised alarm has no verdict yet.
    has_alarms: bool,
    /// The expected index of the next evaluation. The order is usually that of the last judgement.
    next: usize,
    /// The hash of the whole trajectory, which most evaluations judge.
    of_whole: u64,
    registered: &'a [Arc<Criterion>],
    trajectory: &'a Arc<Trajectory>,
    hasher: &'a FixedState,
}

#[derive(Debug, Clone)]
struct ReportedEvaluation {
    criterion: ReportedCriterion,
    /// The agent run for `scope: agent`; `None` for the other scopes, whose evaluated span may
    /// change.
    agent_run: Option<SpanId>,
    fingerprint: u64,
    /// True if the verdict was certain although the trace was cut short. The verdict remains
    /// certain, even if a judgement of further spans cannot show this.
    certain: bool,
    previous: Previous,
    /// Updated by each judgement. An evaluation that a judgement does not make again may be
    /// withdrawn.
    state: ReportState,
}

/// The criterion of a reported evaluation. For a run's own criterion only the names are stored,
/// because it may have any size, and may differ for each trace. For a criterion that raised an
/// alarm and was removed during a restart, only the name is known.
#[derive(Debug, Clone)]
enum ReportedCriterion {
    Registered(Arc<Criterion>),
    Named {
        name: Arc<str>,
        evaluator: &'static str,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportState {
    Confirmed,
    Unconfirmed,
    Withdrawn,
    /// An alarm was raised, and no verdict was reported yet.
    Alarm,
}

impl Reported {
    /// Starts a judgement of the trace, the first or a later one.
    pub(super) fn revise<'a>(
        &'a mut self,
        registered: &'a [Arc<Criterion>],
        trajectory: &'a Arc<Trajectory>,
        hasher: &'a FixedState,
    ) -> Revising<'a> {
        let n_known = self.0.len();
        let has_alarms = self.0.iter().any(|known| known.state == ReportState::Alarm);
        // Most traces are judged by every criterion, so the list needs one entry for each.
        self.0
            .reserve_exact(registered.len().saturating_sub(n_known));
        Revising {
            n_known,
            has_alarms,
            next: 0,
            of_whole: hash_of(trajectory, hasher),
            reported: self,
            registered,
            trajectory,
            hasher,
        }
    }

    /// Searches the first `n_known` records for the evaluation's, from `next`, then from the start.
    fn find(&self, evaluation: &Evaluation, next: usize, n_known: usize) -> Option<usize> {
        let agent_run = agent_run_of(evaluation);
        let is_known = |at: &usize| {
            let known = &self.0[*at];
            known.state != ReportState::Alarm
                && known.agent_run == agent_run
                && known.criterion.name() == evaluation.criterion.name()
        };
        (next..n_known).chain(0..next.min(n_known)).find(is_known)
    }

    /// Sets the evaluation's revision. `known` is the index of its record, `alarm` that of its
    /// alarm. Returns `false` if an equal or a more certain evaluation was reported before.
    fn record(
        &mut self,
        evaluation: &mut Evaluation,
        fingerprint: u64,
        (known, alarm): (Option<usize>, Option<usize>),
        registered: &[Arc<Criterion>],
    ) -> bool {
        let subject = subject_of(evaluation);
        let (cut_short, is_judged) = (
            evaluation.trajectory.cut_short,
            evaluation.verdict != Verdict::NotEvaluated,
        );
        let n_reported = self.0.len();
        match known.map(|at| &mut self.0[at]) {
            Some(known) => {
                known.state = ReportState::Confirmed;
                if known.fingerprint == fingerprint || (known.certain && cut_short && !is_judged) {
                    return false;
                }
                known.certain = cut_short && is_judged;
                evaluation.revision = known.previous.revision + 1;
                evaluation.previous = Some(known.previous);
                known.fingerprint = fingerprint;
                known.previous = Previous {
                    subject,
                    verdict: evaluation.verdict,
                    revision: evaluation.revision,
                };
            }
            None if n_reported >= MAX_REPORTED && alarm.is_none() => {}
            None => {
                let first = ReportedEvaluation {
                    criterion: ReportedCriterion::new(&evaluation.criterion, registered),
                    agent_run: agent_run_of(evaluation),
                    fingerprint,
                    certain: cut_short && is_judged,
                    previous: Previous {
                        subject,
                        verdict: evaluation.verdict,
                        revision: 0,
                    },
                    state: ReportState::Confirmed,
                };
                match alarm {
                    Some(at) => self.0[at] = first,
                    None => self.0.push(first),
                }
            }
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_unknown(&self, criterion: &Criterion) -> bool {
        self.0
            .iter()
            .all(|known| known.criterion.name() != criterion.name)
    }

    pub(super) fn has_alarm(&self, criterion: &Criterion) -> bool {
        self.alarm_of(&criterion.name).is_some()
    }

    fn alarm_of(&self, name: &str) -> Option<usize> {
        let is_alarm = |known: &ReportedEvaluation| {
            known.state == ReportState::Alarm && known.criterion.name() == name
        };
        self.0.iter().position(is_alarm)
    }

    pub(super) fn raise(&mut self, criterion: &Arc<Criterion>) {
        self.0.push(ReportedEvaluation {
            criterion: ReportedCriterion::Registered(Arc::clone(criterion)),
            agent_run: None,
            fingerprint: 0,
            certain: true,
            previous: Previous {
                subject: None,
                verdict: Verdict::Fail,
                revision: 0,
            },
            state: ReportState::Alarm,
        });
    }

    fn take_alarms(&mut self) -> Vec<ReportedEvaluation> {
        let is_alarm = |known: &mut ReportedEvaluation| known.state == ReportState::Alarm;
        self.0.extract_if(.., is_alarm).collect()
    }
}

impl Revising<'_> {
    /// Records an evaluation and sets its revision. Returns `false` if the evaluation is not to be
    /// reported: an equal one or a more certain one was reported before, or too many evaluations of
    /// the trace are already known.
    pub(super) fn record(&mut self, evaluation: &mut Evaluation) -> bool {
        let of_trajectory = if Arc::ptr_eq(&evaluation.trajectory, self.trajectory) {
            self.of_whole
        } else {
            hash_of(&evaluation.trajectory, self.hasher)
        };
        let fingerprint = fingerprint(evaluation, of_trajectory, self.hasher);
        let known = self.reported.find(evaluation, self.next, self.n_known);
        self.next = known.map_or(self.next, |at| at + 1);
        if known.is_none() && self.n_known >= MAX_REPORTED {
            return false;
        }
        // If the criterion no longer raises alarms, its verdict is not the final verdict of the
        // alarm, and the alarm is withdrawn.
        let alarm = if self.has_alarms && known.is_none() && evaluation.verdict_id().is_some() {
            self.reported.alarm_of(evaluation.criterion.name())
        } else {
            None
        };
        self.reported
            .record(evaluation, fingerprint, (known, alarm), self.registered)
    }

    /// Ends the judgement. Returns the withdrawals of alarms without a verdict, and of earlier
    /// evaluations that this judgement did not make. While the trace is cut short, evaluations that
    /// were certain stay.
    pub(super) fn withdraw(self) -> impl Iterator<Item = Evaluation> {
        let Self {
            reported,
            registered,
            trajectory,
            hasher,
            ..
        } = self;
        let alarms = reported.take_alarms().into_iter().filter_map(|alarm| {
            let criterion = match alarm.criterion {
                ReportedCriterion::Registered(criterion) => JudgedBy::Criterion(criterion),
                named => named.for_withdrawal(registered)?,
            };
            Some(evaluate::withdraw_alarm(criterion, trajectory))
        });
        let revisions = reported
            .0
            .iter_mut()
            .filter_map(move |known| match known.state {
                ReportState::Withdrawn | ReportState::Alarm => None,
                ReportState::Confirmed => {
                    known.state = ReportState::Unconfirmed;
                    None
                }
                ReportState::Unconfirmed if known.certain && trajectory.cut_short => None,
                ReportState::Unconfirmed => {
                    let criterion = known.criterion.for_withdrawal(registered)?;
                    let mut evaluation = evaluate::withdraw(criterion, trajectory, known.agent_run);
                    evaluation.revision = known.previous.revision + 1;
                    evaluation.previous = Some(known.previous);
                    known.previous = Previous {
                        subject: subject_of(&evaluation),
                        verdict: evaluation.verdict,
                        revision: evaluation.revision,
                    };
                    known.fingerprint =
                        fingerprint(&evaluation, hash_of(&evaluation.trajectory, hasher), hasher);
                    known.state = ReportState::Withdrawn;
                    Some(evaluation)
                }
            });
        alarms.chain(revisions)
    }
}

impl Memo for Reported {
    fn size(&self) -> usize {
        self.0.capacity() * size_of::<ReportedEvaluation>()
    }
}

fn subject_of(evaluation: &Evaluation) -> Option<SpanId> {
    let subject = evaluation.trajectory.subject.as_ref();
    subject.map(|subject| subject.span_id)
}

fn agent_run_of(evaluation: &Evaluation) -> Option<SpanId> {
    match evaluation.criterion.scope() {
        Scope::Agent => subject_of(evaluation),
        Scope::Trace | Scope::Session => None,
    }
}

impl ReportedCriterion {
    fn new(criterion: &JudgedBy, registered: &[Arc<Criterion>]) -> Self {
        // Most criteria are registered, or are variants of registered ones: the fields of a test
        // case make a variant with the same name.
        let same = registered.iter().find(|registered| match criterion {
            JudgedBy::Criterion(criterion) => Arc::ptr_eq(registered, criterion),
            JudgedBy::Invalid(_) => false,
        });
        match same.or_else(|| {
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
                Self::Named {
                    name: name.into(),
                    evaluator: criterion.evaluator(),
                }
            }
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Registered(criterion) => &criterion.name,
            Self::Named { name, .. } => name,
        }
    }

    /// Returns the criterion under which an evaluation is withdrawn; `None` for a criterion that
    /// has been unregistered, because its evaluations were right when they were reported.
    fn for_withdrawal(&self, registered: &[Arc<Criterion>]) -> Option<JudgedBy> {
        match self {
            Self::Registered(_) => registered
                .iter()
                .find(|criterion| criterion.name == self.name())
                .cloned()
                .map(JudgedBy::Criterion),
            Self::Named { name, evaluator } => {
                let invalid = evaluate::no_longer_expected(name, evaluator);
                Some(JudgedBy::Invalid(invalid.into()))
            }
        }
    }
}

// === hashes ===

/// Returns a hash of all that a reader sees of an evaluation, and of the criterion's revision.
fn fingerprint(evaluation: &Evaluation, of_trajectory: u64, hasher: &FixedState) -> u64 {
    let mut state = hasher.build_hasher();
    // The criterion changes if a run's expectations or test case arrive late.
    evaluation.criterion.revision().hash(&mut state);
    of_trajectory.hash(&mut state);
    evaluation.hash_shown(&mut state);
    state.finish()
}

/// Hashes the fields of a trajectory that every evaluation shows.
fn hash_of(trajectory: &Trajectory, hasher: &FixedState) -> u64 {
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
