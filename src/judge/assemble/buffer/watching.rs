//! The buffer's support for alarms: which open traces with watched calls have changed, and how
//! often each may be judged.

use otlp::span::{Now, TraceId};

use super::TraceBuffer;
use crate::assemble::{CloseReason, Memo, Trace};

/// KiB of copies that each open trace may cost in any case. `EARNED` allows more; beyond both, the
/// trace must wait.
const FREE: u32 = 4 << 10;

/// Additional KiB of copies for each KiB that the next copy costs. If a trace is judged whenever it
/// has grown by a third, its copies total four times its size, so it never waits.
const EARNED: u32 = 4;

/// Judging a copy costs its size once for each group of up to this many criteria.
const CRITERIA_OF_A_READING: usize = 8;

/// An open trace that has changed since it was last judged.
#[derive(Debug, Clone, Copy)]
pub struct ChangedTrace {
    pub trace_id: TraceId,
    /// The arrival of the first change, or the time at which the rules changed, in Unix
    /// nanoseconds.
    pub unix_nanos: u64,
}

pub enum OpenCopy {
    /// A copy, and the cost of its judgement in KiB.
    Judge(Box<Trace>, u32),
    /// The trace was judged so often that it must wait.
    Postponed,
    /// The trace is closed or being closed, or it was reported, or no criterion can raise another
    /// alarm.
    Gone,
}

impl<M: Memo> TraceBuffer<M> {
    /// Starts or stops collecting the open traces that have changed; with `all`, also traces
    /// without watched calls.
    pub fn watch(&mut self, watches: bool, all: bool) {
        (self.watches, self.watches_all) = (watches, watches && all);
    }

    /// Returns and clears the list of changed traces, in the order of their first changes.
    pub fn take_changed(&mut self) -> Vec<ChangedTrace> {
        std::mem::take(&mut self.changed)
    }

    /// Watches all open traces, and returns those that did not already count as changed.
    pub fn watch_open(&mut self, now: Now) -> Vec<ChangedTrace> {
        let mut changed = Vec::new();
        for trace in self.open.values_mut() {
            trace.is_watched = true;
            if !std::mem::replace(&mut trace.has_changed, true) {
                changed.push(ChangedTrace {
                    trace_id: trace.trace_id,
                    unix_nanos: now.unix_nanos,
                });
            }
        }
        changed
    }

    /// Returns the memo of an open trace that was not reported and is not being closed.
    pub fn unreported_memo(&self, trace_id: &TraceId) -> Option<&M> {
        let trace = self.open.get(*self.index.get(trace_id)?)?;
        (!trace.reported && trace.closing.is_none()).then_some(&trace.memo)
    }

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

    /// Returns a copy of an open trace, for judgement by `n_criteria`. With `is_due`, returns the
    /// copy however often the trace was judged.
    pub fn copy_open(&mut self, trace_id: &TraceId, n_criteria: usize, is_due: bool) -> OpenCopy {
        let slot = self.index.get(trace_id);
        let Some(trace) = slot.and_then(|slot| self.open.get_mut(*slot)) else {
            return OpenCopy::Gone;
        };
        if trace.reported || trace.closing.is_some() || n_criteria == 0 {
            trace.has_changed = false;
            return OpenCopy::Gone;
        }
        let cost =
            trace.spans.size().div_ceil(1 << 10) * n_criteria.div_ceil(CRITERIA_OF_A_READING);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let judged_kib = trace.judged_kib.saturating_add(cost);
        if judged_kib > cost.saturating_mul(EARNED).saturating_add(FREE) && !is_due {
            return OpenCopy::Postponed;
        }
        trace.has_changed = false;
        trace.judged_kib = judged_kib;
        OpenCopy::Judge(Box::new(trace.copy(CloseReason::Open, &self.hasher)), cost)
    }

    pub fn first_record_of(&self, trace_id: &TraceId) -> Option<u64> {
        Some(self.open.get(*self.index.get(trace_id)?)?.first_record)
    }
}
