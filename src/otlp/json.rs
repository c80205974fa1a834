//! Transcodes OTLP/JSON to protobuf, so that later stages see protobuf only. This file walks the
//! messages by OTLP's own definitions and writes each field immediately; `scalar.rs` implements
//! protobuf's JSON mapping. Accepts the deviations of real SDKs (nulls, unknown fields, numbers as
//! strings, ids in upper case).

mod definitions;
#[rustfmt::skip]
mod messages;
mod scalar;

use std::borrow::Cow;
use std::fmt;

use data_encoding::HEXLOWER_PERMISSIVE;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use text::truncated;

use definitions::{OtlpField, OtlpKind, OtlpMessage};
use messages::MESSAGES;

use crate::wire::write;

/// Maximum characters of an error's description.
const MAX_ERROR_LEN: usize = 200;

/// A mistake in a JSON body, with its path. The text is suitable as the message of a status.
#[derive(Debug)]
pub struct JsonError {
    path: String,
    error: serde_json::Error,
}

impl JsonError {
    /// Returns the path of the error, such as `resourceSpans[0].scopeSpans[1].spans`; empty for the
    /// whole body.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "malformed JSON: ")?,
            path => write!(f, "malformed JSON in {path}: ")?,
        }
        // The error may quote a long value, so its text is cut.
        let text = self.error.to_string();
        let start = truncated(&text, MAX_ERROR_LEN);
        if start.len() == text.len() {
            return f.write_str(&text);
        }
        let (line, column) = (self.error.line(), self.error.column());
        write!(f, "{start}… at line {line} column {column}")
    }
}

impl std::error::Error for JsonError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Transcodes an `ExportTraceServiceRequest` to protobuf.
///
/// # Errors
/// Returns an error if the body is not JSON, is not an object, has known fields nested 128 levels
/// deep or more, or contains a value that does not match its field. A null field counts as absent.
/// A null in a list of messages counts as an empty message; a null in a list of numbers is an
/// error. Ids of spans and links must have the right length or be empty.
pub fn traces(body: &[u8]) -> Result<Vec<u8>, JsonError> {
    transcode(body, "ExportTraceServiceRequest")
}

/// Transcodes an `ExportLogsServiceRequest` to protobuf.
///
/// # Errors
/// Returns the errors of [`traces`], but accepts ids of any length.
pub fn logs(body: &[u8]) -> Result<Vec<u8>, JsonError> {
    transcode(body, "ExportLogsServiceRequest")
}

/// Transcodes an `ExportMetricsServiceRequest` to protobuf.
///
/// # Errors
/// Returns the errors of [`logs`].
pub fn metrics(body: &[u8]) -> Result<Vec<u8>, JsonError> {
    transcode(body, "ExportMetricsServiceRequest")
}

fn transcode(body: &[u8], message: &str) -> Result<Vec<u8>, JsonError> {
    let message = MESSAGES
        .iter()
        .find(|known| known.name == message)
        .expect("the services' requests are among OTLP's messages");
    let body = mend_surrogates(body);
    let mut request = Request {
        protobuf: Vec::with_capacity(body.len() / 2),
        path: Vec::new(),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(&body);
    match (MessageSeed {
        message,
        request: &mut request,
    })
    .deserialize(&mut deserializer)
    .and_then(|()| deserializer.end())
    {
        Ok(()) => Ok(request.protobuf),
        Err(error) => Err(JsonError {
            path: request.path(),
            error,
        }),
    }
}

/// Replaces lone surrogates with U+FFFD, as other receivers do. JavaScript can cut a string within
/// a surrogate pair; it then escapes the remaining half (`"\ud83d"`), which is not a character.
fn mend_surrogates(body: &[u8]) -> Cow<'_, [u8]> {
    let is_surrogate = |at: usize, range: std::ops::RangeInclusive<u16>| {
        let digits = body
            .get(at..at + 6)
            .and_then(|escape| escape.strip_prefix(br"\u"));
        let unit = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u16::from_str_radix(digits, 16).ok());
        unit.is_some_and(|unit| range.contains(&unit))
    };
    let mut mended = Cow::Borrowed(body);
    let mut at = 0;
    while let Some(step) = body.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        at += step;
        if is_surrogate(at, 0xd800..=0xdbff) && is_surrogate(at + 6, 0xdc00..=0xdfff) {
            at += 12;
        } else if is_surrogate(at, 0xd800..=0xdfff) {
            mended.to_mut()[at + 2..at + 6].copy_from_slice(b"fffd");
            at += 6;
        } else {
            at += 2;
        }
    }
    mended
}

/// The request written so far and, after an error, the path to it.
struct Request {
    protobuf: Vec<u8>,
    /// The steps, innermost first.
    path: Vec<Step>,
}

enum Step {
    Field(String),
    Item(usize),
}

impl Request {
    fn delimited<E>(
        &mut self,
        field_number: u64,
        content: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let content_start = write::begin(&mut self.protobuf, field_number);
        content(self)?;
        write::end(&mut self.protobuf, content_start);
        Ok(())
    }

    fn path(&self) -> String {
        let mut path = String::new();
        for step in self.path.iter().rev() {
            match step {
                Step::Field(name) if path.is_empty() => path.push_str(name),
                Step::Field(name) => path.extend([".", name]),
                Step::Item(idx) => path.push_str(&format!("[{idx}]")),
            }
        }
        path
    }
}

// === messages and fields ===

struct MessageSeed<'s> {
    message: &'static OtlpMessage,
    request: &'s mut Request,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object ({})", self.message.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { message, request } = self;
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            let by_json_name = message.fields.iter().find(|field| field.json_name == name);
            let field =
                by_json_name.or_else(|| message.fields.iter().find(|field| field.name == name));
            let Some(field) = field else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if let Err(error) = map.next_value_seed(FieldSeed {
                message,
                field,
                request,
            }) {
                request.path.push(Step::Field(name.into_owned()));
                return Err(error);
            }
        }
        Ok(())
    }
}

struct FieldSeed<'s> {
    message: &'static OtlpMessage,
    field: &'static OtlpField,
    request: &'s mut Request,
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of {}", self.field.json_name)
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Self {
            message,
            field,
            request,
        } = self;
        match field.kind {
            OtlpKind::Message(item) if field.is_list => {
                deserializer.deserialize_seq(ItemsVisitor {
                    field_number: field.number,
                    item: &MESSAGES[item],
                    request,
                })
            }
            OtlpKind::Message(inner) => request.delimited(field.number, |request| {
                MessageSeed {
                    message: &MESSAGES[inner],
                    request,
                }
                .deserialize(deserializer)
            }),
            OtlpKind::Bytes if field.name.ends_with("_id") => {
                let id = deserializer.deserialize_str(IdVisitor {
                    n_bytes: id_size(message, field),
                })?;
                write::bytes(&mut request.protobuf, field.number, &id);
                Ok(())
            }
            _ => scalar::transcode(field, deserializer, &mut request.protobuf),
        }
    }
}

struct ItemsVisitor<'s> {
    field_number: u64,
    item: &'static OtlpMessage,
    request: &'s mut Request,
}

impl<'de> Visitor<'de> for ItemsVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array ({})", self.item.name)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for idx in 0.. {
            match items.next_element_seed(ItemSeed {
                field_number: self.field_number,
                item: self.item,
                request: self.request,
            }) {
                Ok(Some(())) => {}
                Ok(None) => break,
                Err(error) => {
                    self.request.path.push(Step::Item(idx));
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

struct ItemSeed<'s> {
    field_number: u64,
    item: &'static OtlpMessage,
    request: &'s mut Request,
}

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for ItemSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object ({})", self.item.name)
    }

    // A null item is written, so that the indices of the following items do not change.
    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        self.request.delimited(self.field_number, |_| Ok(()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Self {
            field_number,
            item,
            request,
        } = self;
        request.delimited(field_number, |request| {
            MessageSeed {
                message: item,
                request,
            }
            .deserialize(deserializer)
        })
    }
}

// === ids ===

/// Returns the required length of an id in bytes; `None` if any length is allowed (see `scan.rs`
/// and `scan_logs.rs`).
fn id_size(message: &OtlpMessage, field: &OtlpField) -> Option<usize> {
    match (message.name, field.name) {
        ("Span" | "Link", "trace_id") => Some(16),
        ("Span" | "Link", _) => Some(8),
        _ => None,
    }
}

/// Reads an id, which is hexadecimal in OTLP/JSON, unlike in protobuf's JSON mapping.
struct IdVisitor {
    n_bytes: Option<usize>,
}

impl Visitor<'_> for IdVisitor {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.n_bytes {
            Some(n_bytes) => write!(f, "an id of {} hexadecimal digits", 2 * n_bytes),
            None => write!(f, "an id in hexadecimal digits"),
        }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
        match HEXLOWER_PERMISSIVE.decode(text.as_bytes()) {
            Ok(id) if id.is_empty() || self.n_bytes.is_none_or(|n_bytes| id.len() == n_bytes) => {
                Ok(id)
            }
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::metrics::v1::metric::Data;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    fn attribute(value: &str) -> Result<Value, String> {
        let attributes = format!(r#"[{{"key":"a","value":{value}}}]"#);
        let body = format!(r#"{{"resourceSpans":[{{"resource":{{"attributes":{attributes}}}}}]}}"#);
        let protobuf = traces(body.as_bytes()).map_err(|error| error.to_string())?;
        let request = ExportTraceServiceRequest::decode(protobuf.as_slice()).unwrap();
        let resource = request.resource_spans[0].resource.clone().unwrap();
        let value = resource.attributes[0].value.clone().unwrap();
        Ok(value.value.unwrap())
    }

    proptest! {
        #[test]
        fn every_double_arrives_as_it_was_written(bits: u64) {
            let float = f64::from_bits(bits);
            prop_assume!(float.is_finite());
            for written in [format!("{float}"), format!("{float:e}"), format!("\"{float:e}\"")] {
                let value = attribute(&format!(r#"{{"doubleValue":{written}}}"#));
                let Ok(Value::DoubleValue(read)) = value else {
                    panic!("{written}: {value:?}");
                };
                prop_assert_eq!(read.to_bits(), bits, "{}", written);
            }
        }
    }

    #[test]
    fn numbers_keep_the_deviations_that_are_tolerated() {
        for (value, expected) in [
            (r#"{"intValue":5.0}"#, Ok(Value::IntValue(5))),
            (r#"{"intValue":1e3}"#, Ok(Value::IntValue(1000))),
            (r#"{"intValue":-0}"#, Ok(Value::IntValue(0))),
            (r#"{"intValue":"-7"}"#, Ok(Value::IntValue(-7))),
            (r#"{"doubleValue":3}"#, Ok(Value::DoubleValue(3.0))),
            (
                r#"{"doubleValue":"Infinity"}"#,
                Ok(Value::DoubleValue(f64::INFINITY)),
            ),
            (r#"{"intValue":5.5}"#, Err("expected integer value")),
            (r#"{"doubleValue":1e400}"#, Err("number out of range")),
            (r#"{"doubleValue":{"a":1}}"#, Err("invalid type: map")),
            (
                r#"{"intValue":18446744073709551616}"#,
                Err("float value out of range"),
            ),
        ] {
            match (attribute(value), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected, "{value}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
                (read, _) => panic!("{value}: {read:?}"),
            }
        }
    }

    #[test]
    fn numbers_in_lists_are_exact_too() {
        let body = r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"histogram":{"dataPoints":[
            {"explicitBounds":[0.1,5,1.7976931348623157e308],"bucketCounts":["1",2,3.0]}]}}]}]}]}"#;
        let protobuf = metrics(body.as_bytes()).unwrap();
        let request = ExportMetricsServiceRequest::decode(protobuf.as_slice()).unwrap();
        let metric = &request.resource_metrics[0].scope_metrics[0].metrics[0];
        let Some(Data::Histogram(histogram)) = &metric.data else {
            panic!("{metric:?}");
        };
        let point = &histogram.data_points[0];
        assert_eq!(point.explicit_bounds, [0.1, 5.0, f64::MAX]);
        assert_eq!(point.bucket_counts, [1, 2, 3]);
    }
}
