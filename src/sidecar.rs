//! Builds the stages, joins them with bounded channels, drains them. The one place that reads the clock and owns the threads.
//! Knows who hands what to whom; decides nothing about spans, scores or protocols.

mod scoring;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use hyper::header::HeaderMap;
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::Admin;
use crate::config::{Config, ConfigError, ScoreShape, Signal};
use crate::export::{self, ExportError, Exporter};
use crate::forward::{self, ForwardError, ForwardHandle};
use crate::listen::{BindError, Port};
use crate::pipeline::Rules;
use crate::receive::{self, Received, Receiver};
use crate::span::{KeySet, Now};
use crate::telemetry::{Phase, Pulse, Telemetry};
use crate::tls::{ServerTls, TlsError};
use crate::transport::Undelivered;

use scoring::Scoring;
pub use scoring::Judge;

/// Both clocks, read once; everything below takes time as an argument.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn now() -> Now {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant::now(), unix_nanos: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX) }
}

/// How long requests that have begun may take once the doors close.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// Share of the shutdown deadline kept for judging and delivering, when telemetry never falls quiet.
const KEPT_FOR_DELIVERY: f64 = 0.4;
