//! Hands every number to a visitor as an integer or a double. serde_json keeps the digits of a
//! number that is no 64-bit integer, and shows it as a map that prost-reflect does not know. Knows
//! no field.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Number;

/// A value of JSON text, with plain numbers in it.
pub(super) struct PlainNumbers<D>(pub(super) D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for PlainNumbers<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(PlainVisitor(visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_option(PlainVisitor(visitor))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_str(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_string(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, D: DeserializeSeed<'de>> DeserializeSeed<'de> for PlainNumbers<D> {
    type Value = D::Value;

    fn deserialize<R: Deserializer<'de>>(self, deserializer: R) -> Result<D::Value, R::Error> {
        self.0.deserialize(PlainNumbers(deserializer))
    }
}

struct PlainVisitor<V>(V);

macro_rules! visit {
    ($($method:ident: $value:ty;)*) => {$(
        fn $method<E: Error>(self, value: $value) -> Result<V::Value, E> {
            self.0.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for PlainVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool: bool;
        visit_i64: i64;
        visit_u64: u64;
        visit_f64: f64;
        visit_str: &str;
        visit_borrowed_str: &'de str;
        visit_string: String;
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(PlainNumbers(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(PlainItems(items))
    }

    /// A number; scalars are no objects.
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let number = Number::deserialize(MapAccessDeserializer::new(map))
            .map_err(|_| A::Error::invalid_type(Unexpected::Map, &self))?;
        let float = number.as_f64();
        self.0
            .visit_f64(float.ok_or_else(|| A::Error::custom("number out of range"))?)
    }
}

struct PlainItems<A>(A);

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for PlainItems<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.0.next_element_seed(PlainNumbers(seed))
    }
}
