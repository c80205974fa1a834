//! Everything counted in, text for Prometheus out (OpenMetrics 1.0, which Prometheus, the
//! Collector's receiver and the agents of the vendors read). The books are read so that accepted =
//! sent + queued + dropped in every scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::process::Usage;
use super::{Books, Label, Telemetry};

/// Appends further metrics in OpenMetrics text, without the closing `# EOF`.
pub type MetricsText = Arc<dyn Fn(&mut String) + Send + Sync>;

/// Content type of [`Telemetry::metrics_text`].
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A signal's word in the books, and what its items are called in the names of metrics.
const SIGNALS: [(&str, &str); 3] = [
    ("traces", "spans"),
    ("logs", "log_records"),
    ("metrics", "metric_points"),
];

/// What is said of a metric that is not one of the books. A metric without a row has an empty help
/// text.
const HELP: &[(&str, &str)] = &[
    (
        "spanscore_accept_failures_total",
        "Connections the system could not give us, most often for want of file descriptors, by port",
    ),
    (
        "spanscore_api_refused_total",
        "Callers refused by the API of the admin port, by reason",
    ),
    (
        "spanscore_api_token_unusable_total",
        "Callers refused since admin.token_file could not be used",
    ),
    (
        "spanscore_authorization_not_passed_total",
        "Requests with an authorization header that nothing hands on",
    ),
    (
        "spanscore_certificate_reloads_total",
        "Changes of certificate files, by result",
    ),
    (
        "spanscore_config_needs_restart",
        "1 if the configuration files hold changes that need a restart",
    ),
    (
        "spanscore_config_reload_failed",
        "1 if the configuration files could not be used when they were last read",
    ),
    (
        "spanscore_config_reloads_total",
        "Times that configuration files were read again, by result",
    ),
    ("spanscore_connections_open", "Open connections, by port"),
    (
        "spanscore_criteria",
        "Criteria in force, by where they were registered",
    ),
    (
        "spanscore_criteria_sets_total",
        "Sets of criteria that came into force, by cause",
    ),
    (
        "spanscore_exporter_outages_total",
        "Times a destination was found to be down, by queue",
    ),
    (
        "spanscore_exporter_queue_capacity_bytes",
        "Most bytes a queue may hold, by queue",
    ),
    (
        "spanscore_exporter_queue_size_bytes",
        "Bytes in a queue, by queue: forward is the original telemetry, score_… the scores",
    ),
    (
        "spanscore_exporter_retries_total",
        "Requests sent again, by queue",
    ),
    (
        "spanscore_exporter_splits_total",
        "Requests split since the peer found them too large, by queue",
    ),
    (
        "spanscore_judgements_total",
        "Evaluations made, each revision by itself",
    ),
    (
        "spanscore_judgements_unchanged_total",
        "Evaluations that late spans did not change",
    ),
    (
        "spanscore_late_spans_total",
        "Spans that came after their trace was closed",
    ),
    (
        "spanscore_late_spans_unjudged_total",
        "Late spans that came too late to be judged: their trace was full, or its facts were forgotten",
    ),
    (
        "spanscore_receiver_refused_requests_total",
        "Requests refused, by signal and reason",
    ),
    (
        "spanscore_registrations_expired_total",
        "Registrations taken out when their time had run out",
    ),
    (
        "spanscore_registrations_kept_total",
        "Tries to take out registrations that failed, since the state file could not be written",
    ),
    (
        "spanscore_scores_dropped_total",
        "Scores given up, by shape and reason",
    ),
    ("spanscore_scores_queued", "Scores on their way, by shape"),
    (
        "spanscore_scores_sent_total",
        "Scores acknowledged by their destination, by shape",
    ),
    (
        "spanscore_spans_without_ids_total",
        "Spans forwarded without being scored, since their trace or span id is empty or all zero",
    ),
    (
        "spanscore_state_file_unusable_total",
        "State files that could be read but not understood",
    ),
    (
        "spanscore_tls_handshake_failures_total",
        "TLS handshakes that failed, by port",
    ),
    ("spanscore_traces_closed_total", "Traces closed, by reason"),
    ("spanscore_traces_open", "Traces that are not done yet"),
    (
        "spanscore_traces_open_bytes",
        "Bytes kept of traces that are not done yet",
    ),
    (
        "spanscore_traces_recent",
        "Closed traces remembered for late spans",
    ),
    (
        "spanscore_traces_recent_bytes",
        "Bytes kept of closed traces",
    ),
    (
        "spanscore_traces_without_trajectory_total",
        "Traces with neither a tool call nor an agent run, which are not judged",
    ),
    (
        "spanscore_unscored_spans_total",
        "Spans forwarded without being scored, since the score plane was saturated",
    ),
];

/// Shown from the start, at zero: an alert on what should never happen must not wait for its series
/// to appear.
const FROM_THE_START: [&str; 2] = [
    "spanscore_late_spans_total",
    "spanscore_unscored_spans_total",
];

/// Every name that may stand in [`Telemetry::metrics_text`], for tests of what is made of it.
#[cfg(test)]
pub(crate) fn metric_names() -> impl Iterator<Item = String> {
    let text = Telemetry::default().metrics_text(0, &[]);
    // A family whose values all have labels shows none as long as nothing was counted.
    let families = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| match line.split_once(' ') {
            Some((name, "counter")) => format!("{name}_total"),
            Some((name, _)) => name.to_owned(),
            None => String::new(),
        });
    let families: Vec<String> = families.collect();
    families
        .into_iter()
        .chain(HELP.iter().map(|(name, _)| (*name).to_owned()))
}

impl Telemetry {
    /// Everything counted, for Prometheus; `more` appends what others count.
    pub fn metrics_text(&self, started_unix_nanos: u64, more: &[MetricsText]) -> String {
        let (mut counters, mut gauges) = {
            let state = self.state();
            let gauges = state
                .gauges
                .iter()
                .map(|(series, gauge)| (series.clone(), gauge.load(Ordering::Relaxed)));
            (state.counters.clone(), gauges.collect::<BTreeMap<_, _>>())
        };
        for name in FROM_THE_START {
            counters.entry((name, Vec::new())).or_default();
        }
        gauges.extend(
            self.held
                .read()
                .map(|(name, value)| ((name, Vec::new()), value)),
        );
        let snapshot = Snapshot {
            books: self.books(),
            counters,
            gauges,
            usage: Usage::read(),
            started_unix_nanos,
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(snapshot));
        let mut text = String::new();
        // Writing to a string cannot fail, and an encoder that does leaves out a line, not the
        // process.
        let _ = encode_registry(&mut text, &registry);
        for append in more {
            append(&mut text);
        }
        let _ = encode_eof(&mut text);
        text
    }
}

#[derive(Debug)]
struct Snapshot {
    books: BTreeMap<&'static str, Books>,
    counters: BTreeMap<(&'static str, Vec<Label>), u64>,
    gauges: BTreeMap<(&'static str, Vec<Label>), i64>,
    usage: Usage,
    started_unix_nanos: u64,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let empty = Books::default();
        for (signal, items) in SIGNALS {
            encode_books(
                self.books.get(signal).unwrap_or(&empty),
                items,
                &mut encoder,
            )?;
        }
        let counters = self
            .counters
            .iter()
            .map(|((name, labels), value)| (*name, labels.as_slice(), *value));
        for family in families(counters) {
            encode_counters(family, &mut encoder)?;
        }
        let gauges = self
            .gauges
            .iter()
            .map(|((name, labels), value)| (*name, labels.as_slice(), *value));
        for family in families(gauges) {
            encode_gauges(family, &mut encoder)?;
        }
        encode_process(self, &mut encoder)
    }
}

fn encode_books(books: &Books, items: &str, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let words = items.replace('_', " ");
    let dropped: u64 = books.dropped.values().sum();
    // `discarded` was never meant to be sent: the backend does not take the signal, or there is
    // none.
    let discarded = books.dropped.get("discarded").copied().unwrap_or_default();
    let refused: u64 = books.refused.values().sum();
    let plain = [
        (
            "receiver_accepted",
            books.accepted,
            "taken in and acknowledged",
        ),
        (
            "receiver_refused",
            refused,
            "not taken in; their sender still has them",
        ),
        (
            "exporter_sent",
            books.sent,
            "acknowledged by the downstream",
        ),
        (
            "exporter_send_failed",
            dropped - discarded,
            "acknowledged to the sender and then given up",
        ),
    ];
    for (name, value, help) in plain {
        let name = format!("spanscore_{name}_{items}_total");
        encode_counters(
            Family {
                name: &name,
                help: &format!("{words} {help}"),
                values: vec![(&[], value)],
            },
            encoder,
        )?;
    }
    let name = format!("spanscore_exporter_dropped_{items}_total");
    let help = format!("{words} given up, by reason; accepted = sent + queue + dropped");
    let by_reason: Vec<_> = books
        .dropped
        .iter()
        .map(|(reason, value)| ([("reason", *reason)], *value))
        .collect();
    let values = by_reason
        .iter()
        .map(|(labels, value)| (labels.as_slice(), *value))
        .collect();
    encode_counters(
        Family {
            name: &name,
            help: &help,
            values,
        },
        encoder,
    )?;
    let name = format!("spanscore_exporter_queue_{items}");
    let queued = i64::try_from(books.queued).unwrap_or(i64::MAX);
    encode_gauges(
        Family {
            name: &name,
            help: &format!("{words} on their way to the downstream"),
            values: vec![(&[], queued)],
        },
        encoder,
    )
}

fn encode_process(snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Usage {
        cpu_seconds,
        resident_bytes,
        open_fds,
    } = snapshot.usage;
    encoder
        .encode_descriptor(
            "process_cpu_seconds",
            "User and system CPU time, in seconds",
            None,
            MetricType::Counter,
        )?
        .encode_counter::<NoLabelSet, _, f64>(&cpu_seconds, None)?;
    let started = snapshot.started_unix_nanos as f64 / 1e9;
    encoder
        .encode_descriptor(
            "process_start_time_seconds",
            "Start of the process, Unix time in seconds",
            None,
            MetricType::Gauge,
        )?
        .encode_gauge(&started)?;
    if let Some(bytes) = resident_bytes {
        let help = "Resident memory, in bytes";
        encoder
            .encode_descriptor(
                "process_resident_memory_bytes",
                help,
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&(bytes as i64))?;
    }
    if let Some(n_fds) = open_fds {
        encoder
            .encode_descriptor(
                "process_open_fds",
                "Open file descriptors",
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&(n_fds as i64))?;
    }
    let labels = [("version", env!("CARGO_PKG_VERSION"))];
    let mut info = encoder.encode_descriptor(
        "spanscore_build_info",
        "Version of this binary",
        None,
        MetricType::Gauge,
    )?;
    info.encode_family(&labels)?.encode_gauge(&1_i64)
}

// === Family ===

/// The values of one metric, by label.
struct Family<'a, T> {
    name: &'a str,
    help: &'a str,
    values: Vec<(&'a [Label], T)>,
}

/// Values that stand together because they are sorted by name, as families.
fn families<'a, T>(
    sorted: impl Iterator<Item = (&'static str, &'a [Label], T)>,
) -> Vec<Family<'a, T>> {
    let mut families: Vec<Family<'a, T>> = Vec::new();
    for (name, labels, value) in sorted {
        match families.last_mut() {
            Some(family) if family.name == name => family.values.push((labels, value)),
            _ => {
                let help = HELP
                    .iter()
                    .find(|(of, _)| *of == name)
                    .map_or("", |(_, help)| help);
                families.push(Family {
                    name,
                    help,
                    values: vec![(labels, value)],
                });
            }
        }
    }
    families
}

fn encode_counters(family: Family<'_, u64>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    // The encoder appends the `_total` that OpenMetrics asks for.
    let name = family.name.strip_suffix("_total").unwrap_or(family.name);
    let mut metric = encoder.encode_descriptor(name, family.help, None, MetricType::Counter)?;
    let encode = |mut metric: MetricEncoder<'_>, value: u64| {
        metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
    };
    family
        .values
        .iter()
        .try_for_each(|(labels, value)| match labels.is_empty() {
            true => metric.encode_counter::<NoLabelSet, _, f64>(value, None),
            false => encode(metric.encode_family(labels)?, *value),
        })
}

fn encode_gauges(family: Family<'_, i64>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut metric =
        encoder.encode_descriptor(family.name, family.help, None, MetricType::Gauge)?;
    family
        .values
        .iter()
        .try_for_each(|(labels, value)| match labels.is_empty() {
            true => metric.encode_gauge(value),
            false => metric.encode_family(labels)?.encode_gauge(value),
        })
}

#[cfg(test)]
mod tests {
    use super::super::{Accepted, Dropped, Refused, Sent, TracesHeld};
    use super::*;

    fn value(text: &str, series: &str) -> u64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in:\n{text}"))
            .parse()
            .unwrap()
    }

    #[test]
    fn the_books_balance_in_the_text() {
        let telemetry = Telemetry::default();
        Accepted {
            signal: "traces",
            n_items: 100,
        }
        .emit(&telemetry);
        Sent {
            signal: "traces",
            n_items: 60,
        }
        .emit(&telemetry);
        Dropped {
            signal: "traces",
            n_items: 7,
            reason: "rejected",
        }
        .emit(&telemetry);
        Dropped {
            signal: "traces",
            n_items: 3,
            reason: "discarded",
        }
        .emit(&telemetry);
        Refused {
            signal: "logs",
            n_items: 5,
            reason: "queue_full",
            message: String::new(),
        }
        .emit(&telemetry);
        let text = telemetry.metrics_text(1_795_000_000_000_000_000, &[]);
        let accepted = value(&text, "spanscore_receiver_accepted_spans_total");
        let sent = value(&text, "spanscore_exporter_sent_spans_total");
        let queued = value(&text, "spanscore_exporter_queue_spans");
        let rejected = value(
            &text,
            "spanscore_exporter_dropped_spans_total{reason=\"rejected\"}",
        );
        let discarded = value(
            &text,
            "spanscore_exporter_dropped_spans_total{reason=\"discarded\"}",
        );
        assert_eq!(
            (accepted, sent, queued, rejected, discarded),
            (100, 60, 30, 7, 3)
        );
        assert_eq!(
            value(&text, "spanscore_exporter_send_failed_spans_total"),
            7
        );
        assert_eq!(
            value(&text, "spanscore_receiver_refused_log_records_total"),
            5
        );
        assert_eq!(
            value(&text, "spanscore_receiver_accepted_metric_points_total"),
            0
        );
    }

    #[test]
    fn the_text_is_open_metrics_with_each_family_once_and_one_end() {
        let telemetry = Telemetry::default();
        telemetry.add(
            "spanscore_traces_closed_total",
            &[("reason", "root_ended")],
            2,
        );
        telemetry.add(
            "spanscore_traces_closed_total",
            &[("reason", "inactive")],
            1,
        );
        TracesHeld {
            n_open: 4,
            open_bytes: 9,
            n_recent: 2,
            recent_bytes: 7,
        }
        .emit(&telemetry);
        let more: MetricsText = Arc::new(|text| {
            text.push_str("# TYPE spanscore_evaluations counter\nspanscore_evaluations_total 9\n")
        });
        let text = telemetry.metrics_text(1_795_000_000_500_000_000, &[more]);
        assert_eq!(
            text.matches("# TYPE spanscore_traces_closed counter\n")
                .count(),
            1,
            "{text}"
        );
        assert_eq!(
            value(&text, "spanscore_traces_closed_total{reason=\"inactive\"}"),
            1
        );
        assert_eq!(value(&text, "spanscore_traces_open"), 4);
        assert_eq!(value(&text, "spanscore_build_info{version=\"0.1.0\"}"), 1);
        assert!(
            text.contains("process_start_time_seconds 1795000000.5\n"),
            "{text}"
        );
        assert!(
            text.ends_with("spanscore_evaluations_total 9\n# EOF\n"),
            "{text}"
        );
        let mut types: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("# TYPE"))
            .collect();
        types.sort_unstable();
        let n_types = types.len();
        types.dedup();
        assert_eq!(types.len(), n_types, "a family is declared twice:\n{text}");
    }

    #[test]
    fn the_help_table_is_sorted_and_says_something_of_every_metric() {
        assert!(HELP.is_sorted_by(|(left, _), (right, _)| left < right));
        let sources = [
            include_str!("../telemetry.rs"),
            include_str!("books.rs"),
            include_str!("connections.rs"),
            include_str!("exporting.rs"),
            include_str!("forwarding.rs"),
            include_str!("receiving.rs"),
            include_str!("registering.rs"),
            include_str!("scoring.rs"),
        ];
        let names = sources
            .iter()
            .flat_map(|source| source.split('"'))
            .filter(|literal| {
                literal.starts_with("spanscore_")
                    && literal
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            });
        let unexplained: Vec<_> = names
            .filter(|name| !HELP.iter().any(|(of, _)| of == name))
            .collect();
        assert_eq!(unexplained, [""; 0], "each metric has a row in HELP");
    }
}
