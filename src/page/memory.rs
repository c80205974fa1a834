//! Remembers the latest judged runs, up to a maximum size in bytes.
//!
//! The page must not slow down judging. So runs are not rendered, and they are copied without their
//! values (or shared, if values may be shown). While no page is open, only a few runs per second
//! are remembered.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use hashbrown::HashMap;
use judge::assemble::CloseReason;
use judge::evaluate::{Evaluation, Scope, Stage, Verdict};
use judge::extract::Trajectory;
use judge::pipeline::{Judged, Rules};
use otlp::span::TraceId;

use super::limits::{MAX_LISTED_CALLS, MAX_LISTED_NAME};
use crate::config::Bound;

/// Maximum number of runs that are remembered in a burst after a quiet time.
const MAX_AT_ONCE: u64 = 1_000;
/// After the burst, while no page is open: number of remembered runs per second, without and with a
/// failure.
const A_SECOND: [u64; 2] = [10, 25];
/// Number of runs per second while the page is open.
const A_SECOND_WATCHED: u64 = 1_000;

/// A run larger than the memory divided by this number is stored with its first calls only.
const LARGEST_SHARE: usize = 8;
/// Number of stored calls of a run that is too large.
const MAX_CALLS_OF_LARGE: usize = 500;

#[derive(Debug)]
pub(crate) struct RememberedRun {
    /// Number of the run, in the order of first judgements, from 1.
    pub(super) number: u64,
    /// Number of the last change of the run; streams resume from it.
    pub(super) change: u64,
    /// Time of the last judgement in Unix nanoseconds; 0 in a report.
    pub(super) judged_unix_nanos: u64,
    pub(super) trajectory: Arc<Trajectory>,
    /// Number of calls; more than the trajectory has if only the first calls are stored.
    pub(super) n_calls: usize,
    /// The evaluations, each with its latest revision.
    pub(super) evaluations: Vec<Evaluation>,
    pub(super) has_values: bool,
    size: usize,
    /// The line of the list, rendered at its first use.
    pub(super) summary: OnceLock<Bytes>,
}

#[derive(Debug)]
pub(super) struct RunMemory {
    capacity: Bound,
    size: usize,
    oldest_first: VecDeque<Arc<RememberedRun>>,
    numbers: HashMap<TraceId, u64>,
    totals: Totals,
    allowance: [Allowance; 2],
}

/// Counts since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) n_judged: u64,
    /// Number of runs that were not remembered, because too many were judged in a short time, or
    /// because they were too large.
    pub(super) n_passed_over: u64,
    pub(super) n_changes: u64,
}

/// Limits the number of runs in a burst, and per second.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    left: u64,
    second: u64,
}

impl RunMemory {
    pub(super) fn new(capacity: Bound) -> Self {
        let full = Allowance {
            left: MAX_AT_ONCE,
            second: 0,
        };
        Self {
            capacity,
            size: 0,
            oldest_first: VecDeque::new(),
            numbers: HashMap::new(),
            totals: Totals::default(),
            allowance: [full; 2],
        }
    }

    /// `is_watched` is true while a page is open.
    pub(super) fn note(
        &mut self,
        judged: &Judged,
        rules: &Rules,
        is_watched: bool,
        unix_nanos: u64,
    ) {
        let mut first = judged.trajectories.iter().peekable();
        let mut revised: HashMap<TraceId, &Arc<Trajectory>> = judged
            .revised
            .iter()
            .map(|trajectory| (trajectory.trace_id, trajectory))
            .collect();
        let trace_id = |evaluation: &Evaluation| evaluation.trajectory.trace_id;
        let is_of_session = |evaluation: &Evaluation| evaluation.trajectory.turns.is_some();
        let whose = |evaluation: &Evaluation| (trace_id(evaluation), is_of_session(evaluation));
        let groups = judged
            .evaluations
            .chunk_by(|one, other| whose(one) == whose(other))
            .filter(|group| !is_of_session(&group[0]));
        let copy = CopyRules {
            has_values: rules.explain.values,
            max_size: self.capacity.get() / LARGEST_SHARE,
        };
        // Judgements that raise alarms contain open runs, which have no verdicts yet.
        let raised = judged.alarms.iter().filter(|it| it.stage == Stage::Alarm);
        for alarm in raised.filter(|it| !is_of_session(it)) {
            self.take(
                &alarm.trajectory,
                std::slice::from_ref(alarm),
                copy,
                is_watched,
                unix_nanos,
            );
        }
        for group in groups {
            let id = trace_id(&group[0]);
            // Trajectories and evaluations are in the same order. A group without a new trajectory
            // revises a run that was judged before.
            if !first.clone().any(|trajectory| trajectory.trace_id == id) {
                self.revise(id, revised.remove(&id), group, copy, unix_nanos);
                continue;
            }
            for trajectory in first.by_ref() {
                let is_its = trajectory.trace_id == id;
                let evaluations = if is_its { group } else { &[] };
                self.take(trajectory, evaluations, copy, is_watched, unix_nanos);
                if is_its {
                    break;
                }
            }
        }
        for trajectory in first {
            self.take(trajectory, &[], copy, is_watched, unix_nanos);
        }
        // Late spans changed these runs, but none of their verdicts.
        for trajectory in &judged.revised {
            let id = trajectory.trace_id;
            if revised.remove(&id).is_some() {
                self.revise(id, Some(trajectory), &[], copy, unix_nanos);
            }
        }
        for withdrawn in judged.alarms.iter().filter(|it| !is_of_session(it)) {
            let open = self.get(trace_id(withdrawn)).filter(|run| run.is_open());
            if let Some(run) = open.filter(|_| withdrawn.stage == Stage::WithdrawnAlarm) {
                // The trace has ended and contains nothing to judge.
                let mut ended = Trajectory::clone(&run.trajectory);
                ended.completeness = withdrawn.trajectory.completeness;
                let (id, found) = (ended.trace_id, std::slice::from_ref(withdrawn));
                self.revise(id, Some(&ended.into()), found, copy, unix_nanos);
            }
        }
        // Verdicts and alarms of a session are shown with the session's last turn.
        let of_sessions = judged.evaluations.iter().chain(&judged.alarms);
        for evaluation in of_sessions.filter(|it| is_of_session(it)) {
            let id = trace_id(evaluation);
            let turns = evaluation.trajectory.turns.iter();
            for earlier in turns
                .flat_map(|turns| &*turns.traces)
                .filter(|it| **it != id)
            {
                self.remove(*earlier, evaluation.criterion.name(), copy, unix_nanos);
            }
            if let Some(turn) = self.get(id) {
                let of_turn = evaluation.with_explanation_only(Arc::clone(&turn.trajectory));
                self.revise(id, None, &[of_turn], copy, unix_nanos);
            }
        }
    }

    fn take(
        &mut self,
        trajectory: &Arc<Trajectory>,
        evaluations: &[Evaluation],
        copy: CopyRules,
        is_watched: bool,
        unix_nanos: u64,
    ) {
        // If the run raised an alarm, it is remembered already.
        if self
            .get(trajectory.trace_id)
            .is_some_and(|run| run.is_open())
        {
            return self.revise(
                trajectory.trace_id,
                Some(trajectory),
                evaluations,
                copy,
                unix_nanos,
            );
        }
        self.totals.n_judged += 1;
        let has_failed = evaluations
            .iter()
            .any(|evaluation| matches!(evaluation.verdict, Verdict::Fail | Verdict::Error));
        let kind = usize::from(has_failed);
        let a_second = if is_watched { A_SECOND_WATCHED } else { A_SECOND[kind] };
        if !self.allowance[kind].take(a_second, unix_nanos / 1_000_000_000) {
            self.totals.n_passed_over += 1;
            return;
        }
        self.totals.n_changes += 1;
        let mut run = RememberedRun::new(trajectory, evaluations, copy);
        run.number = self.totals.n_judged;
        run.change = self.totals.n_changes;
        run.judged_unix_nanos = unix_nanos;
        // A run with very many agents must not evict all other runs.
        if run.size > self.capacity.get() / 2 {
            self.totals.n_passed_over += 1;
            return;
        }
        self.size += run.size;
        self.numbers.insert(trajectory.trace_id, run.number);
        self.oldest_first.push_back(Arc::new(run));
        self.shrink();
    }

    /// Updates a run whose spans or evaluations changed. Ignores a run that is not remembered.
    fn revise(
        &mut self,
        trace_id: TraceId,
        revised: Option<&Arc<Trajectory>>,
        evaluations: &[Evaluation],
        copy: CopyRules,
        unix_nanos: u64,
    ) {
        let Some(idx) = self.idx_of(trace_id) else {
            return;
        };
        let before = &self.oldest_first[idx];
        // If only the first calls of the run are stored, the trajectory of an evaluation may
        // contain all calls.
        let longest = evaluations.iter().map(|evaluation| &evaluation.trajectory);
        let longest = longest.max_by_key(|trajectory| trajectory.tool_calls.len());
        let longest = longest.filter(|longest| longest.tool_calls.len() >= before.n_calls);
        let whole = revised.or(longest).unwrap_or(&before.trajectory);
        let mut all: Vec<Evaluation> = before.evaluations.clone();
        for evaluation in evaluations {
            all.retain(|earlier| !replaces(evaluation, earlier));
            all.push(evaluation.clone());
        }
        if whole.is_taken_over() {
            all.clear();
        }
        if whole.completeness != CloseReason::Open {
            // The verdicts of the closed run replace the alarms of the open run.
            let is_of_session = |it: &Evaluation| it.criterion.scope() == Scope::Session;
            all.retain(|it| it.stage != Stage::Alarm || is_of_session(it));
        }
        let mut run = RememberedRun::new(whole, &all, copy);
        if revised.is_none() {
            run.n_calls = before.n_calls;
        }
        self.replace(idx, run, unix_nanos);
    }

    /// Removes the verdict on a session from a turn that is no longer the last.
    fn remove(&mut self, turn: TraceId, criterion: &str, copy: CopyRules, unix_nanos: u64) {
        let is_it = |it: &Evaluation| {
            it.criterion.scope() == Scope::Session && it.criterion.name() == criterion
        };
        let Some(idx) = self.idx_of(turn) else {
            return;
        };
        let before = &self.oldest_first[idx];
        if before.evaluations.iter().any(is_it) {
            let mut kept = before.evaluations.clone();
            kept.retain(|it| !is_it(it));
            let run = RememberedRun {
                n_calls: before.n_calls,
                ..RememberedRun::new(&before.trajectory, &kept, copy)
            };
            self.replace(idx, run, unix_nanos);
        }
    }

    fn replace(&mut self, idx: usize, mut run: RememberedRun, unix_nanos: u64) {
        let before = &self.oldest_first[idx];
        self.totals.n_changes += 1;
        run.number = before.number;
        run.change = self.totals.n_changes;
        run.judged_unix_nanos = unix_nanos;
        self.size = self.size + run.size - before.size;
        self.oldest_first[idx] = Arc::new(run);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.size > self.capacity.get()
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.size -= oldest.size;
            let trace_id = oldest.trajectory.trace_id;
            // The trace may have been judged again as a new run.
            if self.numbers.get(&trace_id) == Some(&oldest.number) {
                self.numbers.remove(&trace_id);
            }
        }
    }

    fn idx_of(&self, trace_id: TraceId) -> Option<usize> {
        let number = self.numbers.get(&trace_id)?;
        let of_number = |run: &Arc<RememberedRun>| run.number;
        self.oldest_first
            .binary_search_by_key(number, of_number)
            .ok()
    }

    pub(super) fn get(&self, trace_id: TraceId) -> Option<Arc<RememberedRun>> {
        self.idx_of(trace_id)
            .map(|idx| Arc::clone(&self.oldest_first[idx]))
    }

    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Arc<RememberedRun>> {
        self.oldest_first.iter().rev()
    }

    /// Returns the number of remembered runs, their bytes, and the maximum bytes.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.oldest_first.len(), self.size, self.capacity.get())
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }
}

/// Returns true if both have the same criterion, and `earlier` judges the span that `later` judges,
/// or the span that `later` judged in its previous revision.
fn replaces(later: &Evaluation, earlier: &Evaluation) -> bool {
    let subject = |evaluation: &Evaluation| {
        let subject = evaluation.trajectory.subject.as_ref();
        subject.map(|subject| subject.span_id)
    };
    let previous = match later.previous {
        Some(previous) => previous.subject,
        None => subject(later),
    };
    later.criterion.name() == earlier.criterion.name()
        && (subject(earlier) == previous || subject(earlier) == subject(later))
}

impl Allowance {
    fn take(&mut self, a_second: u64, second: u64) -> bool {
        // If the clock jumps back, nothing is added.
        let elapsed = second.saturating_sub(self.second);
        self.left = MAX_AT_ONCE.min(self.left.saturating_add(elapsed.saturating_mul(a_second)));
        self.second = second;
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }
}

#[derive(Debug, Clone, Copy)]
struct CopyRules {
    has_values: bool,
    max_size: usize,
}

impl RememberedRun {
    fn is_open(&self) -> bool {
        self.trajectory.completeness == CloseReason::Open
    }

    /// Returns a run of a recording, for a report.
    pub(crate) fn recorded(
        number: u64,
        trajectory: &Arc<Trajectory>,
        evaluations: Vec<Evaluation>,
        has_values: bool,
    ) -> Self {
        Self {
            number,
            change: 0,
            judged_unix_nanos: 0,
            trajectory: Arc::clone(trajectory),
            n_calls: trajectory.tool_calls.len(),
            evaluations,
            has_values,
            size: 0,
            summary: OnceLock::new(),
        }
    }

    fn new(trajectory: &Arc<Trajectory>, evaluations: &[Evaluation], copy: CopyRules) -> Self {
        let n_calls = trajectory.tool_calls.len();
        let size = size_of_run(trajectory, evaluations, copy.has_values);
        let is_large = size > copy.max_size;
        // Stored evidence may refer to any call. A run whose calls are cut is therefore stored
        // without evidence.
        let max_calls = if is_large { MAX_CALLS_OF_LARGE } else { usize::MAX };
        let kept = |trajectory: &Arc<Trajectory>| {
            if copy.has_values && !is_large {
                Arc::clone(trajectory)
            } else {
                Arc::new(trajectory.without_values(max_calls))
            }
        };
        let own = kept(trajectory);
        let evaluations = evaluations.iter().map(|evaluation| {
            let of_all = Arc::ptr_eq(&evaluation.trajectory, trajectory);
            if is_large {
                evaluation.with_explanation_only(Arc::clone(&own))
            } else if of_all {
                evaluation.with_trajectory(Arc::clone(&own))
            } else {
                evaluation.with_trajectory(kept(&evaluation.trajectory))
            }
        });
        let evaluations: Vec<Evaluation> = evaluations.collect();
        let size = if is_large { size_of_run(&own, &evaluations, false) } else { size };
        Self {
            number: 0,
            change: 0,
            judged_unix_nanos: 0,
            trajectory: own,
            n_calls,
            evaluations,
            has_values: copy.has_values && !is_large,
            size,
            summary: OnceLock::new(),
        }
    }
}

/// Estimates the bytes of a run, including its rendered summary and its entry in the memory.
fn size_of_run(trajectory: &Trajectory, evaluations: &[Evaluation], has_values: bool) -> usize {
    const OF_RUN: usize = mem::size_of::<RememberedRun>() + 1_024;
    // Evidence has a few numbers for each call and for each expectation.
    const OF_EVIDENCE: usize = 24;
    let listed = trajectory.tool_calls.iter().take(MAX_LISTED_CALLS);
    let of_summary = listed.map(|call| call.name.len().min(MAX_LISTED_NAME) + 40);
    let of_trajectory = trajectory.size(has_values);
    let of_evaluations = evaluations.iter().map(|evaluation| {
        let is_narrowed = evaluation.trajectory.arrival == trajectory.arrival
            && evaluation.trajectory.tool_calls.len() != trajectory.tool_calls.len();
        let copied = if is_narrowed { of_trajectory } else { 0 };
        let per_call = evaluation.trajectory.tool_calls.len() * OF_EVIDENCE;
        mem::size_of_val(evaluation) + 384 + per_call + evaluation.n_expected * 32 + copied
    });
    OF_RUN + of_trajectory + of_summary.sum::<usize>() + of_evaluations.sum::<usize>()
}
