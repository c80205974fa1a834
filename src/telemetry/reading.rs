//! Events of a judge that reads from Kafka: its partitions, what it cannot read, and why; and
//! whether the clients of Kafka are connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Telemetry;

/// A client of Kafka.
#[derive(Debug)]
pub(super) struct KafkaClient {
    /// The client's role: `writer` or `judge`.
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

events! {
    /// Spans are read from Kafka.
    ReadingFromKafka<'a> {
        brokers: &'a str,
        topic: &'a str,
        group: &'a str,
        n_threads: usize,
    } () {
        tracing::info!(brokers, topic, group, threads = n_threads, "judging spans from Kafka");
    }

    /// Reading or committing failed; it is tried again.
    ReadingFailed<'a> { why: &'a str } () {
        tracing::warn!(why, "cannot read from Kafka, trying again");
    }

    /// Partitions were taken over or given back.
    PartitionsMoved<'a> { what: &'static str, partitions: &'a [i32] } () {
        tracing::info!(?partitions, "partitions {what}");
    }

    /// The metadata beside a committed offset cannot be used: another program has set the offset.
    ProgressUnknown { partition: i32, offset: u64, why: String } () {
        tracing::warn!(
            partition,
            offset,
            why,
            "the committed offset has no progress beside it: judging begins there, and traces that \
             began before are incomplete"
        );
    }

    /// A record holds no spans that can be read.
    RecordSetAside<'a> {
        topic: &'a str,
        partition: i32,
        offset: u64,
        why: &'a str,
        to: Option<&'a str>,
    } () {
        let then = to.map_or("is left out".to_owned(), |to| {
            format!("was moved to `{to}`")
        });
        tracing::warn!(topic, partition, offset, why, "a record is no OTLP request and {then}");
    }

    /// A record that cannot be read was not written to the set-aside topic; it is tried again.
    SettingAsideFailed<'a> { topic: &'a str, partition: i32, offset: u64, why: &'a str } () {
        tracing::warn!(
            topic,
            partition,
            offset,
            why,
            "cannot set a record aside, trying again; its partition waits"
        );
    }

    /// Spans are in another partition than their trace id says.
    SpansMisplaced<'a> {
        topic: &'a str,
        partition: i32,
        offset: u64,
        would_fit: Option<&'static str>,
    } () {
        let hint = would_fit.map_or(String::new(), |name| format!("; `{name}` would fit"));
        tracing::warn!(
            "spans of `{topic}` are not placed by trace id (partition {partition}, offset \
             {offset}{hint}), so their traces are incomplete: set `partition_traces_by_id: true` \
             in the Collector's exporter, and one `kafka.write.partitioner` for all"
        );
    }

    /// Spans are in the partitions of their ids as computed before partitions were added.
    SpansPlacedBefore<'a> {
        topic: &'a str,
        partition: i32,
        offset: u64,
        n_before: i32,
        n_partitions: i32,
    } () {
        tracing::warn!(
            "spans of `{topic}` were placed among {n_before} partitions, and there are \
             {n_partitions} now (partition {partition}, offset {offset}), so their traces are \
             incomplete; this ends once every writer knows of the added partitions"
        );
    }

    /// A topic has other partitions than before.
    PartitionsAdded<'a> { topic: &'a str, n_before: i32, n_partitions: i32 } () {
        tracing::warn!(
            "`{topic}` had {n_before} partitions and has {n_partitions} now: traces that are open \
             are torn, and incomplete"
        );
    }

    /// Writers' clocks stamp the records, and one is ahead.
    StampAhead<'a> { topic: &'a str } () {
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
