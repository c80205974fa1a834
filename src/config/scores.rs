//! The `scores` section: destinations and form of scores.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forward::QueueLimits;
use super::peer::OtlpPeer;
use super::units::Duration;
use super::writers::Writer;

/// `scores`. A shape inherits missing keys from here, and then from `forward`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scores {
    /// Endpoint and protocol.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: OtlpPeer,
    /// The queues of scores, which share `max_size` equally; a full queue drops its oldest scores.
    pub queue: QueueLimits,
    /// Size and delay of batches of evaluations.
    pub batch: Batching,
    /// Attributes of the evaluated span to copy to score spans and events.
    pub copy_attributes: Vec<String>,
    /// Add `gen_ai.evaluation.evaluator.*` to events. The names are proposed and may change.
    pub evaluator_attributes: bool,
    /// Score spans.
    pub span: SpanScores,
    /// `gen_ai.evaluation.result` events.
    pub event: EventScores,
    /// Metrics.
    pub metrics: MetricScores,
    /// Backends whose own score APIs also receive the scores, each kind at most once.
    pub writers: Vec<Writer>,
}

/// The `scores.batch` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Batching {
    /// Maximum number of evaluations in one request, at least 1.
    pub max_evaluations: usize,
    /// Maximum time that an evaluation waits for further ones before its request is sent.
    pub max_delay: Duration,
}

/// Ways to send the score span of a changed evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnRevision {
    /// Send a new span with a link to the replaced span.
    #[default]
    NewSpan,
    /// Send a span with the id of the first one, for backends that overwrite.
    SameId,
    /// Send no further span.
    None,
}

/// Status of the score span of a failed evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StatusOnFail {
    /// UNSET: the judgement itself succeeded.
    #[default]
    Unset,
    /// ERROR with the explanation as its message, for red spans.
    Error,
}

/// The `scores.span` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SpanScores {
    /// Send each evaluation as a span `evaluation {criterion}` below the evaluated span.
    pub enabled: bool,
    /// Endpoint and protocol.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: OtlpPeer,
    /// Handling of the score span of an evaluation that a late span has changed.
    pub on_revision: OnRevision,
    /// Status of a failed evaluation's span.
    pub status_on_fail: StatusOnFail,
    /// Share of the passed evaluations that become spans, 0 to 1.
    pub sample_pass: f64,
}

/// The `scores.event` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EventScores {
    /// Send each evaluation as an event, a log record. Turn it off for backends that accept only
    /// traces.
    pub enabled: bool,
    /// Endpoint and protocol.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: OtlpPeer,
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

/// The `scores.metrics` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricScores {
    /// Send `spanscore.evaluations` and other metrics of scores. `/metrics` has them in any case.
    pub enabled: bool,
    /// Endpoint and protocol.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: OtlpPeer,
    /// Time between two exports, at least 10 ms.
    pub interval: Duration,
    /// Sums since the start (`cumulative`), or since the last export (`delta`).
    pub temporality: Temporality,
    /// Maximum number of services with a separate series, at least 1; further services are
    /// `_other`.
    pub max_services: usize,
    /// Maximum number of agents with a separate series, at least 1; further agents are `_other`.
    pub max_agents: usize,
}

impl Default for Scores {
    fn default() -> Self {
        Self {
            peer: OtlpPeer::default(),
            queue: QueueLimits::default(),
            batch: Batching::default(),
            copy_attributes: ["gen_ai.agent.name", "gen_ai.conversation.id", "session.id"]
                .map(str::to_owned)
                .to_vec(),
            evaluator_attributes: false,
            span: SpanScores::default(),
            event: EventScores::default(),
            metrics: MetricScores::default(),
            writers: Vec::new(),
        }
    }
}

impl Default for Batching {
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
            peer: OtlpPeer::default(),
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
            peer: OtlpPeer::default(),
        }
    }
}

impl Default for MetricScores {
    fn default() -> Self {
        Self {
            enabled: true,
            peer: OtlpPeer::default(),
            interval: Duration::from_secs(60),
            temporality: Temporality::Cumulative,
            max_services: 200,
            max_agents: 500,
        }
    }
}
