//! The timers and limits of the buffer, as the keys `assemble.*` set them.

use std::time::Duration;

use super::partition::Partition;

/// The bytes that traces may take, as they follow the memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// One trace, at most [`Settings::MAX_SIZE_LIMIT`].
    pub trace: usize,
    /// All open traces.
    pub open: usize,
    /// The recently closed traces.
    pub recent: usize,
}

/// The timers and limits of `assemble.*`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The traces that the buffer holds. The limits below are for all partitions together, and each
    /// has an equal part of them.
    pub partition: Partition,
    /// Keys the hashes by which services share the budget of open traces: with a random one, no
    /// service can choose a name that shares another's part.
    pub sender_key: u64,
    /// Quiet time after a top span has ended.
    pub settle: Duration,
    /// Longest time for which new spans can put off the settling. A longer `settle` still applies
    /// in full.
    pub max_settle: Duration,
    /// Quiet time after a top span with a remote parent has ended.
    pub settle_remote: Duration,
    /// Quiet time after which a trace without an ended root is closed.
    pub inactive: Duration,
    /// A trace is incomplete if one of its top spans began before our memory of traces and did not
    /// end at least this long before it. `None` turns the guard off.
    pub restart_guard: Option<Duration>,
    /// Time from a start, or a change of the replicas, until our memory of traces begins: until the
    /// router knows, traces that began elsewhere may still come here.
    pub warm_up: Duration,
    /// True if other replicas take a part of the traces.
    pub has_peers: bool,
    /// Time for which a trace can be open before its certain results are reported.
    pub expired: Duration,
    /// Most spans of one trace.
    pub span_limit: usize,
    /// Most bytes of one trace, up to [`Settings::MAX_SIZE_LIMIT`] and half of a partition's part
    /// of `max_open_size`.
    pub size_limit: usize,
    /// Most open traces; also most remembered ids of traces with unscored spans.
    pub max_open_traces: usize,
    /// Most bytes of all open traces.
    pub max_open_size: usize,
    /// Most recently closed traces remembered.
    pub max_recent_traces: usize,
    /// Most bytes of the recently closed traces.
    pub max_recent_size: usize,
    /// Time for which a closed trace is remembered.
    pub recent_ttl: Duration,
}

impl Settings {
    /// Upper bound of `size_limit`, 2 GiB: places among a trace's attributes are 32-bit numbers.
    pub const MAX_SIZE_LIMIT: usize = 2 << 30;

    /// The limits of one partition.
    pub(super) fn of_partition(mut self) -> Self {
        let n_partitions = self.partition.n_partitions();
        self.max_open_traces = self.max_open_traces.div_ceil(n_partitions);
        self.max_recent_traces = self.max_recent_traces.div_ceil(n_partitions);
        self.resize(Sizes {
            trace: self.size_limit,
            open: self.max_open_size,
            recent: self.max_recent_size,
        });
        self
    }

    /// Applies other sizes, which are for all partitions together.
    pub(super) fn resize(&mut self, sizes: Sizes) {
        let n_partitions = self.partition.n_partitions();
        self.max_open_size = sizes.open / n_partitions;
        self.max_recent_size = sizes.recent / n_partitions;
        let longest = Self::MAX_SIZE_LIMIT.min(self.max_open_size / 2);
        self.size_limit = sizes.trace.min(longest);
    }

    /// No timers, limits or guard: a trace closes at the end of input only (`replay`, `inspect`).
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
        }
    }
}
