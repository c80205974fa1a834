//! A serde `Deserializer` over a [`Node`] tree that reports errors by path.

mod choice;
mod entries;

use serde::de::{self, Deserializer as _, Visitor};
use serde_json::Number;
use text::decimal::Decimal;

use super::de_error::{DeError, MistakeKind, expected_words, shown};
use super::parse::infer;
use super::tree::{Kind, Map, Node, NodeValue, Scalar};

use choice::Choice;
use entries::{INLINE, Items, MapEntries};

pub use entries::lift_inlined;

/// A serde deserializer over a node. A key without a value is an error where a list, a map or a
/// scalar is required; after [`Self::allowing_empty_sections`], only where a scalar is required.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    node: &'a Node,
    nulls: Nulls,
}

/// The treatment of a null where a list or a map is required.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nulls {
    /// Like a missing value.
    Refused,
    /// A null is an empty list or map, because all keys of a section may be commented out. An item
    /// of a list is not a section, so a null item is rejected.
    Empty,
}

impl<'a> Reader<'a> {
    pub fn new(node: &'a Node) -> Self {
        Self {
            node,
            nulls: Nulls::Refused,
        }
    }

    pub fn node(self) -> &'a Node {
        self.node
    }

    pub fn allowing_empty_sections(self) -> Self {
        Self {
            nulls: Nulls::Empty,
            ..self
        }
    }

    fn reads_as_empty(self) -> bool {
        self.nulls == Nulls::Empty && self.node.is_null()
    }

    fn wrong(self, expected: impl Into<String>) -> DeError {
        let expected = expected.into();
        let found = match &self.node.value {
            NodeValue::Scalar(Scalar {
                kind: Kind::Null, ..
            }) => return DeError::new(MistakeKind::NoValue { expected }),
            NodeValue::Scalar(Scalar {
                text,
                kind: Kind::Text,
                ..
            }) => format!("the text `{}`", shown(text)),
            NodeValue::Scalar(Scalar { text, .. }) => format!("`{}`", shown(text)),
            NodeValue::List(_) | NodeValue::Gone => "a list".to_owned(),
            NodeValue::Map(_) => "a map".to_owned(),
        };
        DeError::new(MistakeKind::WrongType { expected, found })
    }

    fn kind(self) -> Option<Kind> {
        match &self.node.value {
            NodeValue::Scalar(Scalar {
                text,
                substituted: true,
                ..
            }) => Some(infer(text)),
            NodeValue::Scalar(scalar) => Some(scalar.kind),
            _ => None,
        }
    }

    fn text(self) -> Option<&'a str> {
        match &self.node.value {
            NodeValue::Scalar(Scalar {
                kind: Kind::Null, ..
            }) => None,
            NodeValue::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    fn list<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DeError> {
        match &self.node.value {
            NodeValue::List(items) => visitor.visit_seq(Items::new(items)),
            _ if self.reads_as_empty() => visitor.visit_seq(Items::new(&[])),
            _ => Err(self.wrong("a list")),
        }
    }

    fn map<V: Visitor<'a>>(
        self,
        visitor: V,
        expected: impl FnOnce() -> String,
    ) -> Result<V::Value, DeError> {
        self.entries(expected)
            .and_then(|entries| visitor.visit_map(entries))
    }

    /// Reads a struct. A struct with an [`INLINE`] field reads only its own keys; that field reads
    /// the other keys.
    fn keys<V: Visitor<'a>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        let entries = self.entries(|| keys_words(fields))?;
        visitor.visit_map(if fields.contains(&INLINE) {
            entries.with_inlined(self, fields)
        } else {
            entries
        })
    }

    fn entries(self, expected: impl FnOnce() -> String) -> Result<MapEntries<'a>, DeError> {
        let entries = match &self.node.value {
            NodeValue::Map(map) => map.entries.as_slice(),
            _ if self.reads_as_empty() => &[],
            _ => return Err(self.wrong(expected())),
        };
        Ok(MapEntries::new(entries, self.nulls))
    }
}

macro_rules! whole_numbers {
    ($($method:ident: $expected:literal;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
            match self.kind() {
                Some(Kind::Unsigned(number)) => visitor.visit_u64(number),
                Some(Kind::Signed(number)) => visitor.visit_i64(number),
                _ => Err(self.wrong($expected)),
            }
        }
    )*};
}

macro_rules! texts {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
            match self.text() {
                Some(text) => visitor.visit_borrowed_str(text),
                None => Err(self.wrong("a text")),
            }
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Reader<'de> {
    type Error = DeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match &self.node.value {
            NodeValue::Scalar(Scalar { text, kind, .. }) => match kind {
                Kind::Null => visitor.visit_unit(),
                Kind::Bool(value) => visitor.visit_bool(*value),
                Kind::Unsigned(number) => visitor.visit_u64(*number),
                Kind::Signed(number) => visitor.visit_i64(*number),
                Kind::Float(number) => visit_float(text, *number, visitor),
                Kind::Text => visitor.visit_borrowed_str(text),
            },
            NodeValue::List(items) => visitor.visit_seq(Items::new(items)),
            NodeValue::Map(map) => visitor.visit_map(MapEntries::new(&map.entries, self.nulls)),
            NodeValue::Gone => visitor.visit_unit(),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match self.kind() {
            Some(Kind::Bool(value)) => visitor.visit_bool(value),
            _ => Err(self.wrong("`true` or `false`")),
        }
    }

    whole_numbers! {
        deserialize_u8: "a whole number, 0 or more";
        deserialize_u16: "a whole number, 0 or more";
        deserialize_u32: "a whole number, 0 or more";
        deserialize_u64: "a whole number, 0 or more";
        deserialize_u128: "a whole number, 0 or more";
        deserialize_i8: "a whole number";
        deserialize_i16: "a whole number";
        deserialize_i32: "a whole number";
        deserialize_i64: "a whole number";
        deserialize_i128: "a whole number";
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match self.kind() {
            Some(Kind::Float(number)) => visitor.visit_f64(number),
            Some(Kind::Unsigned(number)) => visitor.visit_u64(number),
            Some(Kind::Signed(number)) => visitor.visit_i64(number),
            _ => Err(self.wrong("a number")),
        }
    }

    texts! {
        deserialize_str deserialize_string deserialize_char deserialize_identifier
        deserialize_bytes deserialize_byte_buf
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        if self.node.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        if self.node.is_null() {
            visitor.visit_unit()
        } else {
            Err(self.wrong("no value"))
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.list(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, DeError> {
        if !matches!(self.node.value, NodeValue::List(_)) {
            return Err(self.wrong(expected_words(&visitor)));
        }
        self.list(visitor).map_err(DeError::of_the_whole)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, DeError> {
        self.list(visitor).map_err(DeError::of_the_whole)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.map(visitor, || "a map".to_owned())
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        self.keys(fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        legal: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        let choice = match &self.node.value {
            NodeValue::Map(Map { entries, .. }) => match entries.as_slice() {
                [entry] => Choice {
                    name,
                    word: &entry.key,
                    value: Some(&entry.value),
                    nulls: self.nulls,
                },
                [] => {
                    return Err(DeError::new(MistakeKind::NoChoice {
                        of: name,
                        legal: legal.to_vec(),
                    }));
                }
                [_, second, ..] => {
                    return Err(DeError::new(MistakeKind::SecondChoice {
                        of: name,
                        second: second.key.clone(),
                    })
                    .key_of(1));
                }
            },
            NodeValue::Scalar(_) if self.text().is_some() => Choice {
                name,
                word: self.text().unwrap_or_default(),
                value: None,
                nulls: self.nulls,
            },
            _ => {
                let words: Vec<_> = legal.iter().map(|word| format!("`{word}`")).collect();
                return Err(self.wrong(format!("one of {}", words.join(", "))));
            }
        };
        visitor.visit_enum(choice)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        visitor.visit_unit()
    }
}

/// Passes a number to the visitor with its written digits. Most numbers are written with the
/// shortest digits of a double, which every visitor accepts; other numbers are passed as JSON
/// numbers, which preserve their digits.
fn visit_float<'de, V: Visitor<'de>>(
    text: &str,
    number: f64,
    visitor: V,
) -> Result<V::Value, DeError> {
    let shortest = number.to_string();
    match Decimal::parse(text.trim()) {
        Some(decimal) if Decimal::parse(&shortest) != Some(decimal) => {
            let number: Number = text
                .trim()
                .parse()
                .or_else(|_| decimal.to_string().parse())
                .map_err(de::Error::custom)?;
            match (number.as_u128(), number.as_i128()) {
                (Some(number), _) => visitor.visit_u128(number),
                (_, Some(number)) => visitor.visit_i128(number),
                _ => number.deserialize_any(visitor).map_err(de::Error::custom),
            }
        }
        _ if !number.is_finite() => Err(DeError::new(MistakeKind::WrongType {
            expected: "a finite number".to_owned(),
            found: format!("`{}`", shown(text)),
        })),
        _ => visitor.visit_f64(number),
    }
}

fn keys_words(keys: &[&str]) -> String {
    let keys: Vec<_> = keys.iter().filter(|key| **key != INLINE).collect();
    let shown: Vec<_> = keys.iter().take(12).map(|key| format!("`{key}`")).collect();
    format!(
        "a map with the keys {}{}",
        shown.join(", "),
        if keys.len() > 12 { ", …" } else { "" }
    )
}
