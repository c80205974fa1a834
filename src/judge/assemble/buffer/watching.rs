//! The buffer's support for alarms: which open traces with watched calls have changed, and how often each
//! may be judged.

use otlp::span::TraceId;

use super::TraceBuffer;
use crate::assemble::{CloseReason, Memo, Trace};

/// Size in KiB of the copies of one open trace that may be judged in any case: a trace of usual
/// size is judged whenever one of its spans arrives.
const FREE: u32 = 4 << 10;

/// Size in KiB of the copies that may be judged in addition, for each KiB of the trace: a large
/// trace is judged again when it has grown by a third.
const EARNED: u32 = 4;

/// Judging by this number of criteria counts as judging one copy.
const CRITERIA_OF_A_READING: usize = 8;

/// An open trace that has changed.
pub enum ChangedTrace {
    /// A copy to judge.
    Judge(Box<Trace>),
    /// The trace must grow first.
    Postponed,
    /// There is nothing to judge: the trace is not open, was reported, or a limit closes it.
    Gone,
}

impl<M: Memo> TraceBuffer<M> {
    /// Starts or stops to collect the open traces that have changed.
    pub fn watch(&mut self, watches: bool) {
        self.watches = watches;
    }

    /// Returns the open traces with watched calls that have changed since the last call, in order of
    /// arrival.
    pub fn take_changed(&mut self) -> Vec<TraceId> {
        std::mem::take(&mut self.changed)
    }

    /// The memo of an open trace.
    pub fn open_memo(&self, trace_id: &TraceId) -> Option<&M> {
        let trace = self.open.get(*self.index.get(trace_id)?)?;
        Some(&trace.memo)
    }

    /// Changes the memo of an open trace.
    pub fn change_open_memo(&mut self, trace_id: &TraceId, change: impl FnOnce(&mut M)) {
        let slot = self.index.get(trace_id);
        let Some(trace) = slot.and_then(|slot| self.open.get_mut(*slot)) else {
            return;
        };
        let size_before = trace.size();
        change(&mut trace.memo);
        match trace.closing {
            Some(_) => self.closing_size = self.closing_size - size_before + trace.size(),
            None => self.shares.resize(trace.share, size_before, trace.size()),
        }
    }

    /// Returns a copy of an open trace that has changed, to be judged by `n_criteria`, unless the
    /// trace was judged so often that it must grow first.
    pub fn take_to_judge(&mut self, trace_id: &TraceId, n_criteria: usize) -> ChangedTrace {
        let slot = self.index.get(trace_id);
        let Some(trace) = slot.and_then(|slot| self.open.get_mut(*slot)) else {
            return ChangedTrace::Gone;
        };
        trace.has_changed = false;
        if trace.reported || trace.closing.is_some() || n_criteria == 0 {
            return ChangedTrace::Gone;
        }
        let cost =
            trace.spans.size().div_ceil(1 << 10) * n_criteria.div_ceil(CRITERIA_OF_A_READING);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let judged_kib = trace.judged_kib.saturating_add(cost);
        if judged_kib > cost.saturating_mul(EARNED).saturating_add(FREE) {
            return ChangedTrace::Postponed;
        }
        trace.judged_kib = judged_kib;
        let parent_missing = trace.spans.shape(&self.hasher).has_orphans();
        ChangedTrace::Judge(Box::new(trace.copy(CloseReason::Open, parent_missing)))
    }

    /// The records of an open trace: the first with spans of it, and the oldest that it needs.
    pub fn records_of(&self, trace_id: &TraceId) -> Option<(u64, u64)> {
        let trace = self.open.get(*self.index.get(trace_id)?)?;
        Some((trace.first_record, trace.needed_from))
    }
}
