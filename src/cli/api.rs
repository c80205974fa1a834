//! The HTTP client of a sidecar's admin API, shared by `criteria` and `tap`: address, credentials
//! and TLS.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use clap::{Args, ValueHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use percent_encoding::{NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;

use super::health::reachable;
use crate::config::{ClientTls, Config};
use crate::telemetry::Telemetry;
use crate::tls;
use crate::transport::{PooledClient, frames, http1_client};

/// The address of a running sidecar, and the credentials of the client.
#[derive(Debug, Args)]
pub(super) struct ApiClient {
    /// Admin address, HOST:PORT or http(s)://HOST:PORT [default: `admin.listen` of the
    /// configuration].
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(super) address: Option<String>,
    /// File with the API token [default: `admin.token_file` of the configuration].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) token_file: Option<PathBuf>,
    /// CA certificates to trust instead of the system's, PEM; turns on TLS for HOST:PORT.
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) ca_file: Option<PathBuf>,
    /// Client certificate chain, PEM.
    #[arg(long, global = true, value_name = "FILE", requires = "key_file")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(super) cert_file: Option<PathBuf>,
    /// Client private key, PEM.
    #[arg(long, global = true, value_name = "FILE", requires = "cert_file")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(super) key_file: Option<PathBuf>,
}

const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// Timeout until a response starts. `criteria` also uses it as the timeout of a whole call.
pub(super) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// Maximum bytes of an error response.
const MAX_PROBLEM_SIZE: usize = 64 << 10;

/// Escapes a path segment or a query value. Escapes dots, too, because a criterion may be called
/// `..`.
pub(super) fn escaped(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

/// A client of a sidecar's API.
pub(super) struct Api {
    /// The scheme, host and port.
    base: String,
    authorization: Option<HeaderValue>,
    client: PooledClient,
}

/// The reason why an API call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiFailure {
    /// There was no usable response.
    #[error("no response from {base}: {reason}")]
    NoResponse { base: String, reason: String },
    /// The sidecar answered with an error status.
    #[error("{base} answers {status}: {detail}")]
    Refused {
        base: String,
        status: u16,
        detail: String,
        /// The `application/problem+json` body; null if there is none.
        problem: Value,
    },
}

impl Api {
    /// Creates a client from the arguments. `config` supplies the default address and token. Must
    /// be called within a runtime.
    ///
    /// # Errors
    /// Returns an error message if an argument or a file is unusable.
    pub(super) fn new(args: &ApiClient, config: &Config) -> Result<Self, String> {
        let scheme = if config.admin.tls.is_some() || args.ca_file.is_some() {
            "https"
        } else {
            "http"
        };
        let base = match &args.address {
            Some(address) if address.contains("://") => address.trim_end_matches('/').to_owned(),
            Some(address) => format!("{scheme}://{address}"),
            None => format!("{scheme}://{}", reachable(config.admin.listen)),
        };
        let uri: Uri = base.parse().map_err(|_| {
            format!("`{base}` is not an address: write HOST:PORT or http(s)://HOST:PORT")
        })?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.path() != "/" {
            return Err(format!(
                "`{base}` is not an address: write HOST:PORT or http(s)://HOST:PORT"
            ));
        }
        let authorization = args
            .token_file
            .as_ref()
            .or(config.admin.token_file.as_ref())
            .map(|path| {
                let text = fs::read_to_string(path).map_err(|error| {
                    format!("cannot read the token in `{}`: {error}", path.display())
                })?;
                let mut value =
                    HeaderValue::try_from(format!("Bearer {}", text.trim())).map_err(|_| {
                        format!(
                            "`{}` must contain a single word of ASCII characters",
                            path.display()
                        )
                    })?;
                value.set_sensitive(true);
                Ok::<_, String>(value)
            });
        let tls = ClientTls {
            ca_file: args.ca_file.clone(),
            cert_file: args.cert_file.clone(),
            key_file: args.key_file.clone(),
            // Without TLS, no certificate authorities are needed. The system may lack them, as our
            // image does.
            insecure_skip_verify: uri.scheme_str() == Some("http"),
            ..ClientTls::default()
        };
        let tls = tls::client_config(&tls, &Arc::new(Telemetry::default()))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            base,
            authorization: authorization.transpose()?,
            client: http1_client(tls, CONNECT_TIMEOUT),
        })
    }

    /// Returns the base URL, for use in messages.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Sends a request to a path and query. A status other than success is returned as a failure,
    /// with the response's detail.
    pub(super) async fn call(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<Incoming>, ApiFailure> {
        let no_answer = |reason: String| ApiFailure::NoResponse {
            base: self.base.clone(),
            reason,
        };
        let mut request = request.map(frames);
        let uri: Uri = format!("{}{}", self.base, request.uri())
            .parse()
            .map_err(|error| no_answer(format!("{error}")))?;
        if let Some(host) = uri
            .authority()
            .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok())
        {
            request.headers_mut().insert(HOST, host);
        }
        *request.uri_mut() = uri;
        if let Some(authorization) = &self.authorization {
            request
                .headers_mut()
                .insert(AUTHORIZATION, authorization.clone());
        }
        let response = match tokio::time::timeout(PATIENCE, self.client.request(request)).await {
            Ok(response) => response.map_err(|error| no_answer(root_cause(&error)))?,
            Err(_) => {
                return Err(no_answer(format!(
                    "nothing within {} s",
                    PATIENCE.as_secs()
                )));
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let is_problem = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind == "application/problem+json");
        let body = Limited::new(response.into_body(), MAX_PROBLEM_SIZE)
            .collect()
            .await
            .map(|body| body.to_bytes())
            .unwrap_or_default();
        let problem: Value = is_problem
            .then(|| serde_json::from_slice(&body).ok())
            .flatten()
            .unwrap_or_default();
        let detail = problem["detail"].as_str().map_or_else(
            || String::from_utf8_lossy(&body).trim().to_owned(),
            str::to_owned,
        );
        Err(ApiFailure::Refused {
            base: self.base.clone(),
            status: status.as_u16(),
            detail,
            problem,
        })
    }
}

/// Returns the innermost cause of an error: "connection refused" is more useful than "client error
/// (Connect)".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
