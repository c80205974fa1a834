//! Validates the body of a log request, counts its records, and reads the records that the key set
//! wants. Accepts the `ExportLogsServiceRequest`s that prost's decoder accepts.

use super::scan::MalformedProtobuf;
use super::scan::levels::RequestLevels;
use super::scan::logs::log_records;
use super::scan::schema::{ANY_VALUE, FieldKind, KEY_VALUE, Schema};
use crate::span::{Batch, SpanAdmission};
use crate::wire::otlp::log_record;

/// The contents of a log request.
#[derive(Debug, Default)]
pub struct ScannedLogs {
    /// Number of all records, as `accepted` counts them.
    pub n_records: usize,
    /// The wanted records that were admitted.
    pub batch: Batch,
}

/// Validates the body of a log request, counts its records, and, with an `admission`, reads the
/// records whose event names are in the key set.
///
/// # Errors
/// Returns an error if prost's decoder would reject the request. An id of the wrong length is not
/// an error, because OTLP requires receivers to treat the record as one without a trace.
pub fn scan(
    body: &[u8],
    admission: Option<&dyn SpanAdmission>,
) -> Result<ScannedLogs, MalformedProtobuf> {
    scan_within(body, admission, &mut |_| true)
}

/// Like [`scan`], but calls `has_room` before it allocates memory for more records, with the total
/// bytes of the list of records.
///
/// # Errors
/// Returns the errors of [`scan`], and an error if `has_room` returns false.
pub fn scan_within(
    body: &[u8],
    admission: Option<&dyn SpanAdmission>,
    has_room: &mut dyn FnMut(usize) -> bool,
) -> Result<ScannedLogs, MalformedProtobuf> {
    let mut n_records = 0;
    let walked = LEVELS.walk(body, &mut |record, depth| {
        n_records += 1;
        LOG_RECORD.check(record, depth)
    });
    walked.map_err(|fault| fault.locate(body))?;
    let batch = match admission {
        Some(admission) => {
            log_records(body, admission, has_room).map_err(|fault| fault.locate(body))?
        }
        None => Batch::default(),
    };
    Ok(ScannedLogs { n_records, batch })
}

static LEVELS: RequestLevels = RequestLevels::new("resource_logs", "scope_logs", "log_records");

static LOG_RECORD: Schema = Schema::new([
    (log_record::TIME, "time_unix_nano", FieldKind::Fixed64),
    (
        log_record::SEVERITY_NUMBER,
        "severity_number",
        FieldKind::Varint,
    ),
    (log_record::SEVERITY_TEXT, "severity_text", FieldKind::Str),
    (log_record::BODY, "body", FieldKind::Message(&ANY_VALUE)),
    (
        log_record::ATTRIBUTES,
        "attributes",
        FieldKind::Message(&KEY_VALUE),
    ),
    (
        log_record::DROPPED_ATTRIBUTES_COUNT,
        "dropped_attributes_count",
        FieldKind::Varint,
    ),
    (log_record::FLAGS, "flags", FieldKind::Fixed32),
    (log_record::TRACE_ID, "trace_id", FieldKind::Bytes),
    (log_record::SPAN_ID, "span_id", FieldKind::Bytes),
    (
        log_record::OBSERVED_TIME,
        "observed_time_unix_nano",
        FieldKind::Fixed64,
    ),
    (log_record::EVENT_NAME, "event_name", FieldKind::Str),
]);
