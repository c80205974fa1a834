//! Rebuilds the pipeline from a journal after a restart: the requests go in again, and marks close
//! the traces that were judged before. Of both, a pipeline takes those of its partition.

use std::iter::Peekable;
use std::sync::Arc;
use std::{slice, vec};

use hashbrown::HashMap;
use otlp::span::{Batch, Now, TraceId};

use super::cross_traces::{CrossTraceAccess, CrossTraces, Extracted};
use super::{CarriedTracesNote, OpenTrace, Pipeline, Rules, TraceMark, split};
use crate::extract;

/// Rebuilds a pipeline, record by record.
#[derive(Debug)]
pub struct Rebuilding<'a, C = CrossTraces> {
    pipeline: &'a mut Pipeline<C>,
    rules: &'a Rules,
    now: Now,
    /// The last mark of each trace, in the order in which they were judged.
    marks: Peekable<vec::IntoIter<TraceMark>>,
    /// The journal has no records below this number.
    begin: u64,
    /// Traces of this partition that the journal holds in full nevertheless, each with the record
    /// below which its mark says that it was judged.
    carried: HashMap<TraceId, (OpenTrace, u64)>,
}

/// The part of the carried records that is replayed: before the marks of their traces are applied,
/// or after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarriedPart {
    /// Spans with which their trace was judged before, and those of traces that never were.
    Judged,
    /// Records that came later.
    Later,
}

impl<'a, C: CrossTraceAccess> Rebuilding<'a, C> {
    /// Begins to rebuild a pipeline that is empty. All spans come as if they arrived `now`; no
    /// timer fires. `marks` may be in any order and of any partition. So may `open`, the journal's
    /// notes of open traces. The journal has no records below `begin`.
    pub fn new(
        pipeline: &'a mut Pipeline<C>,
        rules: &'a Rules,
        mut marks: Vec<TraceMark>,
        open: Vec<CarriedTracesNote>,
        begin: u64,
        now: Now,
    ) -> Self {
        marks.retain(|mark| pipeline.partition.holds(mark.trace_id));
        // Of two marks of one trace, the later one counts.
        marks.sort_by_key(|mark| (mark.trace_id, mark.judged_below));
        marks.reverse();
        marks.dedup_by_key(|mark| mark.trace_id);
        marks.sort_by_key(|mark| (mark.judged_below, mark.trace_id));
        // A trace that was carried from fewer records than are removed is not complete.
        let whole = open.into_iter().filter(|open| open.below >= begin);
        let mut carried: HashMap<_, _> = whole
            .flat_map(|open| open.traces)
            .filter(|trace| pipeline.partition.holds(trace.trace_id))
            .map(|trace| (trace.trace_id, (trace, u64::MAX)))
            .collect();
        for mark in &marks {
            if let Some((_, judged_below)) = carried.get_mut(&mark.trace_id) {
                *judged_below = mark.judged_below;
            }
        }
        Self {
            pipeline,
            rules,
            now,
            marks: marks.into_iter().peekable(),
            begin,
            carried,
        }
    }

    /// Returns true if carried records must be replayed, before all others.
    pub fn takes_carried(&self) -> bool {
        !self.carried.is_empty()
    }

    /// Takes in this partition's part of what was carried from `record`, and returns how many spans
    /// and log records that is. Everything that was carried comes twice, once for each part.
    pub fn take_carried(&mut self, mut batch: Batch, record: u64, part: CarriedPart) -> usize {
        // The record itself is still there, and its content is taken from it.
        if record >= self.begin {
            return 0;
        }
        let is_taken = |trace_id: TraceId| {
            let judged_below = self.carried.get(&trace_id).map(|(_, below)| *below);
            let of_part =
                |below| if record < below { CarriedPart::Judged } else { CarriedPart::Later };
            judged_below.map(of_part) == Some(part)
        };
        batch.spans.retain(|span| is_taken(span.trace_id));
        let trace_of = extract::trace_of_record;
        batch
            .log_records
            .retain(|record| trace_of(record).is_some_and(is_taken));
        self.take_each(batch, self.begin)
    }

    /// Called once everything that was carried has come for the first time. Closes the traces that
    /// were judged before `begin`.
    pub fn judge_carried(&mut self) {
        // Other replicas may have taken spans in the meantime.
        let since = if self.pipeline.has_peers { self.pipeline.memory_unix_nanos() } else { 0 };
        for (open, _) in self.carried.values_mut() {
            open.memory_unix_nanos = since.max(open.memory_unix_nanos);
            self.pipeline.buffer.restore_open(open);
        }
        self.apply_marks(self.begin);
    }

    /// Number of traces with marks that are not applied yet.
    pub fn n_marks(&self) -> usize {
        self.marks.len()
    }

    /// Takes in this partition's part of the next record, and returns how many spans and log
    /// records that is. Judges nothing.
    pub fn take(&mut self, batch: Batch, record: u64) -> usize {
        self.apply_marks(record);
        let n_items = self.take_each(batch, record);
        if n_items > 0 {
            self.pipeline.next_record = record + 1;
        }
        n_items
    }

    /// Closes the traces that were judged with the records below `record`.
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
        let n_items = own.spans.len() + own.log_records.len();
        self.pipeline.begin_record(record);
        self.pipeline.take(own, self.now);
        n_items
    }

    /// Ends the rebuilding: all records were replayed.
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

    /// Notes that a record of the journal is replayed next.
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
        closed.memo = mark.reported;
        self.buffer.remember(closed, now);
    }

    /// Begins the memory of traces at this time: the journal proves that every trace that began
    /// since is here in full, or was judged.
    pub fn restore_memory(&mut self, since_unix_nanos: u64) {
        self.buffer.set_memory(since_unix_nanos);
    }

    /// Marks the restored open traces as incomplete: spans of them may have been missed.
    pub fn mark_restored_incomplete(&mut self) {
        self.buffer.mark_all_unscored();
    }

    /// The open traces that need records before this one.
    pub fn open_below(&self, record: u64) -> Vec<OpenTrace> {
        self.buffer.open_below(record)
    }

    /// Notes that these traces need no records before this one.
    pub fn need_from(&mut self, trace_ids: impl IntoIterator<Item = TraceId>, record: u64) {
        self.buffer.need_from(trace_ids, record);
    }

    /// The oldest record of the journal that an open or remembered trace needs.
    pub fn oldest_record(&self) -> Option<u64> {
        self.buffer.oldest_record()
    }

    /// The oldest record that an open trace needs.
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
