//! Pure. A peer's status, headers and error body in, what to do about the request out. Knows which
//! codes OTLP calls retryable; does not know when the next attempt is.

use std::time::{Duration, SystemTime};

use data_encoding::{BASE64, BASE64_NOPAD};
use hyper::header::{DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use serde_json::Value;
use tonic::Code;
use tonic_types::pb::Status;
use tonic_types::{RetryInfo, RpcStatusExt};

use crate::text::truncated;

/// What came of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The peer has it.
    Delivered {
        /// Items that it threw away nevertheless (`partial_success`).
        n_rejected: u64,
        /// What it has to say about that; a warning if `n_rejected` is 0.
        message: Option<String>,
    },
    /// The peer may take it another time, or could not be reached.
    Retry {
        /// How long it asked us to wait.
        after: Option<Duration>,
        /// In words.
        why: String,
    },
    /// The peer takes smaller requests only.
    TooLarge {
        /// In words.
        why: String,
    },
    /// The peer does not know what it is about: the span may still be on its way.
    Unknown {
        /// In words.
        why: String,
    },
    /// The peer will never take it.
    Refused {
        /// Label of the dropped items.
        reason: &'static str,
        /// In words.
        why: String,
    },
}

/// The longest message of a peer that we repeat.
const LONGEST_WHY: usize = 300;

impl Answer {
    pub(super) fn retry(why: impl Into<String>) -> Self {
        Self::Retry {
            after: None,
            why: why.into(),
        }
    }

    /// By gRPC status, as OTLP/gRPC has it. Two answers mean that the request is too large:
    /// OUT_OF_RANGE, which tonic gives (OTLP would have us retry for ever), and RESOURCE_EXHAUSTED
    /// without RetryInfo, which everybody else gives; but not where the message is about rates,
    /// since a quota does not care for smaller requests and would be asked about every single span.
    pub(super) fn of_grpc(code: Code, message: &str, retry_info: Option<RetryInfo>) -> Self {
        let name = name(code);
        let why = if message.is_empty() {
            name.to_owned()
        } else {
            format!("{name}: {}", shorten(message))
        };
        match code {
            Code::Ok => Self::Delivered {
                n_rejected: 0,
                message: None,
            },
            Code::ResourceExhausted if retry_info.is_none() && is_about_rates(message) => {
                Self::Refused {
                    reason: "resource_exhausted",
                    why,
                }
            }
            Code::ResourceExhausted if retry_info.is_none() => Self::TooLarge { why },
            Code::OutOfRange => Self::TooLarge { why },
            Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted => Self::Retry {
                after: retry_info.and_then(|info| info.retry_delay),
                why,
            },
            Code::Unauthenticated => Self::Refused {
                reason: "unauthenticated",
                why,
            },
            Code::PermissionDenied => Self::Refused {
                reason: "permission_denied",
                why,
            },
            Code::InvalidArgument => Self::Refused {
                reason: "invalid_argument",
                why,
            },
            Code::Unimplemented => Self::Refused {
                reason: "unimplemented",
                why,
            },
            _ => Self::Refused {
                reason: "refused",
                why,
            },
        }
    }

    /// By HTTP status, as OTLP/HTTP has it. `body` is the start of the answer's body.
    pub(super) fn of_http(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        if (200..300).contains(&status) {
            return partial_success(headers, body);
        }
        let message = error_message(headers, body);
        let why = if message.is_empty() {
            format!("HTTP {status}")
        } else {
            format!("HTTP {status}: {}", shorten(&message))
        };
        match status {
            429 | 502 | 503 | 504 => Self::Retry {
                after: retry_after(headers),
                why,
            },
            413 => Self::TooLarge { why },
            // What Go's servers say, the Collector among them.
            400 if message.contains("request body too large") => Self::TooLarge { why },
            300..400 => {
                let target = headers
                    .get("location")
                    .and_then(|location| location.to_str().ok())
                    .unwrap_or("nowhere");
                // What follows the question mark may be a secret.
                let target = target.split(['?', '#']).next().unwrap_or_default();
                Self::Refused {
                    reason: "redirected",
                    why: format!(
                        "HTTP {status}: redirected to {}; redirects are not followed, name that endpoint instead",
                        shorten(target)
                    ),
                }
            }
            400 => Self::Refused {
                reason: "invalid_argument",
                why,
            },
            401 => Self::Refused {
                reason: "unauthenticated",
                why,
            },
            403 => Self::Refused {
                reason: "permission_denied",
                why,
            },
            404 | 405 | 415 | 501 => Self::Refused {
                reason: "unimplemented",
                why,
            },
            _ => Self::Refused {
                reason: "refused",
                why,
            },
        }
    }

    /// By HTTP status, as JSON APIs have it: any 2xx is a yes, whatever the body says; what a
    /// server calls its own mistake may go well the next time; no request can be cut in two.
    pub(super) fn of_api(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        if (200..300).contains(&status) {
            return Self::Delivered {
                n_rejected: 0,
                message: None,
            };
        }
        let message = error_message(headers, body);
        let why = if message.is_empty() {
            format!("HTTP {status}")
        } else {
            format!("HTTP {status}: {}", shorten(&message))
        };
        match status {
            404 => Self::Unknown { why },
            408 | 425 | 500 | 505..=599 => Self::Retry {
                after: retry_after(headers),
                why,
            },
            413 => Self::Refused {
                reason: "too_large",
                why,
            },
            422 => Self::Refused {
                reason: "invalid_argument",
                why,
            },
            _ => Self::of_http(status, headers, body),
        }
    }

    /// A gRPC peer, or what stands before it, that answered in plain HTTP: gRPC's own table for
    /// that, and 413.
    pub(super) fn of_http_instead_of_grpc(status: u16, headers: &HeaderMap) -> Self {
        match status {
            200 => Self::Refused {
                reason: "refused",
                why: "HTTP 200 without a gRPC status: the endpoint does not speak OTLP/gRPC"
                    .to_owned(),
            },
            _ => Self::of_http(status, headers, &[]),
        }
    }
}

/// The gRPC status in headers or trailers. Not tonic's reader: that one panics on details that are
/// no base64.
pub(super) fn grpc_status(headers: &HeaderMap) -> Option<Answer> {
    let code = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
    let message = headers
        .get("grpc-message")
        .map(percent_decode)
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
    Some(Answer::of_grpc(code, &message, retry_info))
}

/// The message of a gRPC answer whose status is OK.
pub(super) fn grpc_partial_success(body: &[u8]) -> Answer {
    // Flag and length come first; we offered no compression, so the flag is 0.
    let message = if let [0, _, _, _, _, message @ ..] = body {
        message
    } else {
        &[]
    };
    of_protobuf(message)
}

fn partial_success(headers: &HeaderMap, body: &[u8]) -> Answer {
    if !is_json(headers) {
        return of_protobuf(body);
    }
    // Some backends answer protobuf with JSON, where 64-bit numbers are strings.
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = &body["partialSuccess"];
    let number = |name: &str| {
        said[name]
            .as_u64()
            .or_else(|| said[name].as_str()?.parse().ok())
    };
    let n_rejected = ["rejectedSpans", "rejectedLogRecords", "rejectedDataPoints"]
        .into_iter()
        .find_map(number);
    delivered(
        n_rejected.unwrap_or_default(),
        said["errorMessage"].as_str().unwrap_or_default(),
    )
}

/// The answers to the three signals have the same shape on the wire.
fn of_protobuf(body: &[u8]) -> Answer {
    let said = ExportTraceServiceResponse::decode(body)
        .ok()
        .and_then(|response| response.partial_success)
        .unwrap_or_default();
    delivered(
        u64::try_from(said.rejected_spans).unwrap_or_default(),
        &said.error_message,
    )
}

fn delivered(n_rejected: u64, message: &str) -> Answer {
    Answer::Delivered {
        n_rejected,
        message: (!message.is_empty()).then(|| shorten(message)),
    }
}

/// The message of a `google.rpc.Status` body, or the text itself.
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

/// Seconds, or a date. A date is measured against the peer's own `Date`, so that neither our clock
/// nor its offset matters.
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

fn percent_decode(value: &HeaderValue) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = if let [b'%', high, low, ..] = rest {
            hex(*high).zip(hex(*low))
        } else {
            None
        };
        bytes.push(escaped.map_or(*first, |(high, low)| high << 4 | low));
        rest = if escaped.is_some() { &rest[3..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// One line of bounded length, since it goes into the log.
fn shorten(message: &str) -> String {
    let message: String = message
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST_WHY + 1)
        .collect();
    let start = truncated(&message, LONGEST_WHY);
    let ellipsis = if start.len() < message.len() {
        "…"
    } else {
        ""
    };
    format!("{}{ellipsis}", start.trim())
}

/// The name by which the specification knows it.
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
