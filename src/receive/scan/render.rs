//! OTLP arrays and maps as compact JSON: a validated `KeyValue` in, the text of its value out, up
//! to a length. Bytes become base64, NaN and the infinities strings, as in OTLP/JSON. Merges what
//! is repeated as prost does. Does not know who reads the text.

use std::io;

use data_encoding::BASE64;
use smallvec::{SmallVec, smallvec};

use super::value::{
    ARRAY, BOOL, BYTES, DOUBLE, Held, HeldKind, INT, KEY, KVLIST, STRINDEX, STRING, VALUE,
};
use crate::wire::{Cursor, Fault, RECURSION_LIMIT, delimited_fields, number_of};

/// One value, in as many pieces as it was sent: a message that is repeated means all of its pieces
/// together.
type Pieces<'b> = SmallVec<[&'b [u8]; 1]>;

/// Write a value, the field `field` of a message, as JSON to `text`, at most `limit` bytes of it.
/// Returns whether it had to be cut; a cut text ends at a character's boundary.
pub(super) fn value_as_json(message: &[u8], field: u64, limit: usize, text: &mut Vec<u8>) -> bool {
    text.clear();
    let mut out = Bounded { text, limit };
    let cut = write_value(&delimited_fields(message, field).collect(), &mut out).is_err();
    if cut && let Err(error) = std::str::from_utf8(text) {
        text.truncate(error.valid_up_to());
    }
    cut
}

/// There is no room left (the bytes are validated, so that nothing else goes wrong).
struct Full;

impl From<serde_json::Error> for Full {
    fn from(_: serde_json::Error) -> Self {
        Self
    }
}

impl From<Fault> for Full {
    fn from(_: Fault) -> Self {
        Self
    }
}

impl From<io::Error> for Full {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// Takes `limit` bytes and refuses the rest.
struct Bounded<'t> {
    text: &'t mut Vec<u8>,
    limit: usize,
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

fn write_value(pieces: &Pieces<'_>, out: &mut Bounded<'_>) -> Result<(), Full> {
    let mut held = Held::NOTHING;
    // Two arrays in a row are one array, an array after a map replaces it.
    let mut nested_key = 0;
    let mut nested = Pieces::new();
    for piece in pieces {
        let mut cursor = Cursor::new(piece);
        while !cursor.is_empty() {
            let found = cursor.varint()?;
            held = match found {
                STRING => Held::bytes(HeldKind::Str, cursor.delimited()?),
                BOOL => Held::bits(HeldKind::Bool, u64::from(cursor.varint()? != 0)),
                INT => Held::bits(HeldKind::Int, cursor.varint()?),
                DOUBLE => Held::bits(HeldKind::Double, cursor.fixed64()?),
                BYTES => Held::bytes(HeldKind::Bytes, cursor.delimited()?),
                STRINDEX => cursor.varint().map(|_| Held::of_kind(HeldKind::Index))?,
                ARRAY | KVLIST => {
                    if held.kind != HeldKind::Nested || nested_key != found {
                        nested.clear();
                    }
                    nested_key = found;
                    nested.push(cursor.delimited()?);
                    Held::of_kind(HeldKind::Nested)
                }
                other => {
                    cursor.skip_unread(other, 0, RECURSION_LIMIT)?;
                    held
                }
            };
        }
    }
    match held.kind {
        HeldKind::Nothing | HeldKind::Index => write(out, b"null"),
        HeldKind::Bool => write(out, if held.bits == 0 { b"false" } else { b"true" }),
        HeldKind::Int => Ok(serde_json::to_writer(out, &(held.bits as i64))?),
        HeldKind::Double => write_double(f64::from_bits(held.bits), out),
        HeldKind::Str => write_string(held.bytes, out),
        HeldKind::Bytes => write_bytes(held.bytes, out),
        HeldKind::Nested if nested_key == ARRAY => write_array(&nested, out),
        HeldKind::Nested => write_map(&nested, out),
    }
}

fn write_array(pieces: &Pieces<'_>, out: &mut Bounded<'_>) -> Result<(), Full> {
    write(out, b"[")?;
    let values = pieces.iter().flat_map(|array| delimited_fields(array, 1));
    for (i, value) in values.enumerate() {
        if i > 0 {
            write(out, b",")?;
        }
        write_value(&smallvec![value], out)?;
    }
    write(out, b"]")
}

fn write_map(pieces: &Pieces<'_>, out: &mut Bounded<'_>) -> Result<(), Full> {
    write(out, b"{")?;
    let key_values = pieces.iter().flat_map(|kvlist| delimited_fields(kvlist, 1));
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

fn write_double(value: f64, out: &mut Bounded<'_>) -> Result<(), Full> {
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

fn write_string(text: &[u8], out: &mut Bounded<'_>) -> Result<(), Full> {
    // Escaping only lengthens, so what lies beyond the limit need not be looked at. A character
    // that is split there is replaced and then cut off.
    let head = &text[..text.len().min(out.limit.saturating_add(4))];
    Ok(serde_json::to_writer(
        out,
        String::from_utf8_lossy(head).as_ref(),
    )?)
}

fn write_bytes(bytes: &[u8], out: &mut Bounded<'_>) -> Result<(), Full> {
    write(out, b"\"")?;
    // Three bytes become four letters, so that the limit holds for the bytes as well; 48 at a time
    // need no padding between.
    for chunk in bytes.chunks(48) {
        write(out, BASE64.encode(chunk).as_bytes())?;
    }
    write(out, b"\"")
}

fn write(out: &mut Bounded<'_>, bytes: &[u8]) -> Result<(), Full> {
    Ok(io::Write::write_all(out, bytes)?)
}
