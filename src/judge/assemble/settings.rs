//! The timers and limits of the buffer, as set by `assemble.*`.

use std::time::Duration;

use super::partition::Partition;

/// The size limits of traces and sessions, which follow the memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Maximum bytes of one trace, at most [`Settings::MAX_SIZE_LIMIT`].
    pub trace: usize,
    pub open: usize,
    pub recent: usize,
    pub sessions: usize,
}

/// The settings for criteria with `scope: session`, as set by `assemble.session`.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSettings {
    /// The time without a new turn after which a session has ended.
    pub inactive: Duration,
    /// True if all turns of each session reach this process.
    pub is_whole: bool,
    /// Maximum bytes of the turns of all sessions.
    pub max_size: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The buffer's partition of all traces. Limits on the sum of all traces or sessions apply to
    /// all partitions together; each partition gets an equal share.
    pub partition: Partition,
    /// The key of the hashes by which services share the budget of open traces. If it is random, no
    /// service can choose a name that collides with another's.
    pub sender_key: u64,
    /// The time without new spans, after a top span has ended, until the trace is done.
    pub settle: Duration,
    /// The maximum time for which new spans can delay the settling. A longer `settle` still applies
    /// in full.
    pub max_settle: Duration,
    /// Like `settle`, for a top span with a remote parent.
    pub settle_remote: Duration,
    /// The time without new spans after which a trace that is not done is closed.
    pub inactive: Duration,
    /// A trace is incomplete if one of its top spans began before the trace history and did not end
    /// at least this long before the history's start. `None` disables this check.
    pub restart_guard: Option<Duration>,
    /// The time from a start, or a change of the replicas, until the trace history starts. Until
    /// the router is up to date, spans of traces that began elsewhere may still arrive here.
    pub warm_up: Duration,
    /// True if other replicas receive some of the traces.
    pub has_peers: bool,
    /// The time after which an open trace is judged, and the results that are certain are reported.
    pub expired: Duration,
    /// Maximum number of spans of one trace.
    pub span_limit: usize,
    /// Maximum bytes of one trace, at most [`Settings::MAX_SIZE_LIMIT`] and half of a partition's
    /// share of `max_open_size`.
    pub size_limit: usize,
    /// Maximum number of open traces, and of remembered traces that had spans forwarded unscored.
    pub max_open_traces: usize,
    /// Maximum bytes of all open traces together.
    pub max_open_size: usize,
    /// Maximum number of remembered closed traces.
    pub max_recent_traces: usize,
    /// Maximum bytes of the remembered closed traces.
    pub max_recent_size: usize,
    /// The time for which a closed trace is remembered.
    pub recent_ttl: Duration,
    pub session: SessionSettings,
}

impl Settings {
    /// Maximum `size_limit`: 2 GiB, well within the 4 GiB that 32-bit offsets into a trace's
    /// attributes can address.
    pub const MAX_SIZE_LIMIT: usize = 2 << 30;

    pub(super) fn of_partition(mut self) -> Self {
        let n_partitions = self.partition.n_partitions();
        self.max_open_traces = self.max_open_traces.div_ceil(n_partitions);
        self.max_recent_traces = self.max_recent_traces.div_ceil(n_partitions);
        self.resize(Sizes {
            trace: self.size_limit,
            open: self.max_open_size,
            recent: self.max_recent_size,
            sessions: self.session.max_size,
        });
        self
    }

    /// Applies new sizes, except that of sessions, given for all partitions together.
    pub(super) fn resize(&mut self, sizes: Sizes) {
        let n_partitions = self.partition.n_partitions();
        self.max_open_size = sizes.open / n_partitions;
        self.max_recent_size = sizes.recent / n_partitions;
        let longest = Self::MAX_SIZE_LIMIT.min(self.max_open_size / 2);
        self.size_limit = sizes.trace.min(longest);
    }

    /// Returns settings without timers, without `restart_guard`, and without limits except
    /// [`Self::MAX_SIZE_LIMIT`]: traces close only at the end of the input (`replay`, `inspect`).
    pub fn replay() -> Self {
        Self {
            partition: Partition::WHOLE,
            sender_key: 0,
            settle: Duration::MAX,
            max_settle: Duration::MAX,
            settle_remote: Duration::MAX,
            inactive: Duration::MAX,
            restart_guard: None,
            warm_up: Duration::ZERO,
            has_peers: false,
            expired: Duration::MAX,
            span_limit: usize::MAX,
            size_limit: usize::MAX,
            max_open_traces: usize::MAX,
            max_open_size: usize::MAX,
            max_recent_traces: usize::MAX,
            max_recent_size: usize::MAX,
            recent_ttl: Duration::MAX,
            session: SessionSettings {
                inactive: Duration::MAX,
                is_whole: true,
                max_size: usize::MAX,
            },
        }
    }
}
