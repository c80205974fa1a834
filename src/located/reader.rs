//! A serde `Deserializer` over a [`Node`] tree that reports errors by path. Knows no key, and
//! nothing of messages.

use std::mem;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Value as Json;

use super::de_error::{DeError, Fault, expected_words, shown};
use super::parse::infer;
use super::texts::Place;
use super::tree::{Entry, Kind, Map, Node, Scalar, Value};

/// A serde deserializer over a node.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a Node);

// === impl Reader ===

impl<'a> Reader<'a> {
    fn wrong(self, expected: impl Into<String>) -> DeError {
        let expected = expected.into();
        let found = match &self.0.value {
            Value::Scalar(Scalar {
                kind: Kind::Null, ..
            }) => return DeError::new(Fault::NoValue { expected }),
            Value::Scalar(Scalar {
                text,
                kind: Kind::Text,
                ..
            }) => format!("the text `{}`", shown(text)),
            Value::Scalar(Scalar { text, .. }) => format!("`{}`", shown(text)),
            Value::List(_) | Value::Gone => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        };
        DeError::new(Fault::WrongType { expected, found })
    }

    fn kind(self) -> Option<Kind> {
        match &self.0.value {
            Value::Scalar(Scalar {
                text,
                substituted: true,
                ..
            }) => Some(infer(text)),
            Value::Scalar(scalar) => Some(scalar.kind),
            _ => None,
        }
    }

    fn text(self) -> Option<&'a str> {
        match &self.0.value {
            Value::Scalar(Scalar {
                kind: Kind::Null, ..
            }) => None,
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    fn list<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DeError> {
        match &self.0.value {
            Value::List(items) => visitor.visit_seq(Items { items, next: 0 }),
            // A key whose whole list is commented out.
            Value::Scalar(Scalar {
                kind: Kind::Null, ..
            }) => visitor.visit_seq(Items {
                items: &[],
                next: 0,
            }),
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

    /// Reads a struct. Of several keys, a struct with an [`INLINE`] field takes its own only, and
    /// leaves the others to that field.
    fn keys<V: Visitor<'a>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        let mut entries = self.entries(|| keys_words(fields))?;
        if fields.contains(&INLINE) {
            entries.shown = Shown::Only(fields);
            entries.inline = Some(Rest {
                node: self.0,
                fields,
            });
        }
        visitor.visit_map(entries)
    }

    fn entries(self, expected: impl FnOnce() -> String) -> Result<Entries<'a>, DeError> {
        let entries = match &self.0.value {
            Value::Map(map) => map.entries.as_slice(),
            // A section whose keys are all commented out.
            Value::Scalar(Scalar {
                kind: Kind::Null, ..
            }) => &[],
            _ => return Err(self.wrong(expected())),
        };
        Ok(Entries::of(entries))
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
        match &self.0.value {
            Value::Scalar(Scalar { text, kind, .. }) => match kind {
                Kind::Null => visitor.visit_unit(),
                Kind::Bool(value) => visitor.visit_bool(*value),
                Kind::Unsigned(number) => visitor.visit_u64(*number),
                Kind::Signed(number) => visitor.visit_i64(*number),
                Kind::Float(number) => visitor.visit_f64(*number),
                Kind::Text => visitor.visit_borrowed_str(text),
            },
            Value::List(items) => visitor.visit_seq(Items { items, next: 0 }),
            Value::Map(map) => visitor.visit_map(Entries::of(&map.entries)),
            Value::Gone => visitor.visit_unit(),
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
        if self.0.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        if self.0.is_null() {
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
        if !matches!(self.0.value, Value::List(_)) {
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
        let choice = match &self.0.value {
            Value::Map(Map { entries, .. }) => match entries.as_slice() {
                [entry] => Choice {
                    name,
                    word: &entry.key,
                    value: Some(entry),
                },
                [] => {
                    return Err(DeError::new(Fault::NoChoice {
                        of: name,
                        legal: legal.to_vec(),
                    }));
                }
                [_, second, ..] => {
                    return Err(DeError::new(Fault::SecondChoice {
                        of: name,
                        second: second.key.clone(),
                    })
                    .key_of(1));
                }
            },
            Value::Scalar(_) if self.text().is_some() => Choice {
                name,
                word: self.text().unwrap_or_default(),
                value: None,
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

// === lists and maps ===

struct Items<'a> {
    items: &'a [Node],
    next: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DeError> {
        while matches!(
            self.items.get(self.next),
            Some(Node {
                value: Value::Gone,
                ..
            })
        ) {
            self.next += 1;
        }
        let Some(item) = self.items.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        seed.deserialize(Reader(item))
            .map(Some)
            .map_err(|mistake| mistake.below(self.next - 1))
    }
}

struct Entries<'a> {
    entries: &'a [Entry],
    next: usize,
    shown: Shown,
    /// The [`INLINE`] field that is still to come, after all entries.
    inline: Option<Rest<'a>>,
}

/// Which entries of a map a struct sees.
#[derive(Clone, Copy)]
enum Shown {
    All,
    Only(&'static [&'static str]),
    Except(&'static [&'static str]),
}

impl<'a> Entries<'a> {
    fn of(entries: &'a [Entry]) -> Self {
        Self {
            entries,
            next: 0,
            shown: Shown::All,
            inline: None,
        }
    }

    fn shows(&self, key: &str) -> bool {
        match self.shown {
            Shown::All => true,
            Shown::Only(fields) => key != INLINE && fields.contains(&key),
            Shown::Except(fields) => key == INLINE || !fields.contains(&key),
        }
    }
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = DeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DeError> {
        let mut rest = self.entries[self.next..].iter();
        let key = match rest.position(|entry| self.shows(&entry.key)) {
            Some(n_hidden) => {
                self.next += n_hidden;
                self.entries[self.next].key.as_str()
            }
            None if self.inline.is_some() => {
                self.next = self.entries.len();
                INLINE
            }
            None => return Ok(None),
        };
        let key: StrDeserializer<'_, DeError> = key.into_deserializer();
        seed.deserialize(key)
            .map(Some)
            .map_err(|mistake| mistake.key_of(self.next))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DeError> {
        if let Some(entry) = self.entries.get(self.next) {
            self.next += 1;
            seed.deserialize(Reader(&entry.value))
                .map_err(|mistake| mistake.below(self.next - 1))
        } else if let Some(rest) = self.inline.take() {
            seed.deserialize(rest)
        } else {
            Err(de::Error::custom("a value was asked for after the last"))
        }
    }
}

// === a struct whose keys are written among those of the struct that holds it ===

/// A field of this name holds a struct whose keys are written among those of the struct around it:
/// serde's `flatten`, but with positions. It takes every key that the struct around it has not, and
/// so refuses the unknown ones.
const INLINE: &str = "*";

/// The keys of a map that a struct leaves to its [`INLINE`] field.
struct Rest<'a> {
    node: &'a Node,
    /// The fields of the struct around it.
    fields: &'static [&'static str],
}

impl<'de> de::Deserializer<'de> for Rest<'de> {
    type Error = DeError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, DeError> {
        Err(de::Error::custom("only a struct can be inlined"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        let mut entries = Reader(self.node).entries(|| keys_words(fields))?;
        entries.shown = Shown::Except(self.fields);
        visitor.visit_map(entries).map_err(|mut mistake| {
            let is_here = mistake.at_key && mistake.path().len() == 1;
            if let Fault::UnknownKey { legal, .. } = &mut mistake.fault
                && is_here
            {
                legal.extend(self.fields.iter().filter(|field| **field != INLINE));
            }
            mistake
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Puts the keys of inlined structs, as serde has serialized them, among those around them.
pub(crate) fn lift_inlined(value: &mut Json) {
    match value {
        Json::Object(fields) => {
            for (key, mut value) in mem::take(fields) {
                lift_inlined(&mut value);
                match value {
                    Json::Object(inlined) if key == INLINE => fields.extend(inlined),
                    value => drop(fields.insert(key, value)),
                }
            }
        }
        Json::Array(items) => items.iter_mut().for_each(lift_inlined),
        _ => {}
    }
}

// === one of several: `evaluate: { tool_call_order: … }`, `protocol: grpc` ===

struct Choice<'a> {
    name: &'static str,
    word: &'a str,
    value: Option<&'a Entry>,
}

static NOTHING: Node = Node {
    place: Place {
        source: 0,
        start: 0,
        end: 0,
    },
    value: Value::Scalar(Scalar {
        text: String::new(),
        kind: Kind::Null,
        substituted: false,
    }),
};

impl<'a> Choice<'a> {
    fn reader(&self) -> Reader<'a> {
        Reader(self.value.map_or(&NOTHING, |entry| &entry.value))
    }

    fn place(&self, mistake: DeError) -> DeError {
        if self.value.is_some() {
            mistake.below(0)
        } else {
            mistake
        }
    }
}

impl<'de> EnumAccess<'de> for Choice<'de> {
    type Error = DeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DeError> {
        let word: StrDeserializer<'_, DeError> = self.word.into_deserializer();
        match seed.deserialize(word) {
            Ok(variant) => Ok((variant, self)),
            Err(mut mistake) => {
                if let Fault::UnknownWord { of, .. } = &mut mistake.fault {
                    *of = Some(self.name);
                }
                Err(if self.value.is_some() {
                    mistake.key_of(0)
                } else {
                    mistake
                })
            }
        }
    }
}

impl<'de> VariantAccess<'de> for Choice<'de> {
    type Error = DeError;

    fn unit_variant(self) -> Result<(), DeError> {
        let reader = self.reader();
        if reader.0.is_null() {
            Ok(())
        } else {
            Err(self.place(reader.wrong("no value")))
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DeError> {
        seed.deserialize(self.reader())
            .map_err(|mistake| self.place(mistake))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, DeError> {
        self.reader()
            .list(visitor)
            .map_err(|mistake| self.place(mistake.of_the_whole()))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        self.reader()
            .keys(fields, visitor)
            .map_err(|mistake| self.place(mistake))
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
