//! Pure. Spans in, closed traces out. Knows ids, parents, times and the marks it is handed with each span; knows nothing
//! of how a tool call is spelled, nor of what is expected of it. All timers run on arrival, never on span times.

mod recent;
mod trace;

use std::time::Duration;

use crate::span::{Span, TraceId};

/// What `extract` recognised a span as, handed in with the span because telling a top span needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// A tool call by any convention (also an MCP server's span).
    pub tool_call: bool,
    /// An agent run.
    pub agent_run: bool,
    /// A model call.
    pub model: bool,
    /// A framework's mark of a span exported before its end (`judgment.update_id=0` with end = start).
    pub partial: bool,
    /// The framework's update counter, 0 where there is none: of two versions with the same end the higher one wins.
    pub update: u64,
}

/// Why a trace was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseReason {
    /// A top span has ended, no local parent is missing, and it has been quiet for the settle time.
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
    /// The sidecar was told to stop.
    Shutdown,
    /// Spans of it were forwarded unscored, or it began before our memory does.
    Incomplete,
}

impl CloseReason {
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
}

/// A closed trace: one version of each span, and why it was closed.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Its id.
    pub trace_id: TraceId,
    /// Why it was closed.
    pub reason: CloseReason,
    /// One entry per span id, by start, then span id; the mark is the one handed in with the version that won.
    pub spans: Vec<(Span, Mark)>,
    /// Does some span name a parent that never came and is not marked remote?
    pub parent_missing: bool,
    /// Position of this trace by first arrival, counted from 0: what replay orders its lines by.
    pub arrival: u64,
}

/// The timers and limits of `assemble.*`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Quiet time after a top span has ended.
    pub settle: Duration,
    /// Longest time that new spans can put off the settling.
    pub max_settle: Duration,
    /// Quiet time where the top span's parent is remote.
    pub settle_remote: Duration,
    /// Quiet time after which a trace without an ended root is closed.
    pub inactive: Duration,
    /// A top span that began before our memory of traces and ended later than this before it makes a trace incomplete.
    pub restart_guard: Option<Duration>,
    /// Longest time a trace stays open.
    pub expired: Duration,
    /// Most spans of one trace.
    pub span_limit: usize,
    /// Most bytes of kept facts of one trace.
    pub size_limit: usize,
    /// Most open traces.
    pub max_open_traces: usize,
    /// Most bytes of all open traces.
    pub max_open_size: usize,
    /// Most recently closed traces remembered.
    pub max_recent_traces: usize,
    /// Most bytes of them.
    pub max_recent_size: usize,
    /// How long a closed trace is remembered.
    pub recent_ttl: Duration,
}
