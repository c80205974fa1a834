//! Tests the request that each writer builds from evaluations, without a server.

use judge::evaluate::{Evaluation, Verdict};
use otlp::span::SpanId;
use serde_json::{Value, json};

use super::{error, only_call, pretty};
use crate::config::{DatadogWriter, Writer};
use crate::export::tests::fixture::{END, SECRET, criterion, fail, pass, previous, with};
use crate::export::writer::requests;

#[test]
fn phoenix_is_asked_for_annotations_that_overwrite() {
    let (targets, body) = only_call(&Writer::Phoenix(Default::default()), &fail());
    assert_eq!(targets, "POST /v1/span_annotations?sync=true");
    insta::assert_snapshot!(pretty(&body), @r#"
    {
      "data": [
        {
          "span_id": "00f067aa0ba902b7",
          "name": "checkout-order",
          "annotator_kind": "CODE",
          "identifier": "spanscore",
          "result": {
            "label": "fail",
            "score": 0.6666666666666666,
            "explanation": "`create_order` was called before `check_inventory`"
          },
          "metadata": {
            "label": "fail",
            "evaluator": "tool_call_order",
            "threshold": 0.8,
            "criterion_revision": "REVISION",
            "completeness": "root_ended",
            "revision": 0,
            "agent": "checkout"
          }
        }
      ]
    }
    "#);
    let (_, body) = only_call(
        &Writer::Phoenix(Default::default()),
        &Evaluation {
            criterion: criterion("note"),
            ..fail()
        },
    );
    assert_eq!(
        body["data"][0]["name"], "note_",
        "Phoenix refuses its own word"
    );
}

#[test]
fn mlflow_is_asked_to_update_an_assessment_or_to_create_it() {
    let (targets, body) = only_call(&Writer::Mlflow(Default::default()), &fail());
    insta::assert_snapshot!(
        targets,
        @"PATCH /api/3.0/mlflow/traces/tr-4bf92f3577b34da6a3ce929d0e0e4736\
          /assessments/a-a1b7b48a27837acc6bdd93fa53f48447, \
          else POST /api/3.0/mlflow/traces/tr-4bf92f3577b34da6a3ce929d0e0e4736/assessments",
    );
    insta::assert_snapshot!(pretty(&body), @r#"
    {
      "assessment": {
        "assessment_id": "a-a1b7b48a27837acc6bdd93fa53f48447",
        "assessment_name": "checkout-order",
        "trace_id": "tr-4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
        "source": {
          "source_type": "CODE",
          "source_id": "spanscore"
        },
        "create_time": "2026-09-21T14:13:21Z",
        "last_update_time": "2026-09-21T14:13:21Z",
        "feedback": {
          "value": 0.6666666666666666
        },
        "rationale": "`create_order` was called before `check_inventory`",
        "metadata": {
          "spanscore.label": "fail",
          "spanscore.evaluator": "tool_call_order",
          "spanscore.threshold": "0.8",
          "spanscore.criterion_revision": "REVISION",
          "spanscore.completeness": "root_ended",
          "spanscore.revision": "0",
          "spanscore.agent": "checkout"
        },
        "valid": true
      },
      "update_mask": "feedback,rationale,metadata"
    }
    "#);
    let (_, body) = only_call(&Writer::Mlflow(Default::default()), &error());
    let words = "cannot be judged `run` has no `command`";
    assert_eq!(
        body["assessment"]["feedback"],
        json!({ "error": { "error_code": "error", "error_message": words } })
    );
}

#[test]
fn langfuse_is_asked_for_a_score_with_an_id() {
    let (targets, body) = only_call(&Writer::Langfuse(Default::default()), &fail());
    assert_eq!(targets, "POST /api/public/scores");
    insta::assert_snapshot!(pretty(&body), @r#"
    {
      "id": "a1b7b48a27837acc6bdd93fa53f48447",
      "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
      "observationId": "00f067aa0ba902b7",
      "name": "checkout-order",
      "value": 0.6666666666666666,
      "dataType": "NUMERIC",
      "comment": "`create_order` was called before `check_inventory`",
      "metadata": {
        "label": "fail",
        "evaluator": "tool_call_order",
        "threshold": 0.8,
        "criterion_revision": "REVISION",
        "completeness": "root_ended",
        "revision": 0,
        "agent": "checkout"
      }
    }
    "#);
    let (_, body) = only_call(&Writer::Langfuse(Default::default()), &error());
    assert_eq!(
        (&body["value"], &body["dataType"]),
        (&json!("error"), &json!("CATEGORICAL"))
    );
}

#[test]
fn datadog_is_asked_for_evaluations_of_spans_with_decimal_ids() {
    let writer = Writer::Datadog(DatadogWriter::default());
    let (targets, body) = only_call(&writer, &fail());
    assert_eq!(targets, "POST /api/intake/llm-obs/v2/eval-metric");
    insta::assert_snapshot!(pretty(&body), @r#"
    {
      "data": {
        "type": "evaluation_metric",
        "attributes": {
          "metrics": [
            {
              "join_on": {
                "span": {
                  "span_id": "67667974448284343",
                  "trace_id": "100985939111033328018442752961257817910"
                }
              },
              "ml_app": "shop",
              "timestamp_ms": 1790000001500,
              "label": "checkout_order",
              "reasoning": "`create_order` was called before `check_inventory`",
              "tags": [
                "source:otel",
                "spanscore.label:fail",
                "spanscore.evaluator:tool_call_order",
                "spanscore.threshold:0.8",
                "spanscore.criterion_revision:REVISION",
                "spanscore.completeness:root_ended",
                "spanscore.revision:0",
                "spanscore.agent:checkout"
              ],
              "metric_type": "score",
              "score_value": 0.6666666666666666,
              "assessment": "fail"
            }
          ]
        }
      }
    }
    "#);
    let (_, body) = only_call(
        &Writer::Datadog(DatadogWriter {
            ml_app: Some("shop-bot".to_owned()),
            ..DatadogWriter::default()
        }),
        &error(),
    );
    let metric = &body["data"]["attributes"]["metrics"][0];
    assert_eq!(
        (
            &metric["ml_app"],
            &metric["metric_type"],
            &metric["categorical_value"]
        ),
        (&json!("shop-bot"), &json!("categorical"), &json!("error"))
    );
    assert_eq!(metric.get("assessment"), None, "neither passed nor failed");
}

#[test]
fn a_trace_is_one_request_unless_it_is_huge_and_a_moved_score_is_withdrawn() {
    let many: Vec<Evaluation> = vec![fail(); 250];
    let calls = requests(
        &Writer::Phoenix(Default::default()),
        &many.iter().collect::<Vec<_>>(),
        END,
    );
    assert_eq!(
        calls
            .iter()
            .map(|call| call.n_evaluations)
            .collect::<Vec<_>>(),
        [100, 100, 50]
    );

    let before = SpanId::try_new(&[9; 8]);
    let moved = Evaluation {
        revision: 1,
        previous: previous(Verdict::Fail, 0).map(|previous| judge::evaluate::Previous {
            subject: before,
            ..previous
        }),
        ..pass()
    };
    let (_, body) = only_call(&Writer::Phoenix(Default::default()), &moved);
    let told: Vec<_> = body["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|told| {
            (
                told["span_id"].as_str().unwrap(),
                told["result"]["label"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("00f067aa0ba902b7", "pass"),
            ("0909090909090909", "replaced")
        ]
    );
    assert_eq!(body["data"][1]["result"]["score"], Value::Null);

    let of_logs = with(fail(), |trajectory| trajectory.subject = None);
    assert_eq!(
        requests(&Writer::Phoenix(Default::default()), &[&of_logs], END),
        [],
        "nothing to attach it to"
    );
}

#[test]
fn values_are_private_in_every_writer() {
    for writer in [
        Writer::Phoenix(Default::default()),
        Writer::Mlflow(Default::default()),
        Writer::Langfuse(Default::default()),
        Writer::Datadog(DatadogWriter::default()),
    ] {
        let calls = requests(&writer, &[&fail()], END);
        assert!(
            !calls.is_empty() && calls.iter().all(|call| !call.body.contains(SECRET)),
            "{writer:?}"
        );
    }
}
