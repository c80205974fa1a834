//! Shared by several tests: calls, spans and records to judge, and the recorded sessions.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use judge::evaluate::Evaluation;
use otlp::span::Now;

pub(crate) mod calls;
#[path = "../../support/captures.rs"]
pub(crate) mod captures;
pub(crate) mod cases;
#[path = "../../support/pages.rs"]
pub(crate) mod pages;
pub(crate) mod records;
#[path = "../../support/repetitions.rs"]
pub(crate) mod repetitions;
#[path = "../../support/spans.rs"]
pub(crate) mod spans;

/// Both clocks.
pub(crate) fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Now {
        instant: Instant::now(),
        unix_nanos: u64::try_from(since.as_nanos()).unwrap(),
    }
}

/// All of an evaluation that a score line shows.
pub(crate) fn shown(evaluation: &Evaluation) -> String {
    let (criterion, trajectory) = (&evaluation.criterion, &evaluation.trajectory);
    let names: Vec<&str> = trajectory
        .tool_calls
        .iter()
        .map(|call| &*call.name)
        .collect();
    format!(
        "{:?} {:?} {names:?} {} {} {} {:?} {} {:?} {}",
        (
            trajectory.trace_id,
            &trajectory.subject,
            trajectory.completeness
        ),
        (
            &trajectory.service,
            &trajectory.root,
            &trajectory.agent,
            &trajectory.session
        ),
        criterion.name(),
        criterion.threshold(),
        evaluation.verdict.as_str(),
        evaluation.value,
        evaluation.explanation(),
        evaluation.error,
        evaluation.details(),
    ) + &format!(" revision {}", evaluation.revision)
}

/// The text of one line of an item's doc comment.
pub(crate) fn doc_line(line: &str) -> Option<&str> {
    let text = line.strip_prefix("///")?;
    Some(text.strip_prefix(' ').unwrap_or(text))
}
