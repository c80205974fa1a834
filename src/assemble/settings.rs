//! Pure. The timers and limits of `assemble.*`, as the buffer obeys them.

use std::time::Duration;

/// The timers and limits of `assemble.*`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Quiet time after a top span has ended.
    pub settle: Duration,
    /// Longest time that new spans can put off the settling; a quiet time that is longer by itself
    /// is waited for all the same.
    pub max_settle: Duration,
    /// Quiet time where the top span's parent is remote.
    pub settle_remote: Duration,
    /// Quiet time after which a trace without an ended root is closed.
    pub inactive: Duration,
    /// A top span that began before our memory of traces and ended later than this before it makes
    /// a trace incomplete; `None` turns the guard off.
    pub restart_guard: Option<Duration>,
    /// Longest time a trace stays open before what is certain is reported.
    pub expired: Duration,
    /// Most spans of one trace.
    pub span_limit: usize,
    /// Most bytes of kept facts of one trace, up to [`Settings::MAX_SIZE_LIMIT`].
    pub size_limit: usize,
    /// Most open traces; also the most ids of missed traces.
    pub max_open_traces: usize,
    /// Most bytes of all open traces.
    pub max_open_size: usize,
    /// Most recently closed traces remembered.
    pub max_recent_traces: usize,
    /// Most bytes of their facts.
    pub max_recent_size: usize,
    /// How long a closed trace is remembered.
    pub recent_ttl: Duration,
}

impl Settings {
    /// Whatever is set, no trace takes more than 2 GiB: places in its facts are numbers of 32 bits.
    pub const MAX_SIZE_LIMIT: usize = 2 << 30;

    /// No clock, no other limits, no guard: a trace closes at the end of input only (`replay`,
    /// `inspect`).
    pub fn replay() -> Self {
        Self {
            settle: Duration::MAX,
            max_settle: Duration::MAX,
            settle_remote: Duration::MAX,
            inactive: Duration::MAX,
            restart_guard: None,
            expired: Duration::MAX,
            span_limit: usize::MAX,
            size_limit: usize::MAX,
            max_open_traces: usize::MAX,
            max_open_size: usize::MAX,
            max_recent_traces: usize::MAX,
            max_recent_size: usize::MAX,
            recent_ttl: Duration::MAX,
        }
    }
}
