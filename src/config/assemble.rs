//! The `scoring` and `assemble` sections: judging threads, and when a trace counts as complete.

use judge::assemble;
use judge::evaluate::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::runtime::Budgets;
use super::units::{Amount, ByteSize, Duration, Threads};

/// Default of `warm_up` with peers: twice the interval at which the documented router resolves
/// pods.
const WARM_UP_WITH_PEERS: std::time::Duration = std::time::Duration::from_secs(10);

/// The `scoring` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scoring {
    /// `false` makes spanscore a plain forwarder that still validates and counts.
    pub enabled: bool,
    /// Maximum bytes of spans that wait to be scored; further spans are forwarded unscored, or with
    /// a journal read back later. `auto` is 10 % of `memory.limit`.
    pub queue: Amount,
    /// Number of threads that judge, at most 64; each judges a part of the traces, chosen by trace
    /// id. `auto` is the number of CPUs that the process may use (cgroup quota, rounded down), or
    /// `assemble.open.max_size` divided by 32 MiB (or by twice `assemble.size_limit`, if that is
    /// more), whichever is smaller, but at least 1 and at most 8. A trace may use half of its
    /// thread's share of `assemble.open.max_size`.
    pub threads: Threads,
}

/// The `assemble` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Assemble {
    /// Time without new spans, after a top span has ended, until the trace is judged.
    pub settle: Duration,
    /// Maximum time after the end of a top span until the trace is judged, even if new spans
    /// arrive.
    pub max_settle: Duration,
    /// Like `settle`, if the top span's parent is in another process.
    pub settle_remote: Duration,
    /// Time without new spans after which a trace is closed although no top span has ended.
    pub inactive: Duration,
    /// A trace counts as a recording that is sent again if its top span ended at least this long
    /// before the trace history began; 0 turns the guard off.
    pub restart_guard: Duration,
    /// The headless Service of the replicas that share the traces, or a file with one address per
    /// line. A change of the addresses splits the traces that are open.
    pub peers: Option<String>,
    /// Time that the router needs to notice a start of this process or a change of the peers'
    /// addresses; traces that began earlier are `incomplete`. Default: 10 s if `peers` is set, else
    /// 0.
    pub warm_up: Option<Duration>,
    /// Maximum time that a trace stays open; then it is judged as cut short.
    pub expired: Duration,
    /// Maximum number of spans of one trace, at least 1. A trace that reaches it is judged as cut
    /// short.
    pub span_limit: usize,
    /// Maximum bytes of stored attributes of one trace, never more than a quarter of
    /// `open.max_size`. A trace that reaches it is judged as cut short.
    pub size_limit: ByteSize,
    /// Open traces.
    pub open: OpenTraces,
    /// Recently closed traces, remembered for late spans.
    pub recent: RecentTraces,
    /// Sessions, for criteria with `scope: session`.
    pub session: SessionAssembly,
}

/// The `assemble.open` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenTraces {
    /// Maximum number of open traces, at least 1; a further one evicts another.
    pub max_traces: usize,
    /// Maximum bytes of open traces. `auto` is 20 % of `memory.limit`; 45 % in a judge of a Kafka
    /// topic.
    pub max_size: Amount,
}

/// The `assemble.recent` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecentTraces {
    /// Maximum number of remembered traces; 0 remembers none.
    pub max_traces: usize,
    /// Maximum bytes of remembered traces; 0 remembers none. `auto` is 10 % of `memory.limit`; 15 %
    /// in a judge of a Kafka topic.
    pub max_size: Amount,
    /// Time for which a closed trace is remembered; late spans within this time can revise its
    /// scores.
    pub ttl: Duration,
}

/// The `assemble.session` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionAssembly {
    /// Time without a closed turn after which a session has ended.
    pub inactive: Duration,
    /// True if all turns of each session reach this process. Otherwise no session passes.
    pub whole: bool,
    /// Maximum bytes of the turns of all sessions. They count against `recent.max_size` and never
    /// use more than a quarter of it.
    pub max_size: ByteSize,
}

impl Default for Scoring {
    fn default() -> Self {
        Self {
            enabled: true,
            queue: Amount::Auto,
            threads: Threads::Auto,
        }
    }
}

impl Default for Assemble {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(5),
            max_settle: Duration::from_secs(15),
            settle_remote: Duration::from_secs(15),
            inactive: Duration::from_secs(180),
            restart_guard: Duration::from_secs(120),
            peers: None,
            warm_up: None,
            expired: Duration::from_secs(3_600),
            span_limit: 32_000,
            size_limit: ByteSize::mib(16),
            open: OpenTraces::default(),
            recent: RecentTraces::default(),
            session: SessionAssembly::default(),
        }
    }
}

impl Default for OpenTraces {
    fn default() -> Self {
        Self {
            max_traces: 100_000,
            max_size: Amount::Auto,
        }
    }
}

impl Default for RecentTraces {
    fn default() -> Self {
        Self {
            max_traces: 100_000,
            max_size: Amount::Auto,
            ttl: Duration::from_secs(3_600),
        }
    }
}

impl Default for SessionAssembly {
    fn default() -> Self {
        Self {
            inactive: Duration::from_secs(1_800),
            whole: false,
            max_size: ByteSize::mib(64),
        }
    }
}

impl Assemble {
    /// Returns the size limits for these shares of memory. One trace gets at most a quarter of
    /// `open`, so that no single trace evicts all others. Sessions get memory only if some
    /// criterion judges them.
    pub fn sizes(&self, open: usize, recent: usize, judges_sessions: bool) -> assemble::Sizes {
        let sessions = self.session.max_size.0.min(recent / 4);
        let sessions = if judges_sessions { sessions } else { 0 };
        assemble::Sizes {
            trace: self.size_limit.0.min(open / 4),
            open,
            recent: recent - sessions,
            sessions,
        }
    }
}

impl Config {
    /// Returns the reason why sessions cannot be judged, and the remedy; `None` if they can.
    pub fn why_no_sessions(&self) -> Option<(&'static str, &'static str)> {
        if self.kafka.read.enabled {
            Some((
                "`scope: session` cannot be judged with `kafka.read`",
                "a topic is keyed by trace, so turns of a session are read by different judges: \
                 judge sessions in one process that receives OTLP",
            ))
        } else if self.assemble.peers.is_some() {
            Some((
                "`scope: session` cannot be judged with `assemble.peers`",
                "turns of a session reach different replicas: judge sessions in one process \
                 without `peers`",
            ))
        } else {
            None
        }
    }

    /// Returns the timers and limits for the trace buffer.
    pub fn assemble_settings(&self, budgets: &Budgets) -> assemble::Settings {
        let Assemble {
            settle,
            max_settle,
            settle_remote,
            inactive,
            restart_guard,
            peers,
            warm_up,
            expired,
            span_limit,
            size_limit: _,
            open,
            recent,
            session,
        } = &self.assemble;
        let mut criteria = self.criteria.iter();
        let judges_sessions = criteria.any(|criterion| criterion.scope == Scope::Session);
        let sizes = self
            .assemble
            .sizes(budgets.open, budgets.recent, judges_sessions);
        assemble::Settings {
            partition: assemble::Partition::WHOLE,
            sender_key: 0,
            settle: settle.0,
            max_settle: max_settle.0,
            settle_remote: settle_remote.0,
            inactive: inactive.0,
            restart_guard: (restart_guard.0 > std::time::Duration::ZERO).then_some(restart_guard.0),
            warm_up: warm_up.map_or_else(
                || match peers {
                    Some(_) => WARM_UP_WITH_PEERS,
                    None => std::time::Duration::ZERO,
                },
                |warm_up| warm_up.0,
            ),
            has_peers: peers.is_some(),
            expired: expired.0,
            span_limit: *span_limit,
            size_limit: sizes.trace,
            max_open_traces: open.max_traces,
            max_open_size: sizes.open,
            max_recent_traces: recent.max_traces,
            max_recent_size: sizes.recent,
            recent_ttl: recent.ttl.0,
            session: assemble::SessionSettings {
                inactive: session.inactive.0,
                is_whole: session.whole,
                max_size: sizes.sessions,
            },
        }
    }
}
