//! Validates one span of a request and reads it in the same pass.

use std::sync::Arc;

use super::known_keys::{KnownKey, KnownKeys};
use super::requests::RequestMessages;
use super::retention::Retainer;
use super::schema::{FieldKind, KEY_VALUE, Schema};
use super::value::{ScannedValue, ValueKind, any_value, key_value, plain_key_value, short_text};
use crate::span::{
    Batch, Resource, Retention, ScopeHash, Span, SpanAdmission, SpanId, SpanRow, Status,
    StoredAttributes, TraceId,
};
use crate::wire::otlp::{event, link, span, status};
use crate::wire::{
    Cursor, FIXED32, FIXED64, Fault, FaultKind, LEN, VARINT, check_utf8, delimited_fields, enter,
    key,
};

const TRACE_ID: u64 = key(span::TRACE_ID, LEN);
const SPAN_ID: u64 = key(span::SPAN_ID, LEN);
const TRACE_STATE: u64 = key(span::TRACE_STATE, LEN);
const PARENT_SPAN_ID: u64 = key(span::PARENT_SPAN_ID, LEN);
const NAME: u64 = key(span::NAME, LEN);
const KIND: u64 = key(span::KIND, VARINT);
const START: u64 = key(span::START_TIME, FIXED64);
const END: u64 = key(span::END_TIME, FIXED64);
const ATTRIBUTES: u64 = key(span::ATTRIBUTES, LEN);
const DROPPED_ATTRIBUTES_COUNT: u64 = key(span::DROPPED_ATTRIBUTES_COUNT, VARINT);
const EVENTS: u64 = key(span::EVENTS, LEN);
const DROPPED_EVENTS_COUNT: u64 = key(span::DROPPED_EVENTS_COUNT, VARINT);
const LINKS: u64 = key(span::LINKS, LEN);
const DROPPED_LINKS_COUNT: u64 = key(span::DROPPED_LINKS_COUNT, VARINT);
const STATUS: u64 = key(span::STATUS, LEN);
const FLAGS: u64 = key(span::FLAGS, FIXED32);

const EVENT_ATTRIBUTES: u64 = key(event::ATTRIBUTES, LEN);

static EVENT: Schema = Schema::new([
    (event::TIME, "time_unix_nano", FieldKind::Fixed64),
    (event::NAME, "name", FieldKind::Str),
    (
        event::ATTRIBUTES,
        "attributes",
        FieldKind::Message(&KEY_VALUE),
    ),
    (
        event::DROPPED_ATTRIBUTES_COUNT,
        "dropped_attributes_count",
        FieldKind::Varint,
    ),
]);

const LINK_TRACE_ID: u64 = key(link::TRACE_ID, LEN);
const LINK_SPAN_ID: u64 = key(link::SPAN_ID, LEN);

static LINK: Schema = Schema::new([
    (link::TRACE_ID, "trace_id", FieldKind::Bytes),
    (link::SPAN_ID, "span_id", FieldKind::Bytes),
    (link::TRACE_STATE, "trace_state", FieldKind::Str),
    (
        link::ATTRIBUTES,
        "attributes",
        FieldKind::Message(&KEY_VALUE),
    ),
    (
        link::DROPPED_ATTRIBUTES_COUNT,
        "dropped_attributes_count",
        FieldKind::Varint,
    ),
    (link::FLAGS, "flags", FieldKind::Fixed32),
]);

static STATUS_FIELDS: Schema = Schema::new([
    (status::MESSAGE, "message", FieldKind::Str),
    (status::CODE, "code", FieldKind::Varint),
]);
const STATUS_CODE: u64 = key(status::CODE, VARINT);

const TRACE_ID_SIZE: usize = 16;
const SPAN_ID_SIZE: usize = 8;

/// The fields of a span. If a field is repeated, the last occurrence is used; `n_attributes` and
/// `has_dropped` accumulate.
#[derive(Default)]
struct Fields<'b> {
    trace_id: &'b [u8],
    span_id: &'b [u8],
    parent_id: &'b [u8],
    start_unix_nanos: u64,
    end_unix_nanos: u64,
    flags: u32,
    n_attributes: u32,
    status_code: i32,
    name: &'b [u8],
    trace_state: &'b [u8],
    /// True if the SDK dropped attributes or events.
    has_dropped: bool,
}

/// Doubles the capacity of a full list if `has_room` accepts the bytes of the old and the new list.
/// Returns false otherwise.
#[cold]
pub(super) fn grow<T>(items: &mut Vec<T>, has_room: &mut dyn FnMut(usize) -> bool) -> bool {
    let more = items.capacity().max(64);
    let has_room = has_room((2 * items.capacity() + more) * size_of::<T>());
    if has_room {
        items.reserve_exact(more);
    }
    has_room
}

pub(super) struct SpanWalk<'k, 'b> {
    /// `None`, like `keeper`, if spans are only validated and counted.
    admission: Option<&'k dyn SpanAdmission>,
    keeper: Option<Retainer<'k>>,
    known_keys: KnownKeys<'b>,
    requests: RequestMessages<'b>,
    has_room: &'k mut dyn FnMut(usize) -> bool,
}

impl<'k, 'b> SpanWalk<'k, 'b> {
    pub(super) fn new(
        admission: Option<&'k dyn SpanAdmission>,
        has_room: &'k mut dyn FnMut(usize) -> bool,
    ) -> Self {
        Self {
            admission,
            keeper: admission.map(|admission| Retainer::new(admission.keys())),
            known_keys: KnownKeys::new(),
            requests: RequestMessages::default(),
            has_room,
        }
    }

    /// Makes the attributes of all spans readable. Returns the bytes of the texts that the
    /// attributes share.
    pub(super) fn finish(&mut self) -> usize {
        self.keeper.as_mut().map_or(0, Retainer::finish)
    }

    /// Validates a span and adds it to the batch if it is admitted. A span without ids is only
    /// counted.
    pub(super) fn span(
        &mut self,
        bytes: &'b [u8],
        depth: u32,
        resource: &Arc<Resource>,
        scope: ScopeHash,
        batch: &mut Batch,
    ) -> Result<(), Fault> {
        let mut fields = Fields::default();
        self.requests.clear();
        self.fields(bytes, depth, &mut fields)?;
        check_id(fields.trace_id, TRACE_ID_SIZE).map_err(|fault| fault.within("trace_id"))?;
        check_id(fields.span_id, SPAN_ID_SIZE).map_err(|fault| fault.within("span_id"))?;
        check_id(fields.parent_id, SPAN_ID_SIZE).map_err(|fault| fault.within("parent_span_id"))?;
        let (Some(trace_id), Some(span_id)) = (
            TraceId::try_new(fields.trace_id),
            SpanId::try_new(fields.span_id),
        ) else {
            batch.n_without_ids += 1;
            if let Some(keeper) = &mut self.keeper {
                keeper.discard();
            }
            return Ok(());
        };
        let (Some(keeper), Some(admission)) = (&mut self.keeper, self.admission) else {
            return Ok(());
        };
        if !self.requests.is_empty() {
            keeper.requests(&self.requests);
        }
        if fields.has_dropped {
            keeper.lose_dropped();
        }
        if batch.spans.len() == batch.spans.capacity() && !grow(&mut batch.spans, self.has_room) {
            return Err(Fault::new(FaultKind::NoRoom, bytes));
        }
        let row = SpanRow {
            parent_id: SpanId::try_new(fields.parent_id),
            start_unix_nanos: fields.start_unix_nanos,
            end_unix_nanos: fields.end_unix_nanos,
            flags: fields.flags as u16,
            n_attributes: fields.n_attributes.try_into().unwrap_or(u16::MAX),
            repeats_answers: self.requests.repeat_answers(fields.has_dropped),
            status: match fields.status_code {
                1 => Status::Ok,
                2 => Status::Error,
                _ => Status::Unset,
            },
            scope,
            ..SpanRow::new(span_id)
        };
        let mut span = Span {
            trace_id,
            row,
            resource: Arc::clone(resource),
            kept: StoredAttributes::default(),
        };
        if admission.admit(&mut span, keeper.complete(fields.name, fields.trace_state)) {
            span.kept = keeper.take();
            batch.spans.push(span);
        } else {
            keeper.discard();
        }
        Ok(())
    }

    fn fields(
        &mut self,
        bytes: &'b [u8],
        depth: u32,
        fields: &mut Fields<'b>,
    ) -> Result<(), Fault> {
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_empty() {
            match cursor.varint()? {
                ATTRIBUTES => {
                    fields.n_attributes = fields.n_attributes.saturating_add(1);
                    let encoded = cursor.delimited()?;
                    let depth = enter(depth, encoded)?;
                    let (known, value) = self
                        .attribute(encoded, depth)
                        .map_err(|fault| fault.within("attributes"))?;
                    if let (Some(keeper), Some(known)) = (&mut self.keeper, known)
                        && let Some(kept) = self.known_keys.kept(known)
                    {
                        if kept.rule == Retention::Request {
                            self.requests.push(kept, value, encoded);
                            continue;
                        }
                        keeper.attribute(kept, value, encoded);
                    }
                }
                TRACE_ID => fields.trace_id = cursor.delimited()?,
                SPAN_ID => fields.span_id = cursor.delimited()?,
                PARENT_SPAN_ID => fields.parent_id = cursor.delimited()?,
                TRACE_STATE => {
                    fields.trace_state = cursor
                        .string()
                        .map_err(|fault| fault.within("trace_state"))?;
                }
                NAME => {
                    fields.name = cursor.string().map_err(|fault| fault.within("name"))?;
                }
                START => fields.start_unix_nanos = cursor.fixed64()?,
                END => fields.end_unix_nanos = cursor.fixed64()?,
                FLAGS => fields.flags = cursor.fixed32()?,
                KIND | DROPPED_LINKS_COUNT => {
                    cursor.varint()?;
                }
                DROPPED_ATTRIBUTES_COUNT | DROPPED_EVENTS_COUNT => {
                    fields.has_dropped |= cursor.varint()? != 0;
                }
                STATUS => {
                    let status = cursor.delimited()?;
                    read_status(status, enter(depth, status)?, &mut fields.status_code)
                        .map_err(|fault| fault.within("status"))?;
                }
                EVENTS => {
                    let event = cursor.delimited()?;
                    self.event(event, enter(depth, event)?)
                        .map_err(|fault| fault.within("events"))?;
                }
                LINKS => {
                    let link = cursor.delimited()?;
                    check_link(link, enter(depth, link)?).map_err(|fault| fault.within("links"))?;
                }
                other => cursor.skip_unread(other, 0x1_fffe, depth)?,
            }
        }
        Ok(())
    }

    /// Validates an event, and stores it if its name is in the key set.
    fn event(&mut self, bytes: &'b [u8], depth: u32) -> Result<(), Fault> {
        let name = delimited_fields(bytes, event::NAME)
            .last()
            .unwrap_or_default();
        let stored_name = self
            .keeper
            .as_ref()
            .and_then(|keeper| keeper.keys().find(name))
            .filter(|kept| kept.suffix.is_empty());
        let Some(keeper) = &mut self.keeper else {
            return EVENT.check(bytes, depth);
        };
        let Some(stored_name) = stored_name else {
            return EVENT.check(bytes, depth);
        };
        let is_open = keeper.begin_event(stored_name.key);
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_empty() {
            match cursor.varint()? {
                EVENT_ATTRIBUTES => {
                    let encoded = cursor.delimited()?;
                    let depth = enter(depth, encoded)?;
                    let (known, value) = self
                        .attribute(encoded, depth)
                        .map_err(|fault| fault.within("attributes"))?;
                    if let (Some(keeper), Some(known)) = (&mut self.keeper, known)
                        && let Some(kept) = self.known_keys.kept(known)
                        && is_open
                    {
                        keeper.attribute(kept, value, encoded);
                    }
                }
                other => EVENT.check_field(other, &mut cursor, depth)?,
            }
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.end_event();
        }
        Ok(())
    }

    /// Validates an attribute. Returns its key, if it has one, and its value.
    #[inline(always)]
    fn attribute(
        &mut self,
        encoded: &'b [u8],
        depth: u32,
    ) -> Result<(Option<KnownKey>, ScannedValue<'b>), Fault> {
        let Some((key, value)) = plain_key_value(encoded) else {
            return self.rare_attribute(encoded, depth);
        };
        let keys = self.keeper.as_ref().map(Retainer::keys);
        let known = self
            .known_keys
            .lookup(keys, key)
            .map_err(|fault| fault.within("key"))?;
        let depth = enter(depth, value)?;
        let scanned = match short_text(value) {
            Some(text) => check_utf8(text).map(|()| ScannedValue::bytes(ValueKind::Str, text)),
            None => any_value(value, depth),
        };
        Ok((Some(known), scanned.map_err(|fault| fault.within("value"))?))
    }

    #[inline(never)]
    fn rare_attribute(
        &mut self,
        encoded: &'b [u8],
        depth: u32,
    ) -> Result<(Option<KnownKey>, ScannedValue<'b>), Fault> {
        let keys = self.keeper.as_ref().map(Retainer::keys);
        let mut known = None;
        let (_, value) = key_value(encoded, depth, |key| {
            known = Some(self.known_keys.lookup(keys, key)?);
            Ok(())
        })?;
        Ok((known, value))
    }
}

fn read_status(bytes: &[u8], depth: u32, code: &mut i32) -> Result<(), Fault> {
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_empty() {
        match cursor.varint()? {
            // An enum is an int32: prost uses the lower half of the varint.
            STATUS_CODE => *code = cursor.varint()? as i32,
            other => STATUS_FIELDS.check_field(other, &mut cursor, depth)?,
        }
    }
    Ok(())
}

fn check_link(bytes: &[u8], depth: u32) -> Result<(), Fault> {
    let mut cursor = Cursor::new(bytes);
    let (mut trace_id, mut span_id): (&[u8], &[u8]) = (b"", b"");
    while !cursor.is_empty() {
        match cursor.varint()? {
            LINK_TRACE_ID => trace_id = cursor.delimited()?,
            LINK_SPAN_ID => span_id = cursor.delimited()?,
            other => LINK.check_field(other, &mut cursor, depth)?,
        }
    }
    check_id(trace_id, TRACE_ID_SIZE).map_err(|fault| fault.within("trace_id"))?;
    check_id(span_id, SPAN_ID_SIZE).map_err(|fault| fault.within("span_id"))
}

/// Rejects an id that is neither empty nor `expected` bytes long. No other check is stricter than
/// prost.
#[inline(always)]
fn check_id(id: &[u8], expected: usize) -> Result<(), Fault> {
    if id.len() == expected || id.is_empty() {
        Ok(())
    } else {
        Err(Fault::new(
            FaultKind::IdLength {
                expected,
                found: id.len(),
            },
            id,
        ))
    }
}
