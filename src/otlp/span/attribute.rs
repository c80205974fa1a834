//! One attribute and its value, borrowed from the text in which they are kept.

use std::fmt;

use super::key_set::KeyId;
use super::seven_bits::unpack_bytes;

/// A value of an attribute, borrowed from where it is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// A string.
    Str(&'a str),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// An OTLP array or map, as compact JSON.
    Json(&'a str),
    /// Bytes.
    Bytes(Bytes<'a>),
}

/// One kept attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attribute<'a> {
    /// The number of its key, or of the kept prefix of its key.
    pub key: KeyId,
    /// The rest of its key behind a kept prefix; empty for a whole key.
    pub suffix: &'a str,
    /// The value, possibly cut.
    pub value: Value<'a>,
    /// The value was longer than the limit: never compare it as if it were whole.
    pub cut: bool,
}

/// A value of the type bytes, kept in seven bits to a byte.
#[derive(Clone, Copy, PartialEq)]
pub struct Bytes<'a>(&'a str);

impl<'a> Bytes<'a> {
    pub(super) fn new(packed: &'a str) -> Self {
        Self(packed)
    }

    /// The bytes themselves.
    pub fn to_vec(self) -> Vec<u8> {
        unpack_bytes(self.0)
    }

    pub(super) fn packed(self) -> &'a str {
        self.0
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_vec().fmt(f)
    }
}
