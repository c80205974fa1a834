//! Tables of the fields of OTLP messages, and a walk that validates a message by its table.
//! Messages that are read field by field have separate walks.

use crate::wire::otlp::{any_value, key_value, resource, scope};
use crate::wire::{
    Cursor, FIXED32, FIXED64, Fault, FaultKind, LEN, VARINT, check_utf8, enter, number_of,
};

/// The fields of a message. A fault names its field.
pub(crate) struct Schema {
    fields: [Field; Schema::N_FIELDS],
}

/// The type of a field, as far as the wire format distinguishes types.
#[derive(Clone, Copy)]
pub(crate) enum FieldKind {
    /// Not a field of the message: skipped.
    Unknown,
    /// bool, enum, int32, int64, sint32, uint32, uint64.
    Varint,
    Fixed32,
    /// double, fixed64, sfixed64.
    Fixed64,
    Str,
    Bytes,
    /// A message, repeated or not.
    Message(&'static Schema),
    /// Repeated varints, packed or one by one.
    Varints,
    /// Repeated 64-bit numbers, packed or one by one.
    Fixed64s,
}

pub(crate) type FieldRow = (u64, &'static str, FieldKind);

#[derive(Clone, Copy)]
struct Field {
    name: &'static str,
    kind: FieldKind,
}

impl Schema {
    /// One more than OTLP's highest field number.
    const N_FIELDS: usize = 17;

    pub(crate) const fn new<const N: usize>(rows: [FieldRow; N]) -> Self {
        let mut fields = [Field {
            name: "",
            kind: FieldKind::Unknown,
        }; Self::N_FIELDS];
        let mut i = 0;
        while i < N {
            let (number, name, kind) = rows[i];
            fields[number as usize] = Field { name, kind };
            i += 1;
        }
        Self { fields }
    }

    /// Validates a message, which may contain `depth` further levels of nesting.
    pub(crate) fn check(&self, bytes: &[u8], depth: u32) -> Result<(), Fault> {
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_empty() {
            let found = cursor.varint()?;
            self.check_field(found, &mut cursor, depth)?;
        }
        Ok(())
    }

    /// Validates the field after the key `found`, for walks that read some fields themselves.
    pub(crate) fn check_field(
        &self,
        found: u64,
        cursor: &mut Cursor<'_>,
        depth: u32,
    ) -> Result<(), Fault> {
        let number = number_of(found);
        let field = usize::try_from(number)
            .ok()
            .and_then(|number| self.fields.get(number));
        match field {
            Some(field) if !matches!(field.kind, FieldKind::Unknown) => {
                check_kind(field.kind, found, cursor, depth)
                    .map_err(|fault| fault.within(field.name))
            }
            _ => cursor.skip_unread(found, 0, depth),
        }
    }
}

fn check_kind(
    kind: FieldKind,
    found: u64,
    cursor: &mut Cursor<'_>,
    depth: u32,
) -> Result<(), Fault> {
    match (kind, found & 7) {
        (FieldKind::Varint | FieldKind::Varints, VARINT) => cursor.varint().map(drop),
        (FieldKind::Fixed32, FIXED32) => cursor.fixed32().map(drop),
        (FieldKind::Fixed64 | FieldKind::Fixed64s, FIXED64) => cursor.fixed64().map(drop),
        (FieldKind::Str, LEN) => check_utf8(cursor.delimited()?),
        (FieldKind::Bytes, LEN) => cursor.delimited().map(drop),
        (FieldKind::Message(shape), LEN) => {
            let bytes = cursor.delimited()?;
            shape.check(bytes, enter(depth, bytes)?)
        }
        (FieldKind::Varints, LEN) => {
            let mut packed = Cursor::new(cursor.delimited()?);
            while !packed.is_empty() {
                packed.varint()?;
            }
            Ok(())
        }
        (FieldKind::Fixed64s, LEN) => {
            let packed = cursor.delimited()?;
            if packed.len().is_multiple_of(8) {
                Ok(())
            } else {
                Err(Fault::new(FaultKind::PackedLength, packed))
            }
        }
        // `u32::MAX` marks every field as known, so the wrong wire type is an error.
        _ => cursor.skip_unread(found, u32::MAX, depth),
    }
}

// === Messages of all signals ===

use FieldKind::{Bytes, Fixed64, Message, Str, Varint};

pub(crate) static ANY_VALUE: Schema = Schema::new([
    (any_value::STRING, "string_value", Str),
    (any_value::BOOL, "bool_value", Varint),
    (any_value::INT, "int_value", Varint),
    (any_value::DOUBLE, "double_value", Fixed64),
    (any_value::ARRAY, "array_value", Message(&ARRAY_VALUE)),
    (any_value::KVLIST, "kvlist_value", Message(&KEY_VALUE_LIST)),
    (any_value::BYTES, "bytes_value", Bytes),
    (any_value::STRING_STRINDEX, "string_value_strindex", Varint),
]);

pub(crate) static ARRAY_VALUE: Schema = Schema::new([(1, "values", Message(&ANY_VALUE))]);

pub(crate) static KEY_VALUE_LIST: Schema = Schema::new([(1, "values", Message(&KEY_VALUE))]);

pub(crate) static KEY_VALUE: Schema = Schema::new([
    (key_value::KEY, "key", Str),
    (key_value::VALUE, "value", Message(&ANY_VALUE)),
    (key_value::KEY_STRINDEX, "key_strindex", Varint),
]);

pub(crate) static RESOURCE: Schema = Schema::new([
    (resource::ATTRIBUTES, "attributes", Message(&KEY_VALUE)),
    (
        resource::DROPPED_ATTRIBUTES_COUNT,
        "dropped_attributes_count",
        Varint,
    ),
    (resource::ENTITY_REFS, "entity_refs", Message(&ENTITY_REF)),
]);

static ENTITY_REF: Schema = Schema::new([
    (1, "schema_url", Str),
    (2, "type", Str),
    (3, "id_keys", Str),
    (4, "description_keys", Str),
]);

pub(crate) static SCOPE: Schema = Schema::new([
    (scope::NAME, "name", Str),
    (scope::VERSION, "version", Str),
    (scope::ATTRIBUTES, "attributes", Message(&KEY_VALUE)),
    (
        scope::DROPPED_ATTRIBUTES_COUNT,
        "dropped_attributes_count",
        Varint,
    ),
]);
