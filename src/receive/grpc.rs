//! Answers OTLP/gRPC: unary calls of the three Export services. Reads requests without tonic's
//! codec, which can neither account for memory during decompression nor answer RESOURCE_EXHAUSTED
//! to a message that is too large.

use std::future::ready;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

use crate::config::Signal;
use crate::transport::grpc_path;

use super::body::{self, Framing};
use super::decompress::ACCEPTED;
use super::http::respond;
use super::memory_permit::MemoryPermit;
use super::request_error::{RequestError, retry_after};
use super::{Format, Receiver, RequestBody, ResponseBody};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

const NEEDS_HTTP_2: &str = "gRPC needs HTTP/2; is there a proxy in between that speaks HTTP/1.1?\n";
const NEEDS_POST: &str = "gRPC calls are POST requests\n";

/// An uncompressed message of zero bytes: an empty `Export…ServiceResponse`, whose
/// `partial_success` is unset.
const EMPTY_MESSAGE: &[u8] = &[0, 0, 0, 0, 0];

pub(super) async fn answer<B: RequestBody>(
    receiver: &Receiver,
    request: Request<B>,
    permit: Result<MemoryPermit, RequestError>,
) -> Response<ResponseBody> {
    let (head, mut body) = request.into_parts();
    if head.version < Version::HTTP_2 {
        receiver.misdirected("protocol", &head, NEEDS_HTTP_2);
        let message = Bytes::from_static(NEEDS_HTTP_2.as_bytes());
        return respond(StatusCode::HTTP_VERSION_NOT_SUPPORTED, None, message);
    }
    if head.method != Method::POST {
        receiver.misdirected("method", &head, NEEDS_POST);
        let message = Bytes::from_static(NEEDS_POST.as_bytes());
        let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, None, message);
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let result = match Signal::ALL
        .into_iter()
        .find(|signal| grpc_path(*signal) == head.uri.path())
    {
        Some(signal) => {
            let format = Some(Format::Protobuf);
            let exported = receiver.export(
                signal,
                Framing::Prefixed,
                format,
                &head.headers,
                &mut body,
                permit,
            );
            exported.await.map_err(|error| status(&error))
        }
        None => {
            if permit.is_ok() {
                body::discard(&mut body).await;
            }
            let message = format!(
                "no method `{}`; call Export of the trace, logs or metrics service",
                head.uri.path()
            );
            receiver.misdirected("path", &head, &message);
            Err(Status::unimplemented(message))
        }
    };
    let mut response = match result {
        Ok(()) => success(),
        Err(status) => status.into_http(),
    };
    response
        .headers_mut()
        .insert(GRPC_ACCEPT_ENCODING, ACCEPTED);
    response
}

fn success() -> Response<ResponseBody> {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    let body = Full::from(EMPTY_MESSAGE).with_trailers(ready(Some(Ok(trailers))));
    let mut response = Response::new(ResponseBody::new(body));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

fn status(error: &RequestError) -> Status {
    match retry_after(error.code()) {
        Some(delay) => Status::with_error_details(
            error.code(),
            error.message(),
            ErrorDetails::with_retry_info(Some(delay)),
        ),
        None => Status::new(error.code(), error.message()),
    }
}
