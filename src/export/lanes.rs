//! Writes the requests of each destination of scores to the journal.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use hyper::Method;
use otlp::span::TraceId;

use crate::config::Shape;
use crate::journal::JournalLog;
use crate::telemetry::Telemetry;
use crate::transport::queue::{ApiTarget, CompletionGuard, KeptLane};

/// The names of the queues. The index of a name is the number of its lane, which is written to disk
/// and must not change.
const LANES: [&str; 7] = [
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

/// The log of scores, and the lanes of its queues.
#[derive(Debug, Clone)]
pub(super) struct KeptLanes {
    pub(super) log: JournalLog,
    /// The queue that reports damaged records.
    pub(super) reporter: &'static str,
    /// Dropped when all score spans from before the start are done; backends wait for the drop.
    pub(super) restored: Option<CompletionGuard>,
}

impl KeptLanes {
    pub(super) fn lane(&self, queue: &'static str) -> KeptLane {
        KeptLane {
            number: lane_of(queue),
            reports_damage: queue == self.reporter,
        }
    }
}

/// Returns the lane of a queue.
pub(super) fn lane_of(queue: &str) -> u8 {
    let lane = LANES.iter().position(|name| *name == queue);
    lane.and_then(|lane| u8::try_from(lane).ok())
        .unwrap_or(u8::MAX)
}

/// Returns the number of scores in all queues.
pub fn n_queued(telemetry: &Telemetry) -> u64 {
    let queued = |queue| telemetry.gauge("spanscore_scores_queued", &[("shape", queue)]);
    let queued = LANES.into_iter().map(queued);
    queued.map(|n_scores| n_scores.max(0).cast_unsigned()).sum()
}

/// Encodes the trace and the targets of a backend's request as the metadata of its journal record.
pub(super) fn encode_meta(trace_id: TraceId, targets: &[ApiTarget]) -> Bytes {
    let mut bytes = trace_id.as_bytes().to_vec();
    for target in targets {
        // Methods and paths are constants of this program, and short.
        bytes.put_u8(u8::from(target.method == Method::PATCH));
        bytes.put_u16_le(u16::try_from(target.path.len()).unwrap_or(u16::MAX));
        bytes.put_slice(target.path.as_bytes());
    }
    bytes.into()
}

/// Decodes the metadata; returns `None` for bytes that [`encode_meta`] did not write.
pub(super) fn decode_meta(mut bytes: Bytes) -> Option<(TraceId, Arc<[ApiTarget]>)> {
    let trace_id = TraceId::try_new(bytes.get(..16)?)?;
    bytes.advance(16);
    let mut targets = Vec::new();
    while bytes.len() >= 3 {
        let method = match bytes.get_u8() {
            0 => Method::POST,
            _ => Method::PATCH,
        };
        let n_path = usize::from(bytes.get_u16_le());
        if bytes.len() < n_path {
            return None;
        }
        let path = String::from_utf8(bytes.split_to(n_path).to_vec()).ok()?;
        targets.push(ApiTarget { method, path });
    }
    (!targets.is_empty()).then(|| (trace_id, targets.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::writer;

    #[test]
    fn what_a_request_needs_is_read_back() {
        let trace_id = TraceId::try_new(&[7; 16]).unwrap();
        let targets = [(Method::PATCH, "/a?b=c"), (Method::POST, "/d")];
        let targets = targets.map(|(method, path)| ApiTarget {
            method,
            path: path.to_owned(),
        });
        let meta = encode_meta(trace_id, &targets);
        let (read, at) = decode_meta(meta.clone()).unwrap();
        assert_eq!((read, &at[..]), (trace_id, &targets[..]));
        for n_bytes in [0, 15, 16, 20] {
            assert_eq!(decode_meta(meta.slice(..n_bytes)), None, "{n_bytes}");
        }
    }

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
