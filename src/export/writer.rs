//! The backends whose own APIs can receive scores. Each backend has a file `writer_*`.

use judge::evaluate::Evaluation;
use serde_json::Value;

use super::writer_score::{self, BackendScore, WriterRequest, WriterTarget};
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
    let batched = |request: &dyn Fn(&[BackendScore<'_>]) -> (WriterTarget, Value)| {
        let requests = scores.chunks(MAX_SCORES).map(|scores| {
            let (target, body) = request(scores);
            WriterRequest {
                targets: vec![target],
                body: body.to_string(),
                n_evaluations: n_counted(scores),
            }
        });
        requests.collect()
    };
    let single = |request: &dyn Fn(&BackendScore<'_>) -> (Vec<WriterTarget>, Value)| {
        let requests = scores.iter().map(|score| {
            let (targets, body) = request(score);
            WriterRequest {
                targets,
                body: body.to_string(),
                n_evaluations: n_counted(std::slice::from_ref(score)),
            }
        });
        requests.collect()
    };
    match writer {
        Writer::Phoenix(_) => batched(&writer_phoenix::request),
        Writer::Datadog(writer) => {
            batched(&|scores| writer_datadog::request(scores, writer, now_unix_nanos))
        }
        Writer::Langfuse(_) => single(&writer_langfuse::request),
        Writer::Mlflow(_) => single(&|score| writer_mlflow::request(score, now_unix_nanos)),
    }
}

fn n_counted(scores: &[BackendScore<'_>]) -> usize {
    scores.iter().filter(|score| score.is_counted).count()
}
