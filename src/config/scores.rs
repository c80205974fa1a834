//! Text in, where the scores go out: `scores`. Knows the keys and defaults; does not know what a
//! score looks like on the wire.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forward::{ClientTls, Compression, Protocol, Queue};
use super::units::{Duration, Secret};
use super::writers::Writer;

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
    /// Backends whose own scores the evaluations become as well, each kind at most once.
    pub writers: Vec<Writer>,
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
            copy_attributes: ["gen_ai.agent.name", "gen_ai.conversation.id", "session.id"]
                .map(str::to_owned)
                .to_vec(),
            span: SpanScores::default(),
            event: EventScores::default(),
            metrics: MetricScores::default(),
            writers: Vec::new(),
        }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            max_evaluations: 512,
            max_delay: Duration::from_secs(1),
        }
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
        Self {
            enabled: true,
            endpoint: None,
            protocol: None,
            headers: None,
            compression: None,
            timeout: None,
            tls: None,
        }
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
