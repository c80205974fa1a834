//! The `memory`, `reload`, `shutdown` and `log` sections: how the process behaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::units::{Amount, Duration};

/// `memory`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// All the memory we may use; `auto` is seven eighths of the cgroup's limit, but at
    /// least 16 MiB below it; without a cgroup 512 MiB.
    pub limit: Amount,
}

/// `reload`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Reload {
    /// Time between two looks at the configuration files; 0 waits for SIGHUP or `POST /-/reload`.
    pub interval: Duration,
    /// Reaction of a start to a configuration that has mistakes.
    pub at_start: AtStart,
}

/// Reaction of a start to a configuration that has mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AtStart {
    /// Refuses the start, with every mistake.
    #[default]
    Refuse,
    /// Forwards, judges by the criteria that can be used, and reports the rest.
    Forward,
}

/// `shutdown`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// Longest time to take after SIGTERM.
    pub deadline: Duration,
    /// Quiet time after which the listeners close.
    pub quiet: Duration,
    /// Treatment of open traces.
    pub open_traces: AtStop,
    /// Exit with code 5 instead of 0 if not everything was delivered.
    pub exit_undelivered: bool,
}

/// Treatment of open traces at a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AtStop {
    /// Judges them as they are.
    #[default]
    Judge,
    /// Keeps them in the journal; the next start on the folder resumes them.
    Keep,
}

/// Levels of our own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// Conditions that need attention.
    Warn,
    /// Starts, stops, changes of state.
    #[default]
    Info,
    /// Events of single traces.
    Debug,
    /// Everything.
    Trace,
}

/// Forms of our own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    /// Text.
    Text,
    /// JSON lines.
    Json,
}

/// `log`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Level.
    pub level: LogLevel,
    /// Form.
    pub format: LogFormat,
}

impl Default for Reload {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            at_start: AtStart::Refuse,
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(20),
            quiet: Duration::from_secs(1),
            open_traces: AtStop::Judge,
            exit_undelivered: false,
        }
    }
}

/// A number of bytes that its users read whenever they need it, since it follows the memory limit.
/// Clones, and shares of it, follow together.
#[derive(Debug, Clone)]
pub struct Bound {
    bytes: Arc<AtomicUsize>,
    /// The part: how many, and of how many equal shares.
    part: (usize, usize),
}

impl Bound {
    /// The bytes now.
    pub fn get(&self) -> usize {
        let (n_own, n_shares) = self.part;
        self.bytes.load(Ordering::Relaxed) / n_shares * n_own
    }

    /// One of `n` equal shares of it.
    pub fn share(&self, n: usize) -> Self {
        self.part(1, n.max(1))
    }

    /// This many of `n_shares` equal shares of it.
    pub fn part(&self, n_own: usize, n_shares: usize) -> Self {
        Self {
            bytes: Arc::clone(&self.bytes),
            part: (self.part.0 * n_own, self.part.1 * n_shares),
        }
    }
}

impl From<usize> for Bound {
    /// A number that never changes.
    fn from(bytes: usize) -> Self {
        Self {
            bytes: Arc::new(AtomicUsize::new(bytes)),
            part: (1, 1),
        }
    }
}

/// `memory.limit` shared out, in bytes; absolute settings override their share. As
/// `Budgets<Bound>`, what the parts of a running sidecar hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets<T = usize> {
    /// The total that is shared out.
    pub limit: T,
    /// 30 %: the forward queue; 10 % where a journal keeps what does not fit. None where nothing is
    /// received.
    pub forward_queue: T,
    /// Half of the forward queue's share, or all of it without a downstream: requests to be written
    /// to Kafka, and their records. 0 if none are written.
    pub kafka: T,
    /// 10 %: requests being received. None in a judge of a topic that writes none.
    pub in_flight: T,
    /// 20 %: open traces; 45 % in a judge that only reads.
    pub open: T,
    /// 10 %: recently closed traces; 15 % in a judge that only reads.
    pub recent: T,
    /// 10 %: scores to be sent; 20 % in a judge that only reads.
    pub scores: T,
    /// 10 %: spans waiting to be scored, or records that were read ahead.
    pub scoring_queue: T,
    /// 7.5 % and 1.5 MiB: connections of senders.
    pub connections: T,
    /// 2.5 % and 0.5 MiB: connections of the admin port.
    pub admin_connections: T,
    /// 5 %, at most 8 MiB, out of the share of recently closed traces: judged runs that the page
    /// remembers. 0 without the page.
    pub page: T,
}

impl Budgets {
    /// These numbers as bounds, to be changed while they are used.
    pub fn bounds(&self) -> Budgets<Bound> {
        self.map(|bytes| Bound::from(*bytes))
    }
}

impl Budgets<Bound> {
    /// Sets new numbers, for all users at once.
    pub fn set(&self, budgets: &Budgets) {
        let mut now = Vec::new();
        budgets.map(|bytes| now.push(*bytes));
        let mut now = now.into_iter();
        self.map(|bound| {
            now.next()
                .map(|now| bound.bytes.store(now, Ordering::Relaxed))
        });
    }
}

impl<T> Budgets<T> {
    /// Maps each number, in the order in which they stand here.
    fn map<U>(&self, mut of: impl FnMut(&T) -> U) -> Budgets<U> {
        Budgets {
            limit: of(&self.limit),
            forward_queue: of(&self.forward_queue),
            kafka: of(&self.kafka),
            in_flight: of(&self.in_flight),
            open: of(&self.open),
            recent: of(&self.recent),
            scores: of(&self.scores),
            scoring_queue: of(&self.scoring_queue),
            connections: of(&self.connections),
            admin_connections: of(&self.admin_connections),
            page: of(&self.page),
        }
    }
}

/// The limit where neither the configuration nor a cgroup sets one.
const DEFAULT_LIMIT: usize = 512 << 20;

/// The memory of the process itself, before any telemetry, and for a few connections.
pub(super) const OWN_USE: usize = 24 << 20;

/// Of [`OWN_USE`]: for connections, so that a small limit has room for some.
pub(super) const LEAST_CONNECTIONS: usize = 2 << 20;

/// An eighth of a cgroup's limit is left unused: a process that reaches the limit is killed, and
/// sockets, page tables and memory that the allocator has not given back count too. Without this
/// reserve, an overload before a fast backend took 121 of 128 MiB for our own memory.
const KERNELS_SHARE: usize = 8;

/// The least of a cgroup's limit that is left unused: what the allocator has not given back does
/// not shrink with the limit (`benches/sidecar/saturation.rs`).
const LEAST_UNUSED: usize = 16 << 20;

/// Most bytes of judged runs that the page remembers, unless `admin.page.max_size` says otherwise.
const MAX_PAGE: usize = 8 << 20;

/// The least that is shared out, however small the limit is.
const LEAST_SHARED: usize = 8 << 20;

impl Config {
    /// Shares the memory out. `cgroup_limit` is the limit that the shell read from the cgroup (v1
    /// or v2), `None` without one.
    pub fn budgets(&self, cgroup_limit: Option<usize>) -> Budgets {
        let unused = |limit: usize| (limit / KERNELS_SHARE).max(LEAST_UNUSED);
        let of_cgroup = cgroup_limit.map(|limit| limit.saturating_sub(unused(limit)));
        let limit = self
            .memory
            .limit
            .or(of_cgroup.unwrap_or(DEFAULT_LIMIT))
            .saturating_sub(OWN_USE)
            .max(LEAST_SHARED);
        let percent = |share: usize| limit / 100 * share;
        let page = if self.admin.page.enabled { percent(5).min(MAX_PAGE) } else { 0 };
        let connections = percent(10) + LEAST_CONNECTIONS;
        // The rest is left to the page cache, which the cgroup counts.
        let forward_share = if self.journal.directory.is_some() { 10 } else { 30 };
        // A judge of a topic receives nothing, and has the most of its memory for traces.
        let (in_flight, open, recent, scores) =
            if self.kafka.only_reads() { (0, 45, 15, 20) } else { (10, 20, 10, 10) };
        let (forward, kafka) = match (self.kafka.write.enabled, &self.forward.endpoint) {
            (false, _) if self.kafka.only_reads() => (0, 0),
            (false, _) => (percent(forward_share), 0),
            (true, Some(_)) => (percent(forward_share) / 2, percent(forward_share) / 2),
            (true, None) => (0, percent(forward_share)),
        };
        Budgets {
            limit,
            forward_queue: self.forward.queue.max_size.or(forward),
            kafka: if self.kafka.write.enabled {
                self.kafka.write.queue.max_size.or(kafka)
            } else {
                0
            },
            in_flight: self.receivers.otlp.max_in_flight.or(percent(in_flight)),
            open: self.assemble.open.max_size.or(percent(open)),
            recent: self.assemble.recent.max_size.or(percent(recent) - page),
            scores: self.scores.queue.max_size.or(percent(scores)),
            scoring_queue: self.scoring.queue.or(percent(10)),
            connections: connections / 4 * 3,
            admin_connections: connections / 4,
            page: if self.admin.page.enabled { self.admin.page.max_size.or(page) } else { 0 },
        }
    }
}
