//! Validates attributes and reads their values in place. As in prost, the last of repeated fields
//! is used, and messages merge.

use super::schema::{ANY_VALUE, ARRAY_VALUE, KEY_VALUE_LIST};
use crate::wire::otlp::{any_value, key_value};
use crate::wire::{Cursor, FIXED64, Fault, LEN, VARINT, enter, key};

/// The value of an `AnyValue`. It is not an enum with data, because separate words remain in
/// registers, while copying an enum took a third of the scan's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScannedValue<'b> {
    pub(super) kind: ValueKind,
    /// The string or the bytes; else empty.
    pub(super) bytes: &'b [u8],
    /// The bool, integer or double, as its bits.
    pub(super) bits: u64,
}

/// The type of a value. It has 64 bits, because padding would be copied through the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum ValueKind {
    Nothing,
    /// UTF-8.
    Str,
    Bool,
    Int,
    Double,
    Bytes,
    /// An array or map, whose content is read from the encoded value.
    Nested,
    /// The index of a string, which only profiles use.
    Index,
}

impl<'b> ScannedValue<'b> {
    pub(super) const NOTHING: Self = Self::of_kind(ValueKind::Nothing);

    pub(super) const fn of_kind(kind: ValueKind) -> Self {
        Self {
            kind,
            bytes: &[],
            bits: 0,
        }
    }

    #[inline(always)]
    pub(super) fn bytes(kind: ValueKind, bytes: &'b [u8]) -> Self {
        Self {
            kind,
            bytes,
            bits: 0,
        }
    }

    #[inline(always)]
    pub(super) fn bits(kind: ValueKind, bits: u64) -> Self {
        Self {
            kind,
            bytes: &[],
            bits,
        }
    }

    /// Merges a later value into this one. The later value is used if it is set.
    #[inline(always)]
    fn merge(self, later: Self) -> Self {
        if later.kind == ValueKind::Nothing { self } else { later }
    }
}

pub(super) const KEY: u64 = key(key_value::KEY, LEN);
pub(super) const VALUE: u64 = key(key_value::VALUE, LEN);
const KEY_STRINDEX: u64 = key(key_value::KEY_STRINDEX, VARINT);
const KEY_BYTE: u8 = KEY as u8;
const STRING_BYTE: u8 = STRING as u8;

pub(super) const STRING: u64 = key(any_value::STRING, LEN);
pub(super) const BOOL: u64 = key(any_value::BOOL, VARINT);
pub(super) const INT: u64 = key(any_value::INT, VARINT);
pub(super) const DOUBLE: u64 = key(any_value::DOUBLE, FIXED64);
pub(super) const ARRAY: u64 = key(any_value::ARRAY, LEN);
pub(super) const KVLIST: u64 = key(any_value::KVLIST, LEN);
pub(super) const BYTES: u64 = key(any_value::BYTES, LEN);
pub(super) const STRINDEX: u64 = key(any_value::STRING_STRINDEX, VARINT);

/// Validates a `KeyValue` and returns its key and value. `check_key` validates the key, unless the
/// key is cached.
pub(super) fn key_value<'b>(
    bytes: &'b [u8],
    depth: u32,
    mut check_key: impl FnMut(&'b [u8]) -> Result<(), Fault>,
) -> Result<(&'b [u8], ScannedValue<'b>), Fault> {
    let mut cursor = Cursor::new(bytes);
    let mut name: &[u8] = b"";
    let mut scanned = ScannedValue::NOTHING;
    while !cursor.is_empty() {
        match cursor.varint()? {
            KEY => {
                name = cursor.delimited()?;
                check_key(name).map_err(|fault| fault.within("key"))?;
            }
            VALUE => {
                let value = cursor.delimited()?;
                scanned = scanned.merge(
                    any_value(value, enter(depth, value)?)
                        .map_err(|fault| fault.within("value"))?,
                );
            }
            KEY_STRINDEX => drop(cursor.varint()?),
            other => cursor.skip_unread(other, 0b1110, depth)?,
        }
    }
    Ok((name, scanned))
}

/// Returns key and value of a `KeyValue` in the usual form: a key of up to 127 bytes, then one
/// value. Validates neither. The fast path of [`key_value`], which handles all other forms.
#[inline(always)]
pub(super) fn plain_key_value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[KEY_BYTE, key_len @ 0..0x80], rest) = bytes.split_first_chunk()? else {
        return None;
    };
    let (key, rest) = rest.split_at_checked(usize::from(key_len))?;
    let mut cursor = Cursor::new(rest);
    let value = if cursor.varint().ok()? == VALUE {
        cursor.delimited().ok()?
    } else {
        return None;
    };
    cursor.is_empty().then_some((key, value))
}

/// Returns the text of an `AnyValue` in the usual form: a string of up to 127 bytes, not validated
/// as UTF-8.
#[inline(always)]
pub(super) fn short_text(value: &[u8]) -> Option<&[u8]> {
    match value {
        [STRING_BYTE, len @ 0..0x80, text @ ..] if text.len() == usize::from(*len) => Some(text),
        _ => None,
    }
}

pub(super) fn any_value(bytes: &[u8], depth: u32) -> Result<ScannedValue<'_>, Fault> {
    let mut cursor = Cursor::new(bytes);
    let mut scanned = ScannedValue::NOTHING;
    while !cursor.is_empty() {
        scanned = match cursor.varint()? {
            STRING => ScannedValue::bytes(ValueKind::Str, cursor.string()?),
            BOOL => ScannedValue::bits(ValueKind::Bool, u64::from(cursor.varint()? != 0)),
            INT => ScannedValue::bits(ValueKind::Int, cursor.varint()?),
            DOUBLE => ScannedValue::bits(ValueKind::Double, cursor.fixed64()?),
            BYTES => ScannedValue::bytes(ValueKind::Bytes, cursor.delimited()?),
            other => scanned.merge(ScannedValue::of_kind(rare_value(
                other,
                &mut cursor,
                depth,
            )?)),
        };
    }
    Ok(scanned)
}

#[inline(never)]
fn rare_value(found: u64, cursor: &mut Cursor<'_>, depth: u32) -> Result<ValueKind, Fault> {
    match found {
        ARRAY => {
            let array = cursor.delimited()?;
            ARRAY_VALUE.check(array, enter(depth, array)?)?;
            Ok(ValueKind::Nested)
        }
        KVLIST => {
            let kvlist = cursor.delimited()?;
            KEY_VALUE_LIST.check(kvlist, enter(depth, kvlist)?)?;
            Ok(ValueKind::Nested)
        }
        STRINDEX => cursor.varint().map(|_| ValueKind::Index),
        _ => ANY_VALUE
            .check_field(found, cursor, depth)
            .map(|()| ValueKind::Nothing),
    }
}
