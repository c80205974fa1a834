//! Reads one of several choices, such as `evaluate: { tool_call_order: … }` or `protocol: grpc`.

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, EnumAccess, IntoDeserializer, VariantAccess, Visitor};

use super::super::de_error::{DeError, MistakeKind};
use super::super::texts::Place;
use super::super::tree::{Kind, Node, NodeValue, Scalar};
use super::{Nulls, Reader};

/// The word that names the choice, and, if the word is the only key of a map, the value of that
/// key.
pub(super) struct Choice<'a> {
    pub(super) name: &'static str,
    pub(super) word: &'a str,
    pub(super) value: Option<&'a Node>,
    pub(super) nulls: Nulls,
}

static NOTHING: Node = Node {
    place: Place {
        source: 0,
        start: 0,
        end: 0,
    },
    value: NodeValue::Scalar(Scalar {
        text: String::new(),
        kind: Kind::Null,
        substituted: false,
    }),
};

impl<'a> Choice<'a> {
    fn reader(&self) -> Reader<'a> {
        match self.value {
            Some(node) => Reader {
                node,
                nulls: self.nulls,
            },
            // A word alone has no settings, so they are read from an empty section.
            None => Reader::new(&NOTHING).allowing_empty_sections(),
        }
    }

    fn place(&self, mistake: DeError) -> DeError {
        match (self.value, &mistake.fault) {
            (Some(_), _) => mistake.below(0),
            // The word alone was written, instead of a map with the word as its key.
            (None, MistakeKind::Missing(key)) => DeError::new(MistakeKind::Other(format!(
                "`{0}` has no settings: write `{0}: {{ {key}: … }}`",
                self.word
            ))),
            (None, _) => mistake,
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
                if let MistakeKind::UnknownWord { of, .. } = &mut mistake.fault {
                    *of = Some(self.name);
                }
                Err(if self.value.is_some() { mistake.key_of(0) } else { mistake })
            }
        }
    }
}

impl<'de> VariantAccess<'de> for Choice<'de> {
    type Error = DeError;

    fn unit_variant(self) -> Result<(), DeError> {
        let reader = self.reader();
        if reader.node.is_null() {
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
