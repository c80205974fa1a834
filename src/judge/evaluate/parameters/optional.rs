//! Reads a field that may be left out, but that needs a value once it is written: a null
//! would silently expect nothing. Knows no field.

use serde::{Deserialize, Deserializer};

/// For `#[serde(deserialize_with)]` beside `default`.
pub(crate) fn written<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
