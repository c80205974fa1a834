//! Builds OTLP/gRPC requests and reads their responses. Encodes the unary call without tonic, whose
//! encoder would copy every request once more.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use hyper::header::{HeaderMap, HeaderName, HeaderValue, TE};
use hyper::http::response::Parts;
use hyper::{Method, Request, Uri};

use crate::config::Signal;

use super::Trailers;
use super::connect::{Frames, prefixed_frames};
use super::outcome::{DeliveryOutcome, grpc_partial_success, grpc_status};

pub(crate) fn path(signal: Signal) -> &'static str {
    match signal {
        Signal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        Signal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    }
}

pub(super) fn request(
    uri: Uri,
    mut headers: HeaderMap,
    body: Bytes,
    encoding: Option<&'static str>,
    timeout: Duration,
) -> Request<Frames> {
    headers.insert(TE, HeaderValue::from_static("trailers"));
    // gRPC allows at most eight digits, so longer timeouts are announced as 27 hours.
    if let Ok(timeout) = HeaderValue::try_from(format!("{}m", timeout.as_millis().min(99_999_999)))
    {
        headers.insert(HeaderName::from_static("grpc-timeout"), timeout);
    }
    if let Some(encoding) = encoding {
        headers.insert(
            HeaderName::from_static("grpc-encoding"),
            HeaderValue::from_static(encoding),
        );
    }
    let mut prefix = BytesMut::with_capacity(5);
    prefix.put_u8(u8::from(encoding.is_some()));
    // The length fits, unless `receivers.otlp.max_request_size` is raised to 4 GiB.
    prefix.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
    let body = prefixed_frames(prefix.freeze(), body);
    super::request(Method::POST, uri, headers, "application/grpc", body)
}

/// Returns the outcome of a response.
///
/// # Errors
/// Returns an error if the response was interrupted.
pub(super) fn interpret(
    head: &Parts,
    message: &[u8],
    trailers: Trailers,
) -> Result<DeliveryOutcome, hyper::Error> {
    // A response without a body has its status in the headers.
    if let Some(answer) = grpc_status(&head.headers) {
        return Ok(answer);
    }
    Ok(match trailers?.as_ref().and_then(grpc_status) {
        Some(DeliveryOutcome::Delivered { .. }) => grpc_partial_success(message),
        Some(answer) => answer,
        None => DeliveryOutcome::of_http_instead_of_grpc(head.status.as_u16(), &head.headers),
    })
}
