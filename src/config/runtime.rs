//! The `memory`, `reload`, `shutdown` and `log` sections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::units::{Amount, Duration};

/// The `memory` section.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Maximum memory of the process. `auto` is seven eighths of the cgroup's limit, but at least
    /// 16 MiB below it; without such a limit, 512 MiB.
    pub limit: Amount,
}

/// The `reload` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Reload {
    /// Interval at which the configuration files are checked; with 0, only SIGHUP or `POST
    /// /-/reload` reloads.
    pub interval: Duration,
    /// Behaviour of a start if the configuration has mistakes.
    pub at_start: AtStart,
}

/// Behaviour of a start if the configuration has mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AtStart {
    /// Refuse to start, and report every mistake.
    #[default]
    Refuse,
    /// Forward, judge by the valid criteria, and report the mistakes.
    Forward,
}

/// The `shutdown` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// Maximum time between SIGTERM and the exit. Then undelivered data is dropped, or stays in the
    /// journal.
    pub deadline: Duration,
    /// Time without a request after which a stop closes the listeners.
    pub quiet: Duration,
    /// Treatment of open traces at a stop.
    pub open_traces: AtStop,
    /// Exit with code 5 instead of 0 if not everything was delivered.
    pub exit_undelivered: bool,
}

/// Treatment of open traces at a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AtStop {
    /// Judge open traces as they are.
    #[default]
    Judge,
    /// Keep open traces in the journal; the next start with the same folder resumes them.
    Keep,
}

/// Levels of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Conditions that need attention.
    Warn,
    /// Starts, stops, changes of state.
    #[default]
    Info,
    /// Events of single traces.
    Debug,
    /// All events.
    Trace,
}

/// Formats of the log.
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

/// The `log` section.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Minimum level of logged events.
    pub level: LogLevel,
    /// The format.
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

/// A byte limit that changes with the memory limit: call [`Self::get`] at each use instead of
/// storing the number. Clones and shares change with it.
#[derive(Debug, Clone)]
pub struct Bound {
    bytes: Arc<AtomicUsize>,
    /// This value's number of shares, and the total number of equal shares.
    part: (usize, usize),
}

impl Bound {
    /// Returns the current number of bytes.
    pub fn get(&self) -> usize {
        let (n_own, n_shares) = self.part;
        self.bytes.load(Ordering::Relaxed) / n_shares * n_own
    }

    /// Returns one of `n` equal shares.
    pub fn share(&self, n: usize) -> Self {
        self.part(1, n.max(1))
    }

    /// Returns `n_own` of `n_shares` equal shares.
    pub fn part(&self, n_own: usize, n_shares: usize) -> Self {
        Self {
            bytes: Arc::clone(&self.bytes),
            part: (self.part.0 * n_own, self.part.1 * n_shares),
        }
    }
}

impl From<usize> for Bound {
    /// Creates a limit that never changes.
    fn from(bytes: usize) -> Self {
        Self {
            bytes: Arc::new(AtomicUsize::new(bytes)),
            part: (1, 1),
        }
    }
}

/// The division of `memory.limit`, in bytes; absolute settings override their share.
/// `Budgets<Bound>` are the limits of a running sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets<T = usize> {
    /// The total to divide.
    pub limit: T,
    /// 30 %: the forward queue; 10 % with a journal, which stores further requests. `kafka.write`
    /// halves this share, or makes it 0 if there is no downstream. 0 in a process that only reads a
    /// topic.
    pub forward_queue: T,
    /// The other half of the forward queue's share, or the whole share without a downstream:
    /// requests to write to Kafka, and the records made from them. 0 without `kafka.write`.
    pub kafka: T,
    /// 10 %: requests being received. 0 in a process that only reads a topic.
    pub in_flight: T,
    /// 20 %: open traces; 45 % in a process that only reads a topic.
    pub open: T,
    /// 10 %: recently closed traces; 15 % in a process that only reads a topic.
    pub recent: T,
    /// 10 %: queued scores; 20 % in a process that only reads a topic.
    pub scores: T,
    /// 10 %: spans in the scoring queue, or records that were read ahead from a topic.
    pub scoring_queue: T,
    /// 7.5 % and 1.5 MiB: connections of senders.
    pub connections: T,
    /// 2.5 % and 0.5 MiB: connections of the admin port.
    pub admin_connections: T,
    /// 5 %, at most 8 MiB, from the share of recently closed traces: judged runs for the page. 0
    /// without the page.
    pub page: T,
}

impl Budgets {
    /// Returns these numbers as limits that can change while they are used.
    pub fn bounds(&self) -> Budgets<Bound> {
        self.map(|bytes| Bound::from(*bytes))
    }
}

impl Budgets<Bound> {
    /// Changes the limits in all clones and shares.
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
    /// Maps each number, in the order of the fields.
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

/// The limit in bytes if neither the configuration nor a cgroup sets one.
const DEFAULT_LIMIT: usize = 512 << 20;

/// Bytes that are not divided: 22 MiB for the idle process and [`LEAST_CONNECTIONS`] for a few
/// connections.
pub(super) const OWN_USE: usize = 24 << 20;

/// The part of [`OWN_USE`] for connections, in bytes, so that some connections fit under a small
/// limit.
pub(super) const LEAST_CONNECTIONS: usize = 2 << 20;

/// Divisor of a cgroup's limit: an eighth stays unused. A process that reaches the limit is killed,
/// and the limit also covers sockets, page tables and memory that the allocator has not returned.
/// Without this reserve, an overload with a fast backend needed 121 of 128 MiB.
const KERNELS_SHARE: usize = 8;

/// Minimum unused bytes of a cgroup's limit: memory that the allocator has not returned does not
/// shrink with the limit (`benches/sidecar/saturation.rs`).
const LEAST_UNUSED: usize = 16 << 20;

/// Default maximum of `admin.page.max_size` in bytes.
const MAX_PAGE: usize = 8 << 20;

/// Minimum bytes to divide, however small the limit is.
const LEAST_SHARED: usize = 8 << 20;

impl Config {
    /// Divides the memory. `cgroup_limit` is the limit of the cgroup (v1 or v2), `None` without
    /// one.
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
        // With a journal, the remaining 20 % are for the page cache, which the cgroup counts, too.
        let forward_share = if self.journal.directory.is_some() { 10 } else { 30 };
        // A process that only judges a Kafka topic receives no requests, so traces get most of its
        // memory.
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
