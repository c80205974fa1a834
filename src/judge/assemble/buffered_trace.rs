//! One trace in the buffer, open or recently closed: its spans, what was reported, and why it
//! may be incomplete.

use otlp::span::TraceId;

use super::fifo_timers::Tick;
use super::shape::TraceShape;
use super::shares::{BudgetShare, TraceSender};
use super::timers::Quiet;
use super::trace_spans::{TraceItems, TraceSpans};
use super::{CloseReason, Memo, Settings, Trace};

/// A trace in the buffer: open, or recently closed.
#[derive(Debug)]
pub(super) struct BufferedTrace<M> {
    pub(super) trace_id: TraceId,
    /// The sender of its first span.
    pub(super) sender: TraceSender,
    /// Did another peer send spans of it, too?
    pub(super) has_several_senders: bool,
    /// The share that it counts against while it is open.
    pub(super) share: BudgetShare,
    pub(super) spans: TraceSpans,
    /// The pipeline's memory of the trace.
    pub(super) memo: M,
    /// Was it closed, or reported as expired, before?
    pub(super) reported: bool,
    /// Were spans of it forwarded unscored, or may it have been forgotten?
    pub(super) unscored: bool,
    /// Unix time at which our memory of traces began when its first span arrived: what was
    /// forgotten later cannot have been part of this trace.
    pub(super) memory_unix_nanos: u64,
    /// When its first span arrived.
    pub(super) opened: Tick,
    pub(super) arrival: u64,
    /// The first record of the journal that had spans of it; 0 without a journal.
    pub(super) first_record: u64,
    /// What earlier records had of it is in later ones again, or given up.
    pub(super) needed_from: u64,
    /// The kind of its end that its timers wait for.
    pub(super) quiet: Option<Quiet>,
    /// Has it settled before without being done? It then gives way like an idle one, so that no
    /// sender has its spans looked at again with each new one.
    pub(super) settled_in_vain: bool,
    /// Set by a limit: nothing can keep the trace open.
    pub(super) closing: Option<CloseReason>,
}

impl<M: Memo> BufferedTrace<M> {
    /// Bytes of this trace.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.spans.size() + self.memo.size()
    }

    /// Whose share of the closed traces it counts against.
    pub(super) fn closed_sender(&self) -> TraceSender {
        if self.has_several_senders { TraceSender::SEVERAL } else { self.sender }
    }

    /// The reason to report: `Incomplete` where a trace would be judged in full although spans may
    /// be missing.
    pub(super) fn reason(
        &self,
        reason: CloseReason,
        shape: Option<&TraceShape<'_>>,
        settings: &Settings,
    ) -> CloseReason {
        let reaches_back = || {
            let guarded = settings.restart_guard.zip(shape);
            guarded.is_some_and(|(guard, shape)| shape.reaches_back(self.memory_unix_nanos, guard))
        };
        let may_lack_spans = || self.unscored || reaches_back();
        if reason.is_in_full() && may_lack_spans() {
            CloseReason::Incomplete
        } else {
            reason
        }
    }

    /// The trace to judge, which borrows the kept attributes until [`Self::take_back`].
    pub(super) fn lend(&mut self, reason: CloseReason, parent_missing: bool) -> Trace {
        let items = self.spans.lend(self.trace_id);
        self.trace(reason, parent_missing, items)
    }

    /// The trace to judge, with copies of the kept attributes.
    pub(super) fn copy(&self, reason: CloseReason, parent_missing: bool) -> Trace {
        let items = self.spans.copy(self.trace_id);
        self.trace(reason, parent_missing, items)
    }

    /// Takes back the attributes that [`Self::lend`] lent.
    pub(super) fn take_back(&mut self, trace: Trace) {
        drop(trace);
        self.spans.take_back();
    }

    fn trace(&self, reason: CloseReason, parent_missing: bool, items: TraceItems) -> Trace {
        let TraceItems { spans, records } = items;
        Trace {
            trace_id: self.trace_id,
            reason,
            spans,
            records,
            parent_missing,
            arrival: self.arrival,
        }
    }
}
