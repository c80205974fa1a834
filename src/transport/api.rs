//! A backend's own API: a JSON body in, an HTTP request out; a response in, an answer out. Does not
//! know which backend, connections or retries.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Uri, body::Incoming};

use super::answer::Answer;
use super::connect::Frames;

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

/// The status decides, as for OTLP/HTTP.
pub(super) async fn answer(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let (body, _) = super::read(body).await;
    Answer::of_api(head.status.as_u16(), &head.headers, &body)
}
