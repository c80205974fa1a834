//! Dispatches received requests: bytes to the forward queue or its journal, scanned spans and log
//! records to the scoring queue. Stores the time of the last request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use judge::pipeline::Rules;
use otlp::span::{Now, PeerId, SpanAdmission};
use tokio::sync::oneshot;

use super::record::Recorder;
use super::scoring::ScoringQueue;
use super::{Addresses, now};
use crate::config::Signal;
use crate::forward::{ForwardHandle, RequestArrival};
use crate::journal::{AppendError, JournalLog, Record};
use crate::page::Page;
use crate::receive::{self, Acknowledgement, Received};
use crate::telemetry::{MetricsPage, NothingReceived};
use crate::transport::QueueRefusal;

/// The outcome of a request: accepted or refused.
type Taken = Result<(), QueueRefusal>;
/// The channel on which the sender waits for the answer.
type Answer = oneshot::Sender<Taken>;

/// Consumers of accepted requests besides forwarding and scoring. None of them blocks.
#[derive(Clone)]
pub(super) struct Onlookers {
    pub(super) recorder: Option<Recorder>,
    pub(super) page: Option<Page>,
}

/// Dispatches received requests: bytes to the forward queue, scanned spans and log records to the
/// scoring queue.
pub(super) struct RequestIntake {
    pub(super) forward: ForwardHandle,
    pub(super) scoring: Option<ScoringQueue>,
    pub(super) onlookers: Onlookers,
    /// The log of requests that are scored and not forwarded.
    pub(super) journal: Option<JournalLog>,
    pub(super) rules: Arc<ArcSwap<Rules>>,
    pub(super) started: Instant,
    /// Milliseconds from the start to the last request; 0 before the first.
    pub(super) last_offer: Arc<AtomicU64>,
}

impl receive::RequestSink for RequestIntake {
    fn admission(&self) -> Option<Arc<dyn SpanAdmission>> {
        self.scoring.as_ref()?;
        Some(self.rules.load_full())
    }

    fn check_room(&self, signal: Signal, peer: PeerId, n_bytes: usize) -> Result<(), QueueRefusal> {
        // A refused request counts too: its sender is alive and has more to send.
        self.last_offer.store(self.millis(), Ordering::Relaxed);
        self.forward.check_room(signal, peer, n_bytes)
    }

    fn offer(&self, received: Received) -> Result<Acknowledgement, QueueRefusal> {
        self.last_offer.store(self.millis(), Ordering::Relaxed);
        let has_facts = !received.batch.spans.is_empty();
        if let (Some(journal), Some(scoring)) = (&self.journal, &self.scoring)
            && has_facts
            && !self.forward.keeps_for_downstream(received.signal)
        {
            return Ok(self.keep_for_scoring(journal.clone(), scoring.clone(), received));
        }
        let Received {
            signal,
            body,
            n_items,
            headers,
            batch,
        } = received;
        let peer = batch.peer;
        if self.forward.keeps(signal) {
            let unix_nanos = now().unix_nanos;
            let (answer, answered) = oneshot::channel();
            let (scoring, onlookers) = (self.scoring.clone(), self.onlookers.clone());
            let seen = onlookers.need(signal).then(|| body.clone());
            // Score a request only once it is journaled: the sender of a refused request sends it
            // again.
            let outcome = Box::new(move |outcome: Result<Option<u64>, QueueRefusal>| {
                if let Ok(Some(record)) = outcome {
                    if let Some(body) = seen {
                        onlookers.see(signal, &body, n_items, unix_nanos);
                    }
                    if let Some(scoring) = &scoring {
                        scoring.offer(batch, Some(record));
                    }
                }
                // The client may have disconnected.
                let _ = answer.send(outcome.map(|_| ()));
            });
            let arrival = RequestArrival { peer, unix_nanos };
            self.forward
                .keep(signal, body, n_items, headers, arrival, outcome);
            return Ok(Acknowledgement::WhenKept(answered));
        }
        // Forward first: the sender retries a refused request, which must not be scored twice.
        let seen = self.onlookers.need(signal).then(|| body.clone());
        self.forward.offer(signal, peer, body, n_items, headers)?;
        if let Some(body) = seen {
            self.onlookers.see(signal, &body, n_items, now().unix_nanos);
        }
        if let Some(scoring) = &self.scoring {
            scoring.offer(batch, None);
        }
        Ok(Acknowledgement::Now)
    }
}

impl RequestIntake {
    /// Journals a request for scoring, because no log of the downstream has it. Requests for Kafka
    /// are in a separate log.
    fn keep_for_scoring(
        &self,
        journal: JournalLog,
        scoring: ScoringQueue,
        received: Received,
    ) -> Acknowledgement {
        let Received {
            signal,
            body,
            n_items,
            headers,
            batch,
        } = received;
        let peer = batch.peer;
        let unix_nanos = now().unix_nanos;
        let record = Record::scored(signal.number(), unix_nanos, body.clone()).of(peer);
        let is_known = journal.has(&record);
        let is_delivered = self.forward.keeps(signal);
        if is_known && !is_delivered {
            return Acknowledgement::Now;
        }
        let (answer, answered) = oneshot::channel();
        let (onlookers, seen) = (self.onlookers.clone(), body.clone());
        let score = move |answer: Answer, then: Box<dyn FnOnce() -> Taken + Send>| {
            let log = journal.clone();
            let done = move |appended: Result<u64, AppendError>| {
                let outcome = appended.map_err(QueueRefusal::from).and_then(|record| {
                    // The record needs no delivery.
                    log.consume([record]);
                    onlookers.see(signal, &seen, n_items, unix_nanos);
                    scoring.offer(batch, Some(record));
                    then()
                });
                // The client may have disconnected.
                let _ = answer.send(outcome);
            };
            journal.append(record, Box::new(done));
        };
        if is_delivered {
            let outcome = Box::new(move |kept: Result<Option<u64>, QueueRefusal>| match kept {
                Ok(_) if !is_known => score(answer, Box::new(|| Ok(()))),
                kept => {
                    let _ = answer.send(kept.map(|_| ()));
                }
            });
            let arrival = RequestArrival { peer, unix_nanos };
            self.forward
                .keep(signal, body, n_items, headers, arrival, outcome);
        } else {
            let forward = self.forward.clone();
            let then = move || forward.offer(signal, peer, body, n_items, headers);
            score(answer, Box::new(then));
        }
        Acknowledgement::WhenKept(answered)
    }

    fn millis(&self) -> u64 {
        u64::try_from(
            now()
                .instant
                .saturating_duration_since(self.started)
                .as_millis(),
        )
        .unwrap_or(u64::MAX)
        .max(1)
    }

    /// Waits until no request has arrived for `quiet`, counted from `begun`, but not beyond
    /// `latest`. An agent that is stopped together with the sidecar sends its last spans only now.
    pub(super) async fn fall_quiet(&self, quiet: Duration, begun: Instant, latest: Instant) {
        loop {
            let last = begun
                .max(self.started + Duration::from_millis(self.last_offer.load(Ordering::Relaxed)));
            let time = now().instant;
            let wait = (last + quiet).min(latest).saturating_duration_since(time);
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }
}

// === impl Onlookers ===

impl Onlookers {
    /// Returns true if a consumer needs the bytes of the next request.
    fn need(&self, signal: Signal) -> bool {
        let is_curious = |page: &Page| signal == Signal::Traces && page.is_curious();
        self.recorder.is_some() || self.page.as_ref().is_some_and(is_curious)
    }

    fn see(&self, signal: Signal, body: &Bytes, n_items: u64, unix_nanos: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.offer(signal, body, unix_nanos);
        }
        if let Some(page) = &self.page
            && signal == Signal::Traces
            && page.is_curious()
        {
            page.look_at(body, n_items);
        }
    }
}

// === LastRequest ===

/// The time of the last request.
#[derive(Clone)]
pub(super) struct LastRequest {
    pub(super) started: Now,
    /// See [`RequestIntake::last_offer`].
    pub(super) millis: Arc<AtomicU64>,
}

impl LastRequest {
    /// Logs a warning if no request has arrived after this time: most often the agent's exporter
    /// has another endpoint.
    pub(super) async fn report_silence(self, after: Duration, addresses: Addresses) {
        tokio::time::sleep(after).await;
        if self.millis.load(Ordering::Relaxed) == 0 {
            let Addresses { grpc, http, .. } = addresses;
            NothingReceived { after, grpc, http }.emit();
        }
    }

    pub(super) fn write_metrics(&self, page: &mut MetricsPage) {
        let seconds = match self.millis.load(Ordering::Relaxed) {
            0 => 0.0,
            millis => self.started.unix_nanos as f64 / 1e9 + millis as f64 / 1e3,
        };
        page.gauge(
            "spanscore_receiver_last_request_timestamp_seconds",
            "Unix time of the last request, in seconds; 0 before the first",
            format_args!("{seconds:?}"),
        );
    }
}
