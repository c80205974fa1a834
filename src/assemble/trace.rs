//! Pure. One trace as the buffer holds it, open or closed: its spans, what was reported of it, and
//! what is known against it.

use super::spans::Spans;
use super::timers::Quiet;
use super::{CloseReason, Mark, Memo, Settings, Trace};
use crate::span::{Span, TraceId};

/// A trace that is held: open, or recently closed.
#[derive(Debug)]
pub(super) struct Held<M> {
    pub(super) trace_id: TraceId,
    pub(super) spans: Spans,
    /// What the pipeline remembers with it.
    pub(super) memo: M,
    /// Was it closed, or reported as expired, before?
    pub(super) reported: bool,
    /// Spans of it went by unread.
    pub(super) missed: bool,
    /// Where our memory of traces began when its first span came: what was forgotten later cannot
    /// have been part of it.
    pub(super) memory_unix_nanos: u64,
    pub(super) arrival: u64,
    /// What it settles for, as its timers know it.
    pub(super) quiet: Option<Quiet>,
    /// Set by a limit: nothing can keep it open.
    pub(super) condemned: Option<CloseReason>,
}

impl<M: Memo> Held<M> {
    /// Bytes it holds on to.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.spans.size() + self.memo.size()
    }

    /// The reason to report. What would be judged in full is not, where something is missing.
    pub(super) fn reason(&mut self, reason: CloseReason, settings: &Settings) -> CloseReason {
        let in_full = matches!(
            reason,
            CloseReason::RootEnded | CloseReason::NoRoot | CloseReason::Inactive
        );
        let guard = settings.restart_guard;
        if in_full
            && (self.missed
                || guard
                    .is_some_and(|guard| self.spans.reaches_back(self.memory_unix_nanos, guard)))
        {
            CloseReason::Incomplete
        } else {
            reason
        }
    }

    /// The trace, with its facts lent: see `take_back`.
    pub(super) fn lend(&mut self, reason: CloseReason) -> Trace {
        let spans = self.spans.lend(self.trace_id);
        self.trace(reason, spans)
    }

    /// The trace, with copies of its facts.
    pub(super) fn copy(&self, reason: CloseReason) -> Trace {
        let spans = self.spans.copy(self.trace_id);
        self.trace(reason, spans)
    }

    /// Take back what was lent.
    pub(super) fn take_back(&mut self, trace: Trace) {
        drop(trace);
        self.spans.take_back();
    }

    fn trace(&self, reason: CloseReason, mut spans: Vec<(Span, Mark)>) -> Trace {
        let records = spans.split_off(spans.partition_point(|(_, mark)| !mark.record));
        Trace {
            trace_id: self.trace_id,
            reason,
            spans,
            records,
            parent_missing: self.spans.parent_missing(),
            arrival: self.arrival,
        }
    }
}
