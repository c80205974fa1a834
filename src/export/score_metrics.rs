//! Counts evaluations with the instruments of docs/design.md#how-scores-leave, and encodes them for
//! OTLP.
//!
//! The series of evaluations are bound to opentelemetry_sdk's instruments once, so that counting
//! costs an atomic addition. This file collects from the SDK's readers itself, so there is no
//! second timer and no second export path.
//!
//! Series of all verdicts begin at 0 when a criterion, service and agent are first seen together: a
//! series that begins at 1 has no increase, so backends would not see the first failure. The SDK
//! uses one start time for all series of an instrument. We replace it with the start time of each
//! series, so that a backend sees the increase from 0 to 1 in the first collection.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use judge::evaluate::{CriterionSeverity, Evaluation, Verdict};
use opentelemetry::metrics::{BoundCounter, BoundHistogram, Counter, Histogram, MeterProvider};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue as ProtoKeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, Metric};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{
    Instrument, InstrumentKind, ManualReader, Pipeline, SdkMeterProvider, Stream,
    Temporality as SdkTemporality,
};
use prost::Message;
use text::truncated;

use super::score_series::{Folded, Labels, MAX_COMBINATIONS, MAX_NAME_LENGTH, SeriesTable};
use super::score_span::score_time;
use super::score_wire::{SCOPE_NAME, SCOPE_VERSION};
use crate::config::{MetricScores, Temporality};
use crate::sync::Mutex;

const EVALUATIONS: &str = "spanscore.evaluations";
const SCORE: &str = "spanscore.evaluation.score";
const REVISIONS: &str = "spanscore.evaluation.revisions";
const TIME_TO_VERDICT: &str = "spanscore.time_to_verdict";
const ALARMS: &str = "spanscore.alarms";
const TIME_TO_ALARM: &str = "spanscore.time_to_alarm";

pub(super) const MAX_SERIES: usize = MAX_COMBINATIONS * Verdict::ALL.len();

/// Buckets of the score: zero, tenths, one. A bucket's upper bound is inclusive, so 0 has a
/// separate bucket.
const BOUNDS: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// Buckets of the time to a verdict, in seconds. By default, settling takes 5, a trace without an
/// end is closed after 180, and every trace is closed after an hour at most.
const DELAY_BOUNDS: [f64; 12] = [
    1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 180.0, 600.0, 3_600.0,
];

/// Buckets of the time to an alarm, in seconds.
const ALARM_BOUNDS: [f64; 12] = [
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

pub struct ScoreMetrics {
    counter: Counter<u64>,
    histogram: Histogram<f64>,
    revisions: Counter<u64>,
    delay: Histogram<f64>,
    alarms: Counter<u64>,
    alarm_delay: Histogram<f64>,
    bound: Mutex<BoundSeries>,
    /// The reader for `/metrics`, always cumulative.
    scraped: Reader,
    /// The reader for OTLP: a clone of `scraped`, or a separate reader for deltas.
    sent: Reader,
    /// Readers have only a weak reference to the provider.
    _provider: SdkMeterProvider,
}

#[derive(Debug)]
struct BoundSeries {
    series: SeriesTable<BoundInstruments>,
    /// The start time and the instrument by completeness, which has few values.
    delays: BTreeMap<&'static str, (u64, BoundHistogram<f64>)>,
    /// Time of the first evaluation or alarm: the start time of the series of revisions and alarms.
    first_unix_nanos: Option<u64>,
}

/// The instruments of one combination of labels.
#[derive(Debug)]
struct BoundInstruments {
    began_unix_nanos: u64,
    /// Instruments in the order of [`Verdict::ALL`].
    verdicts: [BoundVerdict; Verdict::ALL.len()],
}

#[derive(Debug)]
struct BoundVerdict {
    counter: BoundCounter<u64>,
    /// `None` for verdicts without a value: the histogram must not appear for them.
    scores: Option<BoundHistogram<f64>>,
}

impl ScoreMetrics {
    /// `instance_id` is the `service.instance.id` of the metrics' resource: different for each
    /// process, so that the sums of replicas add up.
    pub fn new(settings: &MetricScores, instance_id: String) -> Self {
        let scraped = Reader::new(SdkTemporality::Cumulative);
        let sent = match settings.temporality {
            Temporality::Cumulative => scraped.clone(),
            Temporality::Delta => Reader::new(SdkTemporality::Delta),
        };
        let resource = Resource::builder_empty()
            .with_service_name(SCOPE_NAME)
            .with_attributes([
                KeyValue::new("service.version", SCOPE_VERSION),
                KeyValue::new("service.instance.id", instance_id),
            ]);
        // The default limit of the SDK is lower than ours.
        let bounded = |_: &Instrument| {
            Stream::builder()
                .with_cardinality_limit(MAX_SERIES)
                .build()
                .ok()
        };
        let mut provider = SdkMeterProvider::builder()
            .with_resource(resource.build())
            .with_view(bounded)
            .with_reader(scraped.clone());
        if settings.temporality == Temporality::Delta {
            provider = provider.with_reader(sent.clone());
        }
        let provider = provider.build();
        let meter = provider.meter_with_scope(
            InstrumentationScope::builder(SCOPE_NAME)
                .with_version(SCOPE_VERSION)
                .build(),
        );
        let counter = meter
            .u64_counter(EVALUATIONS)
            .with_unit("{evaluation}")
            .with_description("Evaluations of finished traces");
        let histogram = meter
            .f64_histogram(SCORE)
            .with_unit("1")
            .with_description("Scores of finished traces, 0 to 1")
            .with_boundaries(BOUNDS.to_vec());
        let revisions = meter
            .u64_counter(REVISIONS)
            .with_unit("{evaluation}")
            .with_description("Evaluations whose label late spans changed");
        let delay = meter
            .f64_histogram(TIME_TO_VERDICT)
            .with_unit("s")
            .with_description("Time from the end of the judged span to its evaluation")
            .with_boundaries(DELAY_BOUNDS.to_vec());
        let alarms = meter
            .u64_counter(ALARMS)
            .with_unit("{alarm}")
            .with_description("Alarms of open traces");
        let alarm_delay = meter
            .f64_histogram(TIME_TO_ALARM)
            .with_unit("s")
            .with_description("Time from the arrival of a span to the alarm that it raised")
            .with_boundaries(ALARM_BOUNDS.to_vec());
        Self {
            alarms: alarms.build(),
            alarm_delay: alarm_delay.build(),
            counter: counter.build(),
            histogram: histogram.build(),
            revisions: revisions.build(),
            delay: delay.build(),
            bound: Mutex::new(BoundSeries {
                series: SeriesTable::new(settings),
                delays: BTreeMap::new(),
                first_unix_nanos: None,
            }),
            scraped,
            sent,
            _provider: provider,
        }
    }

    /// Counts an evaluation that was judged at `now_unix_nanos`. A later revision is not counted;
    /// if the label changed, the change is counted in a separate metric. Returns the limit if this
    /// evaluation is the first to exceed it.
    pub fn record(&self, evaluation: &Evaluation, now_unix_nanos: u64) -> Option<Folded> {
        if evaluation.revision > 0 {
            if let Some(previous) = evaluation
                .previous
                .map(|previous| previous.verdict)
                .filter(|previous| *previous != evaluation.verdict)
            {
                let labels = [
                    KeyValue::new("from", previous.as_str()),
                    KeyValue::new("to", evaluation.verdict.as_str()),
                ];
                self.revisions.add(1, &labels);
            }
            return None;
        }
        // The span's clock and ours may differ: if a span seems to be judged before its end, its
        // delay is 0.
        let delay = now_unix_nanos.saturating_sub(score_time(&evaluation.trajectory)) as f64 / 1e9;
        let completeness = evaluation.trajectory.completeness.as_str();
        let labels = Labels {
            criterion: evaluation.criterion.name(),
            evaluator: evaluation.criterion.evaluator(),
            service: &evaluation.trajectory.service,
            agent: evaluation.trajectory.agent.as_deref().unwrap_or_default(),
            severity: evaluation
                .criterion
                .severity()
                .map_or("", CriterionSeverity::as_str),
        };
        let mut all = self.bound.lock();
        all.first_unix_nanos.get_or_insert(now_unix_nanos);
        let (_, delays) = all.delays.entry(completeness).or_insert_with(|| {
            let labels = [KeyValue::new("completeness", completeness)];
            (now_unix_nanos, self.delay.bind(&labels))
        });
        delays.record(delay);
        let (bound, folded) = all
            .series
            .get(labels, |labels| self.bind(labels, now_unix_nanos));
        let bound = &bound.verdicts[evaluation.verdict as usize];
        bound.counter.add(1);
        if let (Some(scores), Some(value)) = (&bound.scores, evaluation.value) {
            scores.record(value);
        }
        folded
    }

    /// Counts an alarm, separately from evaluations. Each criterion with alarms has one series.
    pub(super) fn record_alarm(&self, alarm: &Evaluation, arrived_unix_nanos: u64, now: u64) {
        self.bound.lock().first_unix_nanos.get_or_insert(now);
        let name = truncated(alarm.criterion.name(), MAX_NAME_LENGTH).to_owned();
        let mut labels = vec![KeyValue::new("criterion", name)];
        if let Some(severity) = alarm.criterion.severity() {
            labels.push(KeyValue::new("severity", severity.as_str()));
        }
        self.alarms.add(1, &labels);
        // A session's alarm waits for the end of a turn, so the time since arrival would be the
        // turn's duration.
        if alarm.trajectory.turns.is_some() {
            return;
        }
        let delay = now.saturating_sub(arrived_unix_nanos) as f64 / 1e9;
        self.alarm_delay.record(delay, &[]);
    }

    /// Returns the encoded `ExportMetricsServiceRequest` of all counts (for deltas, of the counts
    /// since the last call) and its number of points; `None` if there are no points.
    pub fn request(&self) -> Option<(Vec<u8>, usize)> {
        let request = self.collected(&self.sent);
        let n_points = n_points(&request);
        (n_points > 0).then(|| (request.encode_to_vec(), n_points))
    }

    /// Returns all counts since the start of the process, for `/metrics`.
    pub fn collect(&self) -> ExportMetricsServiceRequest {
        self.collected(&self.scraped)
    }

    fn collected(&self, reader: &Reader) -> ExportMetricsServiceRequest {
        // Collect under the lock: otherwise a series that began during the collection would have
        // the SDK's start time.
        let bound = self.bound.lock();
        let mut request = ExportMetricsServiceRequest::from(&reader.collect());
        let resources = request.resource_metrics.iter_mut();
        let scopes = resources.flat_map(|resource| &mut resource.scope_metrics);
        for metric in scopes.flat_map(|scope| &mut scope.metrics) {
            bound.write_start_times(metric);
        }
        request
    }

    fn bind(&self, labels: Labels<&str>, now_unix_nanos: u64) -> BoundInstruments {
        let verdicts = Verdict::ALL.map(|verdict| {
            // Keys must be sorted; otherwise the SDK stores a second entry per series.
            let mut attributes = vec![
                KeyValue::new("agent", labels.agent.to_owned()),
                KeyValue::new("criterion", labels.criterion.to_owned()),
                KeyValue::new("evaluator", labels.evaluator.to_owned()),
                KeyValue::new("label", verdict.as_str()),
                KeyValue::new("service", labels.service.to_owned()),
            ];
            if !labels.severity.is_empty() {
                attributes.push(KeyValue::new("severity", labels.severity.to_owned()));
            }
            let has_value = matches!(verdict, Verdict::Pass | Verdict::Fail);
            BoundVerdict {
                counter: self.counter.bind(&attributes),
                scores: has_value.then(|| self.histogram.bind(&attributes)),
            }
        });
        BoundInstruments {
            began_unix_nanos: now_unix_nanos,
            verdicts,
        }
    }
}

impl BoundSeries {
    /// Sets the start time of each cumulative point. Deltas start at the last collection, as the
    /// SDK reports.
    fn write_start_times(&self, metric: &mut Metric) {
        let name = metric.name.as_str();
        let cumulative = AggregationTemporality::Cumulative as i32;
        match &mut metric.data {
            Some(Data::Sum(sum)) if sum.aggregation_temporality == cumulative => {
                for point in &mut sum.data_points {
                    if let Some(began) = self.began(name, &point.attributes) {
                        point.start_time_unix_nano = began;
                    }
                }
            }
            Some(Data::Histogram(histogram)) => {
                let is_cumulative = histogram.aggregation_temporality == cumulative;
                for point in &mut histogram.data_points {
                    if point.count == 0 {
                        // The SDK reports infinity for both.
                        (point.min, point.max) = (None, None);
                    }
                    if let Some(began) = self.began(name, &point.attributes)
                        && is_cumulative
                    {
                        point.start_time_unix_nano = began;
                    }
                }
            }
            _ => {}
        }
    }

    fn began(&self, metric: &str, attributes: &[ProtoKeyValue]) -> Option<u64> {
        match metric {
            EVALUATIONS | SCORE => {
                let labels = Labels {
                    criterion: label(attributes, "criterion"),
                    evaluator: label(attributes, "evaluator"),
                    service: label(attributes, "service"),
                    agent: label(attributes, "agent"),
                    severity: label(attributes, "severity"),
                };
                self.series.find(labels).map(|bound| bound.began_unix_nanos)
            }
            TIME_TO_VERDICT => {
                let delay = self.delays.get(label(attributes, "completeness"));
                delay.map(|(began_unix_nanos, _)| *began_unix_nanos)
            }
            _ => self.first_unix_nanos,
        }
    }
}

fn label<'a>(attributes: &'a [ProtoKeyValue], key: &str) -> &'a str {
    let pair = attributes.iter().find(|pair| pair.key == key);
    match pair.and_then(|pair| pair.value.as_ref()?.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text,
        _ => "",
    }
}

fn n_points(request: &ExportMetricsServiceRequest) -> usize {
    let scopes = request
        .resource_metrics
        .iter()
        .flat_map(|resource| &resource.scope_metrics);
    let points = scopes
        .flat_map(|scope| &scope.metrics)
        .map(|metric| match &metric.data {
            Some(Data::Sum(sum)) => sum.data_points.len(),
            Some(Data::Histogram(histogram)) => histogram.data_points.len(),
            _ => 0,
        });
    points.sum()
}

// === Reader ===

#[derive(Debug, Clone)]
struct Reader(Arc<ManualReader>);

impl Reader {
    fn new(temporality: SdkTemporality) -> Self {
        Self(Arc::new(
            ManualReader::builder()
                .with_temporality(temporality)
                .build(),
        ))
    }

    fn collect(&self) -> ResourceMetrics {
        let mut metrics = ResourceMetrics::default();
        self.0
            .collect(&mut metrics)
            .expect("the provider lives as long as its readers and is never shut down");
        metrics
    }
}

impl MetricReader for Reader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> SdkTemporality {
        self.0.temporality(kind)
    }
}
