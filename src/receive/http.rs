//! Answers OTLP/HTTP: POST of protobuf or JSON to a path that ends in `/v1/{signal}`.

use std::time::Duration;

use bytes::Bytes;

use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue,
    RETRY_AFTER,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use prost::Message;
use serde_json::json;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt, pb};

use crate::config::Signal;

use super::body::{self, Framing};
use super::decompress::{ACCEPTED, Encoding};
use super::memory_permit::MemoryPermit;
use super::request_error::RequestError;
use super::{Format, ReceiverShared, RequestBody, ResponseBody};

const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

pub(super) async fn answer<B: RequestBody>(
    inner: &ReceiverShared,
    request: Request<B>,
    permit: Result<MemoryPermit, RequestError>,
) -> Response<ResponseBody> {
    let (head, mut body) = request.into_parts();
    let mut response = match inner.settings.cors.preflight(&head) {
        Some(preflight) => preflight,
        None => route(inner, &head, &mut body, permit).await,
    };
    inner
        .settings
        .cors
        .allow(&head.headers, response.headers_mut());
    response
}

async fn route<B: RequestBody>(
    inner: &ReceiverShared,
    head: &Parts,
    body: &mut B,
    permit: Result<MemoryPermit, RequestError>,
) -> Response<ResponseBody> {
    let format = format(&head.headers);
    let Some(signal) = signal(head.uri.path()) else {
        if permit.is_ok() {
            body::discard(body).await;
        }
        let message = format!(
            "nothing at `{}`; send OTLP/HTTP to /v1/traces, /v1/logs or /v1/metrics",
            head.uri.path()
        );
        inner.misdirected("path", head, &message);
        return failure(StatusCode::NOT_FOUND, Code::NotFound, message, None, format);
    };
    if head.method != Method::POST {
        let message = format!(
            "{} is not allowed here; send OTLP requests with POST",
            head.method
        );
        inner.misdirected("method", head, &message);
        let mut response = failure(
            StatusCode::METHOD_NOT_ALLOWED,
            Code::Unimplemented,
            message,
            None,
            format,
        );
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    if inner.settings.cors.is_rebound(head) {
        let message =
            "web pages of other hosts may not send telemetry here; if the page is yours, \
                       add its origin to `receivers.otlp.http.cors_allowed_origins`"
                .to_owned();
        inner.misdirected("origin", head, &message);
        return failure(
            StatusCode::FORBIDDEN,
            Code::PermissionDenied,
            message,
            None,
            format,
        );
    }
    let exported = match permit {
        Ok(permit) => export(inner, signal, format, &head.headers, body, permit).await,
        Err(error) => Err((error, 0)),
    };
    match exported {
        Ok(format) => success(format),
        Err((error, n_items)) => {
            inner.refused(signal, &error, n_items);
            refusal(&error, format)
        }
    }
}

async fn export<B: RequestBody>(
    inner: &ReceiverShared,
    signal: Signal,
    format: Option<Format>,
    headers: &HeaderMap,
    body: &mut B,
    permit: MemoryPermit,
) -> Result<Format, (RequestError, u64)> {
    let readable = match format {
        Some(format) => {
            Encoding::try_new(headers.get(CONTENT_ENCODING)).map(|encoding| (format, encoding))
        }
        None => Err(RequestError::Unsupported(format!(
            "cannot read the media type {}; send application/x-protobuf or application/json",
            headers
                .get(CONTENT_TYPE)
                .map_or("(none)".to_owned(), |value| format!(
                    "`{}`",
                    String::from_utf8_lossy(value.as_bytes())
                ))
        ))),
    };
    let (format, encoding) = match readable {
        Ok(readable) => readable,
        Err(error) => {
            body::discard(body).await;
            return Err((error, 0));
        }
    };
    let limits = &inner.settings.limits;
    // Check the space before reading the body: reading would make hyper answer `100 Continue` to a
    // client that sends `Expect: 100-continue`. JSON is transcoded, mostly to fewer bytes, so its
    // length is not the memory that it needs.
    let peer = permit.peer();
    let check_room = |n_bytes| match format {
        Format::Protobuf => inner.check_room(signal, peer, n_bytes),
        Format::Json => inner.check_room(signal, peer, 0),
    };
    if headers.contains_key(EXPECT) {
        let announced = body.size_hint().lower();
        if announced > limits.max_size() as u64 {
            return Err((limits.too_large(), 0));
        }
        check_room(usize::try_from(announced).unwrap_or(usize::MAX)).map_err(|error| (error, 0))?;
    }
    let message = body::read(body, Framing::Whole, encoding, limits, permit, check_room)
        .await
        .map_err(|error| (error, 0))?;
    inner
        .take(signal, format, message, headers)
        .await
        .map(|()| format)
}

/// Returns the signal in a path. Some SDKs post under a prefix, and some users end their endpoint
/// with a slash.
fn signal(path: &str) -> Option<Signal> {
    let path = path.trim_end_matches('/');
    let is_named = |signal: &Signal| {
        path.strip_suffix(signal.as_str())
            .is_some_and(|prefix| prefix.ends_with("/v1/"))
    };
    Signal::ALL.into_iter().find(is_named)
}

/// Returns the format of one of the two media types of the specification. Ignores parameters, for
/// example the charset.
fn format(headers: &HeaderMap) -> Option<Format> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    match value.split(';').next().unwrap_or_default().trim() {
        essence if essence.eq_ignore_ascii_case("application/x-protobuf") => Some(Format::Protobuf),
        essence if essence.eq_ignore_ascii_case("application/json") => Some(Format::Json),
        _ => None,
    }
}

/// Returns an empty `Export…ServiceResponse`, whose `partial_success` is unset, in the request's
/// media type.
fn success(format: Format) -> Response<ResponseBody> {
    match format {
        Format::Protobuf => respond(StatusCode::OK, PROTOBUF, Bytes::new()),
        Format::Json => respond(StatusCode::OK, JSON, Bytes::from_static(b"{}")),
    }
}

fn refusal(error: &RequestError, format: Option<Format>) -> Response<ResponseBody> {
    let mut response = failure(
        error.status(),
        error.code(),
        error.message(),
        error.retry_after(),
        format,
    );
    if let Some(delay) = error.retry_after() {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(delay.as_secs().max(1)));
    }
    if error.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        response.headers_mut().insert(ACCEPT_ENCODING, ACCEPTED);
    }
    response
}

/// Returns a `google.rpc.Status` as protobuf or JSON, like the request, or plain text if the
/// request was neither.
fn failure(
    status: StatusCode,
    code: Code,
    message: String,
    delay: Option<Duration>,
    format: Option<Format>,
) -> Response<ResponseBody> {
    let body = match format {
        Some(Format::Protobuf) => match delay {
            // The details of a gRPC status are an encoded `google.rpc.Status`.
            Some(_) => Bytes::copy_from_slice(
                Status::with_error_details(code, message, ErrorDetails::with_retry_info(delay))
                    .details(),
            ),
            None => Bytes::from(
                pb::Status {
                    code: code as i32,
                    message,
                    details: Vec::new(),
                }
                .encode_to_vec(),
            ),
        },
        Some(Format::Json) => {
            let mut body = json!({ "code": code as i32, "message": message });
            if let Some(delay) = delay {
                let delay = format!("{}.{:03}s", delay.as_secs(), delay.subsec_millis());
                body["details"] = json!([{
                    "@type": "type.googleapis.com/google.rpc.RetryInfo",
                    "retryDelay": delay,
                }]);
            }
            Bytes::from(body.to_string())
        }
        None => Bytes::from(message),
    };
    respond(status, media_type(format), body)
}

fn media_type(format: Option<Format>) -> HeaderValue {
    match format {
        Some(Format::Protobuf) => PROTOBUF,
        Some(Format::Json) => JSON,
        None => TEXT,
    }
}

fn respond(status: StatusCode, media_type: HeaderValue, data: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(data));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}
