//! Tests the text of `/metrics`. Only tests/it/backends proves that Prometheus can read it.

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
    ItemsCounted {
        signal: "traces",
        n_items: 100,
        event: ItemEvent::Queued,
    }
    .emit(&telemetry);
    ItemsCounted {
        signal: "traces",
        n_items: 60,
        event: ItemEvent::Sent,
    }
    .emit(&telemetry);
    ItemsCounted {
        signal: "traces",
        n_items: 7,
        event: ItemEvent::Dropped("rejected"),
    }
    .emit(&telemetry);
    ItemsCounted {
        signal: "traces",
        n_items: 3,
        event: ItemEvent::Dropped("discarded"),
    }
    .emit(&telemetry);
    IncomingRefused {
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
    telemetry.metrics.traces_closed.add(["root_ended"], 2);
    telemetry.metrics.traces_closed.add(["inactive"], 1);
    TracesInMemory {
        n_open: 4,
        open_bytes: 9,
        n_recent: 2,
        recent_bytes: 7,
        n_sessions: 5,
        session_bytes: 6,
        unread_bytes: 0,
    }
    .emit(&telemetry);
    let more: MetricsSource = Arc::new(|page| page.gauge("more", "More", 9));
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
    assert!(text.ends_with("more 9\n# EOF\n"), "{text}");
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
fn the_table_is_sorted_and_names_each_metric_once() {
    let telemetry = Telemetry::default();
    for kind in [MetricKind::Counter, MetricKind::Gauge] {
        let metrics = telemetry.metrics.all().into_iter();
        let names: Vec<_> = metrics
            .filter(|(of_row, _)| *of_row == kind)
            .map(|(_, family)| family.name())
            .collect();
        assert!(names.is_sorted_by(|left, right| left < right), "{names:?}");
        let is_counter = |name: &&str| name.ends_with("_total");
        assert!(
            names
                .iter()
                .all(|name| is_counter(name) == (kind == MetricKind::Counter))
        );
    }
}
