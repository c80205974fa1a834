//! Events of a judge that reads from Kafka: its partitions, what it cannot read, and why; and
//! whether the clients of Kafka are connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Telemetry;

/// A client of Kafka.
#[derive(Debug)]
pub(super) struct KafkaClient {
    /// What it does: `writer`, `judge`.
    name: &'static str,
    is_connected: Arc<AtomicBool>,
}

impl Telemetry {
    /// Adds a client of Kafka to those whose connection is shown. The client sets the flag while it
    /// is connected.
    pub fn kafka_client(&self, name: &'static str) -> Arc<AtomicBool> {
        let is_connected = Arc::<AtomicBool>::default();
        self.kafka_clients.lock().push(KafkaClient {
            name,
            is_connected: Arc::clone(&is_connected),
        });
        is_connected
    }

    /// Sets the gauge: where several clients have one name, all of them must be connected.
    pub(super) fn note_kafka_clients(&self) {
        let clients = self.kafka_clients.lock();
        for KafkaClient { name, .. } in &*clients {
            let mut same = clients.iter().filter(|it| it.name == *name);
            let is_connected = same.all(|it| it.is_connected.load(Ordering::Relaxed));
            let gauge = &self.metrics.kafka_connected;
            gauge.set([name], usize::from(is_connected));
        }
    }
}

/// Spans are read from Kafka.
#[derive(Debug)]
pub struct ReadingFromKafka<'a> {
    /// The brokers that are asked for all others.
    pub brokers: &'a str,
    /// The topic.
    pub topic: &'a str,
    /// The consumer group.
    pub group: &'a str,
    /// Threads that judge.
    pub n_threads: usize,
}

impl ReadingFromKafka<'_> {
    /// Logs it.
    pub fn emit(self) {
        let Self {
            brokers,
            topic,
            group,
            n_threads,
        } = self;
        tracing::info!(
            brokers,
            topic,
            group,
            threads = n_threads,
            "judging spans from Kafka"
        );
    }
}

/// Reading or committing failed; it is tried again.
#[derive(Debug)]
pub struct ReadingFailed<'a> {
    /// The reason and its remedy.
    pub why: &'a str,
}

impl ReadingFailed<'_> {
    /// Logs it.
    pub fn emit(self) {
        let Self { why } = self;
        tracing::warn!(why, "cannot read from Kafka, trying again");
    }
}

/// Partitions were taken over or given back.
#[derive(Debug)]
pub struct PartitionsMoved<'a> {
    /// What happened: `taken`, `handed over`, `lost`.
    pub what: &'static str,
    /// Their numbers.
    pub partitions: &'a [i32],
}

impl PartitionsMoved<'_> {
    /// Logs it.
    pub fn emit(self) {
        let Self { what, partitions } = self;
        tracing::info!(?partitions, "partitions {what}");
    }
}

/// The metadata beside a committed offset cannot be used: another program has set the offset.
#[derive(Debug)]
pub struct ProgressUnknown {
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: u64,
    /// Why it cannot be used.
    pub why: String,
}

impl ProgressUnknown {
    /// Logs it.
    pub fn emit(self) {
        let Self {
            partition,
            offset,
            why,
        } = self;
        tracing::warn!(
            partition,
            offset,
            why,
            "the committed offset has no progress beside it: judging begins there, and traces that \
             began before are incomplete"
        );
    }
}

/// A record holds no spans that can be read.
#[derive(Debug)]
pub struct RecordSetAside<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// Its place there.
    pub offset: u64,
    /// Why.
    pub why: &'a str,
    /// Where it was written to, if it was.
    pub to: Option<&'a str>,
}

impl RecordSetAside<'_> {
    /// Logs it.
    pub fn emit(self) {
        let Self {
            topic,
            partition,
            offset,
            why,
            to,
        } = self;
        let then = to.map_or("is left out".to_owned(), |to| {
            format!("was moved to `{to}`")
        });
        tracing::warn!(
            topic,
            partition,
            offset,
            why,
            "a record is no OTLP request and {then}"
        );
    }
}

/// A record that cannot be read was not written to the set-aside topic; it is tried again.
#[derive(Debug)]
pub struct SettingAsideFailed<'a> {
    /// The topic that is read.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The record's place there.
    pub offset: u64,
    /// The reason and its remedy.
    pub why: &'a str,
}

impl SettingAsideFailed<'_> {
    /// Logs it.
    pub fn emit(self) {
        let Self {
            topic,
            partition,
            offset,
            why,
        } = self;
        tracing::warn!(
            topic,
            partition,
            offset,
            why,
            "cannot set a record aside, trying again; its partition waits"
        );
    }
}

/// Spans are in another partition than their trace id says.
#[derive(Debug)]
pub struct SpansMisplaced<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The first such record.
    pub offset: u64,
    /// The other partitioner, if that would fit.
    pub would_fit: Option<&'static str>,
}

impl SpansMisplaced<'_> {
    /// Logs it with its remedy.
    pub fn emit(self) {
        let Self {
            topic,
            partition,
            offset,
            would_fit,
        } = self;
        let hint = would_fit.map_or(String::new(), |name| format!("; `{name}` would fit"));
        tracing::warn!(
            "spans of `{topic}` are not placed by trace id (partition {partition}, offset \
             {offset}{hint}), so their traces are incomplete: set `partition_traces_by_id: true` \
             in the Collector's exporter, and one `kafka.write.partitioner` for all"
        );
    }
}

/// Spans are where they belonged before partitions were added.
#[derive(Debug)]
pub struct SpansPlacedBefore<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The first such record.
    pub offset: u64,
    /// How many partitions there were.
    pub n_before: i32,
    /// How many there are.
    pub n_partitions: i32,
}

impl SpansPlacedBefore<'_> {
    /// Logs it.
    pub fn emit(self) {
        let Self {
            topic,
            partition,
            offset,
            n_before,
            n_partitions,
        } = self;
        tracing::warn!(
            "spans of `{topic}` were placed among {n_before} partitions, and there are \
             {n_partitions} now (partition {partition}, offset {offset}), so their traces are \
             incomplete; this ends once every writer knows of the added partitions"
        );
    }
}

/// A topic has other partitions than before.
#[derive(Debug)]
pub struct PartitionsAdded<'a> {
    /// The topic.
    pub topic: &'a str,
    /// How many it had.
    pub n_before: i32,
    /// How many it has.
    pub n_partitions: i32,
}

impl PartitionsAdded<'_> {
    /// Logs it.
    pub fn emit(self) {
        let Self {
            topic,
            n_before,
            n_partitions,
        } = self;
        tracing::warn!(
            "`{topic}` had {n_before} partitions and has {n_partitions} now: traces that are open \
             are torn, and incomplete"
        );
    }
}

/// Writers' clocks stamp the records, and one is ahead.
#[derive(Debug)]
pub struct StampAhead<'a> {
    /// The topic.
    pub topic: &'a str,
}

impl StampAhead<'_> {
    /// Logs it with its remedy.
    pub fn emit(self) {
        let Self { topic } = self;
        tracing::warn!(
            "records of `{topic}` are stamped by their writers, and a stamp is ahead of the time: \
             let the brokers stamp them (kafka-configs --alter --topic {topic} --add-config \
             message.timestamp.type=LogAppendTime)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_one_name_count_as_connected_when_all_are() {
        let telemetry = Telemetry::default();
        let [first, second] = ["judge"; 2].map(|name| telemetry.kafka_client(name));
        telemetry.kafka_client("writer");
        for (states, expected) in [([true, false], 0), ([true, true], 1), ([false, true], 0)] {
            first.store(states[0], Ordering::Relaxed);
            second.store(states[1], Ordering::Relaxed);
            let page = telemetry.metrics_text(0, &[]);
            for line in [
                format!("spanscore_kafka_connected{{client=\"judge\"}} {expected}\n"),
                "spanscore_kafka_connected{client=\"writer\"} 0\n".to_owned(),
            ] {
                assert!(page.contains(&line), "{line}");
            }
        }
    }
}
