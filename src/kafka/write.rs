//! Assigns the spans of a request to the topic's partitions and waits until the brokers have
//! acknowledged them. Makes one attempt; the delivery of the queue retries.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::client::{Failure, Producer};
use super::split::{Placed, TopicRecord, place};
use crate::config::{Backoff, Bound, Config, Kafka, Signal};
use crate::journal::{JournalLog, Outlet};
use crate::sync::Mutex;
use crate::telemetry::{Telemetry, WritingToKafka};
use crate::transport::queue::{Accounting, Queue};
use crate::transport::{Delivery, DeliveryOutcome, OutboundRequest, Recipient, split};

/// Interval between queries for the topic's number of partitions. Judges use an equal interval
/// (`METADATA_INTERVAL`), because spans seem misplaced while writer and judge have different
/// numbers.
const PARTITIONS_FOR: Duration = Duration::from_secs(10);

/// Time for which the library retries a record before our own retries begin. Longer than a broker's
/// failover.
const RECORD_TIMEOUT: Duration = Duration::from_secs(30);

/// Delay before a record is offered again to the library after its queue was full.
const FULL_WAIT: Duration = Duration::from_millis(20);

/// Maximum number of requests that are written concurrently.
const MAX_CONCURRENCY: usize = 8;

/// Size in bytes from which requests are split on a blocking thread, not on an asynchronous worker.
const SLOW_TO_SPLIT: usize = 256 << 10;

/// Records in flight may use the capacity divided by this number, because their requests stay in
/// memory until the brokers have acknowledged the records.
const SHARE_OF_RECORDS: usize = 4;

/// Prepares writing. The caller runs the delivery and awaits its end. `capacity` is for queued
/// requests and records in flight; with a `journal`, the queue in memory is a cache of the journal.
/// `rng` creates the jitter between attempts.
///
/// # Errors
/// Returns an error if the client library rejects a setting.
pub fn start(
    config: &Config,
    capacity: &Bound,
    accounting: Arc<dyn Accounting>,
    journal: Option<&JournalLog>,
    telemetry: &Arc<Telemetry>,
    rng: fastrand::Rng,
) -> Result<(Queue, Delivery<Arc<TopicWriter>>), String> {
    WritingToKafka {
        brokers: config.kafka.brokers.join(","),
        topic: config.kafka.write.topic.clone(),
    }
    .emit();
    // The library's share of the memory cannot change after the start.
    let for_records = capacity.share(SHARE_OF_RECORDS).get();
    let is_connected = telemetry.kafka_client("writer");
    let writer = Arc::new(TopicWriter {
        config: config.kafka.clone(),
        buffer: for_records,
        backoff: config.backoff().clone(),
        producer: Producer::new(&config.kafka, for_records, RECORD_TIMEOUT, is_connected)?,
        partitions: Mutex::default(),
    });
    let capacity = capacity.part(SHARE_OF_RECORDS - 1, SHARE_OF_RECORDS);
    let mut queue = Queue::new("kafka", capacity, accounting, telemetry);
    if let Some(log) = journal {
        queue = queue.journaled_in(log, Outlet::Topic);
    }
    let delivery = Delivery::new(queue.clone(), writer, telemetry.clone(), rng);
    Ok((queue, delivery))
}

/// Writes requests to a topic.
pub struct TopicWriter {
    config: Kafka,
    /// Maximum bytes of records in flight.
    buffer: usize,
    backoff: Backoff,
    producer: Producer,
    /// The topic's number of partitions, and the time of the query for it.
    partitions: Mutex<Option<(Instant, i32)>>,
}

impl Debug for TopicWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TopicWriter")
    }
}

impl TopicWriter {
    async fn write(self: &Arc<Self>, request: OutboundRequest) -> Result<DeliveryOutcome, Failure> {
        let n_partitions = self.n_partitions().await?;
        let Some(placed) = self.place(request.body.clone(), n_partitions).await else {
            return Ok(DeliveryOutcome::Refused {
                reason: "malformed",
                why: "the request is not valid protobuf".to_owned(),
            });
        };
        let (records, n_without_id) = (placed.records.into_iter(), placed.n_without_id);
        let records: Vec<_> = records.flat_map(|it| fitting(it, self.limit())).collect();
        let n_records = records.len();
        let (left, failures): (Vec<_>, Vec<_>) = self.send(records).await.into_iter().unzip();
        let Some(failure) = failures.into_iter().next() else {
            return Ok(DeliveryOutcome::Delivered {
                n_rejected: n_without_id,
                message: (n_without_id > 0)
                    .then(|| "spans without a valid trace id were not written".to_owned()),
            });
        };
        if matches!(failure, Failure::Later(_)) {
            // The topic may have been recreated with another number of partitions.
            *self.partitions.lock() = None;
        }
        if left.len() == n_records && n_without_id == 0 {
            return Err(failure);
        }
        // Concatenated encoded messages are one message that contains all their items.
        let n_items = left.iter().map(|record| record.n_spans).sum();
        let rest: Vec<u8> = left.into_iter().flat_map(|record| record.value).collect();
        Ok(DeliveryOutcome::Partly {
            rest: Bytes::from(rest),
            n_items,
            n_rejected: n_without_id,
        })
    }

    async fn n_partitions(self: &Arc<Self>) -> Result<i32, Failure> {
        let known = *self.partitions.lock();
        if let Some((asked, n)) = known
            && now().duration_since(asked) < PARTITIONS_FOR
        {
            return Ok(n);
        }
        let writer = Arc::clone(self);
        let asked = tokio::task::spawn_blocking(move || writer.producer.n_partitions()).await;
        let n = asked.unwrap_or_else(|error| Err(Failure::Later(error.to_string())))?;
        *self.partitions.lock() = Some((now(), n));
        Ok(n)
    }

    /// Returns `None` if the request is malformed.
    async fn place(&self, body: Bytes, n_partitions: i32) -> Option<Placed> {
        let (records, partitioner) = (self.config.write.records, self.config.write.partitioner);
        let is_slow = body.len() >= SLOW_TO_SPLIT;
        let place = move || place(&body, records, partitioner, n_partitions).ok();
        if is_slow { tokio::task::spawn_blocking(place).await.ok()? } else { place() }
    }

    /// Returns the maximum size of a record. A record that is larger than the library's whole
    /// buffer would never fit.
    fn limit(&self) -> usize {
        self.config.write.max_message_size.0.min(self.buffer)
    }

    /// Sends all records together and waits until the brokers have acknowledged them or the library
    /// has given up. Returns the records that were not acknowledged, each with the reason.
    async fn send(&self, records: Vec<TopicRecord>) -> Vec<(TopicRecord, Failure)> {
        let limit = self.limit();
        let (mut in_flight, mut left) = (Vec::with_capacity(records.len()), Vec::new());
        for record in records {
            let handed_over = if record.value.len() > limit {
                let n_bytes = record.value.len();
                let setting = if limit == self.config.write.max_message_size.0 {
                    "`kafka.write.max_message_size`"
                } else {
                    "a quarter of `kafka.write.queue.max_size`"
                };
                Err(Failure::TooLarge(format!(
                    "a span of {n_bytes} bytes is larger than {setting} ({limit})"
                )))
            } else {
                loop {
                    match self.producer.send(&record) {
                        // The brokers are slower than the senders.
                        Err(Failure::Full) => tokio::time::sleep(FULL_WAIT).await,
                        outcome => break outcome,
                    }
                }
            };
            match handed_over {
                Ok(sent) => in_flight.push((record, sent)),
                Err(failure) => left.push((record, failure)),
            }
        }
        for (record, sent) in in_flight {
            if let Err(failure) = self.producer.finish(sent).await {
                left.push((record, failure));
            }
        }
        left
    }
}

impl Recipient for Arc<TopicWriter> {
    async fn deliver(&self, request: OutboundRequest) -> DeliveryOutcome {
        match self.write(request).await {
            Ok(outcome) => outcome,
            Err(Failure::TooLarge(why)) => DeliveryOutcome::TooLarge { why },
            Err(failure) => DeliveryOutcome::Retry {
                after: None,
                why: failure.text(),
            },
        }
    }

    fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    fn max_concurrency(&self) -> usize {
        MAX_CONCURRENCY
    }

    fn origin(&self) -> &str {
        "kafka.brokers"
    }

    fn address(&self) -> String {
        self.config.brokers.join(",")
    }
}

/// Returns the record. If it exceeds the limit, returns parts of it that fit or have a single span.
fn fitting(record: TopicRecord, limit: usize) -> Vec<TopicRecord> {
    let is_too_large = record.value.len() > limit;
    let split = || split(Signal::Traces, &record.value, record.n_spans);
    let Some(halves) = is_too_large.then(split).flatten() else {
        return vec![record];
    };
    let halves = halves.into_iter().map(|(value, n_spans)| TopicRecord {
        value,
        n_spans,
        ..record
    });
    halves.flat_map(|half| fitting(half, limit)).collect()
}

/// Returns the time of tokio's clock, which tests can advance.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
