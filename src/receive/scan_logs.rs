//! The body of a log request in, the number of its records out, and of those that report a tool
//! call their facts: the same validating walk as for traces. Accepts exactly what prost's decoder
//! accepts of an `ExportLogsServiceRequest`; does not know what the records say.

use super::scan::MalformedProtobuf;
use super::scan::logs::log_calls;
use super::scan::shape::{ANY_VALUE, KEY_VALUE, Kind, RESOURCE, SCOPE, Shape};
use crate::span::{Batch, KeySet};
use crate::wire::otlp::{log_record, request, resource_group, scope_group};
use crate::wire::{Cursor, Fault, LEN, RECURSION_LIMIT, enter, key};

/// What a log request holds.
#[derive(Debug, Default)]
pub struct Scanned {
    /// All its records: what `accepted` counts.
    pub n_records: usize,
    /// Those that report tool calls; no spans.
    pub batch: Batch,
}

/// Validate the body of a log request, count its records, and, where a key set is given, yield
/// those whose event name it wants.
///
/// # Errors
/// Anything that prost's decoder refuses. Ids of a wrong length are no error here: OTLP asks to
/// take such a record as belonging to no trace.
pub fn scan(body: &[u8], keys: Option<&KeySet>) -> Result<Scanned, MalformedProtobuf> {
    let n_records = count_request(body).map_err(|fault| fault.locate(body))?;
    Ok(Scanned {
        n_records,
        batch: keys.map(|keys| log_calls(body, keys)).unwrap_or_default(),
    })
}

const RESOURCE_LOGS: u64 = key(request::RESOURCE_GROUPS, LEN);
const SCOPE_LOGS: u64 = key(resource_group::SCOPE_GROUPS, LEN);
const LOG_RECORDS: u64 = key(scope_group::ITEMS, LEN);

static REQUEST: Shape = Shape::new([(request::RESOURCE_GROUPS, "resource_logs", Kind::Bytes)]);

static RESOURCE_LOGS_FIELDS: Shape = Shape::new([
    (
        resource_group::RESOURCE,
        "resource",
        Kind::Message(&RESOURCE),
    ),
    (resource_group::SCOPE_GROUPS, "scope_logs", Kind::Bytes),
    (resource_group::SCHEMA_URL, "schema_url", Kind::Str),
]);

static SCOPE_LOGS_FIELDS: Shape = Shape::new([
    (scope_group::SCOPE, "scope", Kind::Message(&SCOPE)),
    (scope_group::ITEMS, "log_records", Kind::Bytes),
    (scope_group::SCHEMA_URL, "schema_url", Kind::Str),
]);

static LOG_RECORD: Shape = Shape::new([
    (log_record::TIME, "time_unix_nano", Kind::Fixed64),
    (log_record::SEVERITY_NUMBER, "severity_number", Kind::Varint),
    (log_record::SEVERITY_TEXT, "severity_text", Kind::Str),
    (log_record::BODY, "body", Kind::Message(&ANY_VALUE)),
    (
        log_record::ATTRIBUTES,
        "attributes",
        Kind::Message(&KEY_VALUE),
    ),
    (
        log_record::DROPPED_ATTRIBUTES_COUNT,
        "dropped_attributes_count",
        Kind::Varint,
    ),
    (log_record::FLAGS, "flags", Kind::Fixed32),
    (log_record::TRACE_ID, "trace_id", Kind::Bytes),
    (log_record::SPAN_ID, "span_id", Kind::Bytes),
    (
        log_record::OBSERVED_TIME,
        "observed_time_unix_nano",
        Kind::Fixed64,
    ),
    (log_record::EVENT_NAME, "event_name", Kind::Str),
]);

fn count_request(body: &[u8]) -> Result<usize, Fault> {
    let mut n_records = 0;
    let mut cursor = Cursor::new(body);
    while !cursor.is_empty() {
        match cursor.varint()? {
            RESOURCE_LOGS => {
                let bytes = cursor.delimited()?;
                let depth = enter(RECURSION_LIMIT, bytes)?;
                n_records += count_resource_logs(bytes, depth)
                    .map_err(|fault| fault.within("resource_logs"))?;
            }
            other => REQUEST.check_field(other, &mut cursor, RECURSION_LIMIT)?,
        }
    }
    Ok(n_records)
}

fn count_resource_logs(bytes: &[u8], depth: u32) -> Result<usize, Fault> {
    let mut n_records = 0;
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_empty() {
        match cursor.varint()? {
            SCOPE_LOGS => {
                let bytes = cursor.delimited()?;
                n_records += count_scope_logs(bytes, enter(depth, bytes)?)
                    .map_err(|fault| fault.within("scope_logs"))?;
            }
            other => RESOURCE_LOGS_FIELDS.check_field(other, &mut cursor, depth)?,
        }
    }
    Ok(n_records)
}

fn count_scope_logs(bytes: &[u8], depth: u32) -> Result<usize, Fault> {
    let mut n_records = 0;
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_empty() {
        match cursor.varint()? {
            LOG_RECORDS => {
                let record = cursor.delimited()?;
                LOG_RECORD
                    .check(record, enter(depth, record)?)
                    .map_err(|fault| fault.within("log_records"))?;
                n_records += 1;
            }
            other => SCOPE_LOGS_FIELDS.check_field(other, &mut cursor, depth)?,
        }
    }
    Ok(n_records)
}
