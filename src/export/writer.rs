//! The backends whose own APIs can receive scores. Each backend has a file `writer_*`.

use judge::evaluate::Evaluation;

use super::writer_score::{self, BackendScore, WriterRequest};
use super::{writer_datadog, writer_langfuse, writer_mlflow, writer_phoenix};
use crate::config::Writer;

/// Maximum number of scores in one request; a trace with more scores needs several requests.
const MAX_SCORES: usize = 100;

/// Returns the name of a backend's queue, which is also the `shape` label of its metrics.
pub(super) fn queue_name(writer: &Writer) -> &'static str {
    match writer {
        Writer::Phoenix(_) => "writer_phoenix",
        Writer::Mlflow(_) => "writer_mlflow",
        Writer::Langfuse(_) => "writer_langfuse",
        Writer::Datadog(_) => "writer_datadog",
    }
}

/// Returns the requests that write these evaluations of one trace.
pub(super) fn requests(
    writer: &Writer,
    evaluations: &[&Evaluation],
    now_unix_nanos: u64,
) -> Vec<WriterRequest> {
    let scores: Vec<BackendScore<'_>> = evaluations
        .iter()
        .flat_map(|evaluation| writer_score::scores(evaluation))
        .collect();
    let n_at_once = match writer {
        Writer::Phoenix(_) | Writer::Datadog(_) => MAX_SCORES,
        Writer::Langfuse(_) | Writer::Mlflow(_) => 1,
    };
    let requests = scores.chunks(n_at_once).map(|scores| {
        let (targets, body) = match writer {
            Writer::Phoenix(_) => writer_phoenix::request(scores),
            Writer::Datadog(writer) => writer_datadog::request(scores, writer, now_unix_nanos),
            Writer::Langfuse(_) => writer_langfuse::request(&scores[0]),
            Writer::Mlflow(_) => writer_mlflow::request(&scores[0], now_unix_nanos),
        };
        WriterRequest {
            targets,
            body: body.to_string(),
            n_evaluations: scores.iter().filter(|score| score.is_counted).count(),
        }
    });
    requests.collect()
}
