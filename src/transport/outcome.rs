//! Interprets a peer's status, headers and error body as the outcome of an attempt.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use data_encoding::{BASE64, BASE64_NOPAD};
use hyper::header::{DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use percent_encoding::percent_decode;
use prost::Message;
use serde_json::Value;
use text::truncated;
use tonic::Code;
use tonic_types::pb::Status;
use tonic_types::{RetryInfo, RpcStatusExt};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryOutcome {
    Delivered {
        /// Number of items that the peer rejected nevertheless (`partial_success`).
        n_rejected: u64,
        /// The peer's explanation; a warning if `n_rejected` is 0.
        message: Option<String>,
    },
    /// The attempt failed, and a later one may succeed.
    Retry {
        /// The delay that the peer requested.
        after: Option<Duration>,
        why: String,
    },
    /// The peer accepted some of the items. Retry only the rest.
    Partly {
        /// The rest, as a separate request.
        rest: Bytes,
        n_items: u64,
        /// Number of items that are neither accepted nor in the rest.
        n_rejected: u64,
    },
    /// The peer accepts only smaller requests.
    TooLarge { why: String },
    /// The peer does not have the span that the request is about; the span may still be in transit.
    Unknown { why: String },
    /// The peer refused the request permanently: do not retry.
    Refused {
        /// The label of the dropped items.
        reason: &'static str,
        why: String,
    },
}

/// Maximum length of a peer's message in our messages, in characters.
const LONGEST_WHY: usize = 300;

impl DeliveryOutcome {
    pub(super) fn retry(why: impl Into<String>) -> Self {
        Self::Retry {
            after: None,
            why: why.into(),
        }
    }

    /// Returns the outcome of a gRPC status, as OTLP/gRPC defines it, with these exceptions. Two
    /// statuses mean that the request is too large: OUT_OF_RANGE, which tonic sends (OTLP would
    /// require endless retries), and RESOURCE_EXHAUSTED without RetryInfo, which other servers
    /// send. But if the message of RESOURCE_EXHAUSTED is about rates, it means a quota: a smaller
    /// request would not help, and splitting would continue down to single spans.
    pub(super) fn of_grpc(code: Code, message: &str, retry_info: Option<RetryInfo>) -> Self {
        let name = name(code);
        let why = if message.is_empty() {
            name.to_owned()
        } else {
            format!("{name}: {}", shorten(message))
        };
        let reason = match code {
            Code::Ok => return delivered(0, ""),
            Code::ResourceExhausted if retry_info.is_none() && is_about_rates(message) => {
                "resource_exhausted"
            }
            Code::ResourceExhausted if retry_info.is_none() => return Self::TooLarge { why },
            Code::OutOfRange => return Self::TooLarge { why },
            Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted => {
                let after = retry_info.and_then(|info| info.retry_delay);
                return Self::Retry { after, why };
            }
            Code::Unauthenticated => "unauthenticated",
            Code::PermissionDenied => "permission_denied",
            Code::InvalidArgument => "invalid_argument",
            Code::Unimplemented => "unimplemented",
            _ => "refused",
        };
        Self::Refused { reason, why }
    }

    /// Returns the outcome of an HTTP status, as OTLP/HTTP defines it. `body` is the beginning of
    /// the response's body.
    pub(super) fn of_http(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        if (200..300).contains(&status) {
            return partial_success(headers, body);
        }
        let (message, why) = http_why(status, headers, body);
        let reason = match status {
            429 | 502 | 503 | 504 => {
                let after = retry_after(headers);
                return Self::Retry { after, why };
            }
            413 => return Self::TooLarge { why },
            // Servers in Go, including the Collector, report a body that is too large with this
            // error.
            400 if message.contains("request body too large") => return Self::TooLarge { why },
            300..400 => {
                let target = headers
                    .get("location")
                    .and_then(|location| location.to_str().ok())
                    .unwrap_or("nowhere");
                // The query may contain a secret.
                let target = target.split(['?', '#']).next().unwrap_or_default();
                return Self::Refused {
                    reason: "redirected",
                    why: format!(
                        "HTTP {status}: redirected to {}; redirects are not followed, configure \
                         that endpoint instead",
                        shorten(target)
                    ),
                };
            }
            400 => "invalid_argument",
            401 => "unauthenticated",
            403 => "permission_denied",
            404 | 405 | 415 | 501 => "unimplemented",
            _ => "refused",
        };
        Self::Refused { reason, why }
    }

    /// Returns the outcome of an HTTP status of a JSON API. Any 2xx is a success, whatever the body
    /// contains. 404 means that the span is unknown. Server errors except 501 are retried. A
    /// request cannot be split.
    pub(super) fn of_api(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        if (200..300).contains(&status) {
            return delivered(0, "");
        }
        let (_, why) = http_why(status, headers, body);
        let reason = match status {
            404 => return Self::Unknown { why },
            408 | 425 | 500 | 505..=599 => {
                let after = retry_after(headers);
                return Self::Retry { after, why };
            }
            413 => "too_large",
            422 => "invalid_argument",
            _ => return Self::of_http(status, headers, body),
        };
        Self::Refused { reason, why }
    }

    /// Returns the outcome if a gRPC peer, or a proxy in front of it, answered in plain HTTP: as
    /// for OTLP/HTTP, except that success is a failure.
    pub(super) fn of_http_instead_of_grpc(status: u16, headers: &HeaderMap) -> Self {
        match status {
            200..300 => Self::Refused {
                reason: "refused",
                why: format!(
                    "HTTP {status} without a gRPC status: the endpoint does not speak OTLP/gRPC"
                ),
            },
            _ => Self::of_http(status, headers, &[]),
        }
    }
}

/// Reads the gRPC status in headers or trailers. Does not use tonic's reader, which panics on
/// details that are not base64.
pub(super) fn grpc_status(headers: &HeaderMap) -> Option<DeliveryOutcome> {
    let code = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
    let message = headers
        .get("grpc-message")
        .map(|message| percent_decode(message.as_bytes()).decode_utf8_lossy())
        .unwrap_or_default();
    let retry_info = headers.get("grpc-status-details-bin").and_then(|details| {
        let details = details.as_bytes();
        let details = BASE64
            .decode(details)
            .or_else(|_| BASE64_NOPAD.decode(details))
            .ok()?;
        Status::decode(details.as_slice())
            .ok()?
            .get_details_retry_info()
    });
    Some(DeliveryOutcome::of_grpc(code, &message, retry_info))
}

/// Reads the message of a gRPC response whose status is OK.
pub(super) fn grpc_partial_success(body: &[u8]) -> DeliveryOutcome {
    // A gRPC message begins with a flag and its length. We accept no compression, so the flag is 0.
    let message = if let [0, _, _, _, _, message @ ..] = body { message } else { &[] };
    of_protobuf(message)
}

fn partial_success(headers: &HeaderMap, body: &[u8]) -> DeliveryOutcome {
    if !is_json(headers) {
        return of_protobuf(body);
    }
    // Some backends answer protobuf with JSON, where 64-bit numbers are strings.
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let partial_success = &body["partialSuccess"];
    let number = |name: &str| {
        partial_success[name]
            .as_u64()
            .or_else(|| partial_success[name].as_str()?.parse().ok())
    };
    let n_rejected = ["rejectedSpans", "rejectedLogRecords", "rejectedDataPoints"]
        .into_iter()
        .find_map(number);
    delivered(
        n_rejected.unwrap_or_default(),
        partial_success["errorMessage"].as_str().unwrap_or_default(),
    )
}

/// Decodes the response to any signal, because the three have the same encoding. Invalid bytes
/// count as a success without rejected items.
fn of_protobuf(body: &[u8]) -> DeliveryOutcome {
    let partial_success = ExportTraceServiceResponse::decode(body)
        .ok()
        .and_then(|response| response.partial_success)
        .unwrap_or_default();
    delivered(
        u64::try_from(partial_success.rejected_spans).unwrap_or_default(),
        &partial_success.error_message,
    )
}

fn delivered(n_rejected: u64, message: &str) -> DeliveryOutcome {
    DeliveryOutcome::Delivered {
        n_rejected,
        message: (!message.is_empty()).then(|| shorten(message)),
    }
}

/// Returns the message of an HTTP error, and our text about it.
fn http_why(status: u16, headers: &HeaderMap, body: &[u8]) -> (String, String) {
    let message = error_message(headers, body);
    let why = if message.is_empty() {
        format!("HTTP {status}")
    } else {
        format!("HTTP {status}: {}", shorten(&message))
    };
    (message, why)
}

/// Returns the message of a `google.rpc.Status` body (protobuf or JSON), or else the body as text.
/// Empty for HTML and for invalid protobuf.
fn error_message(headers: &HeaderMap, body: &[u8]) -> String {
    let content_type = headers
        .get("content-type")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if content_type.starts_with("application/x-protobuf") {
        return Status::decode(body)
            .map(|status| status.message)
            .unwrap_or_default();
    }
    if is_json(headers)
        && let Ok(Value::Object(object)) = serde_json::from_slice(body)
        && let Some(message) = object.get("message").and_then(|message| message.as_str())
    {
        return message.to_owned();
    }
    if content_type.starts_with("text/html") {
        String::new()
    } else {
        String::from_utf8_lossy(body).into_owned()
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get("content-type")
        .is_some_and(|value| value.as_bytes().starts_with(b"application/json"))
}

/// Reads `Retry-After`: seconds or a date. Compares a date with the peer's own `Date`, so that our
/// clock does not matter.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let date = |value: &HeaderValue| -> Option<SystemTime> {
        httpdate::parse_http_date(value.to_str().ok()?).ok()
    };
    let after = headers.get(RETRY_AFTER)?;
    match after.to_str().ok()?.trim().parse() {
        Ok(secs) => Some(Duration::from_secs(secs)),
        Err(_) => date(after)?.duration_since(date(headers.get(DATE)?)?).ok(),
    }
}

fn is_about_rates(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    [
        "quota",
        "rate limit",
        "rate-limit",
        "ratelimit",
        "too many",
        "throttl",
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// Returns the message as one line of limited length.
fn shorten(message: &str) -> String {
    let message: String = message
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST_WHY + 1)
        .collect();
    let start = truncated(&message, LONGEST_WHY);
    let ellipsis = if start.len() < message.len() { "…" } else { "" };
    format!("{}{ellipsis}", start.trim())
}

fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests;
