//! The body of a metrics request in, the number of its data points out: the same validating walk as
//! for traces. Accepts exactly what prost's decoder accepts of an `ExportMetricsServiceRequest`;
//! does not know what is measured.

use super::scan::MalformedProtobuf;
use super::scan::shape::{KEY_VALUE, Kind, RESOURCE, SCOPE, Shape};
use crate::wire::otlp::{metric, request, resource_group, scope_group};
use crate::wire::{Cursor, Fault, LEN, RECURSION_LIMIT, enter, key, number_of};

/// Validate the body of a metrics request and count its data points, of all five kinds.
///
/// # Errors
/// Anything that prost's decoder refuses. Ids of a wrong length in exemplars are no error, as prost
/// has it.
pub fn scan(body: &[u8]) -> Result<usize, MalformedProtobuf> {
    count(body, RECURSION_LIMIT, &REQUEST).map_err(|fault| fault.locate(body))
}

/// The way from the request down to the metrics: in each message one field leads on, the others are
/// checked.
struct Level {
    fields: &'static Shape,
    way: u64,
    name: &'static str,
    next: Option<&'static Level>,
}

static REQUEST: Level = Level {
    fields: &REQUEST_FIELDS,
    way: key(request::RESOURCE_GROUPS, LEN),
    name: "resource_metrics",
    next: Some(&RESOURCE_METRICS),
};
static RESOURCE_METRICS: Level = Level {
    fields: &RESOURCE_METRICS_FIELDS,
    way: key(resource_group::SCOPE_GROUPS, LEN),
    name: "scope_metrics",
    next: Some(&SCOPE_METRICS),
};
static SCOPE_METRICS: Level = Level {
    fields: &SCOPE_METRICS_FIELDS,
    way: key(scope_group::ITEMS, LEN),
    name: "metrics",
    next: None,
};

fn count(bytes: &[u8], depth: u32, level: &Level) -> Result<usize, Fault> {
    let mut n_points = 0;
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_empty() {
        let found = cursor.varint()?;
        if found != level.way {
            level.fields.check_field(found, &mut cursor, depth)?;
            continue;
        }
        let bytes = cursor.delimited()?;
        let depth = enter(depth, bytes)?;
        let counted = match level.next {
            Some(next) => count(bytes, depth, next),
            None => count_metric(bytes, depth),
        };
        n_points += counted.map_err(|fault| fault.within(level.name))?;
    }
    Ok(n_points)
}

/// The data of a metric is a oneof: the same kind twice is merged, another kind replaces it.
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

/// Data points are field 1 in all five kinds.
fn count_points(bytes: &[u8], depth: u32, data: &Shape) -> Result<usize, Fault> {
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

use Kind::{Bytes, Fixed64, Fixed64s, Message, Str, Varint, Varints};

static REQUEST_FIELDS: Shape = Shape::new([(request::RESOURCE_GROUPS, "resource_metrics", Bytes)]);
static RESOURCE_METRICS_FIELDS: Shape = Shape::new([
    (resource_group::RESOURCE, "resource", Message(&RESOURCE)),
    (resource_group::SCOPE_GROUPS, "scope_metrics", Bytes),
    (resource_group::SCHEMA_URL, "schema_url", Str),
]);
static SCOPE_METRICS_FIELDS: Shape = Shape::new([
    (scope_group::SCOPE, "scope", Message(&SCOPE)),
    (scope_group::ITEMS, "metrics", Bytes),
    (scope_group::SCHEMA_URL, "schema_url", Str),
]);

static METRIC: Shape = Shape::new([
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
static DATA: [(u64, &str, &Shape); 5] = [
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

static GAUGE: Shape = Shape::new([(metric::DATA_POINTS, "data_points", Message(&NUMBER_POINT))]);
static SUM: Shape = Shape::new([
    (metric::DATA_POINTS, "data_points", Message(&NUMBER_POINT)),
    (2, "aggregation_temporality", Varint),
    (3, "is_monotonic", Varint),
]);
static HISTOGRAM: Shape = Shape::new([
    (
        metric::DATA_POINTS,
        "data_points",
        Message(&HISTOGRAM_POINT),
    ),
    (2, "aggregation_temporality", Varint),
]);
static EXPONENTIAL_HISTOGRAM: Shape = Shape::new([
    (
        metric::DATA_POINTS,
        "data_points",
        Message(&EXPONENTIAL_POINT),
    ),
    (2, "aggregation_temporality", Varint),
]);
static SUMMARY: Shape = Shape::new([(metric::DATA_POINTS, "data_points", Message(&SUMMARY_POINT))]);

static NUMBER_POINT: Shape = Shape::new([
    (2, "start_time_unix_nano", Fixed64),
    (3, "time_unix_nano", Fixed64),
    (4, "as_double", Fixed64),
    (5, "exemplars", Message(&EXEMPLAR)),
    (6, "as_int", Fixed64),
    (7, "attributes", Message(&KEY_VALUE)),
    (8, "flags", Varint),
]);

static HISTOGRAM_POINT: Shape = Shape::new([
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

static EXPONENTIAL_POINT: Shape = Shape::new([
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

static BUCKETS: Shape = Shape::new([(1, "offset", Varint), (2, "bucket_counts", Varints)]);

static SUMMARY_POINT: Shape = Shape::new([
    (2, "start_time_unix_nano", Fixed64),
    (3, "time_unix_nano", Fixed64),
    (4, "count", Fixed64),
    (5, "sum", Fixed64),
    (6, "quantile_values", Message(&QUANTILE)),
    (7, "attributes", Message(&KEY_VALUE)),
    (8, "flags", Varint),
]);

static QUANTILE: Shape = Shape::new([(1, "quantile", Fixed64), (2, "value", Fixed64)]);

static EXEMPLAR: Shape = Shape::new([
    (2, "time_unix_nano", Fixed64),
    (3, "as_double", Fixed64),
    (4, "span_id", Bytes),
    (5, "trace_id", Bytes),
    (6, "as_int", Fixed64),
    (7, "filtered_attributes", Message(&KEY_VALUE)),
]);
