//! The page for people: the latest judged runs, the page that shows them, and a file with the page
//! and recorded runs.
//!
//! A scoring thread copies judged runs into a bounded memory. Readers read from this memory at
//! their own speed, so a slow page delays nothing and uses no further memory.

mod limits;

mod history;
mod memory;

mod view;

mod changes;

mod specimens;

mod attempt;
mod filter;
mod stream;

mod assets;

pub mod report;

mod api;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use judge::extract::Unrecognised;
use judge::pipeline::{Judged, Rules};
use otlp::span::Now;
use serde_json::{Value, json};

use crate::config::{self, Bound};
use crate::register::Register;
use crate::sync::Mutex;
use crate::telemetry::{MetricKind, MetricsSource};

use history::History;
use memory::RunMemory;
use specimens::Specimens;

/// Maximum number of [`UnrecognisedSeen`]: one for each service and span name.
const MAX_UNRECOGNISED: usize = 32;

/// Maximum number of attempts to propose a setting for a span.
const MAX_TRIES: u64 = 200;

/// The page and its data. Clones share the data.
#[derive(Clone)]
pub struct Page(Arc<PageState>);

/// The arguments of a page.
pub struct PageSetup {
    /// Maximum bytes of remembered runs.
    pub capacity: Bound,
    /// Links to the team's tracing backends.
    pub links: Vec<config::PageLink>,
    /// Ports to which agents send telemetry, to show to people who have not sent any yet.
    pub receivers: ReceiverPorts,
    /// Reads the criteria that people try on the page.
    pub register: Register,
    /// Returns the current time.
    pub clock: fn() -> Now,
}

/// The bound addresses of the OTLP ports; `None` for a disabled port.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReceiverPorts {
    /// OTLP/gRPC.
    pub grpc: Option<SocketAddr>,
    /// OTLP/HTTP.
    pub http: Option<SocketAddr>,
    /// True if both ports require TLS.
    pub has_tls: bool,
}

impl ReceiverPorts {
    fn to_json(self) -> Value {
        let of = |address: Option<SocketAddr>| {
            address.map(|address| json!({ "address": address.to_string(), "tls": self.has_tls }))
        };
        json!({ "grpc": of(self.grpc), "http": of(self.http) })
    }
}

struct PageState {
    runs: Mutex<RunMemory>,
    history: Mutex<History>,
    unrecognised: Mutex<VecDeque<UnrecognisedSeen>>,
    specimens: Mutex<Specimens>,
    /// True if `specimens` needs requests. Read for each request, without a lock.
    is_curious: AtomicBool,
    /// True if there is no proposal yet for some unrecognised span.
    misses_proposal: AtomicBool,
    /// Number of pages that receive runs over a stream.
    n_streams: Arc<AtomicUsize>,
    links: Vec<config::PageLink>,
    receivers: ReceiverPorts,
    register: Register,
    clock: fn() -> Now,
}

/// Traces of a service that look like an agent's, but in which no convention recognised a tool call
/// or an agent run.
struct UnrecognisedSeen {
    service: Arc<str>,
    span_name: Option<Arc<str>>,
    n_models: usize,
    n_seen: u64,
    /// The setting to try, as YAML.
    proposal: Option<String>,
}

impl UnrecognisedSeen {
    /// Returns true if another trace may result in a proposal. A trace with only model calls never
    /// does.
    fn misses_proposal(&self) -> bool {
        self.proposal.is_none() && self.span_name.is_some() && self.n_seen < MAX_TRIES
    }
}

impl Page {
    /// Creates an empty page.
    pub fn new(setup: PageSetup) -> Self {
        let PageSetup {
            capacity,
            links,
            receivers,
            register,
            clock,
        } = setup;
        Self(Arc::new(PageState {
            runs: Mutex::new(RunMemory::new(capacity)),
            history: Mutex::default(),
            unrecognised: Mutex::default(),
            specimens: Mutex::default(),
            is_curious: AtomicBool::new(true),
            misses_proposal: AtomicBool::new(false),
            n_streams: Arc::default(),
            links,
            receivers,
            register,
            clock,
        }))
    }

    /// Remembers judgements.
    pub fn note(&self, judged: &Judged, rules: &Rules, unix_nanos: u64) {
        let Judged {
            evaluations,
            alarms,
            trajectories,
            revised,
            unrecognised,
            ..
        } = judged;
        if let Some(unrecognised) = unrecognised {
            self.note_unrecognised(unrecognised);
        }
        if evaluations.is_empty()
            && alarms.is_empty()
            && trajectories.is_empty()
            && revised.is_empty()
        {
            return;
        }
        self.0.history.lock().note(evaluations, unix_nanos);
        let is_watched = self.0.n_streams.load(Ordering::Relaxed) > 0;
        let mut runs = self.0.runs.lock();
        runs.note(judged, rules, is_watched, unix_nanos);
    }

    /// Returns true if [`Page::look_at`] needs the next request.
    pub fn is_curious(&self) -> bool {
        self.0.is_curious.load(Ordering::Relaxed)
    }

    /// Scans some spans of a valid trace request for those that look like tool calls. Takes less
    /// than a millisecond.
    pub fn look_at(&self, body: &[u8], n_spans: u64) {
        let misses_proposal = || self.0.misses_proposal.load(Ordering::Relaxed);
        let mut specimens = self.0.specimens.lock();
        let is_curious = specimens.look_at(body, n_spans, misses_proposal()) || misses_proposal();
        self.0.is_curious.store(is_curious, Ordering::Relaxed);
    }

    fn note_unrecognised(&self, found: &Unrecognised) {
        let proposal = self.0.specimens.lock().proposal(found).map(str::to_owned);
        let mut seen = self.0.unrecognised.lock();
        let known = seen
            .iter_mut()
            .find(|seen| seen.service == found.service && seen.span_name == found.span_name);
        match known {
            Some(known) => {
                known.n_seen += 1;
                known.proposal = known.proposal.take().or(proposal);
            }
            None => {
                if seen.len() == MAX_UNRECOGNISED {
                    seen.pop_front();
                }
                seen.push_back(UnrecognisedSeen {
                    service: Arc::clone(&found.service),
                    span_name: found.span_name.clone(),
                    n_models: found.n_models,
                    n_seen: 1,
                    proposal,
                });
            }
        }
        let misses_proposal = seen.iter().any(UnrecognisedSeen::misses_proposal);
        self.0
            .misses_proposal
            .store(misses_proposal, Ordering::Relaxed);
        if misses_proposal {
            self.0.is_curious.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the routes of the page's API, which only permitted callers may use.
    pub fn api(&self) -> Router {
        api::routes(self.clone())
    }

    /// Returns the routes of the page's files, which contain no telemetry.
    pub fn assets(&self) -> Router {
        assets::routes()
    }

    /// Returns the metrics of the memory of runs.
    pub fn metrics(&self) -> MetricsSource {
        let page = self.clone();
        Arc::new(move |metrics| {
            let runs = page.0.runs.lock();
            let (n_runs, size, capacity) = runs.sizes();
            let n_passed_over = runs.totals().n_passed_over;
            drop(runs);
            let name = "spanscore_page_passed_over_runs";
            let help = "Judged runs that the page does not remember: they are too large, or too \
                        many were judged at once";
            metrics.metric(name, MetricKind::Counter, help);
            metrics.total(name, [], n_passed_over);
            metrics.gauge(
                "spanscore_page_runs",
                "Runs that the page remembers",
                n_runs,
            );
            let help = "Bytes of the runs that the page remembers";
            metrics.gauge("spanscore_page_bytes", help, size);
            let help = "Maximum bytes of the runs that the page remembers";
            metrics.gauge("spanscore_page_capacity_bytes", help, capacity);
        })
    }

    fn unix_nanos(&self) -> u64 {
        (self.0.clock)().unix_nanos
    }

    fn unrecognised_json(&self) -> Value {
        let seen = self.0.unrecognised.lock();
        let seen = seen.iter().rev().map(|seen| {
            json!({
                "service": &*seen.service,
                "span_name": seen.span_name.as_deref(),
                "models": seen.n_models,
                "seen": seen.n_seen,
                "proposal": seen.proposal.as_deref(),
            })
        });
        json!({ "unrecognised": seen.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests;
