//! The results of closed traces, and the trait that receives them in slices of bounded size, so
//! that memory does not grow with the number of traces that are due at the same time.

use std::mem;
use std::sync::Arc;

use super::reported::Marks;
use crate::assemble::CloseReason;
use crate::evaluate::{Evaluation, Stage};
use crate::extract::{HalfArrived, Trajectory, Unrecognised};

/// Receives the results while the pipeline works.
pub trait JudgementSink {
    /// Receives a slice of the results, and may move results out; the pipeline then clears the
    /// slice.
    fn take(&mut self, slice: &mut Judged);

    /// Signals that the pipeline is busy, not stuck. Called between evaluations, and regularly
    /// during insertions.
    fn beat(&mut self);
}

/// The results of closed traces and of sessions, and alarms.
#[derive(Debug, Default)]
pub struct Judged {
    /// New and changed judgements. Judgements that late spans did not change are omitted.
    pub evaluations: Vec<Evaluation>,
    /// Alarms that were raised, and alarms that were withdrawn.
    pub alarms: Vec<Evaluation>,
    /// The time, in Unix nanoseconds, from which the raised alarms were possible: the arrival of
    /// the first span since the trace was last judged, or the change of the rules. For the alarms
    /// of a session, the time of the judgement.
    pub alarmed_unix_nanos: u64,
    /// The number of times that an open trace had to wait before it was judged for alarms.
    pub n_postponed: usize,
    /// The trajectories of traces that were judged for the first time, whether or not a criterion
    /// applies. If results are sent in slices, a trajectory is in the slice with its first
    /// evaluation.
    pub trajectories: Vec<Arc<Trajectory>>,
    /// Trajectories of runs that were judged before and are judged again, for example after late
    /// spans. If [`Trajectory::is_taken_over`] is true, spans report all calls of the group of log
    /// records, and the group is not a run.
    pub revised: Vec<Arc<Trajectory>>,
    /// The reason why each trace was closed. A trace that is closed again is not counted again.
    pub reasons: Vec<CloseReason>,
    /// The number of traces that are no runs: they have neither a tool call, an agent run nor an
    /// expectation, or consist of log records whose calls spans report.
    pub n_no_trajectory: usize,
    /// The first trace without a trajectory that looks like an agent's.
    pub unrecognised: Option<Unrecognised>,
    /// Traces that arrived only in part, without their spans or without calls that their spans
    /// report.
    pub half_arrived: Vec<HalfArrived>,
    /// The number of judgements that late spans did not change.
    pub n_unchanged: usize,
    /// The number of times that another trace changed a trace whose spans were dropped because the
    /// memory for closed traces was full, so that it cannot be judged again.
    pub n_lost: usize,
    /// The completeness of each session that got its final verdicts.
    pub sessions: Vec<CloseReason>,
    /// With a journal, the marks of judged traces and sessions. All their evaluations are in this
    /// slice or in earlier slices.
    pub marks: Marks,
    size: usize,
}

impl Judged {
    /// Maximum bytes of an evaluation with its evidence, without the calls of its trajectory. Both
    /// maxima were measured with the evaluators of docs/evaluators.md.
    const SIZE_OF_EVALUATION: usize = 1_536;
    /// Maximum bytes that each call of the trajectory adds to an evaluation.
    const SIZE_OF_CALL: usize = 64;

    pub(super) fn add(&mut self, evaluation: Evaluation) {
        let n_calls = evaluation.trajectory.tool_calls.len();
        self.size += Self::SIZE_OF_EVALUATION + n_calls * Self::SIZE_OF_CALL;
        if evaluation.stage == Stage::Final {
            self.evaluations.push(evaluation);
        } else {
            self.alarms.push(evaluation);
        }
    }

    /// Returns the estimated size of the evaluations in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Clears the slice except the evaluations for which `is_kept` returns true.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&Evaluation) -> bool) {
        let evaluations = mem::take(self).evaluations.into_iter();
        self.evaluations = evaluations.filter(is_kept).collect();
    }
}

impl JudgementSink for Judged {
    fn take(&mut self, slice: &mut Judged) {
        self.evaluations.append(&mut slice.evaluations);
        self.alarms.append(&mut slice.alarms);
        self.alarmed_unix_nanos = slice.alarmed_unix_nanos;
        self.n_postponed += slice.n_postponed;
        self.trajectories.append(&mut slice.trajectories);
        self.revised.append(&mut slice.revised);
        self.reasons.append(&mut slice.reasons);
        self.half_arrived.append(&mut slice.half_arrived);
        self.n_no_trajectory += slice.n_no_trajectory;
        self.unrecognised = self.unrecognised.take().or(slice.unrecognised.take());
        self.n_unchanged += slice.n_unchanged;
        self.n_lost += slice.n_lost;
        self.sessions.append(&mut slice.sessions);
        self.marks.append(&mut slice.marks);
    }

    fn beat(&mut self) {}
}
