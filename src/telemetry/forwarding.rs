//! Events of outbound requests: queues, attempts, outages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use super::item_accounting::ItemEvent;
use super::{Telemetry, metrics};

#[derive(Debug)]
pub struct QueueOpened {
    /// `forward`, `score_spans`, …
    pub queue: &'static str,
    pub capacity: usize,
}

impl QueueOpened {
    pub fn emit(self, telemetry: &Telemetry) -> QueueSize {
        let metrics = &telemetry.metrics;
        let capacity = metrics.exporter_queue_capacity.series([self.queue]);
        metrics::store(&capacity, self.capacity);
        QueueSize {
            n_bytes: metrics.exporter_queue_size.series([self.queue]),
            capacity,
        }
    }
}

/// The gauges of one queue. The queue owns them because every request changes them twice.
#[derive(Debug)]
pub struct QueueSize {
    n_bytes: Arc<AtomicI64>,
    capacity: Arc<AtomicI64>,
}

#[derive(Debug)]
pub struct QueueResized {
    /// Bytes in the queue, requests in flight included.
    pub n_bytes: usize,
    pub capacity: usize,
}

impl QueueResized {
    pub fn emit(self, size: &QueueSize) {
        metrics::store(&size.n_bytes, self.n_bytes);
        metrics::store(&size.capacity, self.capacity);
    }
}

events! {
    RequestRetried { queue: &'static str } (telemetry) {
        telemetry.metrics.exporter_retries.add([queue], 1);
    }

    RequestDelayed {
        origin: String,
        signal: &'static str,
        n_attempts: u32,
        why: String,
        n_suppressed: u64,
    } (_) {
        tracing::warn!(
            origin,
            signal,
            n_attempts,
            suppressed = n_suppressed,
            "a request keeps failing while others succeed: {why}"
        );
    }

    /// A request was too large for the peer; its halves are sent instead.
    RequestSplit { queue: &'static str } (telemetry) {
        telemetry.metrics.exporter_splits.add([queue], 1);
    }

    RequestRefused {
        origin: String,
        signal: &'static str,
        n_items: u64,
        reason: &'static str,
        why: String,
        n_suppressed: u64,
    } (_) {
        tracing::warn!(
            origin,
            signal,
            n_items,
            reason,
            suppressed = n_suppressed,
            "request refused permanently and dropped: {why}"
        );
    }

    /// A peer accepted a request but rejected some of its items, or accepted it with a warning.
    PartlyRejected {
        origin: String,
        signal: &'static str,
        n_items: u64,
        message: String,
        n_suppressed: u64,
    } (_) {
        tracing::warn!(
            origin,
            signal,
            n_items,
            suppressed = n_suppressed,
            "the peer rejected part of a request: {message}"
        );
    }
}

/// The queues that wait for each endpoint that is down. Telemetry and all shapes of scores usually
/// go to one endpoint, each from a separate queue; only one of the queues logs an outage.
#[derive(Debug, Default)]
pub(super) struct Outages(BTreeMap<String, BTreeSet<&'static str>>);

impl Outages {
    /// Adds a waiting queue; returns true if it is the first for this endpoint.
    fn begin(&mut self, endpoint: &str, queue: &'static str) -> bool {
        let queues = self.0.entry(endpoint.to_owned()).or_default();
        queues.insert(queue) && queues.len() == 1
    }

    /// Returns true if this queue logs for all queues that wait for the endpoint.
    fn is_logger(&self, endpoint: &str, queue: &'static str) -> bool {
        self.0
            .get(endpoint)
            .is_none_or(|queues| queues.first() == Some(&queue))
    }

    /// Removes a queue that resumed; returns true if it was the last for this endpoint.
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

events! {
    /// A destination cannot be reached or requests a pause.
    DestinationDown {
        queue: &'static str,
        origin: String,
        endpoint: String,
        why: String,
    } (telemetry) {
        telemetry.metrics.exporter_outages.add([queue], 1);
        if telemetry.outages().begin(&endpoint, queue) {
            tracing::warn!(
                queue,
                origin,
                endpoint,
                "delivery paused; telemetry is queued and will be retried: {why}"
            );
        }
    }

    DestinationStillDown {
        queue: &'static str,
        origin: String,
        endpoint: String,
        why: String,
        since: Duration,
        n_bytes: usize,
    } (telemetry) {
        if telemetry.outages().is_logger(&endpoint, queue) {
            tracing::warn!(
                queue,
                origin,
                endpoint,
                down_secs = since.as_secs(),
                queued_bytes = n_bytes,
                "delivery still paused: {why}"
            );
        }
    }

    DestinationRecovered {
        queue: &'static str,
        origin: String,
        endpoint: String,
        after: Duration,
        n_bytes: usize,
    } (telemetry) {
        if telemetry.outages().end(&endpoint, queue) {
            tracing::info!(
                queue,
                origin,
                endpoint,
                down_secs = after.as_secs(),
                queued_bytes = n_bytes,
                "delivery resumed"
            );
        }
    }

    ProxyIgnored { variable: &'static str } () {
        tracing::warn!(
            variable,
            "proxies are not supported: the proxy from the environment is ignored, and endpoints \
             are contacted directly"
        );
    }

    SendersElsewhere<'a> { senders: &'a str } () {
        tracing::warn!(
            senders,
            "containers of this pod export to another endpoint, so their telemetry is not judged: \
             remove OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and \
             OTEL_EXPORTER_OTLP_LOGS_ENDPOINT from them, and name the endpoint in \
             SPANSCORE_FORWARD__ENDPOINT for the sidecar"
        );
    }

    WritingToKafka { brokers: String, topic: String } () {
        tracing::info!(
            brokers,
            topic,
            "writing spans to Kafka; log records and metrics are not written"
        );
    }
}

events! {
    /// Spans that are written to Kafka in addition to a downstream.
    SpansToKafka { n_items: u64, event: ItemEvent } (telemetry) {
        let metrics = &telemetry.metrics;
        match event {
            ItemEvent::Queued => metrics.kafka_spans.add(["accepted"], n_items),
            ItemEvent::Restored => metrics.kafka_spans.add(["restored"], n_items),
            ItemEvent::Sent => metrics.kafka_spans.add(["sent"], n_items),
            ItemEvent::Dropped(reason) => metrics.kafka_spans_dropped.add([reason], n_items),
        };
    }
}

impl Telemetry {
    /// Returns the number of spans that were to be written to Kafka in addition to a downstream,
    /// and were dropped at the shutdown deadline.
    pub fn n_left_for_kafka(&self) -> u64 {
        self.metrics.kafka_spans_dropped.value(["shutdown"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_of_several_queues_is_logged_once_and_ends_with_the_last() {
        const ONE: &str = "http://one:4317";
        let mut outages = Outages::default();
        assert!(outages.begin(ONE, "score_spans"));
        assert!(!outages.begin(ONE, "forward"));
        assert!(
            outages.begin("http://another:4317", "score_events"),
            "another endpoint is another outage"
        );
        assert_eq!(
            ["forward", "score_spans"].map(|queue| outages.is_logger(ONE, queue)),
            [true, false]
        );
        assert!(!outages.end(ONE, "forward"));
        assert!(
            outages.is_logger(ONE, "score_spans"),
            "one queue logs as long as it lasts"
        );
        assert!(outages.end(ONE, "score_spans"));
        assert!(
            outages.begin(ONE, "forward"),
            "the next outage is logged again"
        );
    }
}
