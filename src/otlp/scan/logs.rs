//! Reads the log records that the key set wants from the body of a valid log request.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::requests::RequestMessages;
use super::resources::RequestResources;
use super::retention::Retainer;
use super::spans::grow;
use super::value::{ScannedValue, ValueKind, any_value, key_value};
use crate::span::{
    Batch, Resource, Retention, Span, SpanAdmission, SpanId, SpanRow, StoredAttributes, TraceId,
    WantedBody,
};
use crate::wire::otlp::{log_record, request, resource_group, scope_group};
use crate::wire::{Cursor, FIXED64, Fault, FaultKind, RECURSION_LIMIT, delimited_fields, key};

const TIME: u64 = key(log_record::TIME, FIXED64);
const OBSERVED_TIME: u64 = key(log_record::OBSERVED_TIME, FIXED64);

/// Returns the log records that the key set of `admission` wants and that `admission` admits, in
/// the order of the request. The limits of a span apply to each record. Calls `has_room` before the
/// list of records grows.
pub(crate) fn log_records(
    body: &[u8],
    admission: &dyn SpanAdmission,
    has_room: &mut dyn FnMut(usize) -> bool,
) -> Result<Batch, Fault> {
    let keys = admission.keys();
    let mut keeper = Retainer::new(keys);
    let mut resources = RequestResources::new(Some(keys));
    let mut batch = Batch::default();
    for resource_logs in delimited_fields(body, request::RESOURCE_GROUPS) {
        resources.begin(resource_logs);
        for record in delimited_fields(resource_logs, resource_group::SCOPE_GROUPS)
            .flat_map(|scope| delimited_fields(scope, scope_group::ITEMS))
        {
            let Some(wanted_body) = keys.wants_record(event_name(record)) else {
                continue;
            };
            if batch.spans.len() == batch.spans.capacity() && !grow(&mut batch.spans, has_room) {
                return Err(Fault::new(FaultKind::NoRoom, record));
            }
            keep(record, wanted_body, &mut keeper);
            let read = read(record, Arc::clone(resources.current()));
            let kept = keeper.complete(event_name(record), b"");
            match read.and_then(|mut span| admission.admit(&mut span, kept).then_some(span)) {
                Some(span) => batch.spans.push(Span {
                    kept: keeper.take(),
                    ..span
                }),
                None => {
                    keeper.discard();
                    batch.n_without_ids += 1;
                }
            }
        }
    }
    batch.shared_size = keeper.finish();
    Ok(batch)
}

fn last_field(bytes: &[u8], tag: u64) -> &[u8] {
    delimited_fields(bytes, tag).last().unwrap_or_default()
}

fn attributes(record: &[u8]) -> impl Iterator<Item = (&[u8], ScannedValue<'_>, &[u8])> {
    delimited_fields(record, log_record::ATTRIBUTES).filter_map(|encoded| {
        let (key, value) = key_value(encoded, RECURSION_LIMIT, |_| Ok(())).ok()?;
        Some((key, value, encoded))
    })
}

/// Returns the event's name. SDKs older than the field `event_name` write the name to the attribute
/// `event.name` or to the body.
pub(crate) fn event_name(record: &[u8]) -> &[u8] {
    let name = last_field(record, log_record::EVENT_NAME);
    if !name.is_empty() {
        return name;
    }
    let named = attributes(record)
        .find(|(key, value, _)| *key == b"event.name" && value.kind == ValueKind::Str);
    match named {
        Some((_, value, _)) => value.bytes,
        None => any_value(last_field(record, log_record::BODY), RECURSION_LIMIT)
            .map_or(&[], |value| value.bytes),
    }
}

fn keep(record: &[u8], wanted_body: WantedBody, keeper: &mut Retainer<'_>) {
    let keys = keeper.keys();
    if let Some(trace_id) = TraceId::try_new(last_field(record, log_record::TRACE_ID)) {
        keeper.named_trace(trace_id);
    }
    let mut requests = RequestMessages::default();
    for (key, value, encoded) in attributes(record) {
        match keys.find(key) {
            Some(kept) if kept.rule == Retention::Request => requests.push(kept, value, encoded),
            Some(kept) => keeper.attribute(kept, value, encoded),
            None => {}
        }
    }
    keeper.requests(&requests);
    let kept_body = match wanted_body {
        WantedBody::Not => None,
        WantedBody::Reply => Some(Retention::Reply),
        WantedBody::Request => Some(Retention::Request),
    };
    if let Some(keep) = kept_body
        && let Some(key) = keys.id(Span::RECORD_BODY)
        && let Ok(value) = any_value(last_field(record, log_record::BODY), RECURSION_LIMIT)
    {
        keeper.body(key, value, record, log_record::BODY, keep);
    }
}

/// Reads a record without its attributes. `None` if its hash is not a valid id.
fn read(record: &[u8], resource: Arc<Resource>) -> Option<Span> {
    // The id is a hash, so that a record that is sent twice counts once.
    let digest = Sha256::digest(record);
    let named = TraceId::try_new(last_field(record, log_record::TRACE_ID));
    let time = time(record);
    Some(Span {
        trace_id: named.or_else(|| TraceId::try_new(&digest[16..]))?,
        row: SpanRow {
            parent_id: SpanId::try_new(last_field(record, log_record::SPAN_ID)),
            start_unix_nanos: time,
            end_unix_nanos: time,
            is_watched: true,
            is_record: true,
            ..SpanRow::new(SpanId::try_new(&digest[..8])?)
        },
        resource,
        kept: StoredAttributes::default(),
    })
}

/// Returns the time of the event, else the time of its observation, in Unix nanoseconds.
fn time(record: &[u8]) -> u64 {
    let (mut time, mut observed) = (0, 0);
    let mut cursor = Cursor::new(record);
    while !cursor.is_empty() {
        let read = cursor.varint().and_then(|found| match found {
            TIME => cursor.fixed64().map(|read| time = read),
            OBSERVED_TIME => cursor.fixed64().map(|read| observed = read),
            other => cursor.skip_unread(other, 0, RECURSION_LIMIT),
        });
        if read.is_err() {
            break;
        }
    }
    if time == 0 { observed } else { time }
}
