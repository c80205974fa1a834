//! Groups spans into traces and closes each trace when it is done. Knows ids, parents, times
//! and the class of each span; knows nothing of how a tool call is spelled, nor of what is expected
//! of it. All timers run on arrival, never on span times.

mod partition;
mod settings;

mod buffer;

mod buffered_trace;
mod resources;
mod shape;
mod trace_spans;
mod version;

pub mod accounts;
mod beginnings;
mod fifo_timers;
mod forgotten;
mod recent;
mod sessions;
mod shares;
mod slab;
mod timers;
mod torn;
mod trace_id_filter;
mod unscored;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use otlp::span::{LogRecord, PeerId, Span, TraceId};

pub use buffer::{OpenTrace, TraceBuffer};
pub use partition::Partition;
pub use sessions::{EarlierTurns, Sessions, Turn, TurnsSeen};
pub use settings::{Settings, Sizes};
pub use torn::TornServices;
pub use trace_id_filter::TraceIdFilter;

/// Why a trace was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseReason {
    /// A top span has ended, no local parent is missing, and no span has arrived for the settle
    /// time.
    RootEnded,
    /// Replay's end of input, without an ended root.
    NoRoot,
    /// No new span for `assemble.inactive`.
    Inactive,
    /// Open for `assemble.expired`.
    Expired,
    /// `assemble.span_limit` reached.
    SpanLimit,
    /// `assemble.size_limit` reached.
    SizeLimit,
    /// The budget of open traces was full.
    Evicted,
    /// The sidecar is stopping.
    Shutdown,
    /// Spans of it were forwarded unscored, it began before our memory of traces does, or the
    /// traces of its service arrive torn.
    Incomplete,
}

impl CloseReason {
    /// All reasons.
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

    /// The word in `spanscore.completeness`, in metrics and in the jsonl lines.
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
        }
    }

    /// Is a trace that was closed for this reason judged in full?
    fn is_in_full(self) -> bool {
        matches!(self, Self::RootEnded | Self::NoRoot | Self::Inactive)
    }
}

/// A closed trace: one version of each span, and why it was closed.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Its id.
    pub trace_id: TraceId,
    /// Why it was closed.
    pub reason: CloseReason,
    /// One version per span id, by start, then span id.
    pub spans: Vec<Span>,
    /// The log records that are held with the trace, by time, then record id.
    pub records: Vec<LogRecord>,
    /// Does a span name a parent that never arrived and is not marked remote?
    pub parent_missing: bool,
    /// Position of this trace by first arrival, counted from 0: the order of replay's lines.
    pub arrival: u64,
}

/// The outcome of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// It is part of a trace that has not been reported yet.
    Taken,
    /// This version of the span, or one that wins over it, was known: nothing has changed.
    Known,
    /// It is part of a trace that was reported before. If that was closed, it is open again, to
    /// settle.
    Late,
    /// Not taken: a limit has closed its trace.
    TooLate,
    /// Not taken: the other spans of its trace are forgotten, since the memory of closed traces was
    /// full. What it would change stays as it was reported.
    Forgotten,
}

/// The pipeline's memory of a trace: its reported results.
pub trait Memo: Default {
    /// Bytes on the heap.
    fn size(&self) -> usize;
}

/// A trace to judge. Judge it, put the reported results into `memo`, and hand it back with
/// [`TraceBuffer::remember`].
#[derive(Debug)]
#[must_use = "a trace that is not handed back is not remembered, and its late spans are lost"]
pub struct Closed<M> {
    /// The trace.
    pub trace: Trace,
    /// The memo of its last report; the default if there is none.
    pub memo: M,
    /// Is it reported for the first time?
    pub first: bool,
    /// Its sender; one that is nobody's where several peers sent spans of it.
    pub peer: PeerId,
    /// The service of a span whose parent went to another replica, if one surely did.
    torn_service: Option<Arc<str>>,
    /// A change of the replicas may have split it, which proves nothing about how traces arrive.
    may_be_split: bool,
    /// The first record of the journal that had spans of it.
    pub first_record: u64,
    /// The oldest record that it still needs.
    pub needed_from: u64,
    /// The rest of a closed trace; `None` if the trace is still open (expired).
    rest: Option<Box<buffered_trace::BufferedTrace<M>>>,
}

impl<M: Memo> Closed<M> {
    /// Counts the trace for its services, and takes its full verdict away if their traces arrive
    /// torn.
    pub fn check_torn(&mut self, torn: &mut TornServices) {
        let Some(buffered) = &self.rest else {
            return;
        };
        let spans = &buffered.spans;
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

/// How much the buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Open traces, without those that a limit closes and `close_due` has yet to hand out.
    pub n_open: usize,
    /// Bytes of the open traces.
    pub open_size: usize,
    /// Remembered traces.
    pub n_recent: usize,
    /// Remembered traces whose spans are still there.
    pub n_recent_whole: usize,
    /// Bytes of the remembered traces.
    pub recent_size: usize,
    /// Traces that are not open and of which spans were forwarded unscored.
    pub n_unscored: usize,
}

/// What was seen of torn traces: some of their spans reached this replica, the rest another.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TornTraces {
    /// Torn traces that were closed.
    pub n_traces: usize,
    /// Services whose traces have begun to arrive torn, or no longer do.
    pub changes: Vec<TornService>,
}

/// A service whose traces have begun to arrive torn, or no longer do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornService {
    /// Its name; empty for all services beyond the bound.
    pub service: Arc<str>,
    /// Do they arrive torn from now on?
    pub is_torn: bool,
    /// Torn traces among its latest closed ones.
    pub n_torn: usize,
    /// The latest closed ones that count.
    pub n_closed: usize,
}
