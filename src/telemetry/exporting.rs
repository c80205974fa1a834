//! Events of scores on their way to their destinations.

use super::Telemetry;

/// Scores were queued for delivery.
#[derive(Debug)]
pub struct ScoresQueued {
    /// `score_spans`, `score_events` or `score_metrics`.
    pub shape: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl ScoresQueued {
    /// Counts it.
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
    /// Counts it.
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

/// Queued scores were dropped.
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
    /// Counts it.
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

/// Evaluations were not printed because the reader of standard output is too slow.
#[derive(Debug)]
pub struct ScoresUnprinted {
    /// Evaluations.
    pub n_items: u64,
    /// `queue_full` or `shutdown`.
    pub reason: &'static str,
}

impl ScoresUnprinted {
    /// Counts it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .metrics
            .scores_dropped
            .add(["print", self.reason], self.n_items);
    }
}

/// A listener of `GET /v1/scores` is too slow: its oldest lines were dropped, and a line tells it
/// how many.
#[derive(Debug)]
pub struct ListenerBehind {
    /// Evaluations.
    pub n_items: u64,
}

impl ListenerBehind {
    /// Counts it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .metrics
            .scores_dropped
            .add(["listener", "queue_full"], self.n_items);
    }
}

/// A score queue is full and drops its oldest scores until its destination accepts some again.
#[derive(Debug)]
pub struct ScoresOverflow {
    /// `score_spans`, `score_events`, `score_metrics` or the name of a writer.
    pub shape: &'static str,
}

impl ScoresOverflow {
    /// Logs it; [`ScoresDropped`] counts the drops.
    pub fn emit(self, _: &Telemetry) {
        tracing::warn!(
            shape = self.shape,
            "the score queue is full; the oldest scores are dropped until the destination accepts \
             some again"
        );
    }
}

/// An enabled shape of scores has no destination.
#[derive(Debug)]
pub struct ScoreShapeOff {
    /// `span`, `event` or `metrics`.
    pub shape: &'static str,
    /// The reason and the remedy.
    pub why: String,
}

impl ScoreShapeOff {
    /// Logs it.
    pub fn emit(self, _: &Telemetry) {
        let Self { shape, why } = self;
        tracing::info!(shape, "scores are not sent as {shape}: {why}");
    }
}

/// The labels of the score metrics reached a limit; further names become `_other`.
#[derive(Debug)]
pub struct ScoreLabelsFolded {
    /// The name of the setting, or the description of a fixed limit.
    pub limit: &'static str,
}

impl ScoreLabelsFolded {
    /// Logs it, once for each limit.
    pub fn emit(self, _: &Telemetry) {
        tracing::warn!(
            limit = self.limit,
            "metric label limit reached; further names are counted as `_other`"
        );
    }
}
