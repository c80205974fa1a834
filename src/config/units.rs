//! Durations (`500ms`, `2s`, `15m`, `1h`), sizes (`64MiB`), `auto`, addresses and secrets: their
//! syntax and checks.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use text::{duration_from, duration_text};

/// A duration in the syntax of the configuration: `500ms`, `2s`, `15m`, `1h`; `0` alone is zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Duration(pub std::time::Duration);

/// A size in bytes in the syntax of the configuration: `512`, `16KiB`, `64MiB`, `1GiB`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteSize(pub usize);

/// A size in bytes, or `auto`: a share of `memory.limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Amount {
    /// A share of `memory.limit`.
    #[default]
    Auto,
    /// A number of bytes.
    Bytes(ByteSize),
}

/// A number of threads, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threads {
    /// The number of usable CPUs, or the number of threads for which the memory of open traces
    /// suffices, whichever is smaller, but at least 1 and at most 8.
    #[default]
    Auto,
    /// A fixed number.
    Count(usize),
}

/// A header value, API key or password, never printed in logs or debug output.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Duration {
    /// Creates a duration of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(std::time::Duration::from_secs(secs))
    }

    /// Parses `500ms`, `2s`, `15m`, `1h` or `0`.
    pub fn parse(text: &str) -> Result<Self, String> {
        duration_from(text)
            .map(Self)
            .ok_or_else(|| expected_duration(text.trim()))
    }
}

fn expected_duration(text: &str) -> String {
    format!(
        "`{text}` is not a duration: write a whole number with a unit, such as `500ms`, `2s`, \
         `15m` or `1h`"
    )
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&duration_text(self.0))
    }
}

impl ByteSize {
    /// Creates a size of `n` mebibytes.
    pub const fn mib(n: usize) -> Self {
        Self(n << 20)
    }

    /// Parses `512`, `16KiB`, `64MiB`, `1GiB`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text
            .find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: usize = number.trim().parse().map_err(|_| expected_size(text))?;
        let factor: usize = match unit {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(expected_size(text)),
        };
        number
            .checked_mul(factor)
            .map(Self)
            .ok_or_else(|| expected_size(text))
    }
}

fn expected_size(text: &str) -> String {
    format!(
        "`{text}` is not a size: write a whole number of bytes, or one with a unit, such as \
         `16KiB`, `64MiB` or `1GiB`"
    )
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Amount {
    /// Returns the bytes; `share` is the value of `auto`.
    pub fn or(self, share: usize) -> usize {
        match self {
            Self::Auto => share,
            Self::Bytes(size) => size.0,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(size) => size.fmt(f),
        }
    }
}

impl Threads {
    pub(super) const MAX: usize = 64;

    /// Maximum number of threads of `auto`: the receiving threads need the remaining CPUs.
    const MAX_AUTO: usize = 8;

    /// Minimum memory of open traces for each thread of `auto`, in bytes: a trace of the default
    /// `assemble.size_limit` may use half of it.
    const SIZE_OF_AUTO: usize = 32 << 20;

    /// Returns the number of threads for a process with `n_cpus` CPUs and `max_open_size` bytes for
    /// open traces, of which one trace may use `size_limit`.
    pub fn or(self, n_cpus: usize, max_open_size: usize, size_limit: usize) -> usize {
        match self {
            Self::Auto => {
                let with_room = max_open_size / Self::SIZE_OF_AUTO.max(2 * size_limit);
                n_cpus.min(with_room).clamp(1, Self::MAX_AUTO)
            }
            Self::Count(n_threads) => n_threads.max(1),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Count).map_err(|_| {
            format!(
                "`{text}` is not a number of threads: write `auto`, or a whole number such as `4`"
            )
        })
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(n_threads) => n_threads.fmt(f),
        }
    }
}

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the secret in plain text, for sending only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

// === serde ===

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber(
            "a duration such as `500ms`, `2s`, `15m` or `1h`",
            Self::parse,
        ))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber(
            "a size such as `16KiB`, `64MiB` or `1GiB`",
            Self::parse,
        ))
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber("`auto` or a size such as `16MiB`", |text| {
            match text {
                "auto" => Ok(Self::Auto),
                _ => ByteSize::parse(text).map(Self::Bytes),
            }
        }))
    }
}

impl<'de> Deserialize<'de> for Threads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber(
            "`auto` or a number of threads such as `4`",
            Self::parse,
        ))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// Parses an address and port to listen on. `localhost` is the loopback address; other names are
/// not resolved, because the answer would decide who can reach us.
pub(super) fn listen_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SocketAddr, D::Error> {
    deserializer.deserialize_any(TextOrNumber(
        "an address and a port, such as `127.0.0.1:4317`",
        |text| {
            if let Ok(address) = text.parse() {
                return Ok(address);
            }
            let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
            let port: u16 = port.parse().map_err(|_| {
                if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) {
                    format!("`{port}` is not a port: ports go up to 65535")
                } else {
                    format!(
                        "`{text}` has no port: write an address and a port, such as \
                         `127.0.0.1:4317`"
                    )
                }
            })?;
            match host {
                "localhost" => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
                "" => Err(format!(
                    "`{text}` has no address: write `127.0.0.1:{port}` for this host \
                     or pod only, `0.0.0.0:{port}` for anyone"
                )),
                "*" => Err(format!("`*` is not an address: write `0.0.0.0:{port}`")),
                _ => Err(format!(
                    "`{host}` is not an IP address: write one, such as \
                     `127.0.0.1:{port}` or `[::1]:{port}`"
                )),
            }
        },
    ))
}

struct TextOrNumber<T>(&'static str, fn(&str) -> Result<T, String>);

impl<T> de::Visitor<'_> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        (self.1)(&number.to_string()).map_err(E::custom)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Threads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("****")
    }
}

macro_rules! text_schema {
    ($($name:ident: $pattern:literal, $description:literal;)*) => {$(
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": ["string", "integer"],
                    "pattern": $pattern,
                    "minimum": 0,
                    "description": $description,
                })
            }
        }
    )*};
}

text_schema! {
    Duration: "^([0-9]+ ?(ms|s|m|h)|0|\\$\\{.+\\})$",
        "a duration such as `500ms`, `2s`, `15m` or `1h`";
    ByteSize: "^([0-9]+ ?(B|KiB|MiB|GiB)?|\\$\\{.+\\})$",
        "a size such as `16KiB`, `64MiB` or `1GiB`";
    Amount: "^(auto|[0-9]+ ?(B|KiB|MiB|GiB)?|\\$\\{.+\\})$",
        "`auto` (a share of `memory.limit`) or a size such as `16MiB`";
    Threads: "^(auto|[0-9]+|\\$\\{.+\\})$",
        "`auto` (the smaller of the CPUs and `assemble.open.max_size` / 32 MiB, at most 8) or a \
         number of threads such as `4`";
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "a value that is never printed" })
    }
}
