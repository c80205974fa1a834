//! Text in, a checked [`Config`] or located errors out. Knows every key of the configuration; reads no file, no
//! environment and no clock itself: `cli` hands in texts and variables.

mod units;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::evaluate::Criterion;
use crate::extract;

pub use units::{Amount, ByteSize, Duration, Secret};

/// The whole configuration (DESIGN 9). Every value has passed its own checks.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where telemetry comes in.
    pub receivers: Receivers,
    /// Where the original telemetry goes.
    pub forward: Forward,
    /// Whether and how much to score.
    pub scoring: Scoring,
    /// When a trace is done.
    pub assemble: Assemble,
    /// How tool calls are recognised.
    pub tools: extract::Tools,
    /// What every trace is judged by.
    pub criteria: Vec<Criterion>,
    /// How much of values explanations show.
    pub explain: crate::evaluate::Explain,
    /// Where scores go.
    pub scores: Scores,
    /// The admin port.
    pub admin: Admin,
    /// Memory to share out.
    pub memory: Memory,
    /// How to stop.
    pub shutdown: Shutdown,
    /// Our own log.
    pub log: Log,
}

/// `receivers`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Receivers {
    /// OTLP, the one receiver there is.
    pub otlp: OtlpReceiver,
}

/// `receivers.otlp`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpReceiver {
    /// OTLP/gRPC.
    pub grpc: GrpcListener,
    /// OTLP/HTTP.
    pub http: HttpListener,
    /// Largest request, after decompression.
    pub max_request_size: ByteSize,
    /// Most bytes of requests being received at once.
    pub max_in_flight: Amount,
    /// TLS on both ports.
    pub tls: Option<ServerTls>,
}

/// `receivers.otlp.grpc`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcListener {
    /// Listen at all?
    pub enabled: bool,
    /// Address and port.
    pub listen: SocketAddr,
}

/// `receivers.otlp.http`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpListener {
    /// Listen at all?
    pub enabled: bool,
    /// Address and port.
    pub listen: SocketAddr,
    /// Origins that browsers may send from; `*` for any.
    pub cors_allowed_origins: Vec<String>,
}

/// TLS where we listen.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerTls {
    /// Certificate chain, PEM.
    pub cert_file: PathBuf,
    /// Private key, PEM.
    pub key_file: PathBuf,
    /// Authorities of client certificates, PEM; with it, clients must show one (mTLS).
    #[serde(default)]
    pub client_ca_file: Option<PathBuf>,
}

/// TLS where we connect.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientTls {
    /// Authorities to trust instead of the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// Our certificate chain, PEM.
    pub cert_file: Option<PathBuf>,
    /// Our private key, PEM.
    pub key_file: Option<PathBuf>,
    /// The name to expect in the server's certificate, where it differs from the endpoint's host.
    pub server_name: Option<String>,
    /// Accept any certificate. For tests only.
    pub insecure_skip_verify: bool,
}

/// OTLP transport protocols (the words of `OTEL_EXPORTER_OTLP_PROTOCOL`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Protocol {
    /// OTLP/gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP/HTTP with protobuf bodies.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// Compression on the way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// As received, after decompression.
    #[default]
    None,
    /// gzip, level 1.
    Gzip,
    /// zstd, level 1.
    Zstd,
}

/// The three OTLP signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema)]
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
    /// All three.
    pub const ALL: [Self; 3] = [Self::Traces, Self::Logs, Self::Metrics];

    /// The word of `/v1/{signal}`, of file names and of metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Logs => "logs",
            Self::Metrics => "metrics",
        }
    }
}

/// `forward`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Forward {
    /// The downstream; `null` accepts and scores without forwarding.
    pub endpoint: Option<String>,
    /// Protocol; left out, port 4318 or a path in the endpoint means `http/protobuf`, anything else `grpc`.
    pub protocol: Option<Protocol>,
    /// What the backend takes; other signals are accepted and counted as `discarded`.
    pub signals: Vec<Signal>,
    /// Headers to send.
    pub headers: BTreeMap<String, Secret>,
    /// Names of request headers to hand on.
    pub pass_headers: Vec<String>,
    /// Compression.
    pub compression: Compression,
    /// Timeout of one request.
    pub timeout: Duration,
    /// TLS details; an `https://` endpoint needs none.
    pub tls: Option<ClientTls>,
    /// The queue.
    pub queue: Queue,
    /// When to try again.
    pub retry: Retry,
}

/// A bounded queue.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Most bytes in it.
    pub max_size: Amount,
}

/// When to try again what a peer could not take.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// First wait.
    pub initial_interval: Duration,
    /// Each wait is this many times the one before.
    pub multiplier: f64,
    /// Longest wait.
    pub max_interval: Duration,
}

/// `scoring`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scoring {
    /// `false` makes spanscore a plain forwarder that still validates and counts.
    pub enabled: bool,
    /// Most bytes waiting to be scored.
    pub queue: Amount,
}

/// `assemble`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Assemble {
    /// Quiet time after a top span has ended.
    pub settle: Duration,
    /// Longest time that new spans can put off the settling.
    pub max_settle: Duration,
    /// Quiet time where the top span's parent is remote.
    pub settle_remote: Duration,
    /// Quiet time after which a trace without an ended root is closed.
    pub inactive: Duration,
    /// How far before our memory of traces a top span must have ended to make its trace a recording sent again; 0 turns the guard off.
    pub restart_guard: Duration,
    /// Longest time a trace stays open.
    pub expired: Duration,
    /// Most spans of one trace.
    pub span_limit: usize,
    /// Most bytes of kept facts of one trace; never more than a tenth of `open.max_size`.
    pub size_limit: ByteSize,
    /// Open traces.
    pub open: OpenTraces,
    /// Recently closed traces, remembered for late spans.
    pub recent: RecentTraces,
}

/// `assemble.open`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenTraces {
    /// Most open traces.
    pub max_traces: usize,
    /// Most bytes of them.
    pub max_size: Amount,
}

/// `assemble.recent`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecentTraces {
    /// Most remembered traces.
    pub max_traces: usize,
    /// Most bytes of them.
    pub max_size: Amount,
    /// How long they are remembered.
    pub ttl: Duration,
}

/// `scores`. What a shape leaves out it takes from here, and what is left out here from `forward`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scores {
    /// Where scores go; left out, to `forward.endpoint`.
    pub endpoint: Option<String>,
    /// Protocol.
    pub protocol: Option<Protocol>,
    /// Headers to send.
    pub headers: Option<BTreeMap<String, Secret>>,
    /// Compression.
    pub compression: Option<Compression>,
    /// Timeout of one request.
    pub timeout: Option<Duration>,
    /// TLS details.
    pub tls: Option<ClientTls>,
    /// The queue.
    pub queue: Queue,
    /// How many evaluations travel together.
    pub batch: Batch,
    /// Attributes of the evaluated span to copy.
    pub copy_attributes: Vec<String>,
    /// Score spans.
    pub span: SpanScores,
    /// `gen_ai.evaluation.result` events.
    pub event: EventScores,
    /// Metrics.
    pub metrics: MetricScores,
}

/// `scores.batch`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Batch {
    /// Most evaluations in one request.
    pub max_evaluations: usize,
    /// Longest wait for more.
    pub max_delay: Duration,
}

/// What becomes of the score span when a late span changes an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnRevision {
    /// A new span that links to the one it replaces.
    #[default]
    NewSpan,
    /// A span with the same id, for backends that overwrite.
    SameId,
    /// No further span.
    None,
}

/// Status of the score span of a failed evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StatusOnFail {
    /// UNSET: the judgement itself went well.
    #[default]
    Unset,
    /// ERROR, for people who want red spans.
    Error,
}

/// `scores.span`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SpanScores {
    /// Send score spans?
    pub enabled: bool,
    /// Where to.
    pub endpoint: Option<String>,
    /// Protocol.
    pub protocol: Option<Protocol>,
    /// Headers to send.
    pub headers: Option<BTreeMap<String, Secret>>,
    /// Compression.
    pub compression: Option<Compression>,
    /// Timeout of one request.
    pub timeout: Option<Duration>,
    /// TLS details.
    pub tls: Option<ClientTls>,
    /// What becomes of the span when the evaluation changes.
    pub on_revision: OnRevision,
    /// Status of a failed evaluation's span.
    pub status_on_fail: StatusOnFail,
    /// Share of the passes that become spans, 0 to 1; every fail does.
    pub sample_pass: f64,
}

/// `scores.event`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EventScores {
    /// Send events? Off for backends that take traces only.
    pub enabled: bool,
    /// Where to.
    pub endpoint: Option<String>,
    /// Protocol.
    pub protocol: Option<Protocol>,
    /// Headers to send.
    pub headers: Option<BTreeMap<String, Secret>>,
    /// Compression.
    pub compression: Option<Compression>,
    /// Timeout of one request.
    pub timeout: Option<Duration>,
    /// TLS details.
    pub tls: Option<ClientTls>,
}

/// Temporality of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Temporality {
    /// Sums since the start of the process.
    #[default]
    Cumulative,
    /// Sums since the last export.
    Delta,
}

/// `scores.metrics`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricScores {
    /// Send metrics?
    pub enabled: bool,
    /// Where to.
    pub endpoint: Option<String>,
    /// Protocol.
    pub protocol: Option<Protocol>,
    /// Headers to send.
    pub headers: Option<BTreeMap<String, Secret>>,
    /// Compression.
    pub compression: Option<Compression>,
    /// Timeout of one request.
    pub timeout: Option<Duration>,
    /// TLS details.
    pub tls: Option<ClientTls>,
    /// Time between exports.
    pub interval: Duration,
    /// Temporality.
    pub temporality: Temporality,
    /// Most services told apart; the rest is `_other`.
    pub max_services: usize,
    /// Most agents told apart; the rest is `_other`.
    pub max_agents: usize,
}

/// `admin`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address and port.
    pub listen: SocketAddr,
}

/// `memory`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// All the memory we may use; `auto` is the cgroup's limit, else 512 MiB.
    pub limit: Amount,
}

/// `shutdown`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// Longest time to take after SIGTERM.
    pub deadline: Duration,
    /// Quiet time after which the doors close.
    pub quiet: Duration,
}

/// Levels of our own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only what is broken.
    Error,
    /// What needs a look.
    Warn,
    /// Starts, stops, changes of state.
    #[default]
    Info,
    /// What each trace did.
    Debug,
    /// Everything.
    Trace,
}

/// Forms of our own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    /// Text.
    Text,
    /// JSON lines.
    Json,
}

/// `log`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Level.
    pub level: LogLevel,
    /// Form.
    pub format: LogFormat,
}

// === defaults (DESIGN 9) ===

impl Default for OtlpReceiver {
    fn default() -> Self {
        Self {
            grpc: GrpcListener::default(),
            http: HttpListener::default(),
            max_request_size: ByteSize::mib(64),
            max_in_flight: Amount::Auto,
            tls: None,
        }
    }
}

impl Default for GrpcListener {
    fn default() -> Self {
        Self { enabled: true, listen: SocketAddr::from(([127, 0, 0, 1], 4317)) }
    }
}

impl Default for HttpListener {
    fn default() -> Self {
        Self { enabled: true, listen: SocketAddr::from(([127, 0, 0, 1], 4318)), cors_allowed_origins: Vec::new() }
    }
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
            tls: None,
            queue: Queue::default(),
            retry: Retry::default(),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { initial_interval: Duration::from_secs(1), multiplier: 1.5, max_interval: Duration::from_secs(30) }
    }
}

impl Default for Scoring {
    fn default() -> Self {
        Self { enabled: true, queue: Amount::Auto }
    }
}

impl Default for Assemble {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(5),
            max_settle: Duration::from_secs(15),
            settle_remote: Duration::from_secs(15),
            inactive: Duration::from_secs(180),
            restart_guard: Duration::from_secs(120),
            expired: Duration::from_secs(3_600),
            span_limit: 32_000,
            size_limit: ByteSize::mib(16),
            open: OpenTraces::default(),
            recent: RecentTraces::default(),
        }
    }
}

impl Default for OpenTraces {
    fn default() -> Self {
        Self { max_traces: 100_000, max_size: Amount::Auto }
    }
}

impl Default for RecentTraces {
    fn default() -> Self {
        Self { max_traces: 100_000, max_size: Amount::Auto, ttl: Duration::from_secs(3_600) }
    }
}

impl Default for Scores {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: None,
            headers: None,
            compression: None,
            timeout: None,
            tls: None,
            queue: Queue::default(),
            batch: Batch::default(),
            copy_attributes: ["gen_ai.agent.name", "gen_ai.conversation.id", "session.id"].map(str::to_owned).to_vec(),
            span: SpanScores::default(),
            event: EventScores::default(),
            metrics: MetricScores::default(),
        }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self { max_evaluations: 512, max_delay: Duration::from_secs(1) }
    }
}

impl Default for SpanScores {
    fn default() -> Self {
        Self {
            enabled: true,
            endpoint: None,
            protocol: None,
            headers: None,
            compression: None,
            timeout: None,
            tls: None,
            on_revision: OnRevision::NewSpan,
            status_on_fail: StatusOnFail::Unset,
            sample_pass: 1.0,
        }
    }
}

impl Default for EventScores {
    fn default() -> Self {
        Self { enabled: true, endpoint: None, protocol: None, headers: None, compression: None, timeout: None, tls: None }
    }
}

impl Default for MetricScores {
    fn default() -> Self {
        Self {
            enabled: true,
            endpoint: None,
            protocol: None,
            headers: None,
            compression: None,
            timeout: None,
            tls: None,
            interval: Duration::from_secs(60),
            temporality: Temporality::Cumulative,
            max_services: 200,
            max_agents: 500,
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 13133)) }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(20), quiet: Duration::from_secs(1) }
    }
}

// === what the shell is handed: every default resolved ===

/// One OTLP peer to send to, with every default filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Destination {
    /// Which setting or variable it came from, for messages: `forward.endpoint`, `OTEL_EXPORTER_OTLP_ENDPOINT`, `scores.span.endpoint`.
    pub origin: String,
    /// `http` or `https`, host, port and base path.
    pub endpoint: Endpoint,
    /// Protocol.
    pub protocol: Protocol,
    /// Headers to send, secrets resolved.
    pub headers: Vec<(String, Secret)>,
    /// Compression.
    pub compression: Compression,
    /// Timeout of one request.
    pub timeout: std::time::Duration,
    /// TLS details.
    pub tls: ClientTls,
    /// When to try again.
    pub retry: Backoff,
}

/// A parsed endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `https`?
    pub tls: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port, always explicit (4317 for gRPC, 4318 for HTTP, or the scheme's, where none was given).
    pub port: u16,
    /// Base path, empty or starting with `/` and not ending in one.
    pub base_path: String,
}

/// Exponential backoff.
#[derive(Debug, Clone, PartialEq)]
pub struct Backoff {
    /// First wait.
    pub initial: std::time::Duration,
    /// Growth.
    pub multiplier: f64,
    /// Longest wait.
    pub max: std::time::Duration,
}

/// `memory.limit` shared out, in bytes; absolute settings override their share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// What all shares are shares of.
    pub limit: usize,
    /// 30 %: the forward queue.
    pub forward_queue: usize,
    /// 10 %: requests being received.
    pub in_flight: usize,
    /// 20 %: open traces.
    pub open: usize,
    /// 10 %: recently closed traces.
    pub recent: usize,
    /// 10 %: scores to be sent.
    pub scores: usize,
    /// 10 %: spans waiting to be scored.
    pub scoring_queue: usize,
}
