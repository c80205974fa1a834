//! Pure. Rebuilds the pipeline from a journal after a restart: the requests go in again, and marks
//! close the traces that were judged before. Of both, a pipeline takes those of its partition. Does
//! not know where records come from.

use std::iter::Peekable;
use std::sync::Arc;
use std::{slice, vec};

use super::cross_traces::{CrossTraceAccess, CrossTraces, Extracted};
use super::{Pipeline, Rules, TraceMark, split};
use crate::extract;
use crate::span::{Batch, Now};

/// Rebuilds a pipeline, record by record.
#[derive(Debug)]
pub struct Rebuilding<'a, C = CrossTraces> {
    pipeline: &'a mut Pipeline<C>,
    rules: &'a Rules,
    now: Now,
    /// The last mark of each trace, in the order in which they were judged.
    marks: Peekable<vec::IntoIter<TraceMark>>,
}

impl<'a, C: CrossTraceAccess> Rebuilding<'a, C> {
    /// Begins to rebuild a pipeline that is empty. Everything comes as if it came `now`; no timer
    /// fires. `marks` are in any order, and may be of any partition.
    pub fn new(
        pipeline: &'a mut Pipeline<C>,
        rules: &'a Rules,
        mut marks: Vec<TraceMark>,
        now: Now,
    ) -> Self {
        marks.retain(|mark| pipeline.partition.holds(mark.trace_id));
        // Of two marks of a trace the later one says all.
        marks.sort_by_key(|mark| (mark.trace_id, mark.judged_below));
        marks.reverse();
        marks.dedup_by_key(|mark| mark.trace_id);
        marks.sort_by_key(|mark| (mark.judged_below, mark.trace_id));
        Self {
            pipeline,
            rules,
            now,
            marks: marks.into_iter().peekable(),
        }
    }

    /// How many traces have marks that are not applied yet.
    pub fn n_marks(&self) -> usize {
        self.marks.len()
    }

    /// Takes in what is ours of the next record, and says how many spans and log records that is.
    /// Nothing is judged.
    pub fn take(&mut self, batch: Batch, record: u64) -> usize {
        let judged_before = |mark: &TraceMark| mark.judged_below <= record;
        while let Some(mark) = self.marks.next_if(judged_before) {
            self.pipeline.restore_mark(self.rules, mark, self.now);
        }
        let partition = self.pipeline.partition;
        let mut parts = split(batch, partition.n_partitions()).into_iter();
        let Some((_, own)) = parts.find(|(index, _)| *index == partition.index()) else {
            return 0;
        };
        let n_items = own.spans.len() + own.log_records.len();
        self.pipeline.begin_record(record);
        self.pipeline.accept(self.rules, own, self.now);
        self.pipeline.next_record = record + 1;
        n_items
    }

    /// All records were taken in.
    pub fn finish(self) {
        for mark in self.marks {
            self.pipeline.restore_mark(self.rules, mark, self.now);
        }
    }
}

impl<C: CrossTraceAccess> Pipeline<C> {
    /// Marks every judged trace from now on ([`super::Judged::marks`]): a journal keeps the marks.
    pub fn mark_judged(&mut self) {
        self.marks_judged = true;
    }

    /// A record of the journal is taken in next.
    pub(super) fn begin_record(&mut self, record: u64) {
        self.buffer.set_record(record);
        self.next_record = record;
    }

    /// Closes a trace that was judged before the restart, with what was reported.
    fn restore_mark(&mut self, rules: &Rules, mark: TraceMark, now: Now) {
        let closed = self.buffer.close_reported(&mark.trace_id, mark.reason, now);
        let Some(mut closed) = closed else {
            return self.buffer.remember_without_spans(&mark.trace_id, now);
        };
        if mark.first_record < closed.first_record {
            // Its oldest spans are gone, so it cannot be judged again: late spans come too late.
            return;
        }
        let trajectory = extract::trajectory(&closed.trace, &rules.recogniser);
        let mut extracted = [Extracted {
            trace_id: closed.trace.trace_id,
            trajectory: trajectory.map(Arc::new),
            results: extract::cross_trace_results(&closed.trace, &rules.recogniser),
        }];
        let (has_peers, partition) = (self.has_peers, self.partition);
        let changed = self.cross_traces.with(|them| {
            if has_peers {
                them.check_torn(slice::from_mut(&mut closed));
            }
            them.note(&mut extracted, partition)
        });
        for trace_id in changed {
            self.buffer.reopen(&trace_id, now);
        }
        closed.memo = mark.reported;
        self.buffer.remember(closed, now);
    }

    /// The journal proves that every trace that began since is here in full, or was judged.
    pub fn restore_memory(&mut self, since_unix_nanos: u64) {
        self.buffer.set_memory(since_unix_nanos);
    }

    /// Spans of the restored open traces may have been missed: none is judged in full.
    pub fn mark_restored_incomplete(&mut self) {
        self.buffer.mark_all_unscored();
    }

    /// The oldest record of the journal that has spans of an open or remembered trace.
    pub fn oldest_record(&self) -> Option<u64> {
        self.buffer.oldest_record()
    }

    /// The oldest record that has spans of an open trace.
    pub fn oldest_open_record(&self) -> Option<u64> {
        self.buffer.oldest_open_record()
    }

    /// Closes the open traces that begin before a record, without judging them: they were reported
    /// from spans that are not here. Late spans of them come too late.
    pub(super) fn forget_open_below(&mut self, record: u64, now: Now) {
        self.buffer.forget_open_below(record, now);
    }

    /// Unix time in nanoseconds at which the memory of traces begins.
    pub fn memory_unix_nanos(&self) -> u64 {
        self.buffer.memory_unix_nanos()
    }
}
