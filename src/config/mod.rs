//! The configuration: its sections, defaults and checks. This module reads no files and no
//! environment: `cli` reads both and passes the texts and variables to it.

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

/// The whole configuration (docs/design.md#configuration). Every value has passed its checks.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Ports that receive telemetry.
    pub receivers: Receivers,
    /// Destination of the original telemetry.
    pub forward: Forward,
    /// Scoring: on or off, its queue and threads.
    pub scoring: Scoring,
    /// Timers and limits that close traces.
    pub assemble: Assemble,
    /// Recognition of tool calls.
    #[serde(with = "tools")]
    #[schemars(with = "tools::Section")]
    pub tools: extract::Tools,
    /// The criteria that judge traces.
    pub criteria: Vec<Criterion>,
    /// Globs of criteria files, relative to this file; each contains only `criteria:`. Names are
    /// unique over all files.
    pub criteria_files: Vec<String>,
    /// Expectations of single runs.
    pub expectations: RunExpectations,
    /// Display of values in explanations.
    pub explain: judge::evaluate::Explain,
    /// Destinations of scores.
    pub scores: Scores,
    /// The admin port.
    pub admin: Admin,
    /// Reloading of configuration files.
    pub reload: Reload,
    /// The memory to divide.
    pub memory: Memory,
    /// The journal of acknowledged requests on disk.
    pub journal: Journal,
    /// Writing spans to Apache Kafka, and judging spans of a topic.
    pub kafka: Kafka,
    /// Deadlines and rules of a stop.
    pub shutdown: Shutdown,
    /// The log of spanscore itself.
    pub log: Log,
    /// The source of each value.
    #[serde(skip)]
    pub origins: Origins,
}

#[cfg(test)]
mod tests;
