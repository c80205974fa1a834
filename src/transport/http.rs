//! Builds OTLP/HTTP requests with protobuf bodies.

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, HeaderMap, HeaderValue};
use hyper::{Method, Request, Uri};

use crate::config::Signal;

use super::connect::{Frames, frames};

pub(super) fn path(base_path: &str, signal: Signal) -> String {
    format!("{base_path}/v1/{}", signal.as_str())
}

pub(super) fn request(
    uri: Uri,
    mut headers: HeaderMap,
    body: Bytes,
    encoding: Option<&'static str>,
) -> Request<Frames> {
    if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    let body = frames(body);
    super::request(Method::POST, uri, headers, "application/x-protobuf", body)
}
