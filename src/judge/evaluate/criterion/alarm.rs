//! The setting `alarm`: report the first violation of a criterion while the run is still open.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The form in which a violation is reported while the run is still open: an event, and on request
/// also a score span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Alarm {
    /// True to send a score span, too.
    pub score_span: bool,
}

/// The field `alarm` written as a map.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    score_span: bool,
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
        let Settings { score_span } = Settings::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Some(Alarm { score_span }))
    }
}

impl Serialize for Alarm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.score_span {
            Settings { score_span: true }.serialize(serializer)
        } else {
            serializer.serialize_bool(true)
        }
    }
}

impl JsonSchema for Alarm {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Alarm".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "boolean" },
                {
                    "type": "object",
                    "properties": {
                        "score_span": {
                            "description": "Send a score span of the alarm, too.",
                            "type": "boolean",
                        },
                    },
                    "required": ["score_span"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}
