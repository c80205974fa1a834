//! The table of metrics: one row gives a metric its field, type, labels, name and help.
//!
//! prometheus-client is not used, because its families are unordered hash maps and every scrape
//! must list the series in the same order.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, MutexGuard};

use super::{MetricKind, MetricsPage};
use crate::sync::Mutex;

/// Defines the table: a field for each row, and [`Metrics::all`] over all rows. The doc comment of
/// a row is its help text, so a metric without help does not compile. The name of a metric with a
/// unit ends in the unit (`_bytes`, `_seconds`), as Prometheus recommends.
macro_rules! metrics {
    ($(
        $(#[doc = $help:literal])+
        $field:ident: $kind:ident[$($label:literal),*] = $name:literal;
    )+) => {
        /// The counters and gauges that events change. Other code, such as `item_accounting` and
        /// the exporter of scores, writes further metrics to `/metrics`.
        #[derive(Debug)]
        pub(super) struct Metrics {
            $($(#[doc = $help])+ pub(super) $field: $kind<{ count(&[$($label),*]) }>,)+
        }

        impl Metrics {
            pub(super) fn new() -> Self {
                Self {
                    $($field: $kind(Family::new($name, concat!($($help),+), [$($label),*])),)+
                }
            }

            pub(super) fn all(&self) -> Vec<(MetricKind, &dyn AnyFamily)> {
                vec![$((MetricKind::$kind, &self.$field.0 as &dyn AnyFamily)),+]
            }
        }
    };
}

metrics! {
    /// Connections that could not be accepted, usually for lack of file descriptors, by port
    accept_failures: Counter["port"] = "spanscore_accept_failures_total";
    /// Times that judging an open trace for alarms was postponed, usually by at most a second
    alarms_postponed: Counter[] = "spanscore_alarms_postponed_total";
    /// Requests refused by the API of the admin port, by reason
    api_refused: Counter["reason"] = "spanscore_api_refused_total";
    /// API requests refused because admin.token_file could not be used
    api_token_unusable: Counter[] = "spanscore_api_token_unusable_total";
    /// Requests whose authorization header was not forwarded
    authorization_not_passed: Counter[] = "spanscore_authorization_not_passed_total";
    /// Reloads of changed certificate files, by result
    certificate_reloads: Counter["result"] = "spanscore_certificate_reloads_total";
    /// Reloads of the configuration files, by result
    config_reloads: Counter["result"] = "spanscore_config_reloads_total";
    /// Connections evicted or rejected at the limits on connections, by port and reason
    connections_cut: Counter["port", "reason"] = "spanscore_connections_cut_total";
    /// Sets of criteria that came into force, by cause
    criteria_sets: Counter["cause"] = "spanscore_criteria_sets_total";
    /// Outages of a destination, by queue
    exporter_outages: Counter["queue"] = "spanscore_exporter_outages_total";
    /// Requests sent again, by queue
    exporter_retries: Counter["queue"] = "spanscore_exporter_retries_total";
    /// Requests split because the peer found them too large, by queue
    exporter_splits: Counter["queue"] = "spanscore_exporter_splits_total";
    /// Bytes of the journal that were damaged
    journal_damaged_bytes: Counter[] = "spanscore_journal_damaged_bytes_total";
    /// Acknowledged requests lost because the journal was damaged
    journal_damaged_records: Counter[] = "spanscore_journal_damaged_records_total";
    /// Open traces that were rebuilt from the journal at the start
    journal_restored_traces: Counter[] = "spanscore_journal_restored_traces_total";
    /// Journals set aside because another version wrote them
    journal_too_new: Counter[] = "spanscore_journal_too_new_total";
    /// Evaluations made, counting each revision
    judgements: Counter[] = "spanscore_judgements_total";
    /// Evaluations that late spans did not change
    judgements_unchanged: Counter[] = "spanscore_judgements_unchanged_total";
    /// Commits of the reading position, by result
    kafka_commits: Counter["result"] = "spanscore_kafka_commits_total";
    /// Traces found in another partition than that of their id
    kafka_misplaced_traces: Counter[] = "spanscore_kafka_misplaced_traces_total";
    /// Partitions that were taken over, handed over, or lost because the group evicted this
    /// process, by kind
    kafka_rebalances: Counter["kind"] = "spanscore_kafka_rebalances_total";
    /// Records that are not OTLP requests, by the format that was expected
    kafka_records_set_aside: Counter["reason"] = "spanscore_kafka_records_set_aside_total";
    /// Spans that were not written to Kafka although they were acknowledged, by reason
    kafka_spans_dropped: Counter["reason"] = "spanscore_kafka_spans_dropped_total";
    /// Spans to write to Kafka in addition to a downstream, by outcome: accepted, restored, sent
    kafka_spans: Counter["outcome"] = "spanscore_kafka_spans_total";
    /// Spans that arrived after their trace was closed
    late_spans: Counter[] = "spanscore_late_spans_total";
    /// Late spans that were not judged because their trace was full or evicted
    late_spans_unjudged: Counter[] = "spanscore_late_spans_unjudged_total";
    /// Successful look-ups of the addresses of assemble.peers
    peers_answers: Counter[] = "spanscore_peers_answers_total";
    /// Changes of the addresses of assemble.peers
    peers_changes: Counter[] = "spanscore_peers_changes_total";
    /// Requests to a wrong path, port, method or protocol, by reason
    receiver_misdirected_requests:
        Counter["reason"] = "spanscore_receiver_misdirected_requests_total";
    /// Requests refused, by signal and reason
    receiver_refused_requests:
        Counter["signal", "reason"] = "spanscore_receiver_refused_requests_total";
    /// Spans, log records and points that claimed to be scores, by signal and action
    receiver_scores: Counter["signal", "action"] = "spanscore_receiver_scores_total";
    /// Registrations removed because their time to live ran out
    registrations_expired: Counter[] = "spanscore_registrations_expired_total";
    /// Failed attempts to remove expired registrations: the state file could not be written
    registrations_kept: Counter[] = "spanscore_registrations_kept_total";
    /// Late spans and results without effect because the memory of closed traces was full
    revisions_lost: Counter[] = "spanscore_revisions_lost_total";
    /// Scores dropped, by shape and reason
    scores_dropped: Counter["shape", "reason"] = "spanscore_scores_dropped_total";
    /// Scores acknowledged by their destination, by shape
    scores_sent: Counter["shape"] = "spanscore_scores_sent_total";
    /// Sessions that got their final verdicts, by completeness; counted again after a late turn
    sessions_judged: Counter["completeness"] = "spanscore_sessions_judged_total";
    /// Spans forwarded unscored because their trace or span id is empty or all zero
    spans_without_ids: Counter[] = "spanscore_spans_without_ids_total";
    /// State files that could be read but not completely parsed
    state_file_unusable: Counter[] = "spanscore_state_file_unusable_total";
    /// Failed TLS handshakes, by port
    tls_handshake_failures: Counter["port"] = "spanscore_tls_handshake_failures_total";
    /// Traces closed, by reason
    traces_closed: Counter["reason"] = "spanscore_traces_closed_total";
    /// Traces that arrived only in part, by the missing part: spans (only log records with messages
    /// arrived), or calls (spans report tool calls that neither spans nor messages name)
    traces_half_arrived: Counter["missing"] = "spanscore_traces_half_arrived_total";
    /// Traces that were closed as inactive while a parent of the same process was missing, with
    /// assemble.peers
    traces_torn: Counter[] = "spanscore_traces_torn_total";
    /// Traces with neither a tool call nor an agent run, which are not judged
    traces_without_trajectory: Counter[] = "spanscore_traces_without_trajectory_total";
    /// Spans forwarded unscored because the scoring queue was full or the journal was unreadable
    unscored_spans: Counter[] = "spanscore_unscored_spans_total";

    /// 1 if the configuration files contain changes that need a restart
    config_needs_restart: Gauge[] = "spanscore_config_needs_restart";
    /// 1 if the last reload of the configuration files failed
    config_reload_failed: Gauge[] = "spanscore_config_reload_failed";
    /// Open connections, by port
    connections_open: Gauge["port"] = "spanscore_connections_open";
    /// Criteria in force, by source
    criteria: Gauge["source"] = "spanscore_criteria";
    /// Capacity of a queue in bytes, by queue
    exporter_queue_capacity: Gauge["queue"] = "spanscore_exporter_queue_capacity_bytes";
    /// Bytes in a queue, by queue: forward (original telemetry), score_… (scores) and others
    exporter_queue_size: Gauge["queue"] = "spanscore_exporter_queue_size_bytes";
    /// 1 while a client of Kafka has a connection to a broker, by client: writer, judge
    kafka_connected: Gauge["client"] = "spanscore_kafka_connected";
    /// Bytes of memory that are divided among queues and traces
    memory_shared: Gauge[] = "spanscore_memory_shared_bytes";
    /// Addresses of assemble.peers
    peers: Gauge[] = "spanscore_peers";
    /// 1 if the addresses of assemble.peers cannot be resolved
    peers_unresolved: Gauge[] = "spanscore_peers_unresolved";
    /// Scores waiting to be delivered, by shape
    scores_queued: Gauge["shape"] = "spanscore_scores_queued";
    /// Bytes of requests in the journal that wait to be scored
    scoring_unread_bytes: Gauge[] = "spanscore_scoring_unread_bytes";
    /// Services whose traces are spread over several replicas
    services_torn: Gauge[] = "spanscore_services_torn";
    /// Sessions with closed turns, for criteria with `scope: session`
    sessions: Gauge[] = "spanscore_sessions";
    /// Bytes of the turns of sessions
    sessions_bytes: Gauge[] = "spanscore_sessions_bytes";
    /// Open traces
    traces_open: Gauge[] = "spanscore_traces_open";
    /// Bytes of open traces
    traces_open_bytes: Gauge[] = "spanscore_traces_open_bytes";
    /// Closed traces remembered for late spans
    traces_recent: Gauge[] = "spanscore_traces_recent";
    /// Bytes of closed traces remembered for late spans
    traces_recent_bytes: Gauge[] = "spanscore_traces_recent_bytes";
}

#[derive(Debug)]
pub(super) struct Counter<const N: usize>(Family<N>);

#[derive(Debug)]
pub(super) struct Gauge<const N: usize>(Family<N>);

/// The series of one metric, each created when its label values first appear. The values of a label
/// are a small fixed set.
#[derive(Debug)]
struct Family<const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    series: Mutex<BTreeMap<[&'static str; N], Arc<AtomicI64>>>,
}

pub(super) trait AnyFamily: Debug {
    fn name(&self) -> &'static str;

    /// Returns the value of one series; 0 if there is no such series.
    fn value(&self, labels: &[(&str, &str)]) -> i64;

    /// Writes the metric, unless it has no series yet.
    fn write(&self, kind: MetricKind, page: &mut MetricsPage);
}

// === impl Counter, impl Gauge ===

impl<const N: usize> Counter<N> {
    /// Adds `n` to a series and returns its new value. Adding 0 makes the series appear.
    pub(super) fn add(&self, label_values: [&'static str; N], n: u64) -> u64 {
        let before = self
            .0
            .series(label_values)
            .fetch_add(n.cast_signed(), Ordering::Relaxed);
        before.cast_unsigned() + n
    }

    pub(super) fn value(&self, label_values: [&'static str; N]) -> u64 {
        let series = self.0.series(label_values);
        series.load(Ordering::Relaxed).cast_unsigned()
    }
}

impl Counter<1> {
    pub(super) fn values(&self) -> BTreeMap<&'static str, u64> {
        let series = self.0.lock();
        let values = series
            .iter()
            .map(|([label], value)| (*label, value.load(Ordering::Relaxed).cast_unsigned()));
        values.collect()
    }
}

impl<const N: usize> Gauge<N> {
    pub(super) fn add(&self, label_values: [&'static str; N], change: i64) {
        self.0
            .series(label_values)
            .fetch_add(change, Ordering::Relaxed);
    }

    pub(super) fn set(&self, label_values: [&'static str; N], value: usize) {
        store(&self.0.series(label_values), value);
    }

    /// Returns the series itself, for code that changes it without a lookup.
    pub(super) fn series(&self, label_values: [&'static str; N]) -> Arc<AtomicI64> {
        self.0.series(label_values)
    }
}

/// Sets a gauge. A value that does not fit becomes the maximum.
pub(super) fn store(gauge: &AtomicI64, value: usize) {
    gauge.store(i64::try_from(value).unwrap_or(i64::MAX), Ordering::Relaxed);
}

// === impl Family ===

impl<const N: usize> Family<N> {
    fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self {
            name,
            help: help.trim_start(),
            labels,
            series: Mutex::default(),
        }
    }

    fn series(&self, label_values: [&'static str; N]) -> Arc<AtomicI64> {
        Arc::clone(self.lock().entry(label_values).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<[&'static str; N], Arc<AtomicI64>>> {
        self.series.lock()
    }
}

impl<const N: usize> AnyFamily for Family<N> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn value(&self, labels: &[(&str, &str)]) -> i64 {
        let series = self.lock();
        let found = series.iter().find(|(values, _)| {
            self.labels
                .into_iter()
                .zip(**values)
                .eq(labels.iter().copied())
        });
        found.map_or(0, |(_, value)| value.load(Ordering::Relaxed))
    }

    fn write(&self, kind: MetricKind, page: &mut MetricsPage) {
        let series = self.lock();
        if series.is_empty() {
            return;
        }
        let counter = self.name.strip_suffix("_total");
        page.metric(counter.unwrap_or(self.name), kind, self.help);
        for (values, value) in &*series {
            let labels = self.labels.into_iter().zip(*values);
            let value = value.load(Ordering::Relaxed);
            match counter {
                Some(counter) => page.total(counter, labels, value),
                None => page.sample(self.name, labels, value),
            }
        }
    }
}

const fn count(labels: &[&str]) -> usize {
    labels.len()
}
