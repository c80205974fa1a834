//! An attribute and its value, borrowed from the text that stores them.

use super::key_set::KeyId;

/// An attribute's value.
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
    /// Bytes as text, with U+FFFD in place of invalid UTF-8.
    Bytes(&'a str),
}

/// One stored attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attribute<'a> {
    /// The number of the attribute's key, or of the prefix in the `KeySet` that the key matches.
    pub key: KeyId,
    /// The part of the key after the prefix; empty if the `KeySet` has the whole key.
    pub suffix: &'a str,
    /// The value, possibly cut.
    pub value: Value<'a>,
    /// True if the value was longer than the limit. Never compare a cut value as if it were whole.
    pub cut: bool,
}
