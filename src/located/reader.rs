//! A tree in, what serde wants to read out of it out; or the mistake, with the path of the node it
//! was found at. Knows serde's questions; does not know any key, nor how a message looks.

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

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
        match &self.0.value {
            Value::Map(map) => visitor.visit_map(Entries {
                entries: &map.entries,
                next: 0,
            }),
            // A section whose keys are all commented out.
            Value::Scalar(Scalar {
                kind: Kind::Null, ..
            }) => visitor.visit_map(Entries {
                entries: &[],
                next: 0,
            }),
            _ => Err(self.wrong(expected())),
        }
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
            Value::Map(map) => visitor.visit_map(Entries {
                entries: &map.entries,
                next: 0,
            }),
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

    texts! { deserialize_str deserialize_string deserialize_char deserialize_identifier deserialize_bytes deserialize_byte_buf }

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
        self.map(visitor, || keys_words(fields))
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
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = DeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DeError> {
        let Some(entry) = self.entries.get(self.next) else {
            return Ok(None);
        };
        let key: StrDeserializer<'_, DeError> = entry.key.as_str().into_deserializer();
        seed.deserialize(key)
            .map(Some)
            .map_err(|mistake| mistake.key_of(self.next))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DeError> {
        let Some(entry) = self.entries.get(self.next) else {
            return Err(de::Error::custom("a value was asked for after the last"));
        };
        self.next += 1;
        seed.deserialize(Reader(&entry.value))
            .map_err(|mistake| mistake.below(self.next - 1))
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
            .map(visitor, || keys_words(fields))
            .map_err(|mistake| self.place(mistake))
    }
}

fn keys_words(keys: &[&str]) -> String {
    let shown: Vec<_> = keys.iter().take(12).map(|key| format!("`{key}`")).collect();
    format!(
        "a map with the keys {}{}",
        shown.join(", "),
        if keys.len() > 12 { ", …" } else { "" }
    )
}
