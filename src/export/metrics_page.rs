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
                for (labels, point) in sorted(&sum.data_points, |point| &point.attributes) {
                    // No instrument is a sum of doubles.
                    if let Some(Value::AsInt(value)) = point.value {
                        page.sample(&format!("{name}_total"), labels.iter().copied(), value);
                        page.created(&name, labels.iter().copied(), point.start_time_unix_nano);
                    }
                }
            }
            Some(Data::Histogram(histogram)) => {
                page.metric(&name, MetricKind::Histogram, &metric.description);
                let points = sorted(&histogram.data_points, |point| &point.attributes);
                for (labels, point) in points {
                    let bounds = point.explicit_bounds.iter();
                    let mut n_below = 0;
                    for (bound, count) in bounds.zip(&point.bucket_counts) {
                        n_below += count;
                        let bound = format!("{bound:?}");
                        let labels = labels.iter().copied().chain([("le", bound.as_str())]);
                        page.sample(&format!("{name}_bucket"), labels, n_below);
                    }
                    let all = labels.iter().copied().chain([("le", "+Inf")]);
                    page.sample(&format!("{name}_bucket"), all, point.count);
                    let sum = point.sum.unwrap_or_default();
                    page.sample(&format!("{name}_sum"), labels.iter().copied(), sum);
                    page.sample(
                        &format!("{name}_count"),
                        labels.iter().copied(),
                        point.count,
                    );
                    page.created(&name, labels.iter().copied(), point.start_time_unix_nano);
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
type Labels<'a> = Vec<(&'a str, &'a str)>;

/// Returns all points with their labels, sorted by these.
fn sorted<'a, P>(
    points: &'a [P],
    attributes: fn(&'a P) -> &'a [KeyValue],
) -> Vec<(Labels<'a>, &'a P)> {
    let label = |pair: &'a KeyValue| match pair.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some((pair.key.as_str(), text.as_str())),
        _ => None,
    };
    let labels = |point| {
        let mut labels: Labels<'a> = attributes(point).iter().filter_map(label).collect();
        labels.sort_unstable();
        labels
    };
    let mut series: Vec<_> = points.iter().map(|it| (labels(it), it)).collect();
    series.sort_by(|(left, _), (right, _)| left.cmp(right));
    series
}
