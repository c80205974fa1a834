//! One attribute and its value, borrowed from the text in which they are kept.

use super::key_set::KeyId;

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
    /// A value of the type bytes, read as text: U+FFFD replaces what is not UTF-8.
    Bytes(&'a str),
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
