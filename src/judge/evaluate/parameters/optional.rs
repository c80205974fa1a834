//! Parses optional fields. A field that we judge rejects null, because null would silently expect
//! nothing. A field that only a reference's export writes must be null.

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
