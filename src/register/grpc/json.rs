//! The JSON form of messages, equal to that of configuration files: serde for protobuf's `Value`
//! and `Struct`, and for `Count`, which files write as a pair (`[">=", 2]`).

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value as ProtoValue};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::{Map, Number, Value};

use super::messages::Count;

/// The largest number up to which every whole number is exact as a double.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Returns true for a default value. Protobuf does not send fields with their default value, and
/// documents omit them.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(super) mod value {
    use super::{
        Deserialize, Deserializer, ProtoValue, Serialize, Serializer, Value, from_json, ser,
        to_json,
    };

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<ProtoValue>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let json = value.as_ref().map(to_json).transpose();
        json.map_err(ser::Error::custom)?.serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<ProtoValue>, D::Error> {
        Value::deserialize(deserializer).map(|json| Some(from_json(json)))
    }
}

/// Serde for lists that a document may write as a single item.
pub(super) mod one_or_more {
    use serde::de::DeserializeOwned;

    use super::{Deserialize, Deserializer, Serialize, Serializer, Value};

    pub(in super::super) fn serialize<T: Serialize, S: Serializer>(
        items: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match items {
            [item] => item.serialize(serializer),
            items => items.serialize(serializer),
        }
    }

    pub(in super::super) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let items = match Value::deserialize(deserializer)? {
            Value::Array(items) => items,
            item => vec![item],
        };
        let items = items.into_iter().map(serde_json::from_value);
        items
            .collect::<Result<_, _>>()
            .map_err(serde::de::Error::custom)
    }
}

pub(super) mod object {
    use super::{
        Deserialize, Deserializer, Map, Serialize, Serializer, Struct, Value, fields_from_json,
        fields_to_json, ser,
    };

    pub(in super::super) fn serialize<S: Serializer>(
        fields: &Option<Struct>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let json = fields.as_ref().map(fields_to_json).transpose();
        json.map_err(ser::Error::custom)?.serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Struct>, D::Error> {
        Map::<String, Value>::deserialize(deserializer).map(|fields| Some(fields_from_json(fields)))
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.operator, self.count).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (operator, count) = Deserialize::deserialize(deserializer)?;
        Ok(Self { operator, count })
    }
}

fn to_json(value: &ProtoValue) -> Result<Value, &'static str> {
    Ok(match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(bool)) => Value::Bool(*bool),
        Some(Kind::NumberValue(number)) => Value::Number(number_to_json(*number)?),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::ListValue(list)) => {
            Value::Array(list.values.iter().map(to_json).collect::<Result<_, _>>()?)
        }
        Some(Kind::StructValue(fields)) => Value::Object(fields_to_json(fields)?),
    })
}

/// Converts 2.0 to 2, so that a criterion has the same revision from REST and from gRPC.
fn number_to_json(number: f64) -> Result<Number, &'static str> {
    if number.fract() == 0.0 && number.abs() < MAX_EXACT {
        return Ok((number as i64).into());
    }
    Number::from_f64(number).ok_or("NaN and infinity are not JSON numbers")
}

fn fields_to_json(fields: &Struct) -> Result<Map<String, Value>, &'static str> {
    fields
        .fields
        .iter()
        .map(|(key, value)| Ok((key.clone(), to_json(value)?)))
        .collect()
}

fn from_json(value: Value) -> ProtoValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(bool) => Kind::BoolValue(bool),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => Kind::StringValue(text),
        Value::Array(items) => Kind::ListValue(ListValue {
            values: items.into_iter().map(from_json).collect(),
        }),
        Value::Object(fields) => Kind::StructValue(fields_from_json(fields)),
    };
    ProtoValue { kind: Some(kind) }
}

fn fields_from_json(fields: Map<String, Value>) -> Struct {
    Struct {
        fields: fields
            .into_iter()
            .map(|(key, value)| (key, from_json(value)))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
