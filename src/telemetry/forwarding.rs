//! What happened to requests on their way out: queues, attempts, outages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use super::{Telemetry, metrics};

/// A queue was made.
#[derive(Debug)]
pub struct QueueOpened {
    /// `forward`, `scores`, …
    pub queue: &'static str,
    /// Most bytes in it.
    pub capacity: usize,
}

impl QueueOpened {
    /// Set its capacity, and answer the gauge that its size is written to.
    pub fn emit(self, telemetry: &Telemetry) -> QueueSize {
        let metrics = &telemetry.metrics;
        metrics
            .exporter_queue_capacity
            .set([self.queue], self.capacity);
        QueueSize(metrics.exporter_queue_size.series([self.queue]))
    }
}

/// The gauge of one queue's size: every request moves it twice.
#[derive(Debug)]
pub struct QueueSize(Arc<AtomicI64>);

/// A queue grew or shrank.
#[derive(Debug)]
pub struct QueueMoved {
    /// Bytes in it, those under way included.
    pub n_bytes: usize,
}

impl QueueMoved {
    /// Set the gauge.
    pub fn emit(self, size: &QueueSize) {
        metrics::store(&size.0, self.n_bytes);
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
        telemetry.metrics.exporter_retries.add([self.queue], 1);
    }
}

/// A request failed again while others get through: something is wrong with it, or with what stands
/// in its way alone.
#[derive(Debug)]
pub struct RequestHeldUp {
    /// The setting or variable the endpoint came from.
    pub origin: String,
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// How often it was tried.
    pub n_attempts: u32,
    /// What happened last.
    pub why: String,
    /// Further ones since the last line.
    pub n_held_back: u64,
}

impl RequestHeldUp {
    /// Log it; the attempts are counted.
    pub fn emit(self, _: &Telemetry) {
        let Self {
            origin,
            signal,
            n_attempts,
            why,
            n_held_back,
        } = self;
        tracing::warn!(
            origin,
            signal,
            n_attempts,
            more_before = n_held_back,
            "a request keeps failing while others get through: {why}"
        );
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
        telemetry.metrics.exporter_splits.add([self.queue], 1);
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
        let Self {
            origin,
            signal,
            n_items,
            reason,
            why,
            n_held_back,
        } = self;
        tracing::warn!(
            origin,
            signal,
            n_items,
            reason,
            more_before = n_held_back,
            "a request was refused for good and is dropped: {why}"
        );
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
        let Self {
            origin,
            signal,
            n_items,
            message,
            n_held_back,
        } = self;
        tracing::warn!(
            origin,
            signal,
            n_items,
            more_before = n_held_back,
            "the peer rejected part of a request: {message}"
        );
    }
}

/// Which queues are held up by which endpoint. Telemetry and the shapes of scores mostly go to the
/// same place, each with a queue of its own: an outage is told by one of them, not by all four.
#[derive(Debug, Default)]
pub(super) struct Outages(BTreeMap<String, BTreeSet<&'static str>>);

impl Outages {
    /// This queue is held up. Is it the first one?
    fn begin(&mut self, endpoint: &str, queue: &'static str) -> bool {
        let queues = self.0.entry(endpoint.to_owned()).or_default();
        queues.insert(queue) && queues.len() == 1
    }

    /// Is it this queue that speaks for all that are held up?
    fn speaks(&self, endpoint: &str, queue: &'static str) -> bool {
        self.0
            .get(endpoint)
            .is_none_or(|queues| queues.first() == Some(&queue))
    }

    /// This queue goes on. Is it the last one?
    fn end(&mut self, endpoint: &str, queue: &'static str) -> bool {
        let Some(queues) = self.0.get_mut(endpoint) else {
            return true;
        };
        queues.remove(queue);
        let is_last = queues.is_empty();
        if is_last {
            self.0.remove(endpoint);
        }
        is_last
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
    /// Count it, and log it unless another queue has.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            queue,
            origin,
            endpoint,
            why,
        } = self;
        telemetry.metrics.exporter_outages.add([queue], 1);
        if telemetry.outages().begin(&endpoint, queue) {
            tracing::warn!(
                queue,
                origin,
                endpoint,
                "delivery is paused, telemetry is queued and will be tried again: {why}"
            );
        }
    }
}

/// A destination is still down.
#[derive(Debug)]
pub struct DestinationStillDown {
    /// `forward`, `scores`, …
    pub queue: &'static str,
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
    /// Log it, unless another queue does.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            queue,
            origin,
            endpoint,
            why,
            since,
            n_bytes,
        } = self;
        if telemetry.outages().speaks(&endpoint, queue) {
            tracing::warn!(
                queue,
                origin,
                endpoint,
                down_secs = since.as_secs(),
                queued_bytes = n_bytes,
                "delivery is still paused: {why}"
            );
        }
    }
}

/// A destination takes requests again.
#[derive(Debug)]
pub struct DestinationRecovered {
    /// `forward`, `scores`, …
    pub queue: &'static str,
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
    /// Log it, once no queue is held up any more.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            queue,
            origin,
            endpoint,
            after,
            n_bytes,
        } = self;
        if telemetry.outages().end(&endpoint, queue) {
            tracing::info!(
                queue,
                origin,
                endpoint,
                down_secs = after.as_secs(),
                queued_bytes = n_bytes,
                "delivery goes on"
            );
        }
    }
}

/// The environment names a proxy, and we do not use proxies.
#[derive(Debug)]
pub struct ProxyIgnored {
    /// The variable. Its value may hold a password.
    pub variable: &'static str,
}

impl ProxyIgnored {
    /// Log it. Once, at start.
    pub fn emit(self) {
        tracing::warn!(
            variable = self.variable,
            "proxies are not supported: the proxy of the environment is ignored, and endpoints are connected to directly"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_of_several_queues_is_told_once_and_ends_with_the_last() {
        const ONE: &str = "http://one:4317";
        let mut outages = Outages::default();
        assert!(outages.begin(ONE, "score_spans"));
        assert!(!outages.begin(ONE, "forward"));
        assert!(
            outages.begin("http://another:4317", "score_events"),
            "another endpoint is another outage"
        );
        assert_eq!(
            ["forward", "score_spans"].map(|queue| outages.speaks(ONE, queue)),
            [true, false]
        );
        assert!(!outages.end(ONE, "forward"));
        assert!(
            outages.speaks(ONE, "score_spans"),
            "somebody speaks as long as it lasts"
        );
        assert!(outages.end(ONE, "score_spans"));
        assert!(
            outages.begin(ONE, "forward"),
            "the next outage is told again"
        );
    }
}
