//! OTLP messages as tables, and the one validating walk over them: bytes and a table in, a verdict
//! out. What is read closely has a walk of its own; all else is checked here. Knows which fields
//! messages have; does not know what anybody wants of them.

use super::wire::{
    Cursor, FIXED32, FIXED64, Fault, LEN, Reason, VARINT, check_utf8, enter, tag_of,
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

/// Tag, name, kind.
pub(in crate::receive) type Row = (usize, &'static str, Kind);

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
            let (tag, name, kind) = rows[i];
            by_tag[tag] = Field { name, kind };
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
        let tag = tag_of(found);
        let field = usize::try_from(tag)
            .ok()
            .and_then(|tag| self.by_tag.get(tag));
        match field {
            Some(field) if !matches!(field.kind, Kind::Unknown) => {
                check_kind(field.kind, found, cursor, depth)
                    .map_err(|fault| fault.within(field.name))
            }
            _ => cursor.other(found, 0, depth),
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
                Err(Fault::new(Reason::PackedLength, packed))
            }
        }
        // A bit for every tag: the field is known, so its wire type is wrong.
        _ => cursor.other(found, u32::MAX, depth),
    }
}

// === the messages all signals share ===

use Kind::{Bytes, Fixed64, Message, Str, Varint};

pub(in crate::receive) static ANY_VALUE: Shape = Shape::new([
    (1, "string_value", Str),
    (2, "bool_value", Varint),
    (3, "int_value", Varint),
    (4, "double_value", Fixed64),
    (5, "array_value", Message(&ARRAY_VALUE)),
    (6, "kvlist_value", Message(&KEY_VALUE_LIST)),
    (7, "bytes_value", Bytes),
    (8, "string_value_strindex", Varint),
]);

pub(in crate::receive) static ARRAY_VALUE: Shape = Shape::new([(1, "values", Message(&ANY_VALUE))]);

pub(in crate::receive) static KEY_VALUE_LIST: Shape =
    Shape::new([(1, "values", Message(&KEY_VALUE))]);

pub(in crate::receive) static KEY_VALUE: Shape = Shape::new([
    (1, "key", Str),
    (2, "value", Message(&ANY_VALUE)),
    (3, "key_strindex", Varint),
]);

pub(in crate::receive) static RESOURCE: Shape = Shape::new([
    (1, "attributes", Message(&KEY_VALUE)),
    (2, "dropped_attributes_count", Varint),
    (3, "entity_refs", Message(&ENTITY_REF)),
]);

static ENTITY_REF: Shape = Shape::new([
    (1, "schema_url", Str),
    (2, "type", Str),
    (3, "id_keys", Str),
    (4, "description_keys", Str),
]);

pub(in crate::receive) static SCOPE: Shape = Shape::new([
    (1, "name", Str),
    (2, "version", Str),
    (3, "attributes", Message(&KEY_VALUE)),
    (4, "dropped_attributes_count", Varint),
]);
