//! Validates the body of a metrics request and counts its data points. Accepts the
//! `ExportMetricsServiceRequest`s that prost's decoder accepts.

use super::scan::MalformedProtobuf;
use super::scan::levels::RequestLevels;
use super::scan::schema::{FieldKind, KEY_VALUE, Schema};
use crate::wire::otlp::metric;
use crate::wire::{Cursor, Fault, LEN, RECURSION_LIMIT, enter, key, number_of};

/// Validates the body of a metrics request and counts the data points of all five kinds.
///
/// # Errors
/// Returns an error if prost's decoder would reject the request. Like prost, accepts exemplar ids
/// of the wrong length.
pub fn scan(body: &[u8]) -> Result<usize, MalformedProtobuf> {
    let mut n_points = 0;
    let walked = LEVELS.walk(body, &mut |metric, depth| {
        n_points += count_metric(metric, depth)?;
        Ok(())
    });
    walked.map_err(|fault| fault.locate(body))?;
    Ok(n_points)
}

static LEVELS: RequestLevels = RequestLevels::new("resource_metrics", "scope_metrics", "metrics");

/// `metric` must be valid.
pub(super) fn n_points(metric: &[u8]) -> usize {
    count_metric(metric, RECURSION_LIMIT).unwrap_or_default()
}

/// Validates a metric and counts its data points. The data is a `oneof`: data of the same kind
/// merges, and data of another kind replaces it.
fn count_metric(bytes: &[u8], depth: u32) -> Result<usize, Fault> {
    let mut n_points = 0;
    let mut last_key = 0;
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_empty() {
        let found = cursor.varint()?;
        let Some((_, name, data)) = DATA.iter().find(|(tag, ..)| key(*tag, LEN) == found) else {
            METRIC.check_field(found, &mut cursor, depth)?;
            continue;
        };
        let bytes = cursor.delimited()?;
        if found != last_key {
            (last_key, n_points) = (found, 0);
        }
        n_points +=
            count_points(bytes, enter(depth, bytes)?, data).map_err(|fault| fault.within(name))?;
    }
    Ok(n_points)
}

/// Validates data and counts its points, which are field 1 in all five kinds.
fn count_points(bytes: &[u8], depth: u32, data: &Schema) -> Result<usize, Fault> {
    let mut n_points = 0;
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_empty() {
        let found = cursor.varint()?;
        n_points += usize::from(number_of(found) == metric::DATA_POINTS);
        data.check_field(found, &mut cursor, depth)?;
    }
    Ok(n_points)
}

// === the messages ===

use FieldKind::{Bytes, Fixed64, Fixed64s, Message, Str, Varint, Varints};

static METRIC: Schema = Schema::new([
    (1, "name", Str),
    (2, "description", Str),
    (3, "unit", Str),
    (metric::GAUGE, "gauge", Message(&GAUGE)),
    (metric::SUM, "sum", Message(&SUM)),
    (metric::HISTOGRAM, "histogram", Message(&HISTOGRAM)),
    (
        metric::EXPONENTIAL_HISTOGRAM,
        "exponential_histogram",
        Message(&EXPONENTIAL_HISTOGRAM),
    ),
    (metric::SUMMARY, "summary", Message(&SUMMARY)),
    (12, "metadata", Message(&KEY_VALUE)),
]);

/// The five kinds of data: tag, name, fields.
static DATA: [(u64, &str, &Schema); 5] = [
    (metric::GAUGE, "gauge", &GAUGE),
    (metric::SUM, "sum", &SUM),
    (metric::HISTOGRAM, "histogram", &HISTOGRAM),
    (
        metric::EXPONENTIAL_HISTOGRAM,
        "exponential_histogram",
        &EXPONENTIAL_HISTOGRAM,
    ),
    (metric::SUMMARY, "summary", &SUMMARY),
];

static GAUGE: Schema = Schema::new([(metric::DATA_POINTS, "data_points", Message(&NUMBER_POINT))]);
static SUM: Schema = Schema::new([
    (metric::DATA_POINTS, "data_points", Message(&NUMBER_POINT)),
    (2, "aggregation_temporality", Varint),
    (3, "is_monotonic", Varint),
]);
static HISTOGRAM: Schema = Schema::new([
    (
        metric::DATA_POINTS,
        "data_points",
        Message(&HISTOGRAM_POINT),
    ),
    (2, "aggregation_temporality", Varint),
]);
static EXPONENTIAL_HISTOGRAM: Schema = Schema::new([
    (
        metric::DATA_POINTS,
        "data_points",
        Message(&EXPONENTIAL_POINT),
    ),
    (2, "aggregation_temporality", Varint),
]);
static SUMMARY: Schema =
    Schema::new([(metric::DATA_POINTS, "data_points", Message(&SUMMARY_POINT))]);

static NUMBER_POINT: Schema = Schema::new([
    (2, "start_time_unix_nano", Fixed64),
    (3, "time_unix_nano", Fixed64),
    (4, "as_double", Fixed64),
    (5, "exemplars", Message(&EXEMPLAR)),
    (6, "as_int", Fixed64),
    (7, "attributes", Message(&KEY_VALUE)),
    (8, "flags", Varint),
]);

static HISTOGRAM_POINT: Schema = Schema::new([
    (2, "start_time_unix_nano", Fixed64),
    (3, "time_unix_nano", Fixed64),
    (4, "count", Fixed64),
    (5, "sum", Fixed64),
    (6, "bucket_counts", Fixed64s),
    (7, "explicit_bounds", Fixed64s),
    (8, "exemplars", Message(&EXEMPLAR)),
    (9, "attributes", Message(&KEY_VALUE)),
    (10, "flags", Varint),
    (11, "min", Fixed64),
    (12, "max", Fixed64),
]);

static EXPONENTIAL_POINT: Schema = Schema::new([
    (1, "attributes", Message(&KEY_VALUE)),
    (2, "start_time_unix_nano", Fixed64),
    (3, "time_unix_nano", Fixed64),
    (4, "count", Fixed64),
    (5, "sum", Fixed64),
    (6, "scale", Varint),
    (7, "zero_count", Fixed64),
    (8, "positive", Message(&BUCKETS)),
    (9, "negative", Message(&BUCKETS)),
    (10, "flags", Varint),
    (11, "exemplars", Message(&EXEMPLAR)),
    (12, "min", Fixed64),
    (13, "max", Fixed64),
    (14, "zero_threshold", Fixed64),
]);

static BUCKETS: Schema = Schema::new([(1, "offset", Varint), (2, "bucket_counts", Varints)]);

static SUMMARY_POINT: Schema = Schema::new([
    (2, "start_time_unix_nano", Fixed64),
    (3, "time_unix_nano", Fixed64),
    (4, "count", Fixed64),
    (5, "sum", Fixed64),
    (6, "quantile_values", Message(&QUANTILE)),
    (7, "attributes", Message(&KEY_VALUE)),
    (8, "flags", Varint),
]);

static QUANTILE: Schema = Schema::new([(1, "quantile", Fixed64), (2, "value", Fixed64)]);

static EXEMPLAR: Schema = Schema::new([
    (2, "time_unix_nano", Fixed64),
    (3, "as_double", Fixed64),
    (4, "span_id", Bytes),
    (5, "trace_id", Bytes),
    (6, "as_int", Fixed64),
    (7, "filtered_attributes", Message(&KEY_VALUE)),
]);
