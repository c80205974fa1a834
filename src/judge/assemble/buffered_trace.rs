//! A trace in the buffer, open or recently closed: its spans, its reported results, and the reasons
//! why it may be incomplete.

use std::time::Duration;

use foldhash::fast::SeedableRandomState;
use otlp::span::{PeerId, TraceId};

use super::fifo_timers::Tick;
use super::shares::{BudgetShare, SEVERAL_PEERS, TraceSender};
use super::timers::Quiet;
use super::trace_spans::TraceSpans;
use super::{CloseReason, Closed, Memo, Settings, Trace};

#[derive(Debug)]
pub(super) struct BufferedTrace<M> {
    pub(super) trace_id: TraceId,
    pub(super) sender: TraceSender,
    /// True if several peers sent spans of the trace.
    pub(super) has_several_senders: bool,
    /// Valid only while the trace is open.
    pub(super) share: BudgetShare,
    pub(super) spans: TraceSpans,
    pub(super) memo: M,
    /// True if the trace has already been closed, or reported as expired.
    pub(super) reported: bool,
    /// True if spans of the trace were forwarded unscored, or if the trace may have been forgotten.
    pub(super) unscored: bool,
    /// The start of the trace history (Unix time) when the first span arrived, or after a later
    /// change of the replicas. If a span of the trace started earlier, the trace may have been
    /// judged before and forgotten.
    pub(super) memory_unix_nanos: u64,
    pub(super) opened: Tick,
    pub(super) arrival: u64,
    /// 0 without a journal.
    pub(super) first_record: u64,
    /// The kind of top span that may have ended, which decides the settle time; `None` if the trace
    /// does not settle.
    pub(super) quiet: Option<Quiet>,
    /// True if the settle time ended although the trace was not done. The trace is then evicted
    /// like an idle trace, so that a sender cannot force an examination of all spans with each new
    /// span.
    pub(super) settled_in_vain: bool,
    /// True if a call arrived that can raise an alarm, or if the rules have changed.
    pub(super) is_watched: bool,
    /// True if the trace has changed since it was last judged for alarms.
    pub(super) has_changed: bool,
    pub(super) judged_kib: u32,
    /// The reason for which the trace is being closed, whatever spans arrive.
    pub(super) closing: Option<CloseReason>,
}

impl<M: Memo> BufferedTrace<M> {
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.spans.size() + self.memo.size()
    }

    /// Returns the peer that the trace counts against once it is closed.
    pub(super) fn peer(&self) -> PeerId {
        if self.has_several_senders { SEVERAL_PEERS } else { self.sender.peer }
    }

    /// Moves the spans into a trace to be judged. The caller moves them back after judging.
    pub(super) fn lend(&mut self, reason: CloseReason, hasher: &SeedableRandomState) -> Trace {
        let spans = std::mem::take(&mut self.spans);
        self.trace(reason, spans, hasher)
    }

    pub(super) fn copy(&self, reason: CloseReason, hasher: &SeedableRandomState) -> Trace {
        self.trace(reason, self.spans.clone(), hasher)
    }

    /// Returns the reason of the trace, or `Incomplete` if the reason would allow full verdicts
    /// although spans may be missing.
    pub(super) fn seen_reason(&self, trace: &Trace, settings: &Settings) -> CloseReason {
        let reaches_back = |guard: Duration| {
            let spans = trace.spans.all_rows();
            trace
                .shape
                .reaches_back(spans, self.memory_unix_nanos, guard)
        };
        let may_lack_spans = || self.unscored || settings.restart_guard.is_some_and(reaches_back);
        if trace.reason.is_in_full() && may_lack_spans() {
            CloseReason::Incomplete
        } else {
            trace.reason
        }
    }

    /// Returns a copy, with the memo, of a trace that has expired but remains open.
    pub(super) fn expired(&mut self, hasher: &SeedableRandomState) -> Closed<M> {
        Closed {
            trace: self.copy(CloseReason::Expired, hasher),
            memo: std::mem::take(&mut self.memo),
            first: !std::mem::replace(&mut self.reported, true),
            peer: self.peer(),
            torn_service: None,
            may_be_split: false,
            first_record: self.first_record,
            rest: None,
        }
    }

    fn trace(
        &self,
        reason: CloseReason,
        mut spans: TraceSpans,
        hasher: &SeedableRandomState,
    ) -> Trace {
        spans.sort(hasher);
        let shape = spans.shape(hasher);
        let is_made_of_records = spans.is_made_of_records();
        Trace {
            trace_id: self.trace_id,
            reason,
            // The parent of a record that reports a call is always missing.
            parent_missing: is_made_of_records || shape.has_orphans(spans.all_rows()),
            arrival: self.arrival,
            spans,
            shape,
        }
    }
}
