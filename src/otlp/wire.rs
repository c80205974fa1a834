//! The protobuf wire format: a validating cursor, a writer, and OTLP's field numbers.

mod cursor;

#[expect(missing_docs, reason = "the variants say what is wrong")]
mod fault;

#[expect(missing_docs, reason = "the names are those of the `.proto` files")]
pub mod otlp;
mod utf8;
pub mod write;

pub use fault::MalformedProtobuf;

pub use cursor::{Cursor, Field, delimited_fields, enter, fields};
pub use fault::{Fault, FaultKind};
pub use utf8::check_utf8;

/// Maximum nesting of messages and groups, Prost's default. Deeper nesting is rejected, so that no
/// request exhausts the stack.
pub(crate) const RECURSION_LIMIT: u32 = 100;

pub(crate) const VARINT: u64 = 0;
pub(crate) const FIXED64: u64 = 1;
pub(crate) const LEN: u64 = 2;
pub(crate) const START_GROUP: u64 = 3;
pub(crate) const END_GROUP: u64 = 4;
pub(crate) const FIXED32: u64 = 5;

pub(crate) const fn key(field_number: u64, wire_type: u64) -> u64 {
    field_number << 3 | wire_type
}

/// Returns the field number of a key, which may be invalid.
pub(crate) const fn number_of(key: u64) -> u64 {
    key >> 3
}

#[cfg(test)]
mod tests;
