//! The body of a log request in, the number of its records out, and of those that report a tool
//! call their facts: the same validating walk as for traces. Accepts exactly what prost's decoder
//! accepts of an `ExportLogsServiceRequest`; does not know what the records say.

use super::scan::ScanError;
use super::scan::logs::log_calls;
use super::scan::shape::{ANY_VALUE, KEY_VALUE, Kind, RESOURCE, SCOPE, Shape};
use super::scan::wire::{Cursor, Fault, LEN, RECURSION_LIMIT, enter, key};
use crate::span::{Batch, KeySet};

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
pub fn scan(body: &[u8], keys: Option<&KeySet>) -> Result<Scanned, ScanError> {
    let n_records = count_request(body).map_err(|fault| fault.locate(body))?;
    Ok(Scanned {
        n_records,
        batch: keys.map(|keys| log_calls(body, keys)).unwrap_or_default(),
    })
}

const RESOURCE_LOGS: u64 = key(1, LEN);
const SCOPE_LOGS: u64 = key(2, LEN);
const LOG_RECORDS: u64 = key(2, LEN);

static REQUEST: Shape = Shape::new([(1, "resource_logs", Kind::Bytes)]);

static RESOURCE_LOGS_FIELDS: Shape = Shape::new([
    (1, "resource", Kind::Message(&RESOURCE)),
    (2, "scope_logs", Kind::Bytes),
    (3, "schema_url", Kind::Str),
]);

static SCOPE_LOGS_FIELDS: Shape = Shape::new([
    (1, "scope", Kind::Message(&SCOPE)),
    (2, "log_records", Kind::Bytes),
    (3, "schema_url", Kind::Str),
]);

static LOG_RECORD: Shape = Shape::new([
    (1, "time_unix_nano", Kind::Fixed64),
    (2, "severity_number", Kind::Varint),
    (3, "severity_text", Kind::Str),
    (5, "body", Kind::Message(&ANY_VALUE)),
    (6, "attributes", Kind::Message(&KEY_VALUE)),
    (7, "dropped_attributes_count", Kind::Varint),
    (8, "flags", Kind::Fixed32),
    (9, "trace_id", Kind::Bytes),
    (10, "span_id", Kind::Bytes),
    (11, "observed_time_unix_nano", Kind::Fixed64),
    (12, "event_name", Kind::Str),
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
