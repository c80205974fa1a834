//! The settings `tools`, which decide how tool calls are recognised. `Recogniser` compiles them.

use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The section `tools`, which decides how tool calls are recognised.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tools {
    /// Attributes that name a tool; they apply after the built-in conventions.
    pub name_attributes: Vec<String>,
    /// Names of tools whose calls are ignored. Your list replaces the default list.
    pub ignore: Vec<String>,
    /// Calls that are transfers between agents: `auto`, `off`, or a list of globs.
    pub handoffs: Handoffs,
    /// Maximum bytes of the stored arguments or result of one call; a longer value is cut and
    /// marked.
    pub max_value_size: usize,
    /// Maximum bytes stored of a span's model replies that request tool calls, and likewise of the
    /// messages that the model received.
    pub max_messages_size: usize,
    /// Your own conventions, which take precedence over the built-in ones.
    pub conventions: Vec<CustomConvention>,
}

/// Calls that are transfers between agents, and so not tool calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Handoffs {
    /// Calls named `transfer_to_agent`, and calls with names such as `transfer_to_X` and `handoff
    /// to X` if X is an agent of the trace.
    #[default]
    Auto,
    /// No call is a transfer.
    Off,
    /// Calls whose name matches one of these globs (`*` and `?`).
    Globs(Vec<String>),
}

/// A custom convention.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "HouseConvention")]
pub struct CustomConvention {
    /// The name in `inspect` and in the exported calls.
    pub name: String,
    /// The kind of the spans: `tool` calls, `agent` runs, or `model` calls.
    #[serde(default)]
    pub kind: SpanKind,
    /// The attributes and values that a span of this kind must have. Numbers and booleans are
    /// written as JSON text.
    #[serde(rename = "match")]
    pub matches: BTreeMap<String, String>,
    /// Attributes and values that mark a failed call: a call failed if its span has all of them, or
    /// the status ERROR.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub error_match: BTreeMap<String, String>,
    /// The attribute with the name of the tool or agent; the span's name if left out.
    #[serde(default)]
    pub name_from: Option<String>,
    /// The attribute with the arguments.
    #[serde(default)]
    pub args_from: Option<String>,
    /// The attribute with the result.
    #[serde(default)]
    pub result_from: Option<String>,
    /// The attribute with the model's call id.
    #[serde(default)]
    pub id_from: Option<String>,
}

/// The kind of the spans of a custom convention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// Tool calls.
    #[default]
    Tool,
    /// Agent runs.
    Agent,
    /// Model calls.
    Model,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            name_attributes: vec!["tool.name".to_owned()],
            ignore: ["final_answer", "finish", "(merged tools)"]
                .map(str::to_owned)
                .to_vec(),
            handoffs: Handoffs::Auto,
            max_value_size: 16 << 10,
            max_messages_size: 64 << 10,
            conventions: Vec::new(),
        }
    }
}

impl Tools {
    /// Returns the attributes that the settings name, which the scan must store.
    pub(super) fn attributes(&self) -> impl Iterator<Item = &str> {
        self.name_attributes.iter().map(String::as_str).chain(
            self.conventions
                .iter()
                .flat_map(CustomConvention::attributes),
        )
    }

    /// Returns the mistakes in the settings, each with its path and its remedy.
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        for (at, name) in self.name_attributes.iter().enumerate() {
            if name.is_empty() {
                problems.push((
                    format!("name_attributes[{at}]"),
                    "an attribute's name cannot be empty".to_owned(),
                ));
            }
        }
        for (at, custom) in self.conventions.iter().enumerate() {
            if custom.name.is_empty() {
                problems.push((
                    format!("conventions[{at}].name"),
                    "give the convention a name, which `inspect` shows".to_owned(),
                ));
            }
            if custom.matches.is_empty() {
                let problem = "name at least one attribute and the value that marks a tool call, \
                               such as `{ \"acme.kind\": tool }`";
                problems.push((format!("conventions[{at}].match"), problem.to_owned()));
            }
            for unused in custom.unused() {
                let problem = format!(
                    "nothing reads this of spans of `kind: {}`; leave it out, or write \
                     `kind: tool`",
                    custom.kind.as_str()
                );
                problems.push((format!("conventions[{at}].{unused}"), problem));
            }
        }
        problems
    }
}

impl CustomConvention {
    fn attributes(&self) -> impl Iterator<Item = &str> {
        let from = [
            &self.name_from,
            &self.args_from,
            &self.result_from,
            &self.id_from,
        ];
        let from = from.into_iter().filter_map(|name| name.as_deref());
        let matched = self.matches.keys().chain(self.error_match.keys());
        matched.map(String::as_str).chain(from)
    }

    /// Returns the configured keys that have no effect for this kind of span.
    fn unused(&self) -> Vec<&'static str> {
        let of_calls = [
            ("args_from", self.args_from.is_some()),
            ("result_from", self.result_from.is_some()),
            ("id_from", self.id_from.is_some()),
            ("error_match", !self.error_match.is_empty()),
        ];
        let of_names = ("name_from", self.name_from.is_some());
        let unused: Vec<_> = match self.kind {
            SpanKind::Tool => Vec::new(),
            SpanKind::Agent => of_calls.to_vec(),
            SpanKind::Model => [&of_calls[..], &[of_names]].concat(),
        };
        let unused = unused.into_iter().filter(|(_, is_given)| *is_given);
        unused.map(|(key, _)| key).collect()
    }
}

impl SpanKind {
    /// Returns the word that the configuration uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Agent => "agent",
            Self::Model => "model",
        }
    }
}

impl<'de> Deserialize<'de> for Handoffs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;

        impl<'de> Visitor<'de> for Words {
            type Value = Handoffs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`auto`, `off`, or a list of globs")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Handoffs, E> {
                match word {
                    "auto" => Ok(Handoffs::Auto),
                    "off" => Ok(Handoffs::Off),
                    other => Err(E::custom(format!(
                        "unknown word `{other}`: write `auto`, `off`, or a list of globs such as \
                         `[\"transfer_to_*\"]`"
                    ))),
                }
            }

            // YAML 1.1 parsers read `off` as a boolean.
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Handoffs, E> {
                if value {
                    Err(E::custom("write `auto`, `off`, or a list of globs"))
                } else {
                    Ok(Handoffs::Off)
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut globs: A) -> Result<Handoffs, A::Error> {
                let mut list = Vec::new();
                while let Some(glob) = globs.next_element()? {
                    list.push(glob);
                }
                Ok(Handoffs::Globs(list))
            }
        }

        deserializer.deserialize_any(Words)
    }
}

impl Serialize for Handoffs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Off => serializer.serialize_str("off"),
            Self::Globs(globs) => globs.serialize(serializer),
        }
    }
}

impl JsonSchema for Handoffs {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Handoffs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "which calls are transfers between agents: \
                            `auto`, `off`, or a list of globs",
            "anyOf": [
                { "enum": ["auto", "off"] },
                { "type": "array", "items": { "type": "string" } },
            ]
        })
    }
}
