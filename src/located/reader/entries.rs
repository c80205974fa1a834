//! Passes the items of a list, the entries of a map, and the keys of an inlined struct to serde.

use std::mem;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value as Json;

use super::super::de_error::{DeError, MistakeKind};
use super::super::tree::{MapEntry, Node, NodeValue};
use super::{Nulls, Reader, keys_words};

pub(super) struct Items<'a> {
    items: &'a [Node],
    next: usize,
}

impl<'a> Items<'a> {
    pub(super) fn new(items: &'a [Node]) -> Self {
        Self { items, next: 0 }
    }
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
                value: NodeValue::Gone,
                ..
            })
        ) {
            self.next += 1;
        }
        let Some(item) = self.items.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        seed.deserialize(Reader::new(item))
            .map(Some)
            .map_err(|mistake| mistake.below(self.next - 1))
    }
}

pub(super) struct MapEntries<'a> {
    entries: &'a [MapEntry],
    nulls: Nulls,
    next: usize,
    shown: Shown,
    /// The [`INLINE`] field, which follows all entries.
    inline: Option<Rest<'a>>,
}

#[derive(Clone, Copy)]
enum Shown {
    All,
    Only(&'static [&'static str]),
    Except(&'static [&'static str]),
}

impl<'a> MapEntries<'a> {
    pub(super) fn new(entries: &'a [MapEntry], nulls: Nulls) -> Self {
        Self {
            entries,
            nulls,
            next: 0,
            shown: Shown::All,
            inline: None,
        }
    }

    /// Shows only these fields of the struct at `reader`; the [`INLINE`] field reads the other
    /// keys.
    pub(super) fn with_inlined(self, reader: Reader<'a>, fields: &'static [&'static str]) -> Self {
        Self {
            shown: Shown::Only(fields),
            inline: Some(Rest { reader, fields }),
            ..self
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

impl<'de> MapAccess<'de> for MapEntries<'de> {
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
            let reader = Reader {
                node: &entry.value,
                nulls: self.nulls,
            };
            seed.deserialize(reader)
                .map_err(|mistake| mistake.below(self.next - 1))
        } else if let Some(rest) = self.inline.take() {
            seed.deserialize(rest)
        } else {
            Err(de::Error::custom("a value was asked for after the last"))
        }
    }
}

// === structs whose keys are written among those of the enclosing struct ===

/// The name of a field whose struct is written among the keys of the enclosing struct, like serde's
/// `flatten` but with positions. The inlined struct reads every key that the enclosing struct does
/// not have, and so rejects unknown keys.
pub(super) const INLINE: &str = "*";

struct Rest<'a> {
    reader: Reader<'a>,
    /// The fields of the enclosing struct.
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
        let mut entries = self.reader.entries(|| keys_words(fields))?;
        entries.shown = Shown::Except(self.fields);
        visitor.visit_map(entries).map_err(|mut mistake| {
            let is_here = mistake.at_key && mistake.path().len() == 1;
            if let MistakeKind::UnknownKey { legal, .. } = &mut mistake.fault
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

/// Moves the keys of serialized inlined structs to the enclosing objects.
pub fn lift_inlined(value: &mut Json) {
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
