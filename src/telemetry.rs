//! Every counter and log line about ourselves, one struct each, named by what happened. Knows nothing of ours: it is told.
//! The names of the metrics follow the OpenTelemetry Collector's where one exists.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Everything counted about ourselves. One lock around all of it, so that every scrape is one snapshot and the books balance.
#[derive(Debug, Default)]
pub struct Telemetry {
    state: Mutex<State>,
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

    fn add(&self, name: &'static str, labels: &[Label], n: u64) {
        *self.state().counters.entry((name, labels.to_vec())).or_default() += n;
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

/// A request was refused; its sender still has it.
#[derive(Debug)]
pub struct Refused {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points; 0 where the body could not be read.
    pub n_items: u64,
    /// `malformed`, `too_large`, `in_flight_full`, `queue_full`, …
    pub reason: &'static str,
}

impl Refused {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        let mut state = telemetry.state();
        *state.books.entry(self.signal).or_default().refused.entry(self.reason).or_default() += self.n_items;
        drop(state);
        telemetry.add("spanscore_receiver_refused_requests_total", &[("signal", self.signal), ("reason", self.reason)], 1);
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

// === certificates ===

/// Certificate files changed, and the new ones are in use.
#[derive(Debug)]
pub struct CertificatesReplaced {
    /// The files, quoted.
    pub files: String,
}

impl CertificatesReplaced {
    /// Count and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.add("spanscore_certificate_reloads_total", &[("result", "replaced")], 1);
        tracing::info!(files = self.files, "certificate files changed; new connections use the new ones");
    }
}

/// Certificate files changed and cannot be used; the last good ones stay in use.
#[derive(Debug)]
pub struct CertificatesUnusable {
    /// What is wrong.
    pub error: String,
}

impl CertificatesUnusable {
    /// Count and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.add("spanscore_certificate_reloads_total", &[("result", "unusable")], 1);
        tracing::warn!(error = self.error, "certificate files changed and cannot be used; the last good ones stay in use");
    }
}

// === receiving ===

// === forwarding ===

// === scoring ===

// === exporting ===
