//! Writes OTLP arrays and maps as compact JSON of bounded length. As in OTLP/JSON, bytes become
//! base64, and NaN and infinities become strings. Repeated fields merge as in prost.

use std::io;

use data_encoding::BASE64;
use smallvec::{SmallVec, smallvec};

use super::value::{
    ARRAY, BOOL, BYTES, DOUBLE, INT, KEY, KVLIST, STRINDEX, STRING, ScannedValue, VALUE, ValueKind,
};
use crate::span::cut_at_char;
use crate::wire::{Cursor, Fault, RECURSION_LIMIT, delimited_fields, number_of};

/// The occurrences of one value. The occurrences of a protobuf message field merge into one
/// message.
type Occurrences<'b> = SmallVec<[&'b [u8]; 1]>;

#[derive(Debug, Clone, Copy)]
pub(super) struct JsonLimits {
    pub(super) whole: usize,
    /// Maximum bytes of a string inside the value. A longer string is cut to slightly more bytes,
    /// so that a reader with the same limit detects the cut.
    pub(super) string: usize,
}

/// Writes the field `field` of a message to `text` as JSON. Returns true if the text was cut to
/// `limits.whole` bytes or less, at a character boundary.
pub(super) fn value_as_json(
    message: &[u8],
    field: u64,
    limits: JsonLimits,
    text: &mut Vec<u8>,
) -> bool {
    text.clear();
    let mut out = Bounded {
        text,
        limit: limits.whole,
        max_string: limits.string,
    };
    let cut = write_value(&delimited_fields(message, field).collect(), &mut out).is_err();
    if cut && let Err(error) = std::str::from_utf8(text) {
        text.truncate(error.valid_up_to());
    }
    cut
}

/// The text has reached its limit. No other error can occur, because the bytes are valid.
struct LimitReached;

impl From<serde_json::Error> for LimitReached {
    fn from(_: serde_json::Error) -> Self {
        Self
    }
}

impl From<Fault> for LimitReached {
    fn from(_: Fault) -> Self {
        Self
    }
}

impl From<io::Error> for LimitReached {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// A writer that accepts `limit` bytes and rejects all further bytes.
struct Bounded<'t> {
    text: &'t mut Vec<u8>,
    limit: usize,
    max_string: usize,
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n_taken = bytes.len().min(self.limit - self.text.len());
        self.text.extend_from_slice(&bytes[..n_taken]);
        Ok(n_taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_value(occurrences: &Occurrences<'_>, out: &mut Bounded<'_>) -> Result<(), LimitReached> {
    let mut value = ScannedValue::NOTHING;
    // Successive arrays merge, and so do maps. An array replaces a map, and a map replaces an
    // array.
    let mut nested_key = 0;
    let mut nested = Occurrences::new();
    for occurrence in occurrences {
        let mut cursor = Cursor::new(occurrence);
        while !cursor.is_empty() {
            let found = cursor.varint()?;
            value = match found {
                STRING => ScannedValue::bytes(ValueKind::Str, cursor.delimited()?),
                BOOL => ScannedValue::bits(ValueKind::Bool, u64::from(cursor.varint()? != 0)),
                INT => ScannedValue::bits(ValueKind::Int, cursor.varint()?),
                DOUBLE => ScannedValue::bits(ValueKind::Double, cursor.fixed64()?),
                BYTES => ScannedValue::bytes(ValueKind::Bytes, cursor.delimited()?),
                STRINDEX => cursor
                    .varint()
                    .map(|_| ScannedValue::of_kind(ValueKind::Index))?,
                ARRAY | KVLIST => {
                    if value.kind != ValueKind::Nested || nested_key != found {
                        nested.clear();
                    }
                    nested_key = found;
                    nested.push(cursor.delimited()?);
                    ScannedValue::of_kind(ValueKind::Nested)
                }
                other => {
                    cursor.skip_unread(other, 0, RECURSION_LIMIT)?;
                    value
                }
            };
        }
    }
    match value.kind {
        ValueKind::Nothing | ValueKind::Index => write(out, b"null"),
        ValueKind::Bool => write(out, if value.bits == 0 { b"false" } else { b"true" }),
        ValueKind::Int => Ok(serde_json::to_writer(out, &(value.bits as i64))?),
        ValueKind::Double => write_double(f64::from_bits(value.bits), out),
        ValueKind::Str => write_string(value.bytes, out),
        ValueKind::Bytes => write_bytes(value.bytes, out),
        ValueKind::Nested if nested_key == ARRAY => write_array(&nested, out),
        ValueKind::Nested => write_map(&nested, out),
    }
}

fn write_array(occurrences: &Occurrences<'_>, out: &mut Bounded<'_>) -> Result<(), LimitReached> {
    write(out, b"[")?;
    let values = occurrences
        .iter()
        .flat_map(|array| delimited_fields(array, 1));
    for (i, value) in values.enumerate() {
        if i > 0 {
            write(out, b",")?;
        }
        write_value(&smallvec![value], out)?;
    }
    write(out, b"]")
}

fn write_map(occurrences: &Occurrences<'_>, out: &mut Bounded<'_>) -> Result<(), LimitReached> {
    write(out, b"{")?;
    let key_values = occurrences
        .iter()
        .flat_map(|kvlist| delimited_fields(kvlist, 1));
    for (i, key_value) in key_values.enumerate() {
        if i > 0 {
            write(out, b",")?;
        }
        write_string(
            delimited_fields(key_value, number_of(KEY))
                .last()
                .unwrap_or_default(),
            out,
        )?;
        write(out, b":")?;
        write_value(
            &delimited_fields(key_value, number_of(VALUE)).collect(),
            out,
        )?;
    }
    write(out, b"}")
}

fn write_double(value: f64, out: &mut Bounded<'_>) -> Result<(), LimitReached> {
    if value.is_finite() {
        return Ok(serde_json::to_writer(out, &value)?);
    }
    let name: &[u8] = match value {
        f64::INFINITY => b"\"Infinity\"",
        f64::NEG_INFINITY => b"\"-Infinity\"",
        _ => b"\"NaN\"",
    };
    write(out, name)
}

fn write_string(text: &[u8], out: &mut Bounded<'_>) -> Result<(), LimitReached> {
    if text.len() > out.max_string {
        let head = cut_at_char(text, out.max_string.saturating_add(4));
        return Ok(serde_json::to_writer(
            out,
            String::from_utf8_lossy(head).as_ref(),
        )?);
    }
    // Escaping never shortens a text, so bytes beyond the limit are not needed. A character split
    // at the limit becomes U+FFFD, which the limit cuts off.
    let head = &text[..text.len().min(out.limit.saturating_add(4))];
    Ok(serde_json::to_writer(
        out,
        String::from_utf8_lossy(head).as_ref(),
    )?)
}

fn write_bytes(bytes: &[u8], out: &mut Bounded<'_>) -> Result<(), LimitReached> {
    write(out, b"\"")?;
    // Three bytes become four characters, so the limit also bounds the work. Chunks of 48 bytes
    // need no padding between them.
    for chunk in bytes.chunks(48) {
        write(out, BASE64.encode(chunk).as_bytes())?;
    }
    write(out, b"\"")
}

fn write(out: &mut Bounded<'_>, bytes: &[u8]) -> Result<(), LimitReached> {
    Ok(io::Write::write_all(out, bytes)?)
}
