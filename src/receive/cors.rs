//! Answers cross-origin requests of browsers as the Collector does: only configured origins are
//! allowed, with any requested headers.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, Response, StatusCode};
use judge::extract::glob_matches;

use super::ResponseBody;
use crate::listen::{PeerAddress, is_loopback_name};

/// Time in seconds for which a browser may cache the answer to a preflight: Chrome's maximum.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// The origins in `cors_allowed_origins`.
#[derive(Debug)]
pub(super) struct Cors {
    /// Globs in lower case: `*` alone matches every origin, `https://*.example.com` every
    /// subdomain.
    origins: Vec<String>,
}

impl Cors {
    pub(super) fn new(origins: &[String]) -> Self {
        let glob = |origin: &String| origin.trim_end_matches('/').to_ascii_lowercase();
        Self {
            origins: origins.iter().map(glob).collect(),
        }
    }

    /// Returns the answer to a preflight request; `None` for any other request, or if no origin is
    /// configured.
    pub(super) fn preflight(&self, head: &Parts) -> Option<Response<ResponseBody>> {
        let is_preflight = head.method == Method::OPTIONS
            && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if self.origins.is_empty() || !is_preflight {
            return None;
        }
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NO_CONTENT;
        if self.allowed(&head.headers).is_some() {
            let headers = response.headers_mut();
            headers.insert(
                ACCESS_CONTROL_ALLOW_METHODS,
                HeaderValue::from_static("POST"),
            );
            headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
            if let Some(wanted) = head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
            }
        }
        Some(response)
    }

    /// Allows the request's origin to read the answer, if that origin is configured. Allows
    /// credentials, because `navigator.sendBeacon`, which browser SDKs use, always sends them.
    pub(super) fn allow(&self, request: &HeaderMap, response: &mut HeaderMap) {
        if self.origins.is_empty() {
            return;
        }
        response.append(VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = self.allowed(request) {
            response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            response.insert(
                ACCESS_CONTROL_ALLOW_CREDENTIALS,
                HeaderValue::from_static("true"),
            );
        }
    }

    /// Returns true if a browser on this machine might be sending the request for a page whose name
    /// now resolves to a loopback address (DNS rebinding). The browser does not treat such a
    /// request as cross-origin.
    pub(super) fn is_rebound(&self, head: &Parts) -> bool {
        let is_local = head
            .extensions
            .get()
            .is_some_and(|PeerAddress(peer)| peer.is_loopback());
        let host = || {
            let host = head.headers.get(HOST)?.to_str().ok()?;
            host.parse().ok()
        };
        let authority: Option<Authority> = head.uri.authority().cloned().or_else(host);
        is_local
            && head.headers.contains_key(ORIGIN)
            && self.allowed(&head.headers).is_none()
            && !authority.is_some_and(|authority| is_loopback_name(&authority))
    }

    /// Returns the request's origin, if it is allowed.
    fn allowed<'a>(&self, headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
        let value = headers.get(ORIGIN)?;
        let origin = value.to_str().ok()?.to_ascii_lowercase();
        self.origins
            .iter()
            .any(|glob| glob_matches(glob, &origin))
            .then_some(value)
    }
}
