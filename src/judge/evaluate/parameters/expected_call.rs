//! An expected call: the exact name and, optionally, the arguments.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::field_aliases::Hinted;
use super::optional::not_judged;

/// An expected call, written as a map or as a plain text, which is the name.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ExpectedCall(NameAndArgs);

/// An expected call. Google's ADK writes null for absent fields of its `FunctionCall`, so null
/// counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ExpectedCall")]
struct NameAndArgs {
    /// The tool's name.
    #[serde(deserialize_with = "a_name")]
    #[schemars(length(min = 1))]
    name: String,
    /// Arguments that must be present and equal; any arguments if left out or null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    args: Option<Map<String, Value>>,
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

impl ExpectedCall {
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the arguments; `None` if any arguments are allowed.
    pub(crate) fn args(&self) -> Option<&Map<String, Value>> {
        self.0.args.as_ref()
    }
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
                let call = NameAndArgs {
                    name,
                    ..NameAndArgs::default()
                };
                Ok(ExpectedCall(call))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ExpectedCall, A::Error> {
                let map = Hinted::new(MapAccessDeserializer::new(map));
                NameAndArgs::deserialize(map).map(ExpectedCall)
            }
        }
        deserializer.deserialize_any(CallVisitor)
    }
}

impl JsonSchema for ExpectedCall {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ExpectedCallOrName".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let name = generator.subschema_for::<String>();
        json_schema!({ "anyOf": [name, generator.subschema_for::<NameAndArgs>()] })
    }
}
