//! Builds requests of a backend's own JSON API and reads their responses.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Uri, body::Incoming};

use super::connect::Frames;
use super::outcome::DeliveryOutcome;

pub(super) fn request(
    method: Method,
    uri: Uri,
    mut headers: HeaderMap,
    body: Bytes,
) -> Request<Frames> {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut request = Request::new(Frames::new(None, body));
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    request
}

pub(super) async fn answer(response: Response<Incoming>) -> DeliveryOutcome {
    let (head, body) = response.into_parts();
    let (body, _) = super::read(body).await;
    DeliveryOutcome::of_api(head.status.as_u16(), &head.headers, &body)
}
