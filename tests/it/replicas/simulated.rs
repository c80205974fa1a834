//! Simulates replicas that share the traces. Each replica is a pipeline instead of a process, with
//! the time and the peers as arguments. The clock jumps from one timer to the next, so a minute
//! takes no time. Does not prove that the program reads the list of peers and passes it to its
//! pipelines; the tests with real replicas do.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use judge::assemble::Settings;
use judge::pipeline::{Judged, Pipeline, Rules};
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::scan::scan;
use otlp::scan_logs;
use otlp::span::Now;
use serde_json::Value;
use spanscore::sidecar;

use super::replica::Told;
use super::sessions::Request;
use crate::support::spans::request;

/// Interval at which a replica looks up its peers, as in the program.
const LOOKUP_EVERY: Duration = Duration::from_secs(2);

/// Maximum simulated wait, long enough for everything that happens without further input.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) struct Cluster {
    rules: Rules,
    settings: Settings,
    peers: Vec<String>,
    pub(super) now: Now,
    pub(super) replicas: BTreeMap<&'static str, Replica>,
}

pub(super) struct Replica {
    pipeline: Pipeline,
    next_lookup: Instant,
    /// The peers at the last successful lookup.
    known: Option<Vec<String>>,
    /// The time of the last lookup that found these peers.
    confirmed: Now,
    n_torn_services: usize,
    told: Vec<Told>,
}

/// Returns a replica's settings: these values (`settle` also for traces with a remote parent), the
/// program's defaults for other timers, and no limits.
pub(super) fn settings(settle: Duration, inactive: Duration, warm_up: Duration) -> Settings {
    Settings {
        settle,
        max_settle: Duration::from_secs(15),
        settle_remote: settle,
        inactive,
        restart_guard: Some(Duration::from_secs(120)),
        warm_up,
        has_peers: true,
        expired: Duration::from_secs(3_600),
        recent_ttl: Duration::from_secs(3_600),
        ..Settings::replay()
    }
}

impl Cluster {
    /// Creates a cluster in which no replica has started yet. `criteria` has the form of a flag.
    pub(super) fn new(criteria: &str, settings: Settings, peers: &[&str]) -> Self {
        let criteria = criteria.strip_prefix("criteria=").expect("as a flag");
        let criteria: Value = serde_json::from_str(criteria).expect("JSON");
        let mut cluster = Self {
            rules: Rules::new(serde_json::from_value(criteria).unwrap()),
            settings,
            peers: Vec::new(),
            now: sidecar::now(),
            replicas: BTreeMap::new(),
        };
        cluster.set_peers(peers);
        cluster
    }

    pub(super) fn set_peers<T: ToString>(&mut self, peers: &[T]) {
        self.peers = peers.iter().map(ToString::to_string).collect();
    }

    /// Starts a replica, which immediately looks up its peers. Then advances the clock, so that the
    /// next replica starts a little later.
    pub(super) fn start(&mut self, name: &'static str) {
        let replica = Replica {
            pipeline: Pipeline::new(self.settings.clone(), self.now),
            next_lookup: self.now.instant,
            known: None,
            confirmed: self.now,
            n_torn_services: 0,
            told: Vec::new(),
        };
        self.replicas.insert(name, replica);
        self.pass(Duration::from_millis(300));
    }

    /// Advances the clock, and runs every lookup and every judgement that is scheduled in that
    /// time.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now.instant + time;
        loop {
            let due = self.replicas.values().map(|replica| {
                let judging = replica.pipeline.next_deadline();
                judging.map_or(replica.next_lookup, |it| it.min(replica.next_lookup))
            });
            // Skip deadlines in the past. The clock advances by at least a millisecond.
            let next = due.min().filter(|next| *next < end);
            let next = next.map(|next| next.max(self.now.instant + Duration::from_millis(1)));
            self.tick_to(next.unwrap_or(end).min(end));
            if self.now.instant == end {
                return;
            }
        }
    }

    fn tick_to(&mut self, instant: Instant) {
        let passed = instant.saturating_duration_since(self.now.instant);
        self.now.instant = instant;
        self.now.unix_nanos += passed.as_nanos() as u64;
        for replica in self.replicas.values_mut() {
            if replica.next_lookup <= instant {
                replica.look_up(&self.peers, self.now);
            }
            let judged = replica.pipeline.advance(&self.rules, self.now);
            replica.keep(&judged);
        }
    }

    /// Advances the clock until `is_so` is true for every replica.
    pub(super) fn pass_until(&mut self, what: &str, is_so: impl Fn(&Replica) -> bool) {
        let give_up_at = self.now.instant + PATIENCE;
        while !self.replicas.values().all(&is_so) {
            assert!(
                self.now.instant < give_up_at,
                "it never came to that: {what}"
            );
            self.pass(Duration::from_millis(100));
        }
    }

    /// Advances the clock until every replica has found the current peers.
    pub(super) fn notice(&mut self) {
        let peers = self.peers.clone();
        self.pass_until("the peers are noticed", |it| {
            it.known.as_ref() == Some(&peers)
        });
    }

    /// Advances the clock until every replica has looked up its peers again.
    pub(super) fn confirm(&mut self) {
        self.pass(LOOKUP_EVERY);
    }

    pub(super) fn take(&mut self, name: &str, request: &Request) {
        self.take_body(name, request.signal(), &request.encoded());
    }

    pub(super) fn take_spans(&mut self, name: &str, spans: Vec<Span>) {
        self.take_body(name, "traces", &request(spans));
    }

    fn take_body(&mut self, name: &str, signal: &str, body: &[u8]) {
        let batch = match signal {
            "logs" => scan_logs::scan(body, Some(&self.rules)).unwrap().batch,
            _ => scan(body, Some(&self.rules)).unwrap().batch,
        };
        let replica = self.replicas.get_mut(name).expect("a replica that runs");
        replica.pipeline.take(batch, self.now);
    }

    /// Stops a replica gracefully. Returns all its judgements.
    pub(super) fn ended(&mut self, name: &str) -> Vec<Told> {
        let mut replica = self.replicas.remove(name).expect("a replica that runs");
        let judged = replica.pipeline.drain(&self.rules, self.now);
        replica.keep(&judged);
        replica.told
    }

    /// Kills a replica. Returns its judgements so far.
    pub(super) fn killed(&mut self, name: &str) -> Vec<Told> {
        let replica = self.replicas.remove(name).expect("a replica that runs");
        replica.told
    }
}

impl Replica {
    /// Looks up the peers as the program does. A change dates from the last lookup that found the
    /// previous peers.
    fn look_up(&mut self, peers: &[String], now: Now) {
        self.next_lookup = now.instant + LOOKUP_EVERY;
        let since = std::mem::replace(&mut self.confirmed, now);
        if self.known.as_deref() != Some(peers) {
            self.known = Some(peers.to_vec());
            self.pipeline.begin_memory(since, now);
        }
    }

    fn keep(&mut self, judged: &Judged) {
        self.told
            .extend(judged.evaluations.iter().map(|evaluation| Told {
                trace_id: evaluation.trajectory.trace_id.to_string(),
                criterion: evaluation.criterion.name().to_owned(),
                label: evaluation.verdict.as_str().to_owned(),
                completeness: evaluation.trajectory.completeness.as_str().to_owned(),
            }));
        for change in self.pipeline.take_torn().changes {
            if change.is_torn {
                self.n_torn_services += 1
            } else {
                self.n_torn_services -= 1
            }
        }
    }

    pub(super) fn n_open(&self) -> usize {
        self.pipeline.stats().n_open
    }

    /// Returns the number of services whose traces arrive torn.
    pub(super) fn n_torn_services(&self) -> usize {
        self.n_torn_services
    }
}
