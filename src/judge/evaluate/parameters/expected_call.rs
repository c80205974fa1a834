//! An expected call: the exact name and, optionally, the arguments.

use std::fmt;

use schemars::{JsonSchema, Schema, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::field_aliases::Hinted;
use super::optional::not_judged;

/// An expected call, written as a map or as a plain text, which is the name. Google's ADK writes
/// null for absent fields of its `FunctionCall`, so null counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
#[schemars(transform = or_name)]
pub struct ExpectedCall {
    /// The tool's name.
    #[serde(deserialize_with = "a_name")]
    #[schemars(length(min = 1))]
    pub(crate) name: String,
    /// Arguments that must be present and equal; any arguments if left out or null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) args: Option<Map<String, Value>>,
    /// Not judged; must be null, as ADK exports it.
    #[serde(default, deserialize_with = "not_judged", skip_serializing)]
    id: (),
    /// Not judged; must be null, as ADK exports it.
    #[serde(default, deserialize_with = "not_judged", skip_serializing)]
    partial_args: (),
    /// Not judged; must be null, as ADK exports it.
    #[serde(default, deserialize_with = "not_judged", skip_serializing)]
    will_continue: (),
}

fn a_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    if name.is_empty() {
        Err(Error::custom(
            "the name of a tool is empty: write a name, or leave the entry out",
        ))
    } else {
        Ok(name)
    }
}

impl<'de> Deserialize<'de> for ExpectedCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CallVisitor;
        impl<'de> Visitor<'de> for CallVisitor {
            type Value = ExpectedCall;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tool's name, or a map with `name` and `args`")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<ExpectedCall, E> {
                let name = a_name(name.into_deserializer())?;
                Ok(ExpectedCall {
                    name,
                    ..ExpectedCall::default()
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ExpectedCall, A::Error> {
                ExpectedCall::deserialize(Hinted::new(MapAccessDeserializer::new(map)))
            }
        }
        deserializer.deserialize_any(CallVisitor)
    }
}

impl Serialize for ExpectedCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ExpectedCall::serialize(self, serializer)
    }
}

fn or_name(as_map: &mut Schema) {
    *as_map = json_schema!({ "anyOf": [{ "type": "string" }, as_map] });
}
