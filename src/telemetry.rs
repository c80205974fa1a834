//! Every counter and log line about ourselves, one struct each, named by what happened. Knows
//! nothing of ours: it is told. The names of the metrics follow the OpenTelemetry Collector's where
//! one exists.

mod books;
mod connections;
mod exporting;
mod forwarding;
mod health;
mod process;
mod receiving;
mod registering;
mod render;
mod scoring;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, MutexGuard};

pub use books::{Accepted, Books, Discarded, Dropped, Sent};
pub use connections::{
    AcceptFailed, CertificatesReplaced, CertificatesUnusable, ConnectionOpened, HandshakeFailed,
    Listening, OpenConnection,
};
pub use exporting::{
    ListenerBehind, ScoreLabelsFolded, ScoreShapeOff, ScoresDropped, ScoresOverflow, ScoresQueued,
    ScoresSent, ScoresUnprinted,
};
pub use forwarding::{
    DestinationDown, DestinationRecovered, DestinationStillDown, PartlyRejected, ProxyIgnored,
    QueueMoved, QueueOpened, QueueSize, RequestHeldUp, RequestRefused, RequestRetried,
    RequestSplit,
};
pub use health::{Illness, Phase, Pulse};
pub use receiving::{AuthorizationNotPassed, Refused};
pub use registering::{
    ApiOpen, ApiRefused, ConfigurationRefused, ConfigurationReloaded, CriteriaInForce,
    RegistrationsExpired, StateFileUnusable, TokenUnusable,
};
#[cfg(test)]
pub(crate) use render::metric_names;
pub use render::{METRICS_CONTENT_TYPE, MetricsText};
pub use scoring::{
    ConfigurationInForce, Hurried, SpansLate, SpansUnscored, SpansWithoutIds, Stopped, Stopping,
    TracesClosed, TracesHeld, TracesJudged, TrajectoriesSeen,
};

use crate::sync::Mutex;

/// Everything counted about ourselves. What every request moves is counted without a lock:
/// connections would share it.
#[derive(Debug, Default)]
pub struct Telemetry {
    accounts: books::Accounts,
    held: scoring::Held,
    /// All that moves seldom.
    state: Mutex<State>,
    /// Apart from the counters, since probes must not wait for a scrape.
    health: Mutex<health::Health>,
    outages: Mutex<forwarding::Outages>,
}

/// A label of a metric; values come from small fixed sets.
pub type Label = (&'static str, &'static str);

#[derive(Debug, Default)]
struct State {
    counters: BTreeMap<(&'static str, Vec<Label>), u64>,
    /// Shared with those that move them often.
    gauges: BTreeMap<(&'static str, Vec<Label>), Arc<AtomicI64>>,
}

impl Telemetry {
    /// The books of every signal seen so far. They balance, whatever goes on meanwhile.
    pub fn books(&self) -> BTreeMap<&'static str, Books> {
        self.accounts.read()
    }

    /// A counter's value; 0 if it never moved.
    pub fn counter(&self, name: &'static str, labels: &[Label]) -> u64 {
        self.state()
            .counters
            .get(&(name, labels.to_vec()))
            .copied()
            .unwrap_or_default()
    }

    /// A gauge's value; 0 if it was never set.
    pub fn gauge(&self, name: &'static str, labels: &[Label]) -> i64 {
        self.state()
            .gauges
            .get(&(name, labels.to_vec()))
            .map_or(0, |gauge| gauge.load(Ordering::Relaxed))
    }

    /// Move a counter; answers what it stands at now.
    fn add(&self, name: &'static str, labels: &[Label], n: u64) -> u64 {
        let mut state = self.state();
        let counter = state.counters.entry((name, labels.to_vec())).or_default();
        *counter += n;
        *counter
    }

    /// Move a gauge up or down.
    fn shift(&self, name: &'static str, labels: &[Label], by: i64) {
        self.shared_gauge(name, labels)
            .fetch_add(by, Ordering::Relaxed);
    }

    fn set(&self, name: &'static str, labels: &[Label], value: i64) {
        self.shared_gauge(name, labels)
            .store(value, Ordering::Relaxed);
    }

    /// A gauge to be moved without looking it up again.
    fn shared_gauge(&self, name: &'static str, labels: &[Label]) -> Arc<AtomicI64> {
        Arc::clone(
            self.state()
                .gauges
                .entry((name, labels.to_vec()))
                .or_default(),
        )
    }

    fn outages(&self) -> MutexGuard<'_, forwarding::Outages> {
        self.outages.lock()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
