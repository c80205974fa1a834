//! Encodes an evaluation as an OTLP log record: the event `gen_ai.evaluation.result` of the GenAI
//! conventions.

use judge::evaluate::{Evaluation, Verdict};
use otlp::wire::otlp::log_record;
use otlp::wire::write;

use super::score_span::{copied_attributes, evaluation_attributes, score_time};
use super::score_wire::{Attributes, ScoreBatch, service_resource};
use crate::config::Scores;

pub const EVENT_NAME: &str = "gen_ai.evaluation.result";

pub(super) fn push(
    batch: &mut ScoreBatch,
    evaluation: &Evaluation,
    scores: &Scores,
    observed_unix_nanos: u64,
) {
    let write = |out: &mut Vec<u8>| record(out, evaluation, scores, observed_unix_nanos);
    match &evaluation.trajectory.subject {
        Some(subject) => batch.push(&subject.resource.encoded, write),
        None => batch.push(&service_resource(&evaluation.trajectory.service), write),
    }
}

/// Writes the fields of `opentelemetry.proto.logs.v1.LogRecord`. The conventions require that the
/// event's parent is the judged span; the body stays empty, because attributes contain all values.
fn record(out: &mut Vec<u8>, evaluation: &Evaluation, scores: &Scores, observed_unix_nanos: u64) {
    let (criterion, trajectory) = (&evaluation.criterion, &evaluation.trajectory);
    let (severity_number, severity_text) = severity(evaluation.verdict);
    write::fixed64(out, log_record::TIME, score_time(trajectory));
    write::uint(out, log_record::SEVERITY_NUMBER, severity_number);
    write::bytes(out, log_record::SEVERITY_TEXT, severity_text.as_bytes());
    let mut attributes = Attributes::new(out, log_record::ATTRIBUTES);
    evaluation_attributes(&mut attributes, evaluation);
    attributes.text("spanscore.evaluator", criterion.evaluator());
    if let Some(severity) = criterion.severity() {
        attributes.text("spanscore.severity", severity.as_str());
    }
    attributes.text("spanscore.completeness", trajectory.completeness.as_str());
    // The revision distinguishes a correction from the judgement that it corrects.
    attributes.count("spanscore.revision", evaluation.revision as usize);
    if evaluation.replayed {
        attributes.flag("spanscore.replayed", true);
    }
    if scores.evaluator_attributes {
        // They are only proposed for the GenAI conventions (semantic-conventions-genai, pull
        // request 359), and change with the proposal.
        let version = criterion.revision();
        attributes.text("gen_ai.evaluation.evaluator.id", criterion.evaluator());
        attributes.text("gen_ai.evaluation.evaluator.type", "deterministic");
        attributes.text("gen_ai.evaluation.evaluator.version", version);
    }
    copied_attributes(&mut attributes, trajectory, &scores.copy_attributes);
    if let Some(subject) = &trajectory.subject {
        write::fixed32(out, log_record::FLAGS, subject.flags & 0xff);
    }
    write::bytes(out, log_record::TRACE_ID, trajectory.trace_id.as_bytes());
    if let Some(subject) = evaluation.subject() {
        write::bytes(out, log_record::SPAN_ID, &subject.span_id.to_bytes());
    }
    write::fixed64(out, log_record::OBSERVED_TIME, observed_unix_nanos);
    write::bytes(out, log_record::EVENT_NAME, EVENT_NAME.as_bytes());
}

/// Returns the OTLP severity: ERROR if the criterion cannot be applied, WARN for a fail, else INFO.
fn severity(verdict: Verdict) -> (u64, &'static str) {
    match verdict {
        Verdict::Pass | Verdict::NotEvaluated => (9, "INFO"),
        Verdict::Fail => (13, "WARN"),
        Verdict::Error => (17, "ERROR"),
    }
}
