//! Where two calls must agree, as `same` lists it. Knows how it is written, not what agrees.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use text::code;

use super::field_aliases::Hinted;
use crate::evaluate::comparison::value_path::ValuePath;

/// Where two calls must agree: a path for both, or a path each.
#[derive(Debug, Clone, PartialEq)]
pub struct Same {
    /// The path in the first kind of call.
    pub(crate) a: ValuePath,
    /// The path in the second.
    pub(crate) b: ValuePath,
}

impl Same {
    /// "`args.path`", or both paths.
    pub(crate) fn describe(&self) -> String {
        match self.a == self.b {
            true => code(self.a.as_str()),
            false => format!("{} as {}", code(self.b.as_str()), code(self.a.as_str())),
        }
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
