//! The `forward` section: the destination of the original telemetry, and the types that describe
//! every OTLP peer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{Amount, Duration, Secret};

/// TLS settings of a client.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientTls {
    /// Authorities to trust instead of the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate chain, PEM.
    pub cert_file: Option<PathBuf>,
    /// The client's private key, PEM.
    pub key_file: Option<PathBuf>,
    /// The name to expect in the server's certificate, if it differs from the endpoint's host.
    pub server_name: Option<String>,
    /// Accept any certificate. For tests only.
    pub insecure_skip_verify: bool,
}

impl ClientTls {
    /// Returns settings for a client that never uses TLS. They also work on systems without
    /// certificate authorities, such as our image.
    pub(crate) fn unused() -> Self {
        Self {
            insecure_skip_verify: true,
            ..Self::default()
        }
    }
}

/// OTLP transport protocols, named as in `OTEL_EXPORTER_OTLP_PROTOCOL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Protocol {
    /// OTLP/gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP/HTTP with protobuf bodies.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// Compression of sent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// No compression: requests are sent as received, after decompression.
    #[default]
    None,
    /// gzip, level 1.
    Gzip,
    /// zstd, level 1.
    Zstd,
}

/// The three OTLP signals.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// Spans.
    Traces,
    /// Log records.
    Logs,
    /// Metric points.
    Metrics,
}

impl Signal {
    /// All signals, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Traces, Self::Logs, Self::Metrics];

    /// Returns the name used in `/v1/{signal}`, in file names and in metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Logs => "logs",
            Self::Metrics => "metrics",
        }
    }

    /// Returns the signal's number in journal records. The numbers must not change.
    pub fn number(self) -> u8 {
        match self {
            Self::Traces => 0,
            Self::Logs => 1,
            Self::Metrics => 2,
        }
    }

    /// Returns the signal of a number in a journal; metrics for an unknown number.
    pub fn of_number(number: u8) -> Self {
        match number {
            0 => Self::Traces,
            1 => Self::Logs,
            _ => Self::Metrics,
        }
    }
}

/// The `forward` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Forward {
    /// The downstream; with `null`, telemetry is accepted and scored but not forwarded.
    pub endpoint: Option<String>,
    /// Protocol. Default: `http/protobuf` if the endpoint has port 4318 or a path, else `grpc`.
    pub protocol: Option<Protocol>,
    /// The signals that the backend accepts; other signals are accepted and counted as `discarded`.
    pub signals: Vec<Signal>,
    /// Headers to send, by name. Sections of `scores` inherit them.
    pub headers: BTreeMap<String, Secret>,
    /// Names of received headers to forward with the request.
    pub pass_headers: Vec<String>,
    /// Compression of sent requests.
    pub compression: Compression,
    /// Timeout of one attempt to deliver a request.
    pub timeout: Duration,
    /// Maximum number of requests in flight to one destination, 1 to 256; also for the destinations
    /// of scores.
    #[schemars(range(min = 1, max = 256))]
    pub max_concurrency: usize,
    /// TLS details; an `https://` endpoint needs none.
    pub tls: Option<ClientTls>,
    /// The queue of requests that wait for the downstream.
    pub queue: QueueLimits,
    /// Delays between attempts.
    pub retry: Retry,
}

/// A bounded queue.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueLimits {
    /// Maximum bytes in the queue. `auto` is a share of `memory.limit`: 30 % for telemetry (10 %
    /// with a journal), 10 % for scores (20 % in a judge of a Kafka topic), half of the telemetry's
    /// share for Kafka (all of it without a downstream).
    pub max_size: Amount,
}

/// Delays between attempts to send a request.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Delay after the first failure. Each delay is shortened at random, by up to half.
    pub initial_interval: Duration,
    /// Factor from one delay to the next, 1 to 100.
    pub multiplier: f64,
    /// Maximum delay between two attempts. There is no limit on the number of attempts.
    pub max_interval: Duration,
}

impl Default for Forward {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: None,
            signals: Signal::ALL.to_vec(),
            headers: BTreeMap::new(),
            pass_headers: Vec::new(),
            compression: Compression::None,
            timeout: Duration::from_secs(10),
            max_concurrency: 8,
            tls: None,
            queue: QueueLimits::default(),
            retry: Retry::default(),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            initial_interval: Duration::from_secs(1),
            multiplier: 1.5,
            max_interval: Duration::from_secs(30),
        }
    }
}
