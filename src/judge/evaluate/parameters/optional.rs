//! Reads fields that may be left out. One of ours needs a value once it is written: a null would
//! silently expect nothing. One that a reference's export writes and we do not judge must be null.

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};

/// For `#[serde(deserialize_with)]` beside `default`.
pub(crate) fn written<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Likewise, for a field that is not judged.
pub(crate) fn not_judged<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    match Option::<IgnoredAny>::deserialize(deserializer)? {
        None => Ok(()),
        Some(_) => Err(D::Error::custom("this field is not judged: leave it out")),
    }
}
