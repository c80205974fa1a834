//! Writes the scores' metrics to the page of `/metrics`, from the request that sends them over
//! OTLP.

use crate::telemetry::{MetricKind, MetricsPage};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;

/// Writes every metric; the series are sorted by their labels.
pub(super) fn write(metrics: &ExportMetricsServiceRequest, page: &mut MetricsPage) {
    let scopes = metrics
        .resource_metrics
        .iter()
        .flat_map(|resource| &resource.scope_metrics);
    for metric in scopes.flat_map(|scope| &scope.metrics) {
        let name = name(metric);
        match &metric.data {
            Some(Data::Sum(sum)) => {
                page.metric(&name, MetricKind::Counter, &metric.description);
                let points = sum.data_points.iter();
                let mut series: Vec<_> = points
                    .map(|point| (Labels::of(&point.attributes), point))
                    .collect();
                series.sort_by(|(left, _), (right, _)| left.cmp(right));
                for (labels, point) in &series {
                    // No instrument is a sum of doubles.
                    if let Some(Value::AsInt(value)) = point.value {
                        page.sample(&format!("{name}_total"), labels.pairs(), value);
                        page.created(&name, labels.pairs(), point.start_time_unix_nano);
                    }
                }
            }
            Some(Data::Histogram(histogram)) => {
                page.metric(&name, MetricKind::Histogram, &metric.description);
                let points = histogram.data_points.iter();
                let mut series: Vec<_> = points
                    .map(|point| (Labels::of(&point.attributes), point))
                    .collect();
                series.sort_by(|(left, _), (right, _)| left.cmp(right));
                for (labels, point) in &series {
                    let bounds = point.explicit_bounds.iter();
                    let mut n_below = 0;
                    for (bound, count) in bounds.zip(&point.bucket_counts) {
                        n_below += count;
                        let bound = format!("{bound:?}");
                        let labels = labels.pairs().chain([("le", bound.as_str())]);
                        page.sample(&format!("{name}_bucket"), labels, n_below);
                    }
                    let all = labels.pairs().chain([("le", "+Inf")]);
                    page.sample(&format!("{name}_bucket"), all, point.count);
                    let sum = point.sum.unwrap_or_default();
                    page.sample(&format!("{name}_sum"), labels.pairs(), sum);
                    page.sample(&format!("{name}_count"), labels.pairs(), point.count);
                    page.created(&name, labels.pairs(), point.start_time_unix_nano);
                }
            }
            // There are no other instruments.
            _ => {}
        }
    }
}

/// Returns the name that Prometheus itself gives a metric that arrives over OTLP.
fn name(metric: &Metric) -> String {
    let unit = if metric.unit == "s" { "_seconds" } else { "" };
    format!("{}{unit}", metric.name.replace('.', "_"))
}

/// The labels of one series, sorted by key.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Labels<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Labels<'a> {
    fn of(attributes: &'a [KeyValue]) -> Self {
        let text = |pair: &'a KeyValue| match pair.value.as_ref()?.value.as_ref()? {
            any_value::Value::StringValue(text) => Some((pair.key.as_str(), text.as_str())),
            _ => None,
        };
        let mut pairs: Vec<_> = attributes.iter().filter_map(text).collect();
        pairs.sort_unstable();
        Self(pairs)
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().copied()
    }
}
