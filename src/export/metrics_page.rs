//! Writes the scores' metrics, as the OpenTelemetry SDK collected them, to the page of `/metrics`.
//! Must not know what a metric means.

use std::borrow::Cow;

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData, ResourceMetrics};

use crate::telemetry::{MetricKind, MetricsPage};

/// Writes every metric, its series in the order of their labels.
pub(super) fn write(metrics: &ResourceMetrics, page: &mut MetricsPage) {
    for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
        let name = name(metric);
        match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                page.metric(&name, MetricKind::Counter, metric.description());
                let points = sum.data_points();
                let mut series: Vec<_> = points
                    .map(|point| (Labels::of(point.attributes()), point.value()))
                    .collect();
                series.sort();
                for (labels, value) in &series {
                    page.sample(&format!("{name}_total"), labels.pairs(), value);
                }
            }
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                page.metric(&name, MetricKind::Histogram, metric.description());
                let points = histogram.data_points();
                let mut series: Vec<_> = points
                    .map(|point| (Labels::of(point.attributes()), point))
                    .collect();
                series.sort_by(|(left, _), (right, _)| left.cmp(right));
                for (labels, point) in &series {
                    let bounds = point.bounds().map(|bound| format!("{bound:?}"));
                    let mut n_below = 0;
                    for (bound, count) in bounds.zip(point.bucket_counts()) {
                        n_below += count;
                        let labels = labels.pairs().chain([("le", bound.as_str())]);
                        page.sample(&format!("{name}_bucket"), labels, n_below);
                    }
                    let all = labels.pairs().chain([("le", "+Inf")]);
                    page.sample(&format!("{name}_bucket"), all, point.count());
                    page.sample(&format!("{name}_sum"), labels.pairs(), point.sum());
                    page.sample(&format!("{name}_count"), labels.pairs(), point.count());
                }
            }
            // We have no other instruments.
            _ => {}
        }
    }
}

/// The name that Prometheus itself gives a metric that arrives over OTLP.
fn name(metric: &Metric) -> String {
    let unit = if metric.unit() == "s" { "_seconds" } else { "" };
    format!("{}{unit}", metric.name().replace('.', "_"))
}

/// The labels of one series, in the order of their keys.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Labels<'a>(Vec<(&'a str, Cow<'a, str>)>);

impl<'a> Labels<'a> {
    fn of(attributes: impl Iterator<Item = &'a KeyValue>) -> Self {
        let mut pairs: Vec<_> = attributes
            .map(|pair| (pair.key.as_str(), pair.value.as_str()))
            .collect();
        pairs.sort();
        Self(pairs)
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (*key, &**value))
    }
}
