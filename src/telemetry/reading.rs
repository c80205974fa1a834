//! Events of a judge that reads from Kafka, and the gauge of connected Kafka clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Telemetry;

#[derive(Debug)]
pub(super) struct KafkaClient {
    /// The client's role: `writer` or `judge`.
    name: &'static str,
    is_connected: Arc<AtomicBool>,
}

impl Telemetry {
    /// Adds a Kafka client to the gauge. The client sets the returned flag while it is connected.
    pub fn kafka_client(&self, name: &'static str) -> Arc<AtomicBool> {
        let is_connected = Arc::<AtomicBool>::default();
        self.kafka_clients.lock().push(KafkaClient {
            name,
            is_connected: Arc::clone(&is_connected),
        });
        is_connected
    }

    /// Sets the gauge. Clients of one name count as connected if all of them are.
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
    ReadingFromKafka<'a> {
        brokers: &'a str,
        topic: &'a str,
        group: &'a str,
        n_threads: usize,
    } (telemetry) {
        let metrics = &telemetry.metrics;
        for (counter, series) in [
            (&metrics.kafka_commits, &["failed", "ok"][..]),
            (&metrics.kafka_rebalances, &["handed_over", "lost", "taken"]),
            (&metrics.kafka_records_set_aside, &["json", "protobuf"]),
        ] {
            for label in series {
                counter.add([label], 0);
            }
        }
        metrics.kafka_misplaced_traces.add([], 0);
        tracing::info!(brokers, topic, group, threads = n_threads, "judging spans from Kafka");
    }

    ReadingFailed<'a> { why: &'a str } () {
        tracing::warn!(why, "cannot read from Kafka or commit, retrying");
    }

    PartitionsMoved<'a> { kind: &'static str, partitions: &'a [i32] } (telemetry) {
        let n_partitions = partitions.len() as u64;
        telemetry.metrics.kafka_rebalances.add([kind], n_partitions);
        let what = match kind {
            "taken" => "assigned",
            "handed_over" => "revoked",
            kind => kind,
        };
        tracing::info!(?partitions, "partitions {what}");
    }

    CommitEnded { is_taken: bool } (telemetry) {
        let result = if is_taken { "ok" } else { "failed" };
        telemetry.metrics.kafka_commits.add([result], 1);
    }

    /// The metadata of a committed offset cannot be used, for example because another program has
    /// set the offset.
    ProgressUnknown { partition: i32, offset: u64, why: String } () {
        tracing::warn!(
            partition,
            offset,
            why,
            "committed offset has no usable spanscore metadata; judging starts at the offset, \
             earlier traces are incomplete"
        );
    }

    RecordSetAside<'a> {
        topic: &'a str,
        partition: i32,
        offset: u64,
        why: &'a str,
        to: Option<&'a str>,
        is_json: bool,
        is_logged: bool,
    } (telemetry) {
        let format = if is_json { "json" } else { "protobuf" };
        telemetry.metrics.kafka_records_set_aside.add([format], 1);
        match to {
            _ if !is_logged => {}
            Some(to) => tracing::warn!(
                topic,
                partition,
                offset,
                why,
                to,
                "record moved to the set-aside topic: not an OTLP trace request"
            ),
            None => tracing::warn!(
                topic,
                partition,
                offset,
                why,
                "record skipped: not an OTLP trace request"
            ),
        }
    }

    SettingAsideFailed<'a> { topic: &'a str, partition: i32, offset: u64, why: &'a str } () {
        tracing::warn!(
            topic,
            partition,
            offset,
            why,
            "cannot set a record aside, retrying; its partition is paused"
        );
    }

    SpansMisplaced<'a> {
        topic: &'a str,
        partition: i32,
        offset: u64,
        n_traces: usize,
        would_fit: Option<&'static str>,
        is_logged: bool,
    } (telemetry) {
        telemetry.metrics.kafka_misplaced_traces.add([], n_traces as u64);
        if is_logged {
            tracing::warn!(
                topic,
                partition,
                offset,
                would_fit,
                "spans are not partitioned by trace id, so their traces are incomplete; set \
                 `partition_traces_by_id: true` in the Collector's exporter, and the same \
                 `kafka.write.partitioner` in all writers; after partitions were added, this ends \
                 when every writer has refreshed the topic's metadata"
            );
        }
    }

    PartitionsAdded<'a> { topic: &'a str, n_before: i32, n_partitions: i32 } () {
        tracing::warn!(
            topic,
            n_before,
            n_partitions,
            "partitions were added to the topic; traces that are open now are incomplete"
        );
    }

    TimestampInFuture<'a> { topic: &'a str } () {
        tracing::warn!(
            topic,
            "record timestamp is in the future (set by the writer); let the brokers set \
             timestamps: kafka-configs --alter --topic {topic} --add-config \
             message.timestamp.type=LogAppendTime"
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
