//! The configuration: its sections, defaults and checks. Reads no file, environment or clock
//! itself: `cli` passes in texts and variables.

mod load;

mod assemble;
mod destination;
mod expectations;
mod forward;
mod journal;
mod kafka;
mod peer;
mod receivers;
mod refused_keys;
mod runtime;
mod scores;
mod tools;
mod units;
mod writers;

mod api_body;
mod check;
mod examples;
mod foreign_formats;
mod hints;
mod keys;
mod learned;
mod print;
mod reload;
mod secrets;
mod spelling;
mod starter;
mod variables;

use judge::evaluate::Criterion;
use judge::extract;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use api_body::{criteria, criterion, document, document_compiled};
pub use assemble::{Assemble, OpenTraces, RecentTraces, Scoring};
pub use destination::{Backoff, Destination, Endpoint, Off, Shape};
pub use examples::examples;
pub use expectations::RunExpectations;
pub use forward::{ClientTls, Compression, Forward, Protocol, QueueLimits, Retry, Signal};
pub use journal::Journal;
pub use kafka::{
    Kafka, KafkaCompression, KafkaPartitioner, KafkaProtocol, KafkaRead, KafkaRecords, KafkaStart,
    KafkaTls, KafkaWrite, Sasl, SaslMechanism,
};
pub(crate) use keys::of_types as schema_of_types;
pub use keys::schema;
pub use learned::{LearnedGroup, group_of_run, group_text, learned_criteria};
pub use load::{Loaded, Origins, Sources};
pub use peer::OtlpPeer;
pub use receivers::{
    Admin, AdminPage, GrpcListener, HttpListener, OtlpReceiver, PageLink, ReceivedScores,
    Receivers, ServerTls,
};
pub use runtime::{
    AtStart, AtStop, Bound, Budgets, Log, LogFormat, LogLevel, Memory, Reload, Shutdown,
};
pub use scores::{
    Batching, EventScores, MetricScores, OnRevision, Scores, SpanScores, StatusOnFail, Temporality,
};
pub use spelling::Spelling;
pub use starter::{proposal, starter, starter_criteria};
pub use units::{Amount, ByteSize, Duration, Secret, Threads};
pub use writers::{DatadogWriter, LangfuseWriter, TokenWriter, Writer, WriterPeer};

pub use located::{Files, Problem, Problems, Severity, Spot, to_yaml as yaml};

/// The whole configuration (docs/design.md#configuration). Every value has passed its own checks.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where telemetry comes in.
    pub receivers: Receivers,
    /// Where the original telemetry goes.
    pub forward: Forward,
    /// Whether and how much to score.
    pub scoring: Scoring,
    /// When a trace counts as complete.
    pub assemble: Assemble,
    /// How tool calls are recognised.
    #[serde(with = "tools")]
    #[schemars(with = "tools::Section")]
    pub tools: extract::Tools,
    /// The criteria that every trace is judged by.
    pub criteria: Vec<Criterion>,
    /// Globs of further files beside this one; each holds `criteria:` only. Names are unique over
    /// all.
    pub criteria_files: Vec<String>,
    /// Expectations of single runs.
    pub expectations: RunExpectations,
    /// How much of a value an explanation shows.
    pub explain: judge::evaluate::Explain,
    /// Where scores go.
    pub scores: Scores,
    /// The admin port.
    pub admin: Admin,
    /// When configuration files are read again.
    pub reload: Reload,
    /// The memory to share out.
    pub memory: Memory,
    /// Whether acknowledged requests are kept on disk.
    pub journal: Journal,
    /// Whether spans are written to Apache Kafka.
    pub kafka: Kafka,
    /// How to stop.
    pub shutdown: Shutdown,
    /// Our own log.
    pub log: Log,
    /// Where each value came from.
    #[serde(skip)]
    pub origins: Origins,
}

#[cfg(test)]
mod tests;
