//! Every counter and log line about ourselves, one struct each, named by what happened. Knows nothing of ours: it is told.
//! The names of the metrics follow the OpenTelemetry Collector's where one exists.

mod connections;
mod health;
mod process;
mod receiving;
mod render;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use connections::{
    AcceptFailed, CertificatesReplaced, CertificatesUnusable, ConnectionOpened, HandshakeFailed, Listening, OpenConnection,
};
pub use health::{Illness, Phase, Pulse};
pub use receiving::{AuthorizationNotPassed, Refused};
pub use render::{METRICS_CONTENT_TYPE, MetricsText};

/// Everything counted about ourselves. One lock around all of it, so that every scrape is one snapshot and the books balance.
#[derive(Debug, Default)]
pub struct Telemetry {
    state: Mutex<State>,
    /// Apart from the counters, since probes must not wait for a scrape.
    health: Mutex<health::Health>,
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

// === receiving ===

// === forwarding ===

/// A request was taken in and given up at once, in one entry, so that the books balance in between.
#[derive(Debug)]
pub struct Discarded {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
    /// `discarded`: the backend does not take the signal, or there is none.
    pub reason: &'static str,
}

impl Discarded {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        let mut state = telemetry.state();
        let books = state.books.entry(self.signal).or_default();
        books.accepted += self.n_items;
        *books.dropped.entry(self.reason).or_default() += self.n_items;
    }
}

/// A queue was made.
#[derive(Debug)]
pub struct QueueOpened {
    /// `forward`, `scores`, …
    pub queue: &'static str,
    /// Most bytes in it.
    pub capacity: usize,
}

impl QueueOpened {
    /// Set the gauge.
    pub fn emit(self, telemetry: &Telemetry) {
        let capacity = i64::try_from(self.capacity).unwrap_or(i64::MAX);
        telemetry.set("spanscore_exporter_queue_capacity_bytes", &[("queue", self.queue)], capacity);
    }
}

/// A queue grew or shrank.
#[derive(Debug)]
pub struct QueueMoved {
    /// `forward`, `scores`, …
    pub queue: &'static str,
    /// Bytes in it, those under way included.
    pub n_bytes: usize,
}

impl QueueMoved {
    /// Set the gauge.
    pub fn emit(self, telemetry: &Telemetry) {
        let n_bytes = i64::try_from(self.n_bytes).unwrap_or(i64::MAX);
        telemetry.set("spanscore_exporter_queue_size_bytes", &[("queue", self.queue)], n_bytes);
    }
}

/// An attempt failed and will be made again.
#[derive(Debug)]
pub struct RequestRetried {
    /// `forward`, `scores`, …
    pub queue: &'static str,
}

impl RequestRetried {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.add("spanscore_exporter_retries_total", &[("queue", self.queue)], 1);
    }
}

/// A request was too large for the peer and goes out again as two.
#[derive(Debug)]
pub struct RequestSplit {
    /// `forward`, `scores`, …
    pub queue: &'static str,
}

impl RequestSplit {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.add("spanscore_exporter_splits_total", &[("queue", self.queue)], 1);
    }
}

/// A peer refused a request for good.
#[derive(Debug)]
pub struct RequestRefused {
    /// The setting or variable the endpoint came from.
    pub origin: String,
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points that were dropped.
    pub n_items: u64,
    /// Under which they are counted.
    pub reason: &'static str,
    /// What the peer said.
    pub why: String,
    /// Further refusals for this reason since the last line.
    pub n_held_back: u64,
}

impl RequestRefused {
    /// Log it; the items are counted in the books.
    pub fn emit(self, _: &Telemetry) {
        let Self { origin, signal, n_items, reason, why, n_held_back } = self;
        tracing::warn!(origin, signal, n_items, reason, more_before = n_held_back, "a request was refused for good and is dropped: {why}");
    }
}

/// A peer took a request but threw some of its items away, or had something to say about it.
#[derive(Debug)]
pub struct PartlyRejected {
    /// The setting or variable the endpoint came from.
    pub origin: String,
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Items it threw away.
    pub n_items: u64,
    /// What it said.
    pub message: String,
    /// Further ones since the last line.
    pub n_held_back: u64,
}

impl PartlyRejected {
    /// Log it; the items are counted in the books.
    pub fn emit(self, _: &Telemetry) {
        let Self { origin, signal, n_items, message, n_held_back } = self;
        tracing::warn!(origin, signal, n_items, more_before = n_held_back, "the peer rejected part of a request: {message}");
    }
}

/// A destination cannot be reached or asks for a pause.
#[derive(Debug)]
pub struct DestinationDown {
    /// `forward`, `scores`, …
    pub queue: &'static str,
    /// The setting or variable the endpoint came from.
    pub origin: String,
    /// Where it is.
    pub endpoint: String,
    /// What happened.
    pub why: String,
}

impl DestinationDown {
    /// Count and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self { queue, origin, endpoint, why } = self;
        telemetry.add("spanscore_exporter_outages_total", &[("queue", queue)], 1);
        tracing::warn!(origin, endpoint, "delivery is paused, telemetry is queued and will be tried again: {why}");
    }
}

/// A destination is still down.
#[derive(Debug)]
pub struct DestinationStillDown {
    /// The setting or variable the endpoint came from.
    pub origin: String,
    /// Where it is.
    pub endpoint: String,
    /// What happened last.
    pub why: String,
    /// How long it has been down.
    pub since: Duration,
    /// What waits for it.
    pub n_bytes: usize,
}

impl DestinationStillDown {
    /// Log it.
    pub fn emit(self, _: &Telemetry) {
        let Self { origin, endpoint, why, since, n_bytes } = self;
        tracing::warn!(origin, endpoint, down_secs = since.as_secs(), queued_bytes = n_bytes, "delivery is still paused: {why}");
    }
}

/// A destination takes requests again.
#[derive(Debug)]
pub struct DestinationRecovered {
    /// The setting or variable the endpoint came from.
    pub origin: String,
    /// Where it is.
    pub endpoint: String,
    /// How long it was down.
    pub after: Duration,
    /// What waits for it.
    pub n_bytes: usize,
}

impl DestinationRecovered {
    /// Log it.
    pub fn emit(self, _: &Telemetry) {
        let Self { origin, endpoint, after, n_bytes } = self;
        tracing::info!(origin, endpoint, down_secs = after.as_secs(), queued_bytes = n_bytes, "delivery goes on");
    }
}

// === scoring ===

// === exporting ===

/// Scores wait to be delivered.
#[derive(Debug)]
pub struct ScoresQueued {
    /// `score_spans`, `score_events` or `score_metrics`.
    pub shape: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl ScoresQueued {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.shift(SCORES_QUEUED, &[("shape", self.shape)], self.n_items.cast_signed());
    }
}

/// Queued scores were acknowledged by their destination.
#[derive(Debug)]
pub struct ScoresSent {
    /// `score_spans`, `score_events` or `score_metrics`.
    pub shape: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl ScoresSent {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.shift(SCORES_QUEUED, &[("shape", self.shape)], -self.n_items.cast_signed());
        telemetry.add("spanscore_scores_sent_total", &[("shape", self.shape)], self.n_items);
    }
}

/// Queued scores were given up.
#[derive(Debug)]
pub struct ScoresDropped {
    /// `score_spans`, `score_events` or `score_metrics`.
    pub shape: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
    /// `queue_full`, `refused`, `rejected`, `too_large`, `shutdown`, …
    pub reason: &'static str,
}

impl ScoresDropped {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.shift(SCORES_QUEUED, &[("shape", self.shape)], -self.n_items.cast_signed());
        telemetry.add("spanscore_scores_dropped_total", &[("shape", self.shape), ("reason", self.reason)], self.n_items);
    }
}

/// Evaluations were not printed: whoever reads standard output is too slow.
#[derive(Debug)]
pub struct ScoresUnprinted {
    /// Evaluations.
    pub n_items: u64,
    /// `queue_full` or `shutdown`.
    pub reason: &'static str,
}

impl ScoresUnprinted {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.add("spanscore_scores_dropped_total", &[("shape", "print"), ("reason", self.reason)], self.n_items);
    }
}

/// A queue of scores is full, and drops its oldest until its destination takes something again.
#[derive(Debug)]
pub struct ScoresOverflow {
    /// `score_spans`, `score_events` or `score_metrics`.
    pub shape: &'static str,
}

impl ScoresOverflow {
    /// Log it; what is dropped is counted one by one.
    pub fn emit(self, _: &Telemetry) {
        tracing::warn!(shape = self.shape, "the queue of scores is full: the oldest are dropped until their destination takes some");
    }
}

/// An enabled shape of scores has nowhere to go.
#[derive(Debug)]
pub struct ScoreShapeOff {
    /// `span`, `event` or `metrics`.
    pub shape: &'static str,
}

impl ScoreShapeOff {
    /// Log it.
    pub fn emit(self, _: &Telemetry) {
        let shape = self.shape;
        tracing::info!(
            shape,
            "scores are not sent as {shape}: no endpoint takes this signal; set `scores.{shape}.endpoint`, or `scores.{shape}.enabled: false` to say so"
        );
    }
}

/// Names in the labels of the scores' metrics became too many, and the rest is `_other`.
#[derive(Debug)]
pub struct ScoreLabelsFolded {
    /// The limit: a setting, or a fixed one in words.
    pub limit: &'static str,
}

impl ScoreLabelsFolded {
    /// Log it; told once for each limit.
    pub fn emit(self, _: &Telemetry) {
        tracing::warn!(limit = self.limit, "the limit of metric labels is reached: further names are counted as `_other`");
    }
}

const SCORES_QUEUED: &str = "spanscore_scores_queued";
