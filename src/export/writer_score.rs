//! An evaluation in the form that backends' score APIs share: key, label, explanation, metadata.
//!
//! No backend turns a score span into a score by itself. A score is written under a key that does
//! not change between retries, replicas and revisions, so that every later write overwrites the
//! earlier ones (except at Datadog).

use judge::evaluate::Evaluation;
use judge::extract::Trajectory;
use otlp::span::{SpanId, TraceId};
use serde_json::{Map, Value, json};

use super::score_span::score_key;

/// One request: the body is sent to each target in turn until one does not answer 404.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WriterRequest {
    pub(super) targets: Vec<WriterTarget>,
    pub(super) body: String,
    pub(super) n_evaluations: usize,
}

/// A method and a path with query, below the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WriterTarget {
    pub(super) method: &'static str,
    pub(super) path: String,
}

#[derive(Debug, Clone)]
pub(super) struct BackendScore<'a> {
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    pub(super) name: &'a str,
    /// 32 hex digits, equal for all revisions.
    pub(super) key: String,
    pub(super) value: Option<f64>,
    pub(super) label: &'a str,
    pub(super) explanation: String,
    pub(super) service: &'a str,
    /// Short texts and numbers for searches.
    pub(super) metadata: Map<String, Value>,
    /// False for a withdrawn score; the evaluation that replaces the score is counted instead.
    pub(super) is_counted: bool,
}

impl BackendScore<'_> {
    /// Returns the metadata as keys that name us, and texts.
    pub(super) fn metadata_texts(&self) -> impl Iterator<Item = (String, String)> {
        self.metadata.iter().map(|(key, value)| {
            let text = value.as_str().map(str::to_owned);
            let text = text.unwrap_or_else(|| value.to_string());
            (format!("spanscore.{key}"), text)
        })
    }
}

/// The label of a score that a late span moved to another span of its trace.
const REPLACED: &str = "replaced";

/// Returns the score of an evaluation. If late spans moved the evaluation to another span, also
/// withdraws the score at the previous span. A trajectory of log records has no scores, because
/// there is no span to attach them to.
pub(super) fn scores(evaluation: &Evaluation) -> Vec<BackendScore<'_>> {
    let (criterion, trajectory) = (&evaluation.criterion, &evaluation.trajectory);
    let Some(subject) = &trajectory.subject else {
        return Vec::new();
    };
    let key = |span_id| score_key(evaluation, span_id);
    let score = BackendScore {
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
    let moved_from = evaluation
        .previous
        .and_then(|previous| previous.subject)
        // The key of a session's score is the same for every turn, so nothing is withdrawn.
        .filter(|before| *before != subject.span_id && trajectory.turns.is_none());
    let withdrawn = moved_from.map(|before| BackendScore {
        span_id: before,
        key: key(before),
        value: None,
        label: REPLACED,
        explanation: format!(
            "late spans arrived, and span {} is judged instead",
            subject.span_id
        ),
        is_counted: false,
        ..score.clone()
    });
    std::iter::once(score).chain(withdrawn).collect()
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
    if let Some(severity) = criterion.severity() {
        put("severity", json!(severity.as_str()));
    }
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

pub(super) fn post(path: impl Into<String>) -> WriterTarget {
    WriterTarget {
        method: "POST",
        path: path.into(),
    }
}
