//! Attributes and their values, validated in place: the bytes of a `KeyValue` or `AnyValue` in,
//! what it holds out. Follows prost where a field is repeated: the last one counts, and messages
//! merge. Does not know which attributes anybody wants.

use super::shape::{ANY_VALUE, ARRAY_VALUE, KEY_VALUE_LIST};
use crate::wire::otlp::{any_value, key_value};
use crate::wire::{Cursor, FIXED64, Fault, LEN, VARINT, enter, key};

/// What an `AnyValue` holds. Not an enum with values in it: as separate words it stays in
/// registers, where the copies of an enum were a third of the scan's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held<'b> {
    pub(super) kind: HeldKind,
    /// The string or the bytes; else empty.
    pub(super) bytes: &'b [u8],
    /// The bool, integer or double, as its bits.
    pub(super) bits: u64,
}

/// As wide as the other words: padding, too, would be copied through the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum HeldKind {
    /// Nothing was set.
    Nothing,
    /// UTF-8.
    Str,
    Bool,
    Int,
    Double,
    Bytes,
    /// An array or a map: to be read from the encoded value.
    Nested,
    /// A string by its index, which has a meaning in profiles only.
    Index,
}

impl<'b> Held<'b> {
    pub(super) const NOTHING: Self = Self::of_kind(HeldKind::Nothing);

    pub(super) const fn of_kind(kind: HeldKind) -> Self {
        Self {
            kind,
            bytes: &[],
            bits: 0,
        }
    }

    #[inline(always)]
    pub(super) fn bytes(kind: HeldKind, bytes: &'b [u8]) -> Self {
        Self {
            kind,
            bytes,
            bits: 0,
        }
    }

    #[inline(always)]
    pub(super) fn bits(kind: HeldKind, bits: u64) -> Self {
        Self {
            kind,
            bytes: &[],
            bits,
        }
    }

    /// What a value is after `later` was merged into it.
    #[inline(always)]
    fn merge(self, later: Self) -> Self {
        if later.kind == HeldKind::Nothing {
            self
        } else {
            later
        }
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

/// Validate a `KeyValue`; its key is passed to `check_key` (which may know it already), so that one
/// check of UTF-8 serves both.
pub(super) fn key_value<'b>(
    bytes: &'b [u8],
    depth: u32,
    mut check_key: impl FnMut(&'b [u8]) -> Result<(), Fault>,
) -> Result<(&'b [u8], Held<'b>), Fault> {
    let mut cursor = Cursor::new(bytes);
    let mut name: &[u8] = b"";
    let mut held = Held::NOTHING;
    while !cursor.is_empty() {
        match cursor.varint()? {
            KEY => {
                name = cursor.delimited()?;
                check_key(name).map_err(|fault| fault.within("key"))?;
            }
            VALUE => {
                let value = cursor.delimited()?;
                held = held.merge(
                    any_value(value, enter(depth, value)?)
                        .map_err(|fault| fault.within("value"))?,
                );
            }
            KEY_STRINDEX => drop(cursor.varint()?),
            other => cursor.skip_unread(other, 0b1110, depth)?,
        }
    }
    Ok((name, held))
}

/// Key and value of a `KeyValue` as nearly all look: a key of up to 127 bytes, then one value, and
/// nothing else. The fast path of [`key_value`], which says what is wrong where this is `None`;
/// neither has been validated.
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

/// The text of an `AnyValue` as most look: a string of up to 127 bytes, not yet known to be UTF-8.
#[inline(always)]
pub(super) fn short_text(value: &[u8]) -> Option<&[u8]> {
    match value {
        [STRING_BYTE, len @ 0..0x80, text @ ..] if text.len() == usize::from(*len) => Some(text),
        _ => None,
    }
}

/// Validate an `AnyValue`.
pub(super) fn any_value(bytes: &[u8], depth: u32) -> Result<Held<'_>, Fault> {
    let mut cursor = Cursor::new(bytes);
    let mut held = Held::NOTHING;
    while !cursor.is_empty() {
        held = match cursor.varint()? {
            STRING => Held::bytes(HeldKind::Str, cursor.string()?),
            BOOL => Held::bits(HeldKind::Bool, u64::from(cursor.varint()? != 0)),
            INT => Held::bits(HeldKind::Int, cursor.varint()?),
            DOUBLE => Held::bits(HeldKind::Double, cursor.fixed64()?),
            BYTES => Held::bytes(HeldKind::Bytes, cursor.delimited()?),
            other => held.merge(Held::of_kind(rare_value(other, &mut cursor, depth)?)),
        };
    }
    Ok(held)
}

#[inline(never)]
fn rare_value(found: u64, cursor: &mut Cursor<'_>, depth: u32) -> Result<HeldKind, Fault> {
    match found {
        ARRAY => {
            let array = cursor.delimited()?;
            ARRAY_VALUE.check(array, enter(depth, array)?)?;
            Ok(HeldKind::Nested)
        }
        KVLIST => {
            let kvlist = cursor.delimited()?;
            KEY_VALUE_LIST.check(kvlist, enter(depth, kvlist)?)?;
            Ok(HeldKind::Nested)
        }
        STRINDEX => cursor.varint().map(|_| HeldKind::Index),
        _ => ANY_VALUE
            .check_field(found, cursor, depth)
            .map(|()| HeldKind::Nothing),
    }
}
