//! Tests the severity of a criterion in score events, score spans, lines and metrics, and its
//! absence if the criterion has none. The tests do not cover the page and the writers.

use std::sync::Arc;

use judge::evaluate::{CriterionSeverity, Evaluation, JudgedBy};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message;

use super::fixture::{END, event_request, fail};
use super::{lines, metrics, only_span, settings};
use crate::export::score_line::{self, Look};

fn critical() -> Evaluation {
    let mut evaluation = fail();
    if let JudgedBy::Criterion(criterion) = &mut evaluation.criterion {
        Arc::make_mut(criterion).severity = Some(CriterionSeverity::Critical);
    }
    evaluation
}

/// Returns an evaluation as an event, a score span, a JSON line, human-readable text and metrics.
fn outputs(evaluation: &Evaluation) -> [String; 5] {
    let evaluations = std::slice::from_ref(evaluation);
    let events = event_request(evaluations, &settings(), END);
    let events = ExportLogsServiceRequest::decode(events.as_slice()).unwrap();
    let event = &events.resource_logs[0].scope_logs[0].log_records[0];
    let span = only_span(evaluation.clone(), &settings());
    let (_, page) = metrics::counted(evaluations);
    [
        lines(&event.attributes),
        lines(&span.attributes),
        score_line::json_text(evaluation),
        score_line::human(evaluation, Look::PLAIN),
        page,
    ]
}

#[test]
fn severity_stands_in_every_output() {
    let [event, span, line, human, page] = outputs(&critical());
    assert!(event.contains("spanscore.severity: critical"), "{event}");
    assert!(span.contains("spanscore.severity: critical"), "{span}");
    assert!(line.contains(r#""severity":"critical""#), "{line}");
    assert!(human.contains("(threshold 0.80)  critical\n"), "{human}");
    let is_counted = |line: &str| {
        line.starts_with("spanscore_evaluations_total{")
            && line.contains(r#"label="fail""#)
            && line.contains(r#"severity="critical""#)
    };
    assert!(page.lines().any(is_counted), "{page}");
}

#[test]
fn without_severity_there_is_no_label() {
    for output in outputs(&fail()) {
        assert!(!output.contains("severity"), "{output}");
    }
}
