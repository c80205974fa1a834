//! Writes metrics as OpenMetrics 1.0 text, which Prometheus, the Collector's Prometheus receiver
//! and the vendors' agents read.

use std::fmt::{Display, Write};

#[derive(Debug)]
pub struct MetricsPage {
    text: String,
    started_unix_nanos: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// The names of its samples end in `_total`.
    Counter,
    Gauge,
    Histogram,
}

impl MetricsPage {
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Creates an empty page; `started_unix_nanos` is the start of the process.
    pub fn new(started_unix_nanos: u64) -> Self {
        Self {
            text: String::new(),
            started_unix_nanos,
        }
    }

    /// Starts a metric; its samples follow. `name` has no `_total`.
    pub fn metric(&mut self, name: &str, kind: MetricKind, help: &str) {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Writes one sample of the metric that was started last.
    pub fn sample<'a>(
        &mut self,
        name: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        value: impl Display,
    ) {
        self.text.push_str(name);
        let mut separator = '{';
        for (key, label) in labels {
            self.write(format_args!("{separator}{key}=\""));
            for c in label.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    _ => self.text.push(c),
                }
            }
            self.text.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.write(format_args!(" {value}\n"));
    }

    /// Writes one series of the counter that was started last. The series counts from the start of
    /// the process. `name` has no `_total`.
    pub fn total<'a>(
        &mut self,
        name: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str), IntoIter: Clone>,
        value: impl Display,
    ) {
        let labels = labels.into_iter();
        self.sample(&format!("{name}_total"), labels.clone(), value);
        self.created(name, labels, self.started_unix_nanos);
    }

    /// Writes the start time of a series of the counter or histogram that was started last.
    /// Prometheus can derive a zero from the start time; without a zero, the first event of a new
    /// series shows no increase.
    pub fn created<'a>(
        &mut self,
        name: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        unix_nanos: u64,
    ) {
        let (seconds, nanos) = (unix_nanos / 1_000_000_000, unix_nanos % 1_000_000_000);
        let millis = nanos / 1_000_000;
        self.sample(
            &format!("{name}_created"),
            labels,
            format_args!("{seconds}.{millis:03}"),
        );
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.metric(name, MetricKind::Gauge, help);
        self.sample(name, [], value);
    }

    pub fn finish(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_braces_stand_only_around_labels() {
        let mut page = MetricsPage::new(1_790_000_000_050_999_999);
        page.metric("seen", MetricKind::Counter, "Names seen, by name");
        page.total("seen", [("name", "a \"b\"\\\n"), ("kind", "é")], 7);
        page.gauge("open", "Names open", 1.5);
        assert_eq!(
            page.finish(),
            "# HELP seen Names seen, by name\n\
             # TYPE seen counter\n\
             seen_total{name=\"a \\\"b\\\"\\\\\\n\",kind=\"é\"} 7\n\
             seen_created{name=\"a \\\"b\\\"\\\\\\n\",kind=\"é\"} 1790000000.050\n\
             # HELP open Names open\n\
             # TYPE open gauge\n\
             open 1.5\n\
             # EOF\n"
        );
    }
}
