//! OTLP messages as tables, and the one validating walk over them: bytes and a table in, a verdict
//! out. What is read closely has a walk of its own; all else is checked here. Knows which fields
//! messages have; does not know what anybody wants of them.

use crate::wire::otlp::{any_value, key_value, resource, scope};
use crate::wire::{
    Cursor, FIXED32, FIXED64, Fault, FaultKind, LEN, VARINT, check_utf8, enter, number_of,
};

/// A message, by its fields: a fault names the field it lies in.
pub(in crate::receive) struct Shape {
    by_tag: [Field; Shape::N_TAGS],
}

/// Kind of a field, as far as the wire format tells kinds apart.
#[derive(Clone, Copy)]
pub(in crate::receive) enum Kind {
    /// Not in the message: skipped over.
    Unknown,
    /// bool, enum, int32, int64, sint32, uint32, uint64.
    Varint,
    /// fixed32.
    Fixed32,
    /// double, fixed64, sfixed64.
    Fixed64,
    /// string.
    Str,
    /// bytes.
    Bytes,
    /// A message, repeated or not.
    Message(&'static Shape),
    /// Repeated varints, packed or one by one.
    Varints,
    /// Repeated 64-bit numbers, packed or one by one.
    Fixed64s,
}

/// Field number, name, kind.
pub(in crate::receive) type Row = (u64, &'static str, Kind);

#[derive(Clone, Copy)]
struct Field {
    name: &'static str,
    kind: Kind,
}

impl Shape {
    /// OTLP's highest tag is 16.
    const N_TAGS: usize = 17;

    pub(in crate::receive) const fn new<const N: usize>(rows: [Row; N]) -> Self {
        let mut by_tag = [Field {
            name: "",
            kind: Kind::Unknown,
        }; Self::N_TAGS];
        let mut i = 0;
        while i < N {
            let (number, name, kind) = rows[i];
            by_tag[number as usize] = Field { name, kind };
            i += 1;
        }
        Self { by_tag }
    }

    /// Is this a message of this shape? `depth` is what is left to the fields in it.
    pub(in crate::receive) fn check(&self, bytes: &[u8], depth: u32) -> Result<(), Fault> {
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_empty() {
            let found = cursor.varint()?;
            self.check_field(found, &mut cursor, depth)?;
        }
        Ok(())
    }

    /// Is what stands behind this key a field of this shape? For walks that read some fields
    /// themselves.
    pub(in crate::receive) fn check_field(
        &self,
        found: u64,
        cursor: &mut Cursor<'_>,
        depth: u32,
    ) -> Result<(), Fault> {
        let tag = number_of(found);
        let field = usize::try_from(tag)
            .ok()
            .and_then(|tag| self.by_tag.get(tag));
        match field {
            Some(field) if !matches!(field.kind, Kind::Unknown) => {
                check_kind(field.kind, found, cursor, depth)
                    .map_err(|fault| fault.within(field.name))
            }
            _ => cursor.skip_unread(found, 0, depth),
        }
    }
}

fn check_kind(kind: Kind, found: u64, cursor: &mut Cursor<'_>, depth: u32) -> Result<(), Fault> {
    match (kind, found & 7) {
        (Kind::Varint | Kind::Varints, VARINT) => cursor.varint().map(drop),
        (Kind::Fixed32, FIXED32) => cursor.fixed32().map(drop),
        (Kind::Fixed64 | Kind::Fixed64s, FIXED64) => cursor.fixed64().map(drop),
        (Kind::Str, LEN) => check_utf8(cursor.delimited()?),
        (Kind::Bytes, LEN) => cursor.delimited().map(drop),
        (Kind::Message(shape), LEN) => {
            let bytes = cursor.delimited()?;
            shape.check(bytes, enter(depth, bytes)?)
        }
        (Kind::Varints, LEN) => {
            let mut packed = Cursor::new(cursor.delimited()?);
            while !packed.is_empty() {
                packed.varint()?;
            }
            Ok(())
        }
        (Kind::Fixed64s, LEN) => {
            let packed = cursor.delimited()?;
            if packed.len().is_multiple_of(8) {
                Ok(())
            } else {
                Err(Fault::new(FaultKind::PackedLength, packed))
            }
        }
        // A bit for every tag: the field is known, so its wire type is wrong.
        _ => cursor.skip_unread(found, u32::MAX, depth),
    }
}

// === the messages all signals share ===

use Kind::{Bytes, Fixed64, Message, Str, Varint};

pub(in crate::receive) static ANY_VALUE: Shape = Shape::new([
    (any_value::STRING, "string_value", Str),
    (any_value::BOOL, "bool_value", Varint),
    (any_value::INT, "int_value", Varint),
    (any_value::DOUBLE, "double_value", Fixed64),
    (any_value::ARRAY, "array_value", Message(&ARRAY_VALUE)),
    (any_value::KVLIST, "kvlist_value", Message(&KEY_VALUE_LIST)),
    (any_value::BYTES, "bytes_value", Bytes),
    (any_value::STRING_STRINDEX, "string_value_strindex", Varint),
]);

pub(in crate::receive) static ARRAY_VALUE: Shape = Shape::new([(1, "values", Message(&ANY_VALUE))]);

pub(in crate::receive) static KEY_VALUE_LIST: Shape =
    Shape::new([(1, "values", Message(&KEY_VALUE))]);

pub(in crate::receive) static KEY_VALUE: Shape = Shape::new([
    (key_value::KEY, "key", Str),
    (key_value::VALUE, "value", Message(&ANY_VALUE)),
    (key_value::KEY_STRINDEX, "key_strindex", Varint),
]);

pub(in crate::receive) static RESOURCE: Shape = Shape::new([
    (resource::ATTRIBUTES, "attributes", Message(&KEY_VALUE)),
    (
        resource::DROPPED_ATTRIBUTES_COUNT,
        "dropped_attributes_count",
        Varint,
    ),
    (resource::ENTITY_REFS, "entity_refs", Message(&ENTITY_REF)),
]);

static ENTITY_REF: Shape = Shape::new([
    (1, "schema_url", Str),
    (2, "type", Str),
    (3, "id_keys", Str),
    (4, "description_keys", Str),
]);

pub(in crate::receive) static SCOPE: Shape = Shape::new([
    (scope::NAME, "name", Str),
    (scope::VERSION, "version", Str),
    (scope::ATTRIBUTES, "attributes", Message(&KEY_VALUE)),
    (
        scope::DROPPED_ATTRIBUTES_COUNT,
        "dropped_attributes_count",
        Varint,
    ),
]);
