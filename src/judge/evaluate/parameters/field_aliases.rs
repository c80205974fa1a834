//! Recognises fields that the documents of other tools spell or nest differently, and rejects them
//! with the right spelling. (`config` converts camel case, and unwraps the maps that those
//! documents put around the fields.)

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::de::{self, DeserializeSeed, EnumAccess, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde::{Deserialize, Deserializer};
use text::nearest;

/// Words that people write by mistake in a criterion, and their corrections.
#[derive(Deserialize)]
struct WrongWords {
    /// Wrong spellings, and the fields that each can mean. The error suggests the first of these
    /// fields that the struct has.
    spelled: BTreeMap<String, Vec<String>>,
    /// Fields that belong to another struct, and the error for each.
    elsewhere: BTreeMap<String, String>,
    /// Words that people try instead of a rule's template, and the remedy for each.
    templates: BTreeMap<String, String>,
}

static WRONG_WORDS: LazyLock<WrongWords> = LazyLock::new(|| {
    serde_json::from_str(include_str!("wrong_words.json")).expect("the tests read the file")
});

/// Fields that count calls, and the rule template that has each field.
const COUNTS: [(&str, &str); 3] = [
    ("min", "existence"),
    ("max", "absence"),
    ("count", "exactly"),
];

/// Returns the error for a field that counts calls and that the rule's template does not have.
fn refused_count(key: &str, fields: &[&str]) -> Option<String> {
    let (_, template) = COUNTS.iter().find(|(field, _)| *field == key)?;
    let own = COUNTS.iter().find(|(field, _)| fields.contains(field));
    Some(match own {
        Some((own, _)) => format!("`{key}` is for `{template}`: this rule has `{own}`"),
        None => format!("`{key}` is for `{template}`: leave it out here"),
    })
}

/// Returns the error for an unknown operator, if `fields` are the operators of a condition.
fn refused_operator(word: &str, fields: &[&str]) -> Option<String> {
    let near = || nearest(word, fields.iter().copied());
    (fields.contains(&"not_contains")).then(|| match near() {
        Some(operator) => format!("unknown operator `{word}`: did you mean `{operator}`?"),
        None => format!(
            "unknown operator `{word}`: write one such as `gt`, `in` or `contains`; a key is part \
             of the path, such as `args.{word}: …`"
        ),
    })
}

/// Returns the error for a word that is not one of the fields.
fn refused_field<E: de::Error>(word: &str, fields: &'static [&'static str]) -> E {
    let mut meant = WRONG_WORDS.spelled.get(word).into_iter().flatten();
    if let Some(field) = meant.find(|field| fields.contains(&field.as_str())) {
        return E::custom(format_args!("`{word}` is spelled `{field}` here"));
    }
    let elsewhere = WRONG_WORDS.elsewhere.get(word).cloned();
    let refused = elsewhere
        .or_else(|| refused_operator(word, fields))
        .or_else(|| refused_count(word, fields));
    refused.map_or_else(|| E::unknown_field(word, fields), E::custom)
}

/// The templates that forbid a relation of two kinds of calls.
const BANS: [&str; 3] = ["not_coexistence", "not_succession", "not_chain_succession"];
const BANS_REMEDY: &str = "rules that forbid something are `absence`, `not_coexistence`, \
                           `not_succession` and `not_chain_succession`";

/// Returns the error for a word that is not a template of a rule; `None` if it is probably one
/// that is misspelt.
fn refused_template(word: &str) -> Option<String> {
    let is_new_ban = || word.starts_with("not_") && nearest(word, BANS).is_none();
    let remedy = match WRONG_WORDS.templates.get(word) {
        Some(remedy) => remedy,
        None if is_new_ban() => BANS_REMEDY,
        None => return None,
    };
    Some(format!("`{word}` is not a rule template: {remedy}"))
}

/// Returns true if `word` is a wrong spelling of `field`. The word was already rejected, so an
/// error about the missing field would be superfluous.
pub fn is_misspelling_of(word: &str, field: &str) -> bool {
    let meant = WRONG_WORDS.spelled.get(word);
    meant.is_some_and(|meant| meant.iter().any(|it| it == field))
}

/// Returns the comparison sign at the start of a text, and the operator with the same meaning.
pub(crate) fn leading_sign(text: &str) -> Option<(&str, &'static str)> {
    let text = text.trim_start();
    let rest = text.trim_start_matches(['<', '>', '=', '!']);
    let sign = &text[..text.len() - rest.len()];
    Some((sign, WRONG_WORDS.spelled.get(sign)?.first()?))
}

/// A deserializer that rejects known wrong spellings of a struct's fields, or of a rule's template,
/// and suggests the right ones.
pub(crate) struct Hinted<D> {
    deserializer: D,
    fields: Option<&'static [&'static str]>,
}

impl<D> Hinted<D> {
    /// Accepts all fields of the struct.
    pub(crate) fn new(deserializer: D) -> Self {
        Self {
            deserializer,
            fields: None,
        }
    }

    /// Accepts only some fields of the struct.
    pub(crate) fn with_fields(deserializer: D, fields: &'static [&'static str]) -> Self {
        Self {
            deserializer,
            fields: Some(fields),
        }
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Hinted<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.deserializer.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let fields = self.fields.unwrap_or(fields);
        let words = Words::Fields(fields);
        self.deserializer
            .deserialize_struct(name, fields, Hints { visitor, words })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        templates: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let words = Words::Templates;
        self.deserializer
            .deserialize_enum(name, templates, Hints { visitor, words })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// The words that the keys of a map can be.
#[derive(Clone, Copy)]
enum Words {
    /// The fields of a struct.
    Fields(&'static [&'static str]),
    /// The templates of a rule.
    Templates,
}

/// A visitor of a struct, or of the templates. It accepts no list of values without names, which
/// would be unreadable.
struct Hints<V> {
    visitor: V,
    words: Words,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Hints<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Words::Fields(fields) = self.words else {
            return f.write_str("a rule such as `precedence: { a: \"^read$\", b: \"^write$\" }`");
        };
        f.write_str("a map with ")?;
        for (at, field) in fields.iter().enumerate() {
            write!(f, "{}`{field}`", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(HintedMap {
            map,
            words: self.words,
        })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(HintedMap {
            map: data,
            words: self.words,
        })
    }
}

/// The access to a map, or to the template of a rule.
struct HintedMap<A> {
    map: A,
    words: Words,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for HintedMap<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        self.map.next_key_seed(Key {
            seed,
            words: self.words,
        })
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.map.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for HintedMap<A> {
    type Error = A::Error;
    type Variant = A::Variant;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, A::Variant), A::Error> {
        self.map.variant_seed(Key {
            seed,
            words: self.words,
        })
    }
}

/// The seed that parses a key. It returns the error while the key is read, so the error has the
/// key's position.
struct Key<K> {
    seed: K,
    words: Words,
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<K> {
    type Value = K::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for Key<K> {
    type Value = K::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.words {
            Words::Fields(_) => "a field's name",
            Words::Templates => "a template's name",
        })
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<K::Value, E> {
        match self.words {
            Words::Fields(fields) if fields.contains(&key) => {}
            Words::Fields(fields) => return Err(refused_field(key, fields)),
            Words::Templates => {
                if let Some(message) = refused_template(key) {
                    return Err(E::custom(message));
                }
            }
        }
        self.seed.deserialize(de::value::StrDeserializer::new(key))
    }
}

/// Implements serde for a type with `#[serde(remote = "Self")]`, so that parsing goes through
/// `Hinted`. (Each field's type checks the field's value. `Evaluate::check` compares fields with
/// each other, because it can report the errors at better positions.)
macro_rules! read_with_hints {
    ($name:ident) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $name::deserialize($crate::evaluate::parameters::field_aliases::Hinted::new(
                    deserializer,
                ))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $name::serialize(self, serializer)
            }
        }
    };
}
pub(crate) use read_with_hints;
