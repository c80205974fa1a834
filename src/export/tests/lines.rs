//! Tests score events, JSON lines and human-readable text.

use judge::evaluate::{Evaluation, EvaluationError, EvaluationText, Verdict};
use judge::extract::ExpectationAttributes;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message;
use serde_json::{Value, json};

use super::fixture::{END, SPAN_ID, TRACE_ID, call, event_request, fail, with};
use super::{lines, settings};
use crate::config::Scores;
use crate::export::score_line::{self, Colour, Look};

// === event ===

#[test]
fn an_event_has_every_field_of_the_conventions() {
    let bytes = event_request(&[fail()], &settings(), END + 7);
    let request = ExportLogsServiceRequest::decode(bytes.as_slice()).unwrap();
    assert_eq!(request.encode_to_vec().len() + 3, bytes.len());
    let record = &request.resource_logs[0].scope_logs[0].log_records[0];
    assert_eq!(record.event_name, "gen_ai.evaluation.result");
    assert_eq!(
        (record.trace_id.as_slice(), record.span_id.as_slice()),
        (&TRACE_ID[..], &SPAN_ID[..])
    );
    assert_eq!(
        (record.time_unix_nano, record.observed_time_unix_nano),
        (END, END + 7)
    );
    assert_eq!(
        (
            record.severity_number,
            record.severity_text.as_str(),
            record.flags
        ),
        (13, "WARN", 1)
    );
    assert_eq!(record.body, None);
    insta::assert_snapshot!(lines(&record.attributes), @r"
    gen_ai.evaluation.name: checkout-order
    gen_ai.evaluation.score.value: DoubleValue(0.6666666666666666)
    gen_ai.evaluation.score.label: fail
    gen_ai.evaluation.explanation: `create_order` was called before `check_inventory`
    spanscore.evaluator: tool_call_order
    spanscore.completeness: root_ended
    spanscore.revision: IntValue(0)
    gen_ai.agent.name: checkout
    gen_ai.conversation.id: s-1
    session.id: s-1
    ");
}

#[test]
fn an_event_names_its_evaluator_if_it_is_asked_to() {
    let settings = Scores {
        evaluator_attributes: true,
        ..settings()
    };
    let bytes = event_request(&[fail()], &settings, END);
    let request = ExportLogsServiceRequest::decode(bytes.as_slice()).unwrap();
    let attributes = lines(&request.resource_logs[0].scope_logs[0].log_records[0].attributes);
    let revision = fail().criterion.revision().to_owned();
    for line in [
        "gen_ai.evaluation.evaluator.id: tool_call_order".to_owned(),
        "gen_ai.evaluation.evaluator.type: deterministic".to_owned(),
        format!("gen_ai.evaluation.evaluator.version: {revision}"),
    ] {
        assert!(
            attributes.contains(&line),
            "{line} is not among\n{attributes}"
        );
    }
}

// === lines ===

const COLOURED: Look = Look {
    colour: Colour::Ansi,
    width: None,
};

#[test]
fn the_jsonl_line_is_the_contract() {
    let line = serde_json::to_string(&score_line::json(&fail())).unwrap();
    assert_eq!(
        line,
        concat!(
            r#"{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","span_id":"00f067aa0ba902b7","#,
            r#""time":"2026-09-21T14:13:20Z","service":"shop","root":"POST /checkout","#,
            r#""agent":"checkout","session":"s-1","case_id":null,"criterion":"checkout-order","#,
            r#""evaluator":"tool_call_order","scope":"trace","threshold":0.8,"#,
            r#""score":0.6666666666666666,"label":"fail","#,
            r#""explanation":"`create_order` was called before `check_inventory`","#,
            r#""completeness":"root_ended","revision":0,"n_calls":3,"#,
            r#""calls":["validate_user","create_order","check_inventory"],"#,
            r#""details":{"lcs":["validate_user","create_order"]}}"#,
        )
    );
    let error = EvaluationError {
        kind: "missing_argument",
        message: "`run` has no `command`".to_owned(),
    };
    let error = Evaluation {
        value: None,
        verdict: Verdict::Error,
        error: Some(error),
        ..fail()
    };
    let line = Value::Object(score_line::json(&with(error, |trajectory| {
        trajectory.agent = None
    })));
    assert_eq!(
        line["error"],
        json!({ "type": "missing_argument", "message": "`run` has no `command`" })
    );
    assert_eq!(
        (&line["score"], &line["agent"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn people_read_a_block() {
    insta::assert_snapshot!(score_line::human(&fail(), Look::PLAIN), @r"
    FAIL  checkout-order  0.67 (threshold 0.80)
          `create_order` was called before `check_inventory`
          calls: validate_user, create_order, check_inventory
          2026-09-21T14:13:20Z · POST /checkout · session s-1
          trace 4bf92f3577b34da6a3ce929d0e0e4736 · shop · checkout · root_ended
    ");
    assert!(score_line::human(&fail(), COLOURED).starts_with("\u{1b}[1m\u{1b}[31mFAIL \u{1b}[0m"));
}

#[test]
fn names_from_the_network_cannot_drive_a_terminal() {
    let evil = with(fail(), |trajectory| {
        trajectory.tool_calls = vec![call(0, "rm\u{1b}[2J\rPASS\u{202e}")]
    });
    let block = score_line::human(&evil, Look::PLAIN);
    assert!(
        block.contains(r"calls: rm\u{1b}[2J\rPASS\u{202e}"),
        "{block}"
    );
}

#[test]
fn a_line_break_in_a_name_forges_no_line() {
    let forged = "pay`\nPASS  never-pay  1.00\u{2028}\u{85}\u{200f}";
    let evil = with(fail(), |trajectory| {
        trajectory.tool_calls = vec![call(0, forged)];
        trajectory.root = forged.into();
        trajectory.expectation_attributes = ExpectationAttributes {
            case_id: Some(forged.into()),
            ..ExpectationAttributes::default()
        }
        .into();
    });
    let evil = Evaluation {
        findings: EvaluationText::from(format!("`{forged}` was not called")).into(),
        ..evil
    };
    let block = score_line::human(&evil, Look::PLAIN);
    assert!(
        block.lines().count() == 5 && !block.contains("\nPASS"),
        "{block}"
    );
    assert!(
        !block.contains(['\u{2028}', '\u{85}', '\u{200f}']),
        "{block}"
    );
}
