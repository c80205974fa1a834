//! The running program: `start.rs` builds the stages and connects them with bounded channels,
//! `stop.rs` drains them. Only this module reads the wall clock.

mod cgroup;
mod intake;
mod judgements;
mod memory_watch;
mod open_journal;
mod peers;
mod ports;
mod rebuild;
mod record;
mod scoring;
mod start;
mod stop;
#[cfg(feature = "kafka")]
mod topic_judges;

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use judge::pipeline::{Judged, Rules};
use otlp::span::Now;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::config::{Config, Shutdown};
use crate::export;
use crate::journal::LogThread;
use crate::register::{ConfigOrigin, Register};
use crate::telemetry::Telemetry;
use crate::transport::Undelivered;

use intake::RequestIntake;
use ports::Doors;
#[cfg(feature = "kafka")]
use topic_judges::TopicJudges;

pub use cgroup::memory_limit;

/// The only code that reads the wall clock; all other code gets the time as an argument.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub fn now() -> Now {
    let since_epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Now {
        instant: Instant::now(),
        unix_nanos: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// The arguments of [`Sidecar::start`].
pub struct Plan {
    /// The configuration; every value has been checked.
    pub config: Config,
    /// Source of the configuration, for reloads.
    pub origin: Option<ConfigOrigin>,
    /// The criteria and expectations that judge traces.
    pub rules: Rules,
    /// Reads the memory limit of the cgroup in bytes, at the start and at each `reload.interval`;
    /// `None` if there is no limit.
    pub cgroup_limit: fn() -> Option<usize>,
    /// The output of printed evaluations, if any.
    pub print: Option<export::Print>,
    /// The observer of all judgements, called on the thread that judged.
    pub observer: Option<Observer>,
    /// The folder of recorded requests, if requests are recorded.
    pub record: Option<PathBuf>,
}

/// A function that receives every judgement. It must not block.
pub type Observer = Box<dyn FnMut(&Judged, &Rules) + Send>;

/// An error while starting a sidecar.
pub type StartError = Box<dyn Error + Send + Sync>;

/// The addresses of a running sidecar.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// OTLP/gRPC.
    pub grpc: Option<SocketAddr>,
    /// OTLP/HTTP.
    pub http: Option<SocketAddr>,
    /// Health, metrics, page and API.
    pub admin: SocketAddr,
}

/// A running sidecar. Dropping it aborts its tasks; [`Sidecar::stop`] stops it in order.
pub struct Sidecar {
    /// The addresses of its ports.
    pub addresses: Addresses,
    /// The metrics and heartbeats.
    pub telemetry: Arc<Telemetry>,
    /// Dropping the intake, after the ports are closed, ends the scoring queue.
    intake: Arc<RequestIntake>,
    /// The active criteria, and the operations that change them.
    pub register: Register,
    /// Dropping the sender stops the watcher of configuration files.
    watching: (oneshot::Sender<Infallible>, JoinSet<()>),
    doors: Doors,
    admin: Doors,
    scoring: Vec<JoinHandle<()>>,
    #[cfg(feature = "kafka")]
    reading: Option<Arc<TopicJudges>>,
    /// The thread that writes requests to a folder.
    recording: Option<JoinHandle<()>>,
    forwarding: JoinSet<Undelivered>,
    journal: Vec<LogThread>,
    exporting: export::ExportTasks,
    /// Tasks that warn if no request arrives, and that follow the memory limit and the peers.
    background: JoinSet<()>,
    shutdown: Shutdown,
}

#[cfg(feature = "kafka")]
fn kafka_error(why: String) -> StartError {
    format!("`kafka`: {why}").into()
}

#[cfg(test)]
mod tests;
