//! Decides whether a request may use the admin API, by the address of the port, the token, the
//! client certificate and the headers of browsers.
//!
//! The rule (docs/design.md#the-admin-port): probes and metrics are open. The API changes the
//! criteria by which agents are judged, so it answers only callers with the configured token and
//! client certificate, or, if neither is configured, only on a loopback address.
//!
//! On a loopback address, every web page in a browser on the machine can reach the port too: by
//! cross-origin requests, or under its own name, if that name suddenly resolves to 127.0.0.1 (DNS
//! rebinding). So a request that a browser sends for another origin is refused, and without
//! credentials the `Host` must be a loopback name.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tonic::Status;

use crate::config;
use crate::listen::{CertifiedClient, is_loopback_name};
use crate::telemetry::{ApiOpen, ApiRefused, Telemetry, TokenUnusable};

/// Maximum size of a token file, in bytes.
const MAX_TOKEN_SIZE: u64 = 4096;

#[derive(Debug)]
pub struct Guard {
    rule: Rule,
    telemetry: Arc<Telemetry>,
}

#[derive(Debug)]
enum Rule {
    /// The port is bound to loopback, and no credentials are configured.
    Loopback,
    /// Every configured credential is required.
    Credentials {
        token_file: Option<PathBuf>,
        certificate: bool,
    },
    /// Other hosts can reach the port, and no credentials are configured, so the API is closed.
    Closed,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot use `admin.token_file`: `{}` {problem}", path.display())]
pub struct TokenError {
    path: PathBuf,
    problem: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GuardRefusal {
    Closed,
    CrossOrigin,
    ForeignHost,
    NoCertificate,
    NoToken,
    WrongToken,
}

impl Guard {
    /// Creates the guard of a port that is bound to `address`.
    ///
    /// # Errors
    /// Returns an error if the token file cannot be read or contains no token.
    pub fn try_new(
        address: SocketAddr,
        admin: &config::Admin,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self, TokenError> {
        let certificate = admin
            .tls
            .as_ref()
            .is_some_and(|tls| tls.client_ca_file.is_some());
        if let Some(path) = &admin.token_file {
            read_token(path)?;
        }
        let rule = match &admin.token_file {
            None if !certificate && address.ip().is_loopback() => Rule::Loopback,
            None if !certificate => Rule::Closed,
            token_file => Rule::Credentials {
                token_file: token_file.clone(),
                certificate,
            },
        };
        let to = match &rule {
            Rule::Loopback => "callers on this host or pod",
            Rule::Closed => "nobody",
            Rule::Credentials {
                token_file: Some(_),
                certificate: true,
            } => "callers with a client certificate and the token",
            Rule::Credentials {
                token_file: Some(_),
                certificate: false,
            } => "callers with the token",
            Rule::Credentials {
                token_file: None, ..
            } => "callers with a client certificate",
        };
        let in_the_clear =
            admin.token_file.is_some() && admin.tls.is_none() && !address.ip().is_loopback();
        ApiOpen {
            address,
            to,
            in_the_clear,
        }
        .emit();
        Ok(Self {
            rule,
            telemetry: Arc::clone(telemetry),
        })
    }

    fn check(&self, request: &Request) -> Result<(), GuardRefusal> {
        let headers = request.headers();
        let authority = authority(request);
        if is_cross_origin(headers, authority.as_ref()) {
            return Err(GuardRefusal::CrossOrigin);
        }
        self.check_caller(request, authority.as_ref())
    }

    /// Checks a request for the files of the page, which contain no telemetry. Accepts a link from
    /// another page, and a missing or wrong token, because a browser that follows a link cannot
    /// send a token.
    fn check_page(&self, request: &Request) -> Result<(), GuardRefusal> {
        let authority = authority(request);
        let is = |name: &str, expected: &[u8]| {
            let value = request.headers().get(name);
            value.is_some_and(|value| value.as_bytes() == expected)
        };
        let is_followed_link =
            is("sec-fetch-mode", b"navigate") && is("sec-fetch-dest", b"document");
        if !is_followed_link && is_cross_origin(request.headers(), authority.as_ref()) {
            return Err(GuardRefusal::CrossOrigin);
        }
        match self.check_caller(request, authority.as_ref()) {
            Err(GuardRefusal::NoToken | GuardRefusal::WrongToken) => Ok(()),
            checked => checked,
        }
    }

    fn check_caller(
        &self,
        request: &Request,
        authority: Option<&Authority>,
    ) -> Result<(), GuardRefusal> {
        let headers = request.headers();
        match &self.rule {
            Rule::Closed => Err(GuardRefusal::Closed),
            Rule::Loopback if authority.is_some_and(is_loopback_name) => Ok(()),
            Rule::Loopback => Err(GuardRefusal::ForeignHost),
            Rule::Credentials {
                certificate: true, ..
            } if request.extensions().get::<CertifiedClient>().is_none() => {
                Err(GuardRefusal::NoCertificate)
            }
            Rule::Credentials {
                token_file: None, ..
            } => Ok(()),
            Rule::Credentials {
                token_file: Some(path),
                ..
            } => {
                let shown = bearer(headers).ok_or(GuardRefusal::NoToken)?;
                // Read the file for each request, so that a rotated token needs no timer and no
                // restart. If the file was deleted, no request is admitted.
                let expected = read_token(path).map_err(|error| {
                    TokenUnusable {
                        error: error.to_string(),
                    }
                    .emit(&self.telemetry);
                    GuardRefusal::WrongToken
                })?;
                if same(shown, &expected) { Ok(()) } else { Err(GuardRefusal::WrongToken) }
            }
        }
    }
}

impl Guard {
    async fn run(
        &self,
        checked: Result<(), GuardRefusal>,
        request: Request,
        next: Next,
    ) -> Response {
        let Err(refusal) = checked else {
            return next.run(request).await;
        };
        ApiRefused {
            reason: refusal.reason(),
            remedy: refusal.detail(),
        }
        .emit(&self.telemetry);
        let is_grpc = request
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if is_grpc { refusal.status().into_http() } else { refusal.response() }
    }
}

pub(super) async fn guarded(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let checked = guard.check(&request);
    guard.run(checked, request, next).await
}

pub(super) async fn guarded_page(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let checked = guard.check_page(&request);
    guard.run(checked, request, next).await
}

/// Compares in a time that reveals neither the first difference nor the length of the expected
/// token.
fn same(shown: &[u8], expected: &[u8]) -> bool {
    Sha256::digest(shown)
        .ct_eq(&Sha256::digest(expected))
        .into()
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers
        .get(header::AUTHORIZATION)?
        .as_bytes()
        .split_at_checked(b"bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

fn read_token(path: &Path) -> Result<Vec<u8>, TokenError> {
    let wrong = |problem: String| TokenError {
        path: path.to_owned(),
        problem,
    };
    let read = || -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(path)?
            .take(MAX_TOKEN_SIZE + 1)
            .read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error| {
        wrong(format!(
            "cannot be read: {error}; check the path and its permissions"
        ))
    })?;
    let token = text.trim_ascii();
    if token.is_empty() {
        return Err(wrong(
            "is empty; write a token into it, such as the output of `openssl rand -hex 32`"
                .to_owned(),
        ));
    }
    if text.len() as u64 > MAX_TOKEN_SIZE || !token.iter().all(u8::is_ascii_graphic) {
        return Err(wrong(
            "contains more than one word of ASCII characters; write only the token into it"
                .to_owned(),
        ));
    }
    Ok(token.to_vec())
}

// === headers of browsers ===

/// Returns the host that the caller addresses: `:authority` in HTTP/2, `Host` in HTTP/1.
fn authority(request: &Request) -> Option<Authority> {
    let host = || {
        request
            .headers()
            .get(header::HOST)?
            .to_str()
            .ok()?
            .parse()
            .ok()
    };
    request.uri().authority().cloned().or_else(host)
}

/// Returns true if a browser sends this request for a page of another origin, by the headers
/// `sec-fetch-site` and `origin`, which other programs do not usually send.
fn is_cross_origin(headers: &HeaderMap, authority: Option<&Authority>) -> bool {
    let fetched_from = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if fetched_from.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return true;
    }
    headers.get(header::ORIGIN).is_some_and(|origin| {
        let origin = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"))
            .and_then(|(_, host)| host.parse::<Authority>().ok());
        origin.as_ref() != authority || authority.is_none()
    })
}

impl GuardRefusal {
    fn reason(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::CrossOrigin => "cross_origin",
            Self::ForeignHost => "foreign_host",
            Self::NoCertificate => "no_certificate",
            Self::NoToken => "no_token",
            Self::WrongToken => "wrong_token",
        }
    }

    fn detail(self) -> &'static str {
        match self {
            Self::Closed => {
                "the admin port can be reached from outside, so its API is closed: bind \
                 `admin.listen` to 127.0.0.1, set `admin.token_file`, or set `admin.tls` with \
                 `client_ca_file`"
            }
            Self::CrossOrigin => {
                "web pages of other origins may not use this API: call it from a program"
            }
            Self::ForeignHost => {
                "the request's host is not a loopback name: call this port as localhost or \
                 127.0.0.1, or set `admin.token_file`"
            }
            Self::NoCertificate => {
                "this API requires a client certificate of the authority in \
                 `admin.tls.client_ca_file`"
            }
            Self::NoToken => {
                "this API requires the token in `admin.token_file`: send `authorization: Bearer …`"
            }
            Self::WrongToken => "the token is not the one in `admin.token_file`",
        }
    }

    fn is_of_credentials(self) -> bool {
        matches!(self, Self::NoToken | Self::WrongToken)
    }

    fn status(self) -> Status {
        if self.is_of_credentials() {
            Status::unauthenticated(self.detail())
        } else {
            Status::permission_denied(self.detail())
        }
    }

    fn response(self) -> Response {
        let status = if self.is_of_credentials() {
            StatusCode::UNAUTHORIZED
        } else {
            StatusCode::FORBIDDEN
        };
        let problem = json!({
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "detail": self.detail(),
        });
        let mut response = Response::new(Body::from(format!("{problem}\n")));
        *response.status_mut() = status;
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if self.is_of_credentials() {
            response.headers_mut().insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"spanscore\""),
            );
        }
        response
    }
}

#[cfg(test)]
mod tests;
