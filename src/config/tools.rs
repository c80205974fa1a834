//! The `tools` section as users write it (`16KiB`), converted from and to the settings of `extract`
//! in bytes.

use judge::extract;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::units::ByteSize;

/// The `tools` section.
#[derive(Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "Tools")]
#[serde(default, deny_unknown_fields)]
pub(super) struct Section {
    /// Attributes that name a tool. A span with one of them is a tool call unless a convention
    /// recognises it.
    name_attributes: Vec<String>,
    /// Names of tools whose spans are not tool calls, such as pseudo-tools. A configured list
    /// replaces the default list.
    ignore: Vec<String>,
    /// Calls that are transfers between agents: `auto`, `off`, or a list of globs.
    handoffs: extract::Handoffs,
    /// Maximum stored bytes of a call's arguments or result, at least 1; a longer value is cut, and
    /// criteria that need the rest give no verdict. The values of one span share at most 32 MiB.
    max_value_size: ByteSize,
    /// Maximum stored bytes of a model's reply that requests tool calls, and of the messages to the
    /// model, at least 1. At most 32 MiB each.
    max_messages_size: ByteSize,
    /// Your own conventions, which apply before the built-in ones.
    conventions: Vec<extract::CustomConvention>,
}

impl Default for Section {
    fn default() -> Self {
        Self::from(&extract::Tools::default())
    }
}

impl From<&extract::Tools> for Section {
    fn from(tools: &extract::Tools) -> Self {
        Self {
            name_attributes: tools.name_attributes.clone(),
            ignore: tools.ignore.clone(),
            handoffs: tools.handoffs.clone(),
            max_value_size: ByteSize(tools.max_value_size),
            max_messages_size: ByteSize(tools.max_messages_size),
            conventions: tools.conventions.clone(),
        }
    }
}

impl From<Section> for extract::Tools {
    fn from(section: Section) -> Self {
        Self {
            name_attributes: section.name_attributes,
            ignore: section.ignore,
            handoffs: section.handoffs,
            max_value_size: section.max_value_size.0,
            max_messages_size: section.max_messages_size.0,
            conventions: section.conventions,
        }
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<extract::Tools, D::Error> {
    Section::deserialize(deserializer).map(extract::Tools::from)
}

pub(super) fn serialize<S: Serializer>(
    tools: &extract::Tools,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    Section::from(tools).serialize(serializer)
}
