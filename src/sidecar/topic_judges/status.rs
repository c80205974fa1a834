//! The status of the partitions that this process judges, for `/metrics`.

use std::collections::BTreeMap;
use std::time::Duration;

use judge::assemble::Stats;

use crate::sidecar::now;
use crate::sync::Mutex;
use crate::telemetry::{MetricKind, MetricsPage};

const LAG_SECONDS: &str = "spanscore_kafka_lag_seconds";

/// Maximum number of partitions that `/metrics` lists.
const MAX_LISTED: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct JudgesStatus {
    pub(super) partitions: Mutex<BTreeMap<i32, PartitionStatus>>,
    /// Lost partitions, each with its thread and its `JudgedPartition::known_until`: the partitions
    /// that the thread had when it was evicted or the brokers became unreachable. Stored until the
    /// thread has partitions again.
    pub(super) lost: Mutex<BTreeMap<i32, (usize, u64)>>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PartitionStatus {
    /// Number of records that the judge has not received.
    pub(super) n_behind: u64,
    /// Age of the next queued record in milliseconds. Without a queued record it is 0, or, while
    /// the brokers do not answer, the time since their last answer.
    pub(super) behind_millis: u64,
    pub(super) stats: Stats,
    /// Number of records that a successor would read again.
    pub(super) n_replay: u64,
}

type ReadStatus = fn(&PartitionStatus) -> f64;

impl JudgesStatus {
    pub(super) fn write(&self, page: &mut MetricsPage) {
        let partitions = self.partitions.lock().clone();
        page.gauge(
            "spanscore_kafka_assigned_partitions",
            "Partitions that this process judges",
            partitions.len(),
        );
        let gauges: [(&str, &str, ReadStatus); 4] = [
            (
                "spanscore_kafka_lag_records",
                "Records of a partition that were not read yet, by partition",
                |it| it.n_behind as f64,
            ),
            (
                LAG_SECONDS,
                "Age of the next record of a partition; 0 at its end; while the brokers do not \
                 answer, the time since they did, by partition",
                |it| it.behind_millis as f64 / 1e3,
            ),
            (
                "spanscore_kafka_open_traces",
                "Open traces of a partition, by partition",
                |it| it.stats.n_open as f64,
            ),
            (
                "spanscore_kafka_replay_distance_records",
                "Records that the next owner of a partition reads again, by partition",
                |it| it.n_replay as f64,
            ),
        ];
        for (name, help, read) in gauges {
            page.metric(name, MetricKind::Gauge, help);
            for (partition, status) in partitions.iter().take(MAX_LISTED) {
                let partition = partition.to_string();
                page.sample(name, [("partition", &*partition)], read(status));
            }
            if name == LAG_SECONDS {
                self.write_lost(&partitions, page);
            }
        }
    }

    /// Writes the lag of lost partitions as if nobody judged them, because this process cannot know
    /// whether another process does.
    fn write_lost(&self, held: &BTreeMap<i32, PartitionStatus>, page: &mut MetricsPage) {
        let time = now().unix_nanos;
        let lost = self.lost.lock();
        let lost = lost.iter().filter(|(it, _)| !held.contains_key(it));
        for (partition, (_, known_until)) in lost.take(MAX_LISTED.saturating_sub(held.len())) {
            let partition = partition.to_string();
            let behind = Duration::from_nanos(time.saturating_sub(*known_until));
            let labels = [("partition", &*partition)];
            page.sample(LAG_SECONDS, labels, behind.as_secs_f64());
        }
    }
}
