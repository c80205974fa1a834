//! Evaluations in, score spans, events and metrics out. Knows how scores are written down; does not know how they came about.

pub mod score_event;
pub mod score_line;
pub mod score_metrics;
mod score_prometheus;
pub mod score_series;
pub mod score_span;
mod score_wire;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod metrics_tests;
#[cfg(test)]
mod tests;
