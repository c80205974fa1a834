//! Rebuilds the pipeline from a journal after a restart: inserts the requests again, and applies
//! marks that close the traces judged before. A pipeline uses only the spans and trace marks of its
//! partition.

use std::iter::Peekable;
use std::sync::Arc;
use std::{slice, vec};

use otlp::span::{Batch, Now};

use super::cross_traces::{CrossTraceAccess, CrossTraces, Extracted};
use super::reported::Marked;
use super::{Pipeline, Rules, TraceMark, split};
use crate::assemble::CloseReason;
use crate::extract;

#[derive(Debug)]
pub struct Rebuilding<'a, C = CrossTraces> {
    pipeline: &'a mut Pipeline<C>,
    rules: &'a Rules,
    now: Now,
    /// The last mark of each trace, in the order of judgement.
    marks: Peekable<vec::IntoIter<TraceMark>>,
    /// Marks of sessions, for all partitions, because the turns of a session may be in any
    /// partition.
    of_sessions: Vec<TraceMark>,
}

impl<'a, C: CrossTraceAccess> Rebuilding<'a, C> {
    /// Starts rebuilding an empty pipeline. All spans count as arriving at `now`, and no timer
    /// fires. `marks` may be in any order and may belong to any partition.
    pub fn new(
        pipeline: &'a mut Pipeline<C>,
        rules: &'a Rules,
        mut marks: Vec<TraceMark>,
        now: Now,
    ) -> Self {
        let is_of_session = |mark: &mut TraceMark| matches!(mark.marked, Marked::Session { .. });
        let of_sessions = marks.extract_if(.., is_of_session).collect();
        marks.retain(|mark| pipeline.partition.holds(mark.trace_id));
        // If a trace has two marks, the later one is used.
        marks.sort_by_key(|mark| {
            let is_judged = mark.marked != Marked::Trace(CloseReason::Open);
            (mark.trace_id, mark.judged_below, is_judged)
        });
        marks.reverse();
        marks.dedup_by_key(|mark| mark.trace_id);
        marks.sort_by_key(|mark| (mark.judged_below, mark.trace_id));
        Self {
            pipeline,
            rules,
            now,
            marks: marks.into_iter().peekable(),
            of_sessions,
        }
    }

    /// Sets the start of the session history, because the journal contains everything that has
    /// arrived since. Call it before the other methods; without it no restored session is whole.
    pub fn restore_session_history(&mut self, since_unix_nanos: u64) {
        self.pipeline
            .sessions(|them| them.restore_history(since_unix_nanos));
    }

    pub fn n_marks(&self) -> usize {
        self.marks.len()
    }

    /// Inserts the spans and log records of the next record that belong to this partition, and
    /// returns their number. Judges nothing.
    pub fn take(&mut self, batch: Batch, record: u64) -> usize {
        self.apply_marks(record);
        let n_items = self.take_each(batch, record);
        if n_items > 0 {
            self.pipeline.next_record = record + 1;
        }
        n_items
    }

    fn apply_marks(&mut self, record: u64) {
        let judged_before = |mark: &TraceMark| mark.judged_below <= record;
        while let Some(mark) = self.marks.next_if(judged_before) {
            self.pipeline.restore_mark(self.rules, mark, self.now);
        }
    }

    fn take_each(&mut self, batch: Batch, record: u64) -> usize {
        let partition = self.pipeline.partition;
        let mut parts = split(batch, partition.n_partitions()).into_iter();
        let Some((_, own)) = parts.find(|(index, _)| *index == partition.index()) else {
            return 0;
        };
        let n_items = own.spans.len();
        self.pipeline.begin_record(record);
        self.pipeline.take(own, self.now);
        n_items
    }

    pub fn finish(self) {
        let pipeline = self.pipeline;
        for mark in self.marks {
            pipeline.restore_mark(self.rules, mark, self.now);
        }
        let reported = self.of_sessions.into_iter().map(|mark| {
            let is_final = mark.marked == Marked::Session { is_final: true };
            (mark.trace_id, mark.reported, is_final)
        });
        pipeline.sessions(|them| them.restore_reported(reported.collect()));
        pipeline.next_session = pipeline.sessions(|them| them.next_due()).flatten();
    }
}

impl<C: CrossTraceAccess> Pipeline<C> {
    /// Enables marks of judged traces ([`super::Judged::marks`]), which a journal stores.
    pub fn mark_judged(&mut self) {
        self.marks_judged = true;
    }

    /// Sets the record whose spans are inserted next, live or during a replay.
    pub(super) fn begin_record(&mut self, record: u64) {
        self.buffer.set_record(record);
        self.next_record = record;
    }

    /// Closes a trace that was judged before the restart, with its reported results. Restores the
    /// alarms of a trace that was open.
    fn restore_mark(&mut self, rules: &Rules, mark: TraceMark, now: Now) {
        let Marked::Trace(reason) = mark.marked else {
            return;
        };
        if reason == CloseReason::Open {
            // The trace was open, so the mark contains only its alarms.
            let alarms = mark.reported;
            return self
                .buffer
                .change_open_memo(&mark.trace_id, |memo| *memo = alarms);
        }
        let closed = self.buffer.close_reported(&mark.trace_id, reason, now);
        let Some(mut closed) = closed else {
            return self.buffer.remember_without_spans(&mark.trace_id, now);
        };
        if mark.first_record < closed.first_record {
            // The oldest spans are gone, so the trace cannot be judged again, and late spans are
            // dropped.
            let ends = closed
                .trace
                .spans
                .rows()
                .iter()
                .map(|row| row.end_unix_nanos);
            // A sender's clock may be ahead.
            let end = ends.max().unwrap_or_default().min(now.unix_nanos);
            self.sessions(|them| them.miss_restored(end));
            return;
        }
        let trajectory = extract::trajectory(&closed.trace, &rules.recogniser);
        let mut extracted = [Extracted {
            trace_id: closed.trace.trace_id,
            peer: closed.peer,
            trajectory: trajectory.map(Arc::new),
            results: extract::cross_trace_results(&closed.trace, &rules.recogniser),
        }];
        let (has_peers, partition) = (self.has_peers, self.partition);
        let changed = self.cross_traces.with(|them| {
            if has_peers {
                them.check_torn(slice::from_mut(&mut closed));
            }
            them.note(&mut extracted, partition, now)
        });
        for trace_id in changed {
            self.buffer.reopen(&trace_id, now);
        }
        let [Extracted { trajectory, .. }] = extracted;
        let turn = trajectory.filter(|it| rules.judge_sessions() && !it.is_taken_over());
        if let Some(mut turn) = turn {
            self.judges_sessions = true;
            self.cross_traces.with(|them| them.complete(&mut turn));
            // The session is judged with its next turn, or when it is due.
            self.sessions(|them| them.note(&turn, closed.peer, now));
        }
        closed.memo = mark.reported;
        self.buffer.remember(closed, now);
    }

    /// Sets the start of the trace history, because the journal proves that every later trace is
    /// complete, or was judged.
    pub fn restore_memory(&mut self, since_unix_nanos: u64) {
        self.buffer.set_memory(since_unix_nanos);
    }

    /// Marks the restored open traces as incomplete, because some of their spans may have been
    /// lost.
    pub fn mark_restored_incomplete(&mut self, now: Now) {
        self.buffer.mark_all_unscored();
        self.cross_traces.with(|them| them.miss(now));
    }

    pub fn oldest_record(&self) -> Option<u64> {
        self.buffer.oldest_record()
    }

    pub fn oldest_open_record(&self) -> Option<u64> {
        self.buffer.oldest_open_record()
    }

    /// Closes traces older than this record without judging them, because their verdicts were sent,
    /// and their early spans are gone. Late spans of these traces are dropped.
    pub(super) fn forget_open_below(&mut self, record: u64, now: Now) {
        self.buffer.forget_open_below(record, now);
    }

    pub fn memory_unix_nanos(&self) -> u64 {
        self.buffer.memory_unix_nanos()
    }
}
