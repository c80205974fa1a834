//! Every counter and log line about ourselves, one struct each, named by what happened. Knows nothing of ours: it is told.
//! The names of the metrics follow the OpenTelemetry Collector's where one exists.

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
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use connections::{
    AcceptFailed, CertificatesReplaced, CertificatesUnusable, ConnectionOpened, HandshakeFailed, Listening, OpenConnection,
};
pub use exporting::{
    ListenerBehind, ScoreLabelsFolded, ScoreShapeOff, ScoresDropped, ScoresOverflow, ScoresQueued, ScoresSent, ScoresUnprinted,
};
pub use forwarding::{
    DestinationDown, DestinationRecovered, DestinationStillDown, Discarded, PartlyRejected, ProxyIgnored, QueueMoved, QueueOpened,
    RequestHeldUp, RequestRefused, RequestRetried, RequestSplit,
};
pub use health::{Illness, Phase, Pulse};
pub use receiving::{AuthorizationNotPassed, Refused};
pub use registering::{
    ApiOpen, ApiRefused, ConfigurationRefused, ConfigurationReloaded, CriteriaInForce, RegistrationsExpired, StateFileUnusable,
    TokenUnusable,
};
#[cfg(test)]
pub(crate) use render::metric_names;
pub use render::{METRICS_CONTENT_TYPE, MetricsText};
pub use scoring::{
    ConfigurationInForce, Hurried, SpansLate, SpansUnscored, SpansWithoutIds, Stopped, Stopping, TraceClosed, TracesHeld, TracesJudged,
    TrajectoriesSeen,
};

/// Everything counted about ourselves. One lock around all of it, so that every scrape is one snapshot and the books balance.
#[derive(Debug, Default)]
pub struct Telemetry {
    state: Mutex<State>,
    /// Apart from the counters, since probes must not wait for a scrape.
    health: Mutex<health::Health>,
    outages: Mutex<forwarding::Outages>,
}

/// A label of a metric; values come from small fixed sets.
pub type Label = (&'static str, &'static str);

#[derive(Debug, Default, Clone)]
struct State {
    books: BTreeMap<&'static str, Books>,
    counters: BTreeMap<(&'static str, Vec<Label>), u64>,
    gauges: BTreeMap<(&'static str, Vec<Label>), i64>,
}

/// What became of the items of one signal: accepted = sent + queued + the sum of dropped.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Books {
    /// Taken in and acknowledged.
    pub accepted: u64,
    /// Acknowledged by the downstream.
    pub sent: u64,
    /// On the way.
    pub queued: u64,
    /// Given up, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Never taken in, by reason; the sender still has them.
    pub refused: BTreeMap<&'static str, u64>,
}

impl Telemetry {
    /// The books of every signal seen so far, from one snapshot.
    pub fn books(&self) -> BTreeMap<&'static str, Books> {
        self.state().books.clone()
    }

    /// A counter's value; 0 if it never moved.
    pub fn counter(&self, name: &'static str, labels: &[Label]) -> u64 {
        self.state().counters.get(&(name, labels.to_vec())).copied().unwrap_or_default()
    }

    /// A gauge's value; 0 if it was never set.
    pub fn gauge(&self, name: &'static str, labels: &[Label]) -> i64 {
        self.state().gauges.get(&(name, labels.to_vec())).copied().unwrap_or_default()
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
        *self.state().gauges.entry((name, labels.to_vec())).or_default() += by;
    }

    fn set(&self, name: &'static str, labels: &[Label], value: i64) {
        self.state().gauges.insert((name, labels.to_vec()), value);
    }

    fn outages(&self) -> MutexGuard<'_, forwarding::Outages> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === the books ===

/// A request was taken in; its items are queued now.
#[derive(Debug)]
pub struct Accepted {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl Accepted {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        let mut state = telemetry.state();
        let books = state.books.entry(self.signal).or_default();
        books.accepted += self.n_items;
        books.queued += self.n_items;
    }
}

/// Queued items were acknowledged by the downstream.
#[derive(Debug)]
pub struct Sent {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl Sent {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        let mut state = telemetry.state();
        let books = state.books.entry(self.signal).or_default();
        books.queued = books.queued.saturating_sub(self.n_items);
        books.sent += self.n_items;
    }
}

/// Queued items were given up.
#[derive(Debug)]
pub struct Dropped {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
    /// `discarded` (the backend does not take the signal, or there is none), `refused`, `rejected` (partial success), `too_large`, `shutdown`, …
    pub reason: &'static str,
}

impl Dropped {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        let mut state = telemetry.state();
        let books = state.books.entry(self.signal).or_default();
        books.queued = books.queued.saturating_sub(self.n_items);
        *books.dropped.entry(self.reason).or_default() += self.n_items;
    }
}
