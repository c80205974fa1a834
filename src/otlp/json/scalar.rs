//! Reads a scalar, or a list of scalars, by protobuf's JSON mapping and writes it as protobuf.
//! Numbers may be strings, integers may be written as floats, enums are names or numbers, bytes are
//! base64 in either alphabet, padded or not.

use std::fmt;
use std::sync::LazyLock;

use data_encoding::{BASE64_NOPAD, Encoding};
use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde_json::Number;

use super::definitions::{OtlpField, OtlpKind};
use crate::wire::write;

/// The context of a scalar. An item of a list is always written, even if it is 0.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Field,
    Item,
}

pub(super) fn transcode<'de, D: Deserializer<'de>>(
    field: &OtlpField,
    deserializer: D,
    protobuf: &mut Vec<u8>,
) -> Result<(), D::Error> {
    if field.is_list {
        return deserializer.deserialize_any(ListVisitor { field, protobuf });
    }
    ScalarSeed {
        field,
        place: Place::Field,
        protobuf,
    }
    .deserialize(deserializer)
}

struct ListVisitor<'s> {
    field: &'s OtlpField,
    protobuf: &'s mut Vec<u8>,
}

impl<'de> Visitor<'de> for ListVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { field, protobuf } = self;
        // Each text is written with its own field key; all numbers are packed behind one key.
        if matches!(field.kind, OtlpKind::String | OtlpKind::Bytes) {
            let place = Place::Item;
            while let Some(()) = items.next_element_seed(ScalarSeed {
                field,
                place,
                protobuf,
            })? {}
            return Ok(());
        }
        let mut packed = Vec::new();
        while let Some(()) = items.next_element_seed(ScalarSeed {
            field,
            place: Place::Item,
            protobuf: &mut packed,
        })? {}
        write::bytes(protobuf, field.number, &packed);
        Ok(())
    }
}

/// A scalar. The visitor rejects a JSON value that does not fit the field's type.
struct ScalarSeed<'s> {
    field: &'s OtlpField,
    place: Place,
    protobuf: &'s mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for ScalarSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.field.kind {
            OtlpKind::String | OtlpKind::Bytes => deserializer.deserialize_str(self),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for ScalarSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.field.kind {
            OtlpKind::Double => "a 64-bit floating point value",
            OtlpKind::Int32 | OtlpKind::Sint32 => "a 32-bit signed integer",
            OtlpKind::Int64 | OtlpKind::Sfixed64 => "a 64-bit signed integer or decimal string",
            OtlpKind::Uint32 | OtlpKind::Fixed32 => "a 32-bit unsigned integer or decimal string",
            OtlpKind::Uint64 | OtlpKind::Fixed64 => "a 64-bit unsigned integer or decimal string",
            OtlpKind::Bool => "a boolean",
            OtlpKind::String => "a string",
            OtlpKind::Bytes => "a base64-encoded string",
            OtlpKind::Enum(_) => "a string or integer",
            OtlpKind::Message(_) => "an object",
        })
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self.field.kind {
            OtlpKind::Bool => self.write_varint(value.into()),
            _ => return Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        match self.field.kind {
            OtlpKind::Bool | OtlpKind::String | OtlpKind::Bytes => {
                Err(E::invalid_type(Unexpected::Signed(value), &self))
            }
            OtlpKind::Double => self.write_double(value as f64),
            _ => self.write_integer(value.into()),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match self.field.kind {
            OtlpKind::Bool | OtlpKind::String | OtlpKind::Bytes => {
                Err(E::invalid_type(Unexpected::Unsigned(value), &self))
            }
            OtlpKind::Double => self.write_double(value as f64),
            _ => self.write_integer(value.into()),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        match self.field.kind {
            OtlpKind::Double => self.write_double(value),
            OtlpKind::Bool | OtlpKind::String | OtlpKind::Bytes | OtlpKind::Enum(_) => {
                Err(E::invalid_type(Unexpected::Float(value), &self))
            }
            _ if value.fract() != 0.0 => Err(E::custom("expected integer value")),
            _ => {
                let (min, max) = self.range();
                // For 64-bit integers, `max as f64` rounds up to `max + 1`, which `clamp` reduces.
                if value < min as f64 || value > max as f64 {
                    return Err(E::custom("float value out of range"));
                }
                self.write_integer((value as i128).clamp(min, max))
            }
        }
    }

    /// Visits a number that serde_json passes as a map to preserve its digits. Rejects real
    /// objects.
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let number = Number::deserialize(MapAccessDeserializer::new(map))
            .map_err(|_| A::Error::invalid_type(Unexpected::Map, &self))?;
        let float = number.as_f64();
        self.visit_f64(float.ok_or_else(|| A::Error::custom("number out of range"))?)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        match self.field.kind {
            OtlpKind::String => self.write_bytes(text.as_bytes()),
            OtlpKind::Bytes => match BASE64.decode(text.trim_end_matches('=').as_bytes()) {
                Ok(bytes) => self.write_bytes(&bytes),
                Err(error) => return Err(E::custom(format!("invalid base64: {error}"))),
            },
            OtlpKind::Enum(values) => {
                // A name that only a later version defines is skipped, like unknown fields.
                if let Some((_, number)) = values.iter().find(|(name, _)| *name == text) {
                    return self.write_integer((*number).into());
                }
            }
            // Also accepts "Infinity", "-Infinity" and "NaN", which protobuf's JSON mapping writes.
            OtlpKind::Double => return self.write_double(text.parse().map_err(E::custom)?),
            OtlpKind::Bool | OtlpKind::Message(_) => {
                return Err(E::invalid_type(Unexpected::Str(text), &self));
            }
            _ => return self.write_integer(text.parse().map_err(E::custom)?),
        }
        Ok(())
    }
}

/// Base64 in both alphabets, without padding. Unused bits of the last byte may be set.
static BASE64: LazyLock<Encoding> = LazyLock::new(|| {
    let mut base64 = BASE64_NOPAD.specification();
    base64.check_trailing_bits = false;
    base64.translate.from.push_str("-_");
    base64.translate.to.push_str("+/");
    base64
        .encoding()
        .expect("the second alphabet has two characters that the first has not")
});

impl ScalarSeed<'_> {
    fn range(&self) -> (i128, i128) {
        match self.field.kind {
            OtlpKind::Int32 | OtlpKind::Sint32 | OtlpKind::Enum(_) => {
                (i32::MIN.into(), i32::MAX.into())
            }
            OtlpKind::Uint32 | OtlpKind::Fixed32 => (0, u32::MAX.into()),
            OtlpKind::Uint64 | OtlpKind::Fixed64 => (0, u64::MAX.into()),
            _ => (i64::MIN.into(), i64::MAX.into()),
        }
    }

    fn write_integer<E: Error>(self, value: i128) -> Result<(), E> {
        let (min, max) = self.range();
        if !(min..=max).contains(&value) {
            return Err(E::custom("integer value out of range"));
        }
        // In two's complement the lower bits are the same for every width.
        let bits = value as u64;
        match self.field.kind {
            OtlpKind::Sint32 => {
                let value = value as i32;
                self.write_varint(u64::from(((value << 1) ^ (value >> 31)) as u32));
            }
            OtlpKind::Fixed32 => self.write_fixed32(bits as u32),
            OtlpKind::Fixed64 | OtlpKind::Sfixed64 => self.write_fixed64(bits),
            _ => self.write_varint(bits),
        }
        Ok(())
    }

    fn write_double<E: Error>(self, value: f64) -> Result<(), E> {
        self.write_fixed64(value.to_bits());
        Ok(())
    }

    fn write_varint(self, value: u64) {
        match self.place {
            Place::Item => write::varint(self.protobuf, value),
            Place::Field if self.field.has_presence => {
                write::present_uint(self.protobuf, self.field.number, value);
            }
            Place::Field => write::uint(self.protobuf, self.field.number, value),
        }
    }

    fn write_fixed32(self, value: u32) {
        match self.place {
            Place::Item => self.protobuf.extend_from_slice(&value.to_le_bytes()),
            // OTLP has no fixed32 field in which 0 differs from absent.
            Place::Field => write::fixed32(self.protobuf, self.field.number, value),
        }
    }

    fn write_fixed64(self, value: u64) {
        match self.place {
            Place::Item => self.protobuf.extend_from_slice(&value.to_le_bytes()),
            Place::Field if self.field.has_presence => {
                write::present_fixed64(self.protobuf, self.field.number, value);
            }
            Place::Field => write::fixed64(self.protobuf, self.field.number, value),
        }
    }

    fn write_bytes(self, value: &[u8]) {
        if self.place == Place::Item || self.field.has_presence {
            write::delimited(self.protobuf, self.field.number, value);
        } else {
            write::bytes(self.protobuf, self.field.number, value);
        }
    }
}
