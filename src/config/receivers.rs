//! The `receivers` and `admin` sections: the ports to listen on.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{Amount, ByteSize, listen_address};

/// The `receivers` section.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Receivers {
    /// OTLP, the only receiver.
    pub otlp: OtlpReceiver,
}

/// The `receivers.otlp` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpReceiver {
    /// OTLP/gRPC.
    pub grpc: GrpcListener,
    /// OTLP/HTTP.
    pub http: HttpListener,
    /// Maximum size of a request after decompression; a larger one is permanently refused.
    pub max_request_size: ByteSize,
    /// Maximum bytes of all requests that are being received; beyond it, requests are refused as
    /// retryable. `auto` is 10 % of `memory.limit`.
    pub max_in_flight: Amount,
    /// TLS on both ports; with `null`, the ports are unencrypted.
    pub tls: Option<ServerTls>,
    /// Treatment of items that claim to be scores of spanscore: scores of another sidecar, or
    /// forged ones.
    pub scores: ReceivedScores,
}

/// Treatment of items that claim to be scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReceivedScores {
    /// Forward the scores like other items.
    #[default]
    Forward,
    /// Remove the scores from forwarded requests.
    Drop,
}

impl ReceivedScores {
    /// Returns the name in the configuration and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Drop => "drop",
        }
    }
}

/// The `receivers.otlp.grpc` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcListener {
    /// Listen on this port.
    pub enabled: bool,
    /// Address and port.
    #[serde(deserialize_with = "listen_address")]
    pub listen: SocketAddr,
}

/// The `receivers.otlp.http` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpListener {
    /// Listen on this port.
    pub enabled: bool,
    /// Address and port.
    #[serde(deserialize_with = "listen_address")]
    pub listen: SocketAddr,
    /// Origins from which browsers may send, such as `https://shop.example`; `*` for any.
    pub cors_allowed_origins: Vec<String>,
}

/// TLS settings of a listener.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerTls {
    /// Certificate chain, PEM.
    pub cert_file: PathBuf,
    /// Private key, PEM.
    pub key_file: PathBuf,
    /// Authorities of client certificates, PEM; with it, clients must present a certificate (mTLS).
    #[serde(default)]
    pub client_ca_file: Option<PathBuf>,
}

/// The `admin` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address and port.
    #[serde(deserialize_with = "listen_address")]
    pub listen: SocketAddr,
    /// File with the bearer token that callers of the API must send; read again for each request.
    /// Probes and metrics need no token.
    pub token_file: Option<PathBuf>,
    /// TLS on this port. With `client_ca_file`, callers of the API must present a certificate;
    /// probes and scrapers need none.
    pub tls: Option<ServerTls>,
    /// File that stores criteria registered by the API; without it, they are lost when the process
    /// ends.
    pub state_file: Option<PathBuf>,
    /// The page at `/`, and the judged runs that it remembers.
    pub page: AdminPage,
    /// Links from a run to the team's tracing backends.
    pub links: Vec<PageLink>,
}

/// The `admin.page` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdminPage {
    /// Serve the page and remember judged runs; `false` remembers nothing.
    pub enabled: bool,
    /// Maximum bytes of remembered runs; `auto` is 5 % of `memory.limit`, at most 8 MiB.
    pub max_size: Amount,
}

/// One of `admin.links`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageLink {
    /// The backend's name, as the page shows it.
    pub name: String,
    /// An `http` or `https` URL; `{trace_id}`, `{span_id}`, `{service}`, `{agent}`, `{session}`,
    /// `{start_ms}` and `{end_ms}` are replaced, percent-encoded.
    pub url: String,
}

impl PageLink {
    pub(super) const PLACEHOLDERS: [&str; 7] = [
        "trace_id", "span_id", "service", "agent", "session", "start_ms", "end_ms",
    ];
}

impl Default for AdminPage {
    fn default() -> Self {
        Self {
            enabled: true,
            max_size: Amount::Auto,
        }
    }
}

impl Default for OtlpReceiver {
    fn default() -> Self {
        Self {
            grpc: GrpcListener::default(),
            http: HttpListener::default(),
            max_request_size: ByteSize::mib(64),
            max_in_flight: Amount::Auto,
            tls: None,
            scores: ReceivedScores::default(),
        }
    }
}

impl Default for GrpcListener {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 4317)),
        }
    }
}

impl Default for HttpListener {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 4318)),
            cors_allowed_origins: Vec::new(),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 13133)),
            token_file: None,
            tls: None,
            state_file: None,
            page: AdminPage::default(),
            links: Vec::new(),
        }
    }
}
