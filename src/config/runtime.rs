//! Text in, how the process behaves out: `memory`, `reload`, `shutdown` and `log`. Knows the keys,
//! the defaults and how memory is shared out; does not know what the shares are spent on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::units::{Amount, Duration};

/// `memory`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// All the memory we may use; `auto` is seven eighths of the cgroup's limit, else 512 MiB.
    pub limit: Amount,
}

/// `reload`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Reload {
    /// How often configuration files are looked at; 0 waits for SIGHUP or `POST /-/reload`.
    pub interval: Duration,
}

/// `shutdown`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// Longest time to take after SIGTERM.
    pub deadline: Duration,
    /// Quiet time after which the doors close.
    pub quiet: Duration,
}

/// Levels of our own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only what is broken.
    Error,
    /// What needs a look.
    Warn,
    /// Starts, stops, changes of state.
    #[default]
    Info,
    /// What each trace did.
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
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(20),
            quiet: Duration::from_secs(1),
        }
    }
}

/// `memory.limit` shared out, in bytes; absolute settings override their share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// What all shares are shares of.
    pub limit: usize,
    /// 30 %: the forward queue.
    pub forward_queue: usize,
    /// 10 %: requests being received.
    pub in_flight: usize,
    /// 20 %: open traces.
    pub open: usize,
    /// 10 %: recently closed traces.
    pub recent: usize,
    /// 10 %: scores to be sent.
    pub scores: usize,
    /// 10 %: spans waiting to be scored.
    pub scoring_queue: usize,
}

/// What is used where no limit is set and no cgroup has one.
const DEFAULT_LIMIT: usize = 512 << 20;

/// What the process itself takes, before any telemetry.
pub(super) const OWN_USE: usize = 24 << 20;

/// The part of a cgroup's limit that is left alone, an eighth: whoever reaches the limit is killed,
/// and sockets, page tables and what the allocator has not given back count too. Without it 128 MiB
/// were 121 MiB of our own memory in an overload before a fast backend.
const KERNELS_SHARE: usize = 8;

/// The least that is worth sharing out, whatever the limit says.
const LEAST_SHARED: usize = 8 << 20;

impl Config {
    /// Shares the memory out. `cgroup_limit` is what the shell read from the cgroup (v1 or v2),
    /// `None` without one.
    pub fn budgets(&self, cgroup_limit: Option<usize>) -> Budgets {
        let of_cgroup = cgroup_limit.map(|limit| limit - limit / KERNELS_SHARE);
        let limit = self
            .memory
            .limit
            .or(of_cgroup.unwrap_or(DEFAULT_LIMIT))
            .saturating_sub(OWN_USE)
            .max(LEAST_SHARED);
        let percent = |share: usize| limit / 100 * share;
        Budgets {
            limit,
            forward_queue: self.forward.queue.max_size.or(percent(30)),
            in_flight: self.receivers.otlp.max_in_flight.or(percent(10)),
            open: self.assemble.open.max_size.or(percent(20)),
            recent: self.assemble.recent.max_size.or(percent(10)),
            scores: self.scores.queue.max_size.or(percent(10)),
            scoring_queue: self.scoring.queue.or(percent(10)),
        }
    }
}
