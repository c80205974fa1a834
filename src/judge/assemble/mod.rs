//! Groups spans into traces and closes each trace when it is done. The time at which a trace closes
//! depends on the ids, parents, times and classes of its spans, and on limits, but not on
//! attributes or criteria. All timers use the times at which spans arrive, never the times in
//! spans.

mod partition;
mod settings;

mod buffer;

mod buffered_trace;
mod resources;
mod shape;
mod trace_spans;

pub mod accounts;
pub(crate) mod beginnings;
pub(crate) mod fifo_timers;
pub(crate) mod forgotten;
mod recent;
mod sessions;
pub(crate) mod shares;
pub(crate) mod slab;
pub(crate) mod timers;
mod torn;
mod trace_id_filter;
mod unscored;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use otlp::span::{PeerId, TraceId};

pub use buffer::{ChangedTrace, OpenCopy, TraceBuffer};
pub use partition::Partition;
pub use sessions::{EarlierTurns, Sessions, Turn, TurnsSeen};
pub use settings::{SessionSettings, Settings, Sizes};
pub use shape::TraceShape;
pub use torn::TornServices;
pub use trace_id_filter::TraceIdFilter;
pub use trace_spans::TraceSpans;

/// The reason why a trace or a session was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseReason {
    /// A top span has ended, no top span is open, and no local parent is missing. The settle time
    /// is over, or the trace had to close earlier.
    RootEnded,
    /// Replay reached the end of its input before the trace was done.
    NoRoot,
    /// No new span arrived for `assemble.inactive`.
    Inactive,
    /// The trace was open for `assemble.expired`.
    Expired,
    /// The trace reached `assemble.span_limit`.
    SpanLimit,
    /// The trace reached `assemble.size_limit`.
    SizeLimit,
    /// The budget of open traces, or of sessions, was full.
    Evicted,
    /// The sidecar is stopping.
    Shutdown,
    /// Spans of the trace were forwarded unscored, the trace began before the trace history, traces
    /// of its service arrive torn (split between replicas), or the session lacks spans.
    Incomplete,
    /// The trace or the session is still open; used for alarms.
    Open,
    /// No turn of the session was missed. No turn closed for `assemble.session.inactive`, or the
    /// input has ended.
    Silent,
    /// The session may have begun before the first turn that was seen.
    StartUnseen,
    /// The process may not receive all turns of the session: `assemble.session.whole` is not set.
    NotWhole,
}

impl CloseReason {
    /// All reasons for which a trace is closed, without the reasons of alarms and sessions.
    pub const ALL: [Self; 9] = [
        Self::RootEnded,
        Self::NoRoot,
        Self::Inactive,
        Self::Expired,
        Self::SpanLimit,
        Self::SizeLimit,
        Self::Evicted,
        Self::Shutdown,
        Self::Incomplete,
    ];

    /// Returns the value of `spanscore.completeness`, which metrics and jsonl lines also use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RootEnded => "root_ended",
            Self::NoRoot => "no_root",
            Self::Inactive => "inactive",
            Self::Expired => "expired",
            Self::SpanLimit => "span_limit",
            Self::SizeLimit => "size_limit",
            Self::Evicted => "evicted",
            Self::Shutdown => "shutdown",
            Self::Incomplete => "incomplete",
            Self::Open => "open",
            Self::Silent => "silent",
            Self::StartUnseen => "start_unseen",
            Self::NotWhole => "not_whole",
        }
    }

    /// Returns true if a trace closed for this reason gets full verdicts.
    fn is_in_full(self) -> bool {
        matches!(self, Self::RootEnded | Self::NoRoot | Self::Inactive)
    }
}

/// A closed trace, or a copy of an open one, with one version of each span.
#[derive(Debug, Clone)]
pub struct Trace {
    pub trace_id: TraceId,
    pub reason: CloseReason,
    pub spans: TraceSpans,
    pub shape: TraceShape,
    /// True if a span names a parent that never arrived and is not marked remote, or if the trace
    /// consists of log records that report calls.
    pub parent_missing: bool,
    /// The index of the trace in the order of first arrival, which is the order of replay's lines.
    pub arrival: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// The span is part of a trace that has not been reported.
    Taken,
    /// An equal or winning version of the span was known, so nothing changed.
    Known,
    /// The span is part of a trace that was reported before. If the trace was closed, it is
    /// reopened until it settles again.
    Late,
    /// The span was dropped, because a limit has closed its trace or left no memory for it, or
    /// because the trace's other spans are gone.
    TooLate,
    /// The span was dropped, because the other spans of its trace were forgotten when the memory
    /// for closed traces was full. The reported results are not revised.
    Forgotten,
}

/// The pipeline's memo of a trace: its reported results.
pub trait Memo: Default {
    fn size(&self) -> usize;
}

/// A trace to judge. Judge it, store the reported results in `memo`, and return it with
/// [`TraceBuffer::remember`].
#[derive(Debug)]
#[must_use = "a trace that is not handed back is not remembered, and its late spans are lost"]
pub struct Closed<M> {
    pub trace: Trace,
    /// The memo of the last report, or the default.
    pub memo: M,
    pub first: bool,
    /// The trace's sender; an anonymous peer if several peers sent spans.
    pub peer: PeerId,
    /// The service of a span whose parent certainly exists and has not arrived.
    torn_service: Option<Arc<str>>,
    /// True if a start or a change of the replicas may have split the trace. Then the trace is no
    /// evidence that traces of its service arrive torn.
    may_be_split: bool,
    /// The first journal record with spans of the trace.
    pub first_record: u64,
    /// The remaining state of a closed trace; `None` for an expired trace, which is still open.
    rest: Option<Box<buffered_trace::BufferedTrace<M>>>,
}

impl<M: Memo> Closed<M> {
    /// Counts the trace for its services, and marks it incomplete if their traces arrive torn.
    pub fn check_torn(&mut self, torn: &mut TornServices) {
        if self.rest.is_none() {
            return;
        }
        let spans = &self.trace.spans;
        if self.first && !self.may_be_split {
            let torn_service = self.torn_service.as_deref();
            for service in spans.services() {
                torn.note(service, torn_service == Some(service));
            }
        }
        if self.trace.reason.is_in_full() && spans.services().any(|it| torn.is_torn(it)) {
            self.trace.reason = CloseReason::Incomplete;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Open traces, except those that are being closed.
    pub n_open: usize,
    /// Bytes of the traces that `n_open` counts.
    pub open_size: usize,
    pub n_recent: usize,
    /// Remembered traces whose spans are still stored.
    pub n_recent_whole: usize,
    pub recent_size: usize,
    /// Traces that are not open and had spans forwarded unscored, without those beyond the limit.
    pub n_unscored: usize,
}

/// Observations of torn traces: some of their spans reached this replica, the rest reached another
/// one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TornTraces {
    pub n_traces: usize,
    pub changes: Vec<TornService>,
}

/// A service whose traces have begun or ceased to arrive torn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornService {
    /// The name; empty for all services beyond the limit.
    pub service: Arc<str>,
    pub is_torn: bool,
    /// The number of torn traces among the service's latest closed traces.
    pub n_torn: usize,
    /// The number of latest closed traces that were considered.
    pub n_closed: usize,
}
