//! Assembles spans into traces, extracts the agents' runs and judges them, without sockets or
//! clocks. Start reading here.
//!
//! [`Pipeline::take`] inserts spans and log records; [`Pipeline::advance`] judges the traces that
//! are due. The sidecar's loop waits for a batch or for [`Pipeline::next_deadline`]; `replay`
//! inserts recorded requests and calls [`Pipeline::finish`]. The rules are arguments and are not
//! stored: a reload swaps one `Arc<Rules>`, and a trace is judged by the rules that are current
//! when it closes.
//!
//! One pipeline can judge all traces. With several threads, each [`Partition`] of the traces has a
//! pipeline: [`split()`] divides batches by trace id, and the pipelines share one [`CrossTraces`],
//! the only state that links traces.

mod alarms;
mod judged;
mod rules;
mod split;

mod cross_trace_results;
mod model_services;
mod span_calls;

mod cross_traces;
mod rebuilding;
mod reported;

mod session_verdicts;
mod sessions;

mod log_judge;

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use otlp::span::{Batch, Now, PeerId, TraceId};

use crate::assemble::{
    CloseReason, Closed, Inserted, Partition, Settings, Sizes, Stats, TornTraces, Trace,
    TraceBuffer, TraceIdFilter,
};
use crate::evaluate;
use crate::extract::{self, Trajectory};

use alarms::PostponedAlarms;
use cross_traces::Extracted;
use reported::{Marked, Reported};

pub use cross_traces::{CrossTraceAccess, CrossTraces, SessionStats};
pub use judged::{Judged, JudgementSink};
pub use log_judge::{LogBatch, LogJudge, LogLimits, LogMark, LogMoment, LogProgress, LogStart};
pub use rebuilding::Rebuilding;
pub use reported::{Marks, TraceMark};
pub use rules::{InvalidRules, Rules};
pub use split::split;

/// Bytes at which a slice ends. A slice consists of closed traces that are judged together, or of
/// evaluations that the sink receives together. Senders decide how much falls due at the same time;
/// slices bound the memory.
const MAX_SLICE: usize = 256 << 10;

/// Number of inserted spans and log records between two calls of [`JudgementSink::beat`].
const SPANS_PER_BEAT: usize = 1_024;

/// Assembles, extracts and judges the traces of one partition. `C` gives access to the state that
/// traces share.
#[derive(Debug)]
pub struct Pipeline<C = CrossTraces> {
    partition: Partition,
    /// True if other replicas judge some of the traces.
    has_peers: bool,
    buffer: TraceBuffer<Reported>,
    cross_traces: C,
    /// Hashes judgements, to detect changes. The key is fixed because a journal stores the hashes.
    /// A sender that forges a collision only hides a revision of its own trace.
    hasher: FixedState,
    /// True with a journal. The results then contain a mark for each judged trace.
    marks_judged: bool,
    /// All journal records below this number were inserted.
    next_record: u64,
    /// True if there was a criterion for sessions since all sessions were last forgotten.
    judges_sessions: bool,
    /// The next deadline of a session, as of the last check.
    next_session: Option<Instant>,
    /// Results that the sink has not received yet; between two calls empty except for `n_lost`.
    judged: Judged,
    postponed: PostponedAlarms,
}

/// Counts of the spans and log records of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// Spans and log records of traces that were not judged before, and repeated ones.
    pub n_taken: usize,
    /// New spans and log records of traces that were judged before.
    pub n_late: usize,
    /// Spans and log records that were dropped because a limit closed their trace or left no memory
    /// for them, or because the trace's other spans are gone.
    pub n_too_late: usize,
    /// The part of `n_too_late` whose traces were forgotten because the memory for closed traces
    /// was full.
    pub n_forgotten: usize,
}

impl Taken {
    fn count(&mut self, inserted: Inserted) {
        match inserted {
            Inserted::Taken | Inserted::Known => self.n_taken += 1,
            Inserted::Late => self.n_late += 1,
            Inserted::TooLate => self.n_too_late += 1,
            Inserted::Forgotten => {
                self.n_too_late += 1;
                self.n_forgotten += 1;
            }
        }
    }
}

impl Pipeline {
    /// Creates an empty pipeline with new [`CrossTraces`].
    pub fn new(settings: Settings, now: Now) -> Self {
        let cross_traces = CrossTraces::new(&settings, now);
        Self::of_partition(settings, cross_traces, now)
    }
}

impl<C: CrossTraceAccess> Pipeline<C> {
    /// Inserts the spans and log records of one request. Traces that a limit closes wait for
    /// [`Self::advance`].
    pub fn take(&mut self, batch: Batch, now: Now) -> Taken {
        self.take_each(batch, now, |_, _| ())
    }

    /// Returns the time of the next call to [`Self::advance`], if no batch arrives earlier.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.buffer.next_deadline(),
            self.postponed.retry_at,
            self.next_session,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Judges everything that is due.
    pub fn advance(&mut self, rules: &Rules, now: Now) -> Judged {
        let mut judged = Judged::default();
        self.advance_into(rules, now, &mut judged);
        judged
    }

    /// Judges every open trace and session at the end of a recording.
    pub fn finish(&mut self, rules: &Rules, now: Now) -> Judged {
        self.end_of_input(rules, now, |_| ())
    }
}

/// Further methods for the sidecar.
#[doc(hidden)]
impl<C: CrossTraceAccess> Pipeline<C> {
    /// Like [`Self::new`], for the partition of the settings.
    pub fn of_partition(mut settings: Settings, cross_traces: C, now: Now) -> Self {
        settings.max_recent_size -= CrossTraces::size_limit(&settings);
        Self {
            partition: settings.partition,
            has_peers: settings.has_peers,
            buffer: TraceBuffer::new(settings, now),
            cross_traces,
            hasher: FixedState::with_seed(0),
            marks_judged: false,
            next_record: 0,
            judges_sessions: false,
            next_session: None,
            judged: Judged::default(),
            postponed: PostponedAlarms::default(),
        }
    }

    /// Like [`Self::take`], but raises alarms, and judges the traces that a limit closes as soon as
    /// they exceed `MAX_SLICE` bytes together.
    pub fn take_into(
        &mut self,
        rules: &Rules,
        batch: Batch,
        now: Now,
        sink: &mut impl JudgementSink,
    ) -> Taken {
        let taken = self.insert(rules, batch, now, sink);
        self.raise_alarms(rules, now, sink);
        taken
    }

    fn insert(
        &mut self,
        rules: &Rules,
        batch: Batch,
        now: Now,
        sink: &mut impl JudgementSink,
    ) -> Taken {
        self.watch_by(rules, now);
        let is_outdated = batch.watched_by.is_some_and(|by| by != rules.watched_by);
        self.buffer.watch(!rules.alarms.is_empty(), is_outdated);
        let taken = self.take_each(batch, now, |pipeline, n_items| {
            if n_items % SPANS_PER_BEAT == 0 {
                sink.beat();
            }
            while pipeline.buffer.closing_size() > MAX_SLICE {
                let closed = pipeline.buffer.close_limited(now, MAX_SLICE);
                pipeline.judge(rules, closed, now, |_| (), sink);
            }
        });
        self.buffer.watch(false, false);
        taken
    }

    fn take_each(
        &mut self,
        batch: Batch,
        now: Now,
        mut after_item: impl FnMut(&mut Self, usize),
    ) -> Taken {
        let mut taken = Taken::default();
        let mut n_items = 0;
        for span in batch.spans {
            taken.count(self.buffer.insert(span, batch.peer, now));
            n_items += 1;
            after_item(self, n_items);
        }
        taken
    }

    /// Like [`Self::take_into`], for the request in record `record` of a journal or log.
    pub fn take_record(
        &mut self,
        rules: &Rules,
        batch: Batch,
        record: u64,
        now: Now,
        sink: &mut impl JudgementSink,
    ) -> Taken {
        self.begin_record(record);
        let taken = self.insert(rules, batch, now, sink);
        self.next_record = record + 1;
        self.raise_alarms(rules, now, sink);
        taken
    }

    /// Marks traces as incomplete, because some of their spans were forwarded but not scored, or
    /// may be in another log.
    pub fn mark_unscored(&mut self, trace_ids: &[TraceId], now: Now) {
        self.cross_traces.with(|them| them.miss(now));
        self.buffer.mark_unscored(trace_ids, now);
    }

    pub fn mark_many_unscored(&mut self, trace_ids: TraceIdFilter, now: Now) {
        self.cross_traces.with(|them| them.miss(now));
        self.buffer.mark_many_unscored(trace_ids, now);
    }

    /// Restarts the trace history, because replicas were added or removed after `since`.
    pub fn begin_memory(&mut self, since: Now, now: Now) {
        self.buffer.begin_memory(since, now);
    }

    /// Returns the observations of torn traces by all pipelines since the last call on any
    /// pipeline; none if there are no other replicas.
    pub fn take_torn(&mut self) -> TornTraces {
        if self.has_peers {
            self.cross_traces.with(CrossTraces::take_torn)
        } else {
            TornTraces::default()
        }
    }

    pub fn resize(&mut self, mut sizes: Sizes, now: Now) {
        let for_results = CrossTraces::share(sizes.recent);
        sizes.recent -= for_results;
        self.cross_traces
            .with(|them| them.resize(for_results, sizes.sessions, now));
        self.buffer.resize(sizes, now);
    }

    pub fn reopen_changed(&mut self, now: Now) {
        if self.partition.is_whole() {
            return;
        }
        let partition = self.partition;
        let changed = self.cross_traces.with(|them| them.take_changed(partition));
        for trace_id in changed {
            self.reopen(&trace_id, now);
        }
    }

    pub fn cross_traces_mut(&mut self) -> &mut C {
        &mut self.cross_traces
    }

    pub fn shorten_settle(&mut self, settle: Duration) {
        self.buffer.shorten_settle(settle);
    }

    /// Like [`Self::advance`], but sends the results to `sink` in slices, which may be empty.
    pub fn advance_into(&mut self, rules: &Rules, now: Now, sink: &mut impl JudgementSink) {
        self.retry_alarms(rules, now, sink);
        self.judge_due(rules, now, MAX_SLICE, |_| (), sink);
        self.judge_due_sessions(rules, now, sink);
    }

    /// Judges every open trace and session, because the sidecar stops.
    pub fn drain(&mut self, rules: &Rules, now: Now) -> Judged {
        let mut judged = Judged::default();
        self.drain_into(rules, now, &mut judged);
        judged
    }

    /// Like [`Self::drain`], but sends the results to `sink` in slices, which may be empty.
    pub fn drain_into(&mut self, rules: &Rules, now: Now, sink: &mut impl JudgementSink) {
        self.judge_all(rules, CloseReason::Shutdown, now, MAX_SLICE, |_| (), sink);
    }

    /// Like [`Self::finish`], but calls `look` with each closed trace (`inspect --verbose` reports
    /// its spans). Judges all traces together: in slices, a trace that completes the calls of an
    /// earlier trace would cause the earlier trace to be judged twice.
    pub fn end_of_input(&mut self, rules: &Rules, now: Now, look: impl FnMut(&Trace)) -> Judged {
        let mut judged = Judged::default();
        let (reason, all) = (CloseReason::NoRoot, usize::MAX);
        self.judge_all(rules, reason, now, all, look, &mut judged);
        judged
    }

    fn judge_all(
        &mut self,
        rules: &Rules,
        otherwise: CloseReason,
        now: Now,
        max_slice: usize,
        look: impl FnMut(&Trace),
        sink: &mut impl JudgementSink,
    ) {
        self.buffer.make_all_due(otherwise, now);
        self.judge_due(rules, now, max_slice, look, sink);
        // The last traces of all partitions can complete calls of earlier traces, which reopens the
        // earlier traces.
        self.cross_traces.wait_for_others(now);
        self.reopen_changed(now);
        self.buffer.make_all_due(otherwise, now);
        self.judge_due(rules, now, max_slice, |_| (), sink);
        let end = match otherwise {
            CloseReason::NoRoot => CloseReason::Silent,
            otherwise => otherwise,
        };
        self.end_sessions(rules, end, now, sink);
    }

    /// Returns the numbers and sizes of open and remembered traces. Does not count [`CrossTraces`].
    pub fn stats(&self) -> Stats {
        self.buffer.stats()
    }

    fn judge_due(
        &mut self,
        rules: &Rules,
        now: Now,
        max_slice: usize,
        mut look: impl FnMut(&Trace),
        sink: &mut impl JudgementSink,
    ) {
        let mut closed = self.buffer.close_due(now, max_slice);
        loop {
            self.judge(rules, closed, now, &mut look, sink);
            closed = self.buffer.close_due(now, max_slice);
            if closed.is_empty() {
                return;
            }
        }
    }

    fn judge(
        &mut self,
        rules: &Rules,
        mut closed: Vec<Closed<Reported>>,
        now: Now,
        mut look: impl FnMut(&Trace),
        sink: &mut impl JudgementSink,
    ) {
        if self.has_peers && !closed.is_empty() {
            self.cross_traces.with(|them| them.check_torn(&mut closed));
        }
        let mut extracted: Vec<Extracted> = Vec::with_capacity(closed.len());
        for closed in &closed {
            sink.beat();
            look(&closed.trace);
            let trajectory = extract::trajectory(&closed.trace, &rules.recogniser).map(Arc::new);
            let results = if trajectory.as_deref().is_none_or(CrossTraces::concern) {
                extract::cross_trace_results(&closed.trace, &rules.recogniser)
            } else {
                Vec::new()
            };
            extracted.push(Extracted {
                trace_id: closed.trace.trace_id,
                peer: closed.peer,
                trajectory,
                results,
            });
        }
        self.join(&mut extracted, now);
        let mut turns = Vec::new();
        for (mut closed, extracted) in closed.into_iter().zip(extracted) {
            if rules.judge_sessions() {
                let turn = extracted.trajectory.clone();
                let turn = turn.filter(|trajectory| !trajectory.is_taken_over());
                turns.push((extracted.trace_id, extracted.peer, turn));
            }
            if closed.first {
                self.judged.reasons.push(closed.trace.reason);
                let trajectory = extracted.trajectory.as_ref();
                let has_calls = trajectory.is_some_and(|it| !it.tool_calls.is_empty());
                let half = extract::half_arrived(&closed.trace, has_calls);
                self.judged.half_arrived.extend(half);
            }
            match extracted.trajectory {
                Some(trajectory) if trajectory.is_taken_over() => {
                    if closed.first {
                        self.judged.n_no_trajectory += 1
                    } else {
                        self.judged.revised.push(Arc::clone(&trajectory))
                    }
                    self.withdraw(rules, &trajectory, &mut closed.memo);
                }
                Some(trajectory) => {
                    let judged = &mut self.judged;
                    let list =
                        if closed.first { &mut judged.trajectories } else { &mut judged.revised };
                    list.push(Arc::clone(&trajectory));
                    self.judge_one(rules, &trajectory, &mut closed.memo, sink);
                }
                None => {
                    if closed.first {
                        self.judged.n_no_trajectory += 1;
                        if self.judged.unrecognised.is_none() {
                            self.judged.unrecognised = extract::unrecognised(&closed.trace);
                        }
                    }
                    // If results were reported, a later version of a span, or a reload, removed the
                    // last call.
                    let nothing = Trajectory {
                        completeness: closed.trace.reason,
                        ..Trajectory::of_calls(extracted.trace_id, Vec::new())
                    };
                    self.withdraw(rules, &nothing.into(), &mut closed.memo);
                }
            }
            if self.marks_judged {
                let Closed { trace, memo, .. } = &closed;
                let (id, marked) = (trace.trace_id, Marked::Trace(trace.reason));
                let marks = &mut self.judged.marks;
                marks.add(id, marked, memo, self.next_record, closed.first_record);
            }
            self.buffer.remember(closed, now);
        }
        if !turns.is_empty() {
            self.note_turns(rules, turns, now, sink);
        }
        hand_on(&mut self.judged, sink);
    }

    fn withdraw(&mut self, rules: &Rules, trajectory: &Arc<Trajectory>, memo: &mut Reported) {
        if memo.is_empty() {
            return;
        }
        let revising = memo.revise(&rules.criteria, trajectory, &self.hasher);
        for evaluation in revising.withdraw() {
            self.judged.add(evaluation);
        }
    }

    fn reopen(&mut self, trace_id: &TraceId, now: Now) {
        let is_lost = self.buffer.reopen(trace_id, now);
        self.judged.n_lost += usize::from(is_lost);
    }

    /// Publishes the data that other traces need, reopens the traces of this partition that the
    /// data change, and completes the trajectories with data of other traces.
    fn join(&mut self, extracted: &mut [Extracted], now: Now) {
        let partition = self.partition;
        if !extracted.is_empty() {
            // For example, a result that another trace recorded reopens the trace of the call, as a
            // late span would.
            let changed = self
                .cross_traces
                .with(|them| them.note(extracted, partition, now));
            for trace_id in changed {
                self.reopen(&trace_id, now);
            }
        }
        let next_due = self.buffer.next_deadline();
        self.cross_traces.noted(next_due, now);
        let trajectories = extracted
            .iter_mut()
            .filter_map(|it| Some((it.peer, it.trajectory.as_mut()?)));
        let mut joined: Vec<(PeerId, &mut Arc<Trajectory>)> = trajectories
            .filter(|(_, it)| {
                CrossTraces::concern(it) || it.session.is_some() || it.shows_no_model()
            })
            .collect();
        if joined.is_empty() {
            return;
        }
        // Traces that are due at the same time complete each other's calls, even across partitions.
        let any_concern = joined.iter().any(|(_, it)| CrossTraces::concern(it));
        if any_concern && next_due.is_none_or(|due| due > now.instant) {
            self.cross_traces.wait_for_others(now);
        }
        self.cross_traces.with(|them| {
            for (peer, trajectory) in &mut joined {
                if CrossTraces::concern(trajectory) {
                    them.complete(trajectory);
                }
                them.add_earlier_turns(trajectory, *peer);
                them.add_models_of_service(trajectory);
            }
        });
    }

    fn judge_one(
        &mut self,
        rules: &Rules,
        trajectory: &Arc<Trajectory>,
        reported: &mut Reported,
        sink: &mut impl JudgementSink,
    ) {
        let Rules {
            criteria,
            expectations,
            explain,
            ..
        } = rules;
        let Self { judged, hasher, .. } = self;
        let mut revising = reported.revise(criteria, trajectory, hasher);
        let case = expectations.case_of(trajectory);
        evaluate::judge_run(
            criteria,
            expectations,
            case,
            trajectory,
            explain,
            &mut |mut evaluation| {
                sink.beat();
                if revising.record(&mut evaluation) {
                    judged.add(evaluation);
                } else {
                    judged.n_unchanged += 1;
                }
                if judged.size() >= MAX_SLICE {
                    hand_on(judged, sink);
                }
            },
        );
        for evaluation in revising.withdraw() {
            judged.add(evaluation);
            if judged.size() >= MAX_SLICE {
                hand_on(judged, sink);
            }
        }
    }
}

fn hand_on(judged: &mut Judged, sink: &mut impl JudgementSink) {
    sink.take(judged);
    *judged = Judged::default();
}
