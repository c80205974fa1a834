//! The `scores` section: where scores go and how they look.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forward::QueueLimits;
use super::peer::OtlpPeer;
use super::units::Duration;
use super::writers::Writer;

/// `scores`. A key that a shape leaves out is inherited from here, and then from `forward`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scores {
    /// Endpoint and protocol.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: OtlpPeer,
    /// The queue.
    pub queue: QueueLimits,
    /// Size and delay of batches of evaluations.
    pub batch: Batching,
    /// Attributes of the evaluated span to copy.
    pub copy_attributes: Vec<String>,
    /// Add `gen_ai.evaluation.evaluator.*` to events? Proposed names, which may change.
    pub evaluator_attributes: bool,
    /// Score spans.
    pub span: SpanScores,
    /// `gen_ai.evaluation.result` events.
    pub event: EventScores,
    /// Metrics.
    pub metrics: MetricScores,
    /// Backends whose own score APIs the scores are written to as well, each kind at most once.
    pub writers: Vec<Writer>,
}

/// `scores.batch`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Batching {
    /// Most evaluations in one request.
    pub max_evaluations: usize,
    /// Longest wait for more.
    pub max_delay: Duration,
}

/// Change of a score span when a late span changes its evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnRevision {
    /// A new span that links to the one it replaces.
    #[default]
    NewSpan,
    /// A span with the id of the first one, for backends that overwrite.
    SameId,
    /// No further span.
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

/// `scores.span`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SpanScores {
    /// Send score spans?
    pub enabled: bool,
    /// Endpoint and protocol.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: OtlpPeer,
    /// Change of the span when its evaluation changes.
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

/// `scores.metrics`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricScores {
    /// Send metrics?
    pub enabled: bool,
    /// Endpoint and protocol.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: OtlpPeer,
    /// Time between exports.
    pub interval: Duration,
    /// Temporality.
    pub temporality: Temporality,
    /// Most services with series of their own; the rest is `_other`.
    pub max_services: usize,
    /// Most agents with series of their own; the rest is `_other`.
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
