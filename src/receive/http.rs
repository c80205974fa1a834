//! Answers OTLP/HTTP: POST of protobuf or JSON to a path that ends in `/v1/{signal}`.

use bytes::Bytes;
use hyper::header::{ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::config::Signal;

use super::body::{self, Framing};
use super::decompress::ACCEPTED;
use super::memory_permit::MemoryPermit;
use super::request_error::{RequestError, retry_after};
use super::{Format, Receiver, RequestBody, ResponseBody};

pub(super) async fn answer<B: RequestBody>(
    receiver: &Receiver,
    request: Request<B>,
    permit: Result<MemoryPermit, RequestError>,
) -> Response<ResponseBody> {
    let (head, mut body) = request.into_parts();
    let mut response = match receiver.settings.cors.preflight(&head) {
        Some(preflight) => preflight,
        None => route(receiver, &head, &mut body, permit).await,
    };
    receiver
        .settings
        .cors
        .allow(&head.headers, response.headers_mut());
    response
}

async fn route<B: RequestBody>(
    receiver: &Receiver,
    head: &Parts,
    body: &mut B,
    permit: Result<MemoryPermit, RequestError>,
) -> Response<ResponseBody> {
    let format = format(&head.headers);
    let misdirected = |reason, status, code, message: String| {
        receiver.misdirected(reason, head, &message);
        failure(status, code, message, format)
    };
    let Some(signal) = signal(head.uri.path()) else {
        if permit.is_ok() {
            body::discard(body).await;
        }
        let message = format!(
            "nothing at `{}`; send OTLP/HTTP to /v1/traces, /v1/logs or /v1/metrics",
            head.uri.path()
        );
        return misdirected("path", StatusCode::NOT_FOUND, Code::NotFound, message);
    };
    if head.method != Method::POST {
        let message = format!(
            "{} is not allowed here; send OTLP requests with POST",
            head.method
        );
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let mut response = misdirected("method", status, Code::Unimplemented, message);
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    if receiver.settings.cors.is_rebound(head) {
        let message =
            "web pages of other hosts may not send telemetry here; if the page is yours, \
                       add its origin to `receivers.otlp.http.cors_allowed_origins`"
                .to_owned();
        let status = StatusCode::FORBIDDEN;
        return misdirected("origin", status, Code::PermissionDenied, message);
    }
    let exported = receiver.export(signal, Framing::Whole, format, &head.headers, body, permit);
    match exported.await {
        Ok(()) => success(format),
        Err(error) => {
            let mut response = failure(error.status(), error.code(), error.message(), format);
            if error.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
                response.headers_mut().insert(ACCEPT_ENCODING, ACCEPTED);
            }
            response
        }
    }
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
fn success(format: Option<Format>) -> Response<ResponseBody> {
    let empty = if format == Some(Format::Json) { "{}" } else { "" };
    respond(StatusCode::OK, format, Bytes::from_static(empty.as_bytes()))
}

/// Returns a `google.rpc.Status` as protobuf or JSON, like the request, or plain text if the
/// request was neither.
fn failure(
    status: StatusCode,
    code: Code,
    message: String,
    format: Option<Format>,
) -> Response<ResponseBody> {
    let delay = retry_after(code);
    let body = match format {
        Some(Format::Protobuf) => {
            // The details of a gRPC status are an encoded `google.rpc.Status`.
            let details = match delay {
                Some(_) => ErrorDetails::with_retry_info(delay),
                None => ErrorDetails::new(),
            };
            let status = Status::with_error_details(code, message, details);
            Bytes::copy_from_slice(status.details())
        }
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
    let mut response = respond(status, format, body);
    if let Some(delay) = delay {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(delay.as_secs().max(1)));
    }
    response
}

/// Returns an answer in this format, or in plain text.
pub(super) fn respond(
    status: StatusCode,
    format: Option<Format>,
    data: Bytes,
) -> Response<ResponseBody> {
    let media_type = match format {
        Some(Format::Protobuf) => "application/x-protobuf",
        Some(Format::Json) => "application/json",
        None => "text/plain; charset=utf-8",
    };
    let mut response = Response::new(ResponseBody::from(data));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
