//! Collected metrics in, OpenMetrics 1.0 text out, without its closing `# EOF`. Knows how names and
//! labels are written there; does not know what they mean.

use std::fmt::Write;

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData, ResourceMetrics};

/// Appends every metric, each with its HELP and TYPE line, its series in the order of their labels.
pub(super) fn render(metrics: &ResourceMetrics, out: &mut String) {
    for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
        match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                let name = head(out, metric, "counter");
                let mut lines: Vec<_> = sum
                    .data_points()
                    .map(|point| (labels(point.attributes()), point.value()))
                    .collect();
                lines.sort();
                for (labels, value) in lines {
                    let _ = writeln!(out, "{name}_total{{{labels}}} {value}");
                }
            }
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                let name = head(out, metric, "histogram");
                let mut points: Vec<_> = histogram
                    .data_points()
                    .map(|point| (labels(point.attributes()), point))
                    .collect();
                points.sort_by(|a, b| a.0.cmp(&b.0));
                for (labels, point) in points {
                    let mut n_below = 0;
                    for (bound, count) in point.bounds().zip(point.bucket_counts()) {
                        n_below += count;
                        let _ =
                            writeln!(out, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {n_below}");
                    }
                    let _ = writeln!(
                        out,
                        "{name}_bucket{{{labels},le=\"+Inf\"}} {}",
                        point.count()
                    );
                    let _ = writeln!(out, "{name}_sum{{{labels}}} {}", point.sum());
                    let _ = writeln!(out, "{name}_count{{{labels}}} {}", point.count());
                }
            }
            // We have no other instruments.
            _ => {}
        }
    }
}

fn head(out: &mut String, metric: &Metric, kind: &str) -> String {
    // Named as Prometheus itself names what comes over OTLP.
    let unit = if metric.unit() == "s" { "_seconds" } else { "" };
    let name = format!("{}{unit}", metric.name().replace('.', "_"));
    let _ = writeln!(out, "# HELP {name} {}", metric.description());
    let _ = writeln!(out, "# TYPE {name} {kind}");
    name
}

/// `key="value"`, comma-separated, in the order of the keys; backslashes, quotes and line ends
/// escaped.
fn labels<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut pairs: Vec<_> = attributes
        .map(|pair| (pair.key.as_str(), pair.value.as_str()))
        .collect();
    pairs.sort();
    let mut out = String::new();
    for (key, value) in pairs {
        let separator = if out.is_empty() { "" } else { "," };
        let _ = write!(out, "{separator}{key}=\"");
        for c in value.chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                _ => out.push(c),
            }
        }
        out.push('"');
    }
    out
}
