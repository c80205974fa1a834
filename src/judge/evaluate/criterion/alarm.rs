//! The setting `alarm`: report the first violation of a criterion while the run is still open.

use std::fmt;

use schemars::{JsonSchema, Schema, json_schema};
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The form in which a violation is reported while the run is still open: an event, and on request
/// also a score span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
#[schemars(inline, description = "", transform = or_boolean)]
pub struct Alarm {
    /// Send a score span of the alarm, too.
    pub score_span: bool,
}

/// Parses the field `alarm`; `false` means the same as an absent field.
pub(super) fn written<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Alarm>, D::Error> {
    deserializer.deserialize_any(AlarmVisitor)
}

struct AlarmVisitor;

impl<'de> Visitor<'de> for AlarmVisitor {
    type Value = Option<Alarm>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`true`, `false` or `{ score_span: true }`")
    }

    fn visit_bool<E: de::Error>(self, is_on: bool) -> Result<Self::Value, E> {
        Ok(is_on.then(Alarm::default))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Alarm::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}

impl Serialize for Alarm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.score_span {
            Alarm::serialize(self, serializer)
        } else {
            serializer.serialize_bool(true)
        }
    }
}

fn or_boolean(as_map: &mut Schema) {
    *as_map = json_schema!({ "anyOf": [{ "type": "boolean" }, as_map] });
}
