//! Code shared by several tests: calls, spans and records to judge, and the recorded sessions.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use judge::evaluate::Evaluation;
use judge::pipeline::Rules;
use otlp::span::Now;
use serde_json::{Value, json};

use cases::criterion_of_case;

pub(crate) mod calls;
#[path = "../../support/captures.rs"]
pub(crate) mod captures;
#[path = "../../support/cases.rs"]
pub(crate) mod cases;
#[path = "../../support/pages.rs"]
pub(crate) mod pages;
pub(crate) mod records;
#[path = "../../support/repetitions.rs"]
pub(crate) mod repetitions;
#[path = "../../support/spans.rs"]
pub(crate) mod spans;

pub(crate) fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Now {
        instant: Instant::now(),
        unix_nanos: u64::try_from(since.as_nanos()).unwrap(),
    }
}

/// Returns most of the fields that a score line shows of an evaluation, under the line's keys.
pub(crate) fn shown(evaluation: &Evaluation) -> String {
    let (criterion, trajectory) = (&evaluation.criterion, &evaluation.trajectory);
    let calls = trajectory.tool_calls.iter();
    let subject = trajectory.subject.as_ref();
    let line = json!({
        "trace_id": trajectory.trace_id.to_string(),
        "span_id": subject.map(|subject| subject.span_id.to_string()),
        "service": trajectory.service,
        "root": trajectory.root,
        "agent": trajectory.agent,
        "session": trajectory.session,
        "completeness": trajectory.completeness.as_str(),
        "calls": calls.map(|call| &*call.name).collect::<Vec<_>>(),
        "criterion": criterion.name(),
        "threshold": criterion.threshold(),
        "score": evaluation.value,
        "label": evaluation.verdict.as_str(),
        "explanation": evaluation.explanation(),
        "error": evaluation.error.as_ref().map(|error| &error.message),
        "revision": evaluation.revision,
        "details": evaluation.details(),
    });
    line.to_string()
}

/// Returns the text of one line of a doc comment; `None` for other lines.
pub(crate) fn doc_line(line: &str) -> Option<&str> {
    let text = line.strip_prefix("///")?;
    Some(text.strip_prefix(' ').unwrap_or(text))
}

pub(crate) fn rules_of_case(id: &str, evaluator: &str, fields: &Value) -> Result<Rules, String> {
    let text = json!({ "criteria": [criterion_of_case(id, evaluator, fields)] }).to_string();
    Rules::from_json(&text).map_err(|error| error.to_string())
}
