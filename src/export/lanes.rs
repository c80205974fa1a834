//! Maps each queue of scores to its lane in the journal.

use crate::config::Shape;
use crate::telemetry::Telemetry;

/// The names of the queues. The index of a name is the number of its lane, which is written to disk
/// and must not change.
pub(super) const LANES: [&str; 7] = [
    "score_spans",
    "score_events",
    "score_metrics",
    "writer_phoenix",
    "writer_mlflow",
    "writer_langfuse",
    "writer_datadog",
];

/// Returns the name of a shape's queue, which is also the `shape` label of its metrics.
pub(super) fn queue_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Span => "score_spans",
        Shape::Event => "score_events",
        Shape::Metrics => "score_metrics",
    }
}

pub(super) fn lane_of(queue: &str) -> u8 {
    let lane = LANES.iter().position(|name| *name == queue);
    lane.and_then(|lane| u8::try_from(lane).ok())
        .unwrap_or(u8::MAX)
}

pub fn n_queued(telemetry: &Telemetry) -> u64 {
    let queued = |queue| telemetry.gauge("spanscore_scores_queued", &[("shape", queue)]);
    let queued = LANES.into_iter().map(queued);
    queued.map(|n_scores| n_scores.max(0).cast_unsigned()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::writer;

    #[test]
    fn every_writer_has_a_lane() {
        use crate::config::{DatadogWriter, LangfuseWriter, TokenWriter, Writer};
        let writers = [
            Writer::Phoenix(TokenWriter::default()),
            Writer::Mlflow(TokenWriter::default()),
            Writer::Langfuse(LangfuseWriter::default()),
            Writer::Datadog(DatadogWriter::default()),
        ];
        let lanes = writers.map(|writer| lane_of(writer::queue_name(&writer)));
        assert_eq!(lanes, [3, 4, 5, 6]);
    }
}
