//! Parses optional fields. [`written`] rejects null, because null would silently expect nothing.
//! [`not_judged`] accepts only null. It is for fields that another tool, such as Google's ADK,
//! exports with its expected calls and that we do not judge.

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};

/// Parses a field that must have a value if it is written; for `deserialize_with` together with
/// `default`.
pub(crate) fn written<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Parses a field that is not judged; for `deserialize_with` together with `default`.
pub(crate) fn not_judged<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    match Option::<IgnoredAny>::deserialize(deserializer)? {
        None => Ok(()),
        Some(_) => Err(D::Error::custom("this field is not judged: leave it out")),
    }
}
