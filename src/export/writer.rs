//! Evaluations of one trace in, the calls of a backend's own API out that make them scores of that
//! backend. Pure. Knows what is written and under which key; each backend's spelling is a
//! `writer_*` beside it; does not know when or how a call is made.
//!
//! No backend makes a score of a score span by itself. A score is written under a key of its own,
//! the same over retries, replicas and revisions, so that whoever writes it again overwrites it.

use serde_json::{Map, Value, json};

use super::score_span::score_key;
use super::{writer_datadog, writer_langfuse, writer_mlflow, writer_phoenix};
use crate::config::Writer;
use crate::evaluate::Evaluation;
use crate::extract::Trajectory;
use crate::span::{SpanId, TraceId};

/// Most scores in one call; a trace with more takes several.
const MAX_SCORES: usize = 100;

/// One call: its body goes to the first of the targets that does not answer 404.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) targets: Vec<Target>,
    /// JSON.
    pub(super) body: String,
    /// How many evaluations it carries.
    pub(super) n_evaluations: usize,
}

/// A method and a path with its query, below the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) method: &'static str,
    pub(super) path: String,
}

/// What a backend is told of one evaluation.
#[derive(Debug, Clone)]
pub(super) struct Score<'a> {
    pub(super) trace_id: TraceId,
    /// The span that is judged.
    pub(super) span_id: SpanId,
    /// The criterion.
    pub(super) name: &'a str,
    /// 32 hex digits: the same for every revision.
    pub(super) key: String,
    pub(super) value: Option<f64>,
    pub(super) label: &'a str,
    pub(super) explanation: String,
    pub(super) service: &'a str,
    /// Short texts and numbers to find it by.
    pub(super) metadata: Map<String, Value>,
    /// An evaluation of its own; what is only taken back belongs to another.
    is_counted: bool,
}

/// The label of a score that a late span moved to another span of its trace.
const REPLACED: &str = "replaced";

/// The calls that write these evaluations of one trace. What judges no span (a trajectory of
/// log records) has nothing to be attached to.
pub(super) fn api_calls(
    writer: &Writer,
    evaluations: &[&Evaluation],
    now_unix_nanos: u64,
) -> Vec<Call> {
    let scores: Vec<Score<'_>> = evaluations
        .iter()
        .flat_map(|evaluation| scores(evaluation))
        .collect();
    let many = |call: &dyn Fn(&[Score<'_>]) -> (Target, Value)| {
        let calls = scores.chunks(MAX_SCORES).map(|scores| {
            let (target, body) = call(scores);
            Call {
                targets: vec![target],
                body: body.to_string(),
                n_evaluations: n_counted(scores),
            }
        });
        calls.collect()
    };
    let each = |call: &dyn Fn(&Score<'_>) -> (Vec<Target>, Value)| {
        let calls = scores.iter().map(|score| {
            let (targets, body) = call(score);
            Call {
                targets,
                body: body.to_string(),
                n_evaluations: n_counted(std::slice::from_ref(score)),
            }
        });
        calls.collect()
    };
    match writer {
        Writer::Phoenix(_) => many(&writer_phoenix::call),
        Writer::Datadog(writer) => {
            many(&|scores| writer_datadog::call(scores, writer, now_unix_nanos))
        }
        Writer::Langfuse(_) => each(&writer_langfuse::call),
        Writer::Mlflow(_) => each(&|score| writer_mlflow::call(score, now_unix_nanos)),
    }
}

fn n_counted(scores: &[Score<'_>]) -> usize {
    scores.iter().filter(|score| score.is_counted).count()
}

/// The score of an evaluation; and where late spans gave the trace another top, the one before it
/// at the span judged then, taken back.
fn scores(evaluation: &Evaluation) -> Vec<Score<'_>> {
    let Evaluation {
        criterion,
        trajectory,
        previous,
        ..
    } = evaluation;
    let Some(subject) = &trajectory.subject else {
        return Vec::new();
    };
    let key = |span_id| score_key(trajectory.trace_id, span_id, criterion.name());
    let score = Score {
        trace_id: trajectory.trace_id,
        span_id: subject.span_id,
        name: criterion.name(),
        key: key(subject.span_id),
        value: evaluation.value,
        label: evaluation.verdict.as_str(),
        explanation: explanation(evaluation),
        service: &trajectory.service,
        metadata: metadata(evaluation, trajectory),
        is_counted: true,
    };
    let moved_from = previous
        .and_then(|previous| previous.subject)
        .filter(|before| *before != subject.span_id);
    let taken_back = moved_from.map(|before| Score {
        span_id: before,
        key: key(before),
        value: None,
        label: REPLACED,
        explanation: format!(
            "with the spans that came late, span {} is judged in its place",
            subject.span_id
        ),
        is_counted: false,
        ..score.clone()
    });
    std::iter::once(score).chain(taken_back).collect()
}

fn explanation(evaluation: &Evaluation) -> String {
    match &evaluation.error {
        Some(error) if !evaluation.explanation().contains(&error.message) => {
            format!("{} {}", evaluation.explanation(), error.message)
        }
        _ => evaluation.explanation().to_owned(),
    }
}

fn metadata(evaluation: &Evaluation, trajectory: &Trajectory) -> Map<String, Value> {
    let criterion = &evaluation.criterion;
    let mut metadata = Map::new();
    let mut put = |key: &str, value: Value| metadata.insert(key.to_owned(), value);
    put("label", json!(evaluation.verdict.as_str()));
    put("evaluator", json!(criterion.evaluator()));
    put("threshold", json!(criterion.threshold()));
    put("criterion_revision", json!(criterion.revision()));
    put("completeness", json!(trajectory.completeness.as_str()));
    put("revision", json!(evaluation.revision));
    if let Some(agent) = &trajectory.agent {
        put("agent", json!(**agent));
    }
    if let Some(error) = &evaluation.error {
        put("error_type", json!(error.kind));
    }
    metadata
}

/// A path below the endpoint.
pub(super) fn post(path: impl Into<String>) -> Target {
    Target {
        method: "POST",
        path: path.into(),
    }
}
