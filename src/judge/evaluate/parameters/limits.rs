//! Whole numbers and durations used as limits.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Number;
use text::{duration_from, duration_text};

/// Parses a whole number of at least `least`. `refused` returns the error about another number,
/// given the allowed range, such as ", 0 or more", and the number.
pub(crate) fn whole_number<'de, D: Deserializer<'de>>(
    deserializer: D,
    least: u32,
    refused: impl Fn(&str, &str) -> String,
) -> Result<u32, D::Error> {
    struct NumberVisitor<F>(u32, F);
    impl<F: Fn(&str, &str) -> String> NumberVisitor<F> {
        fn read<E: de::Error>(&self, n: Option<u32>, found: impl fmt::Display) -> Result<u32, E> {
            let Self(least, refused) = self;
            if let Some(n) = n.filter(|n| n >= least) {
                return Ok(n);
            }
            let found = found.to_string();
            let is_too_large = n.is_none() && found.bytes().all(|byte| byte.is_ascii_digit());
            let range = if is_too_large {
                format!(" from {least} to {}", u32::MAX)
            } else {
                format!(", {least} or more")
            };
            Err(E::custom(refused(&range, &found)))
        }
    }

    impl<'de, F: Fn(&str, &str) -> String> Visitor<'de> for NumberVisitor<F> {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number, {} or more", self.0)
        }

        fn visit_u64<E: de::Error>(self, n: u64) -> Result<u32, E> {
            self.read(u32::try_from(n).ok(), n)
        }

        fn visit_i64<E: de::Error>(self, n: i64) -> Result<u32, E> {
            self.read(u32::try_from(n).ok(), n)
        }

        fn visit_u128<E: de::Error>(self, n: u128) -> Result<u32, E> {
            self.read(None, n)
        }

        fn visit_i128<E: de::Error>(self, n: i128) -> Result<u32, E> {
            self.read(None, n)
        }

        fn visit_f64<E: de::Error>(self, n: f64) -> Result<u32, E> {
            self.read(None, n)
        }

        // serde_json passes other numbers as a map that only `Number` can parse.
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<u32, A::Error> {
            let number = Number::deserialize(MapAccessDeserializer::new(map))
                .map_err(|_| de::Error::invalid_type(Unexpected::Map, &self))?;
            self.read(None, number)
        }
    }
    deserializer.deserialize_any(NumberVisitor(least, refused))
}

/// Defines the functions that parse fields which are whole numbers.
macro_rules! whole_numbers {
    ($($read:ident: $field:literal, at least $least:literal;)+) => {$(
        pub(crate) fn $read<'de, D: Deserializer<'de>, N: From<u32>>(
            deserializer: D,
        ) -> Result<N, D::Error> {
            let refused = |range: &str, found: &str| {
                format!(concat!($field, " cannot be {}: write a whole number{}"), found, range)
            };
            whole_number(deserializer, $least, refused).map(N::from)
        }
    )+};
}

whole_numbers! {
    limit: "a limit", at least 0;
    min: "`min`", at least 1;
    max: "`max`", at least 0;
    count: "`count`", at least 1;
    min_count: "`min_count`", at least 1;
    at_step: "`at_step`", at least 0;
    before_step: "`before_step`", at least 1;
    min_length: "`min_length`", at least 16;
}

/// Returns the default of fields that are at least 1.
pub(crate) fn one() -> u32 {
    1
}

/// A duration above zero: `500ms`, `2s`, `15m`, `1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(inline, with = "String", extend("pattern" = "^[0-9]+ ?(ms|s|m|h)$"), description = "")]
pub struct Period(std::time::Duration);

impl Period {
    /// Returns nanoseconds, at most a quarter of `i64::MAX`.
    pub(crate) fn nanos(self) -> i64 {
        i64::try_from(self.0.as_nanos())
            .unwrap_or(i64::MAX / 4)
            .min(i64::MAX / 4)
    }

    pub(crate) fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&duration_text(self.0))
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(
            deserializer,
            "a duration such as `500ms`, `2s`, `15m` or `1h`",
            |text| {
                let duration = duration_from(text).filter(|duration| !duration.is_zero());
                duration.map(Self).ok_or_else(|| {
                    format!(
                        "`{text}` is not a duration above zero: write a whole number with a unit, \
                         such as `500ms`, `2s`, `15m` or `1h`"
                    )
                })
            },
        )
    }
}

/// Parses a text. Also accepts numbers and booleans as their JSON text, because YAML reads
/// `retries: 3` as a number.
pub(crate) fn scalar<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    struct ScalarVisitor<P>(&'static str, P);
    impl<T, P: FnOnce(&str) -> Result<T, String>> Visitor<'_> for ScalarVisitor<P> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            (self.1)(text).map_err(E::custom)
        }

        fn visit_bool<E: de::Error>(self, value: bool) -> Result<T, E> {
            self.visit_str(&value.to_string())
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
            self.visit_str(&value.to_string())
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
            self.visit_str(&value.to_string())
        }

        fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
            self.visit_str(&serde_json::Value::from(value).to_string())
        }
    }
    deserializer.deserialize_any(ScalarVisitor(expected, parse))
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
