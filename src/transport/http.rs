//! Builds OTLP/HTTP requests with protobuf bodies and reads their responses.

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Uri, body::Incoming};

use crate::config::Signal;

use super::connect::Frames;
use super::outcome::DeliveryOutcome;

pub(super) fn path(base_path: &str, signal: Signal) -> String {
    format!("{base_path}/v1/{}", signal.as_str())
}

pub(super) fn request(
    uri: Uri,
    mut headers: HeaderMap,
    body: Bytes,
    encoding: Option<&'static str>,
) -> Request<Frames> {
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-protobuf"),
    );
    if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    let mut request = Request::new(Frames::new(None, body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    request
}

/// Returns the outcome of a response by its status. An interrupted body does not matter, because a
/// peer that answers 413 may close the connection before it has read the whole request.
pub(super) async fn answer(response: Response<Incoming>) -> DeliveryOutcome {
    let (head, body) = response.into_parts();
    let (body, _) = super::read(body).await;
    DeliveryOutcome::of_http(head.status.as_u16(), &head.headers, &body)
}
