//! The results of closed traces, and the trait that receives them while the pipeline still works:
//! slices of bounded size, so that memory does not grow with the number of traces that fall due at
//! once.

use std::mem;
use std::sync::Arc;

use super::reported::Marks;
use crate::assemble::CloseReason;
use crate::evaluate::Evaluation;
use crate::extract::{HalfArrived, Trajectory, Unrecognised};

/// Takes the results while the pipeline works.
pub trait JudgementSink {
    /// Takes a slice of the results. The pipeline drops the rest of the slice.
    fn take(&mut self, slice: &mut Judged);

    /// The pipeline is busy, and not stuck. Called between evaluations, and now and then while
    /// spans are taken in.
    fn beat(&mut self);
}

/// The results of the traces that were closed.
#[derive(Debug, Default)]
pub struct Judged {
    /// New and changed judgements. Judgements that late spans did not change are left out.
    pub evaluations: Vec<Evaluation>,
    /// The trajectories of the agents, whether a criterion applies or not. In slices, a trajectory
    /// comes with the first of its evaluations.
    pub trajectories: Vec<Arc<Trajectory>>,
    /// Trajectories of runs that were judged before, as late spans left them. One that is [taken
    /// over](Trajectory::is_taken_over) is no longer a run.
    pub revised: Vec<Arc<Trajectory>>,
    /// The reason why each trace was closed. A trace that is closed again after late spans does not
    /// count again.
    pub reasons: Vec<CloseReason>,
    /// Traces with neither a tool call nor an agent run.
    pub n_no_trajectory: usize,
    /// The first of these that looks like an agent's all the same.
    pub unrecognised: Option<Unrecognised>,
    /// Traces of which only the spans or only the log records arrived.
    pub half_arrived: Vec<HalfArrived>,
    /// Number of judgements that late spans did not change.
    pub n_unchanged: usize,
    /// Number of times that another trace changed a trace whose spans were dropped because the
    /// memory of closed traces was full: it is not judged again.
    pub n_lost: usize,
    /// With a journal, the marks of the traces that were closed. All their evaluations are in this
    /// slice or in earlier ones.
    pub marks: Marks,
    /// Bytes that the evaluations are counted with.
    size: usize,
}

impl Judged {
    /// Bytes of an evaluation with its evidence, as measured with the evaluators of
    /// docs/evaluators.md: at most this much, and this much more for each call.
    const SIZE_OF_EVALUATION: usize = 1_536;
    const SIZE_OF_CALL: usize = 64;

    /// Adds an evaluation.
    pub(super) fn add(&mut self, evaluation: Evaluation) {
        let n_calls = evaluation.trajectory.tool_calls.len();
        self.size += Self::SIZE_OF_EVALUATION + n_calls * Self::SIZE_OF_CALL;
        self.evaluations.push(evaluation);
    }

    /// Bytes that the evaluations are counted with.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Leaves out all but these evaluations.
    pub(super) fn keep_only(&mut self, is_kept: impl Fn(&Evaluation) -> bool) {
        let mut evaluations = mem::take(&mut self.evaluations);
        evaluations.retain(is_kept);
        self.clear();
        self.evaluations = evaluations;
    }

    /// Empties it, and keeps its memory for the next slice.
    pub(super) fn clear(&mut self) {
        self.evaluations.clear();
        self.trajectories.clear();
        self.revised.clear();
        self.reasons.clear();
        let (evaluations, trajectories, revised, reasons) = (
            mem::take(&mut self.evaluations),
            mem::take(&mut self.trajectories),
            mem::take(&mut self.revised),
            mem::take(&mut self.reasons),
        );
        *self = Self {
            evaluations,
            trajectories,
            revised,
            reasons,
            ..Self::default()
        };
    }
}

/// Collects all slices.
impl JudgementSink for Judged {
    fn take(&mut self, slice: &mut Judged) {
        self.evaluations.append(&mut slice.evaluations);
        self.trajectories.append(&mut slice.trajectories);
        self.revised.append(&mut slice.revised);
        self.reasons.append(&mut slice.reasons);
        self.half_arrived.append(&mut slice.half_arrived);
        self.n_no_trajectory += slice.n_no_trajectory;
        self.unrecognised = self.unrecognised.take().or(slice.unrecognised.take());
        self.n_unchanged += slice.n_unchanged;
        self.n_lost += slice.n_lost;
        self.marks.append(&mut slice.marks);
    }

    fn beat(&mut self) {}
}
