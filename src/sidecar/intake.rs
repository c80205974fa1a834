//! Decides when a request is acknowledged, and passes it on.
//!
//! - A request is refused before its body is read if a destination has no space for it.
//! - Without a journal, a request is acknowledged once it is in the queues of all its destinations,
//!   and refused if one of them has no space.
//! - With a journal, a request that is delivered or scored is acknowledged once it is durable.
//! - A request that no destination accepts is acknowledged and counted as discarded.
//! - Scoring, the recorder and the page get a request only once no destination can refuse it,
//!   because the sender of a refused request sends it again.

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
use crate::forward::{self, ForwardHandle};
use crate::page::Page;
use crate::receive::{self, Acknowledgement, Received};
use crate::telemetry::{MetricsPage, NothingReceived};
use crate::transport::{JournalOutcome, QueueRefusal};

/// Consumers of acknowledged requests, in addition to forwarding and scoring. None of them blocks.
#[derive(Clone)]
pub(super) struct Onlookers {
    pub(super) recorder: Option<Recorder>,
    pub(super) page: Option<Page>,
}

/// Passes requests to their destinations, and their spans and log records to scoring.
pub(super) struct RequestIntake {
    pub(super) forward: ForwardHandle,
    pub(super) scoring: Option<ScoringQueue>,
    pub(super) onlookers: Onlookers,
    pub(super) rules: Arc<ArcSwap<Rules>>,
    pub(super) last_request: LastRequest,
}

impl receive::RequestSink for RequestIntake {
    fn admission(&self) -> Option<Arc<dyn SpanAdmission>> {
        self.scoring.as_ref()?;
        Some(self.rules.load_full())
    }

    fn check_room(&self, signal: Signal, peer: PeerId, n_bytes: usize) -> Result<(), QueueRefusal> {
        // Count a refused request, too: its sender is active and has more to send.
        self.last_request.note();
        self.forward.check_room(signal, peer, n_bytes)
    }

    fn offer(&self, received: Received) -> Result<Acknowledgement, QueueRefusal> {
        self.last_request.note();
        let (signal, n_items, batch) = (received.signal, received.n_items, received.batch);
        let (body, unix_nanos) = (received.body, now().unix_nanos);
        let (peer, n_bytes) = (batch.peer, body.len());
        let seen = self.onlookers.need(signal).then(|| body.clone());
        let is_scored = !batch.spans.is_empty() && self.scoring.is_some();
        let request = forward::outbound(signal, peer, body, n_items, received.headers);
        let is_journaled = self.forward.is_journaled(signal, is_scored);
        let (scoring, onlookers) = (self.scoring.clone(), self.onlookers.clone());
        let take = move |record: Option<u64>| {
            if let Some(body) = seen {
                onlookers.see(signal, &body, n_items, unix_nanos);
            }
            if let Some(scoring) = &scoring {
                scoring.offer(batch, n_bytes, record);
            }
        };
        if !is_journaled {
            // Forward first: if forwarding refuses the request, its sender retries it, and it must
            // not be scored twice.
            self.forward.offer(request)?;
            take(None);
            return Ok(Acknowledgement::Now);
        }
        let (answer, answered) = oneshot::channel();
        // Score a request only after it is journaled. Otherwise a request that the journal refuses
        // would be scored, and scored again when its sender repeats it.
        let outcome: JournalOutcome = Box::new(move |outcome| {
            if let Ok(Some(record)) = outcome {
                take(Some(record));
            }
            // The client may have disconnected.
            let _ = answer.send(outcome.map(|_| ()));
        });
        self.forward.append(request, unix_nanos, outcome);
        Ok(Acknowledgement::WhenDurable(answered))
    }
}

impl RequestIntake {
    /// Waits until no request has arrived for `quiet`, counted from `begun`, but at most until
    /// `latest`. An agent that is stopped together with the sidecar sends its last spans only now.
    pub(super) async fn fall_quiet(&self, quiet: Duration, begun: Instant, latest: Instant) {
        loop {
            let last = begun.max(self.last_request.at());
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

#[derive(Clone)]
pub(super) struct LastRequest {
    pub(super) started: Now,
    /// Milliseconds from the start to the last request; 0 before the first.
    pub(super) millis: Arc<AtomicU64>,
}

impl LastRequest {
    fn note(&self) {
        let since_start = now()
            .instant
            .saturating_duration_since(self.started.instant);
        let millis = u64::try_from(since_start.as_millis()).unwrap_or(u64::MAX);
        self.millis.store(millis.max(1), Ordering::Relaxed);
    }

    /// Returns the time of the last request; the start before the first.
    fn at(&self) -> Instant {
        self.started.instant + Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }

    /// Logs a warning if no request has arrived within `after`. The usual cause is an agent whose
    /// exporter sends to a different endpoint.
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
