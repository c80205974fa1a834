//! Appends protobuf fields to a buffer. As in proto3, fields with their default value are omitted,
//! unless a function's comment says otherwise.

use super::{FIXED32, FIXED64, LEN, VARINT, key};

/// Writes a number or a length, without a key.
pub(crate) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a varint field.
pub fn uint(out: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        present_uint(out, field, value);
    }
}

/// Writes a varint field even if it is 0, as a member of a `oneof` requires.
pub fn present_uint(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, key(field, VARINT));
    varint(out, value);
}

/// Writes a fixed64 field.
pub fn fixed64(out: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        present_fixed64(out, field, value);
    }
}

/// Writes a fixed64 field even if it is 0, as a member of a `oneof` requires.
pub fn present_fixed64(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, key(field, FIXED64));
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a fixed32 field.
pub fn fixed32(out: &mut Vec<u8>, field: u64, value: u32) {
    if value != 0 {
        varint(out, key(field, FIXED32));
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Writes a string or bytes field.
pub fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    if !value.is_empty() {
        delimited(out, field, value);
    }
}

/// Writes a length-delimited field even if it is empty: an encoded message, or a member of a
/// `oneof`, in which an empty value counts.
pub fn delimited(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(out, key(field, LEN));
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// Writes a length-delimited field whose content `write` appends: a nested message, or a text built
/// in place.
pub fn message(out: &mut Vec<u8>, field: u64, write: impl FnOnce(&mut Vec<u8>)) {
    let content_start = begin(out, field);
    write(out);
    end(out, content_start);
}

/// Begins a length-delimited field and returns the offset of its content. Reserves one byte for the
/// length.
pub(crate) fn begin(out: &mut Vec<u8>, field: u64) -> usize {
    varint(out, key(field, LEN));
    out.push(0);
    out.len()
}

/// Ends the field that [`begin`] began. Content of 128 bytes or more is moved to make space for its
/// length, which is cheaper than measuring first.
pub(crate) fn end(out: &mut Vec<u8>, content_start: usize) {
    let content_end = out.len();
    let mut len = content_end - content_start;
    let n_more = len.checked_ilog2().unwrap_or_default() as usize / 7;
    if n_more > 0 {
        out.resize(content_end + n_more, 0);
        out.copy_within(content_start..content_end, content_start + n_more);
    }
    for byte in &mut out[content_start - 1..content_start - 1 + n_more] {
        *byte = len as u8 | 0x80;
        len >>= 7;
    }
    out[content_start - 1 + n_more] = len as u8;
}
