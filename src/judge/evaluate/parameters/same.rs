//! Paths to the values on which two calls must agree, as `same` lists them. Knows how they
//! are written and what they lead to, not what agrees.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use smallvec::SmallVec;
use text::code;

use super::field_aliases::Hinted;

/// Where two calls must agree: a path for both, or a path each.
#[derive(Debug, Clone, PartialEq)]
pub struct Same {
    /// The path in the first kind of call.
    pub(crate) a: ValuePath,
    /// The path in the second.
    pub(crate) b: ValuePath,
}

/// A path: `args` or `result`, then keys, indices or `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValuePath {
    text: String,
    /// `result`, not `args`.
    pub(crate) of_result: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// A key of an object, or a position in a list.
    Key(String),
    /// Every element of a list.
    Each,
}

impl Same {
    /// "`args.path`", or both paths.
    pub(crate) fn describe(&self) -> String {
        match self.a == self.b {
            true => code(&self.a.text),
            false => format!("{} as {}", code(&self.b.text), code(&self.a.text)),
        }
    }
}

impl ValuePath {
    fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split('.');
        let of_result = match words.next() {
            Some("args") => false,
            Some("result") => true,
            _ => {
                return Err(format!(
                    "the path `{text}` leads nowhere: it begins with `args` or `result`, then come \
                     keys, indices or `*`, such as `args.path` or `result.items.*.id`"
                ));
            }
        };
        let steps = words.map(|word| match word {
            "" => Err(format!(
                "the path `{text}` has an empty key: write keys with one dot between them"
            )),
            "*" => Ok(Step::Each),
            key => Ok(Step::Key(key.to_owned())),
        });
        Ok(Self {
            text: text.to_owned(),
            of_result,
            steps: steps.collect::<Result<_, _>>()?,
        })
    }

    /// As it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The values it leads to; null is none.
    pub(crate) fn values<'v>(&self, value: &'v Value) -> SmallVec<[&'v Value; 1]> {
        let mut values = SmallVec::from_buf([value]);
        for step in &self.steps {
            values = match step {
                Step::Each => (values.into_iter())
                    .filter_map(Value::as_array)
                    .flatten()
                    .collect(),
                Step::Key(key) => (values.into_iter())
                    .filter_map(|value| child(value, key))
                    .collect(),
            };
        }
        values.retain(|value| !value.is_null());
        values
    }
}

fn child<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    match value {
        Value::Object(fields) => fields.get(key),
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        _ => None,
    }
}

// === as written ===

/// A list of paths that is written has one.
pub(crate) fn at_least_one_path<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Same>, D::Error> {
    let same = Vec::<Same>::deserialize(deserializer)?;
    match same.is_empty() {
        true => Err(de::Error::custom(
            "`same` names no path: write one such as `args.path`, or leave `same` out",
        )),
        false => Ok(same),
    }
}

impl<'de> Deserialize<'de> for ValuePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

impl Serialize for ValuePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl JsonSchema for ValuePath {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ValuePath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(args|result)(\\.[^.]+)*$" })
    }
}

/// Where two calls must agree, a path each.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Same")]
struct PathEach {
    /// The path in `a`.
    a: ValuePath,
    /// The path in `b`.
    b: ValuePath,
}

impl<'de> Deserialize<'de> for Same {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SameVisitor;
        impl<'de> Visitor<'de> for SameVisitor {
            type Value = Same;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a path such as `args.path`, or a map with a path for `a` and one for `b`",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Same, E> {
                let path = ValuePath::parse(text).map_err(E::custom)?;
                Ok(Same {
                    a: path.clone(),
                    b: path,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Same, A::Error> {
                let map = Hinted::new(MapAccessDeserializer::new(map));
                let PathEach { a, b } = PathEach::deserialize(map)?;
                Ok(Same { a, b })
            }
        }
        deserializer.deserialize_any(SameVisitor)
    }
}

impl Serialize for Same {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { a, b } = self.clone();
        PathEach { a, b }.serialize(serializer)
    }
}

impl JsonSchema for Same {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Same".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let text = generator.subschema_for::<ValuePath>();
        json_schema!({ "anyOf": [text, generator.subschema_for::<PathEach>()] })
    }
}
