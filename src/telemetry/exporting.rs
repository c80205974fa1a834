//! What happened to scores on their way out.

use super::Telemetry;

/// Scores wait to be delivered.
#[derive(Debug)]
pub struct ScoresQueued {
    /// `score_spans`, `score_events` or `score_metrics`.
    pub shape: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl ScoresQueued {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .metrics
            .scores_queued
            .add([self.shape], self.n_items.cast_signed());
    }
}

/// Queued scores were acknowledged by their destination.
#[derive(Debug)]
pub struct ScoresSent {
    /// `score_spans`, `score_events` or `score_metrics`.
    pub shape: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl ScoresSent {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .metrics
            .scores_queued
            .add([self.shape], -self.n_items.cast_signed());
        telemetry
            .metrics
            .scores_sent
            .add([self.shape], self.n_items);
    }
}

/// Queued scores were given up.
#[derive(Debug)]
pub struct ScoresDropped {
    /// `score_spans`, `score_events` or `score_metrics`.
    pub shape: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
    /// `queue_full`, `refused`, `rejected`, `too_large`, `shutdown`, …
    pub reason: &'static str,
}

impl ScoresDropped {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .metrics
            .scores_queued
            .add([self.shape], -self.n_items.cast_signed());
        telemetry
            .metrics
            .scores_dropped
            .add([self.shape, self.reason], self.n_items);
    }
}

/// Evaluations were not printed: whoever reads standard output is too slow.
#[derive(Debug)]
pub struct ScoresUnprinted {
    /// Evaluations.
    pub n_items: u64,
    /// `queue_full` or `shutdown`.
    pub reason: &'static str,
}

impl ScoresUnprinted {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .metrics
            .scores_dropped
            .add(["print", self.reason], self.n_items);
    }
}

/// One who listens to `GET /v1/scores` is too slow: older lines had to go, which it is told.
#[derive(Debug)]
pub struct ListenerBehind {
    /// Evaluations.
    pub n_items: u64,
}

impl ListenerBehind {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .metrics
            .scores_dropped
            .add(["listener", "queue_full"], self.n_items);
    }
}

/// A queue of scores is full, and drops its oldest until its destination takes something again.
#[derive(Debug)]
pub struct ScoresOverflow {
    /// `score_spans`, `score_events`, `score_metrics` or the name of a writer.
    pub shape: &'static str,
}

impl ScoresOverflow {
    /// Log it; what is dropped is counted one by one.
    pub fn emit(self, _: &Telemetry) {
        tracing::warn!(
            shape = self.shape,
            "the queue of scores is full: the oldest are dropped until their destination takes some"
        );
    }
}

/// An enabled shape of scores has nowhere to go.
#[derive(Debug)]
pub struct ScoreShapeOff {
    /// `span`, `event` or `metrics`.
    pub shape: &'static str,
    /// Why, and what to do about it.
    pub why: String,
}

impl ScoreShapeOff {
    /// Log it.
    pub fn emit(self, _: &Telemetry) {
        let Self { shape, why } = self;
        tracing::info!(shape, "scores are not sent as {shape}: {why}");
    }
}

/// Names in the labels of the scores' metrics became too many, and the rest is `_other`.
#[derive(Debug)]
pub struct ScoreLabelsFolded {
    /// The limit: a setting, or a fixed one in words.
    pub limit: &'static str,
}

impl ScoreLabelsFolded {
    /// Log it; told once for each limit.
    pub fn emit(self, _: &Telemetry) {
        tracing::warn!(
            limit = self.limit,
            "the limit of metric labels is reached: further names are counted as `_other`"
        );
    }
}
