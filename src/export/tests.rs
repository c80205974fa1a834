//! Tests the export of scores: their spans and events are decoded with prost, and their lines are
//! compared as text (docs/design.md#how-scores-leave). The tests do not prove that a backend shows
//! the scores.

mod backends;
mod boards;
mod delivery;
mod fan_out;
mod fixture;
mod journaled;
mod lines;
mod metrics;
mod rules;
mod severity;
mod stream;

use judge::evaluate::{Evaluation, EvaluationError, Explain, Verdict};
use judge::extract::{ExpectationAttributes, Payload};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::span::{SpanId, TraceId};
use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};

use super::score_line::{self, Look};
use super::score_span::{score_hash, span_id_of};
use crate::config::{OnRevision, Scores, SpanScores, StatusOnFail};
use fixture::{
    END, SECRET, SPAN_ID, TRACE_ID, call, criterion, event_request, fail, pass, previous, resource,
    saying, span_request, with,
};

fn settings() -> Scores {
    Scores::default()
}

fn with_spans(span: SpanScores) -> Scores {
    Scores { span, ..settings() }
}

fn values_on() -> Explain {
    Explain {
        values: true,
        max_value_length: 256,
    }
}

fn decode(
    evaluations: &[Evaluation],
    settings: &Scores,
    explain: &Explain,
) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest::decode(
        span_request(evaluations, settings, explain)
            .unwrap()
            .as_slice(),
    )
    .unwrap()
}

fn only_span(evaluation: Evaluation, settings: &Scores) -> Span {
    let mut request = decode(&[evaluation], settings, &Explain::default());
    assert_eq!(request.resource_spans.len(), 1);
    request
        .resource_spans
        .remove(0)
        .scope_spans
        .remove(0)
        .spans
        .remove(0)
}

/// Returns attributes as readable lines. A value that is not a text is shown with its type.
fn lines(attributes: &[KeyValue]) -> String {
    let line = |pair: &KeyValue| match pair.value.as_ref().unwrap().value.as_ref().unwrap() {
        any_value::Value::StringValue(text) => format!("{}: {text}\n", pair.key),
        other => format!("{}: {other:?}\n", pair.key),
    };
    attributes.iter().map(line).collect()
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let pair = span.attributes.iter().find(|pair| pair.key == key)?;
    match pair.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text.clone()),
        other => Some(format!("{other:?}")),
    }
}

fn json_attribute(span: &Span, key: &str) -> Value {
    serde_json::from_str(&attribute(span, key).unwrap()).unwrap()
}

// === span ===

#[test]
fn a_score_span_has_every_field_of_the_design() {
    let request = decode(&[fail()], &settings(), &Explain::default());
    let group = &request.resource_spans[0];
    let resource = group.resource.as_ref().unwrap();
    let attributes = lines(&resource.attributes).replace(env!("CARGO_PKG_VERSION"), "VERSION");
    insta::assert_snapshot!(attributes, @r"
    service.name: shop
    service.instance.id: pod-1
    openinference.project.name: shop-project
    telemetry.distro.name: spanscore
    telemetry.distro.version: VERSION
    ");
    assert_eq!(resource.dropped_attributes_count, 3);
    let scope = group.scope_spans[0].scope.as_ref().unwrap();
    assert_eq!(
        (scope.name.as_str(), scope.version.as_str()),
        ("spanscore", env!("CARGO_PKG_VERSION"))
    );

    let span = &group.scope_spans[0].spans[0];
    assert_eq!(span.trace_id, TRACE_ID);
    assert_eq!(span.parent_span_id, SPAN_ID);
    assert_eq!(span.span_id, 0xa1b7_b48a_2783_7acc_u64.to_be_bytes());
    assert_eq!(span.name, "evaluation checkout-order");
    assert_eq!(span.kind, 1);
    assert_eq!(
        (span.start_time_unix_nano, span.end_time_unix_nano),
        (END - 1_000, END)
    );
    assert_eq!(span.trace_state, "vendor=1");
    assert_eq!(
        span.flags, 0x101,
        "sampled bit kept, the parent known and not remote"
    );
    assert_eq!(span.status, None);
    assert_eq!(span.links.len(), 1);
    assert_eq!(
        (
            span.links[0].trace_id.as_slice(),
            span.links[0].span_id.as_slice()
        ),
        (&TRACE_ID[..], &0x1001_u64.to_be_bytes()[..])
    );
    assert_eq!(
        lines(&span.links[0].attributes),
        "spanscore.link: offending_call\n"
    );
    let revision = criterion("checkout-order").revision().to_owned();
    insta::assert_snapshot!(lines(&span.attributes).replace(&*revision, "REVISION"), @r#"
    gen_ai.operation.name: evaluation
    gen_ai.evaluation.name: checkout-order
    gen_ai.evaluation.score.value: DoubleValue(0.6666666666666666)
    gen_ai.evaluation.score.label: fail
    gen_ai.evaluation.explanation: `create_order` was called before `check_inventory`
    openinference.span.kind: EVALUATOR
    langfuse.observation.type: evaluator
    input.value: [{"name":"validate_user"},{"name":"create_order"},{"name":"check_inventory"}]
    input.mime_type: application/json
    output.value: {"lcs":["validate_user","create_order"]}
    output.mime_type: application/json
    spanscore.evaluator: tool_call_order
    spanscore.criterion.revision: REVISION
    spanscore.completeness: root_ended
    spanscore.revision: IntValue(0)
    spanscore.calls.observed: IntValue(3)
    spanscore.calls.expected: IntValue(3)
    gen_ai.agent.name: checkout
    gen_ai.conversation.id: s-1
    session.id: s-1
    "#);
}

/// The expected ids were computed with Python's hashlib: `sha256(trace + span + name.encode() +
/// (k.to_bytes(4, "big") if k else b""))[:8]`.
#[test]
fn span_ids_are_those_of_an_independent_computation() {
    let expected = [
        ("checkout-order", 0, "a1b7b48a27837acc"),
        ("checkout-order", 1, "88fe64b9fdcb311c"),
        ("checkout-order", 2, "bc8295ccb10afcfc"),
        ("checkout-order", 258, "f1c13e0c9867ad87"),
        ("prüfung-✓", 0, "43df472038ecfd2f"),
        ("prüfung-✓", 1, "27b8234b41f5d96e"),
    ];
    let (trace_id, span_id) = (
        TraceId::try_new(&TRACE_ID).unwrap(),
        SpanId::try_new(&SPAN_ID).unwrap(),
    );
    for (name, revision, id) in expected {
        assert_eq!(
            span_id_of(score_hash(trace_id, span_id, name), revision).to_string(),
            id,
            "{name} {revision}"
        );
    }
}

#[test]
fn a_revision_links_to_the_span_it_replaces() {
    let revised = Evaluation {
        revision: 2,
        previous: previous(Verdict::Fail, 1),
        ..pass()
    };
    let span = only_span(revised.clone(), &settings());
    assert_eq!(span.span_id, 0xbc82_95cc_b10a_fcfc_u64.to_be_bytes());
    assert_eq!(
        span.links[0].span_id,
        0x88fe_64b9_fdcb_311c_u64.to_be_bytes()
    );
    assert_eq!(
        lines(&span.links[0].attributes),
        "spanscore.link: replaces\n"
    );
    assert_eq!(
        attribute(&span, "spanscore.revision").unwrap(),
        "IntValue(2)"
    );

    let same_id = only_span(
        revised.clone(),
        &with_spans(SpanScores {
            on_revision: OnRevision::SameId,
            ..SpanScores::default()
        }),
    );
    assert_eq!(same_id.span_id, 0xa1b7_b48a_2783_7acc_u64.to_be_bytes());
    assert_eq!(same_id.links, []);

    let none = with_spans(SpanScores {
        on_revision: OnRevision::None,
        ..SpanScores::default()
    });
    assert_eq!(span_request(&[revised], &none, &Explain::default()), None);
    assert!(span_request(&[pass()], &none, &Explain::default()).is_some());
}

#[test]
fn a_span_without_an_end_is_scored_at_the_latest_end_of_the_trace() {
    let open = with(fail(), |trajectory| {
        trajectory.subject.as_mut().unwrap().end_unix_nanos = 0
    });
    assert_eq!(only_span(open, &settings()).end_time_unix_nano, END + 50);
}

#[test]
fn a_score_span_does_not_start_before_a_judged_span_that_is_shorter() {
    let short = with(fail(), |trajectory| {
        trajectory.subject.as_mut().unwrap().start_unix_nanos = END - 10;
    });
    let span = only_span(short, &settings());
    assert_eq!(
        (span.start_time_unix_nano, span.end_time_unix_nano),
        (END - 10, END)
    );
}

#[test]
fn the_sampled_bit_is_kept_when_it_is_not_set() {
    let unsampled = with(fail(), |trajectory| {
        trajectory.subject.as_mut().unwrap().flags = 0
    });
    assert_eq!(only_span(unsampled, &settings()).flags, 0x100);
}

#[test]
fn an_adjusted_clock_is_reported() {
    assert_eq!(
        attribute(&only_span(fail(), &settings()), "spanscore.clock_adjusted"),
        None
    );
    let adjusted = with(fail(), |trajectory| trajectory.clock_adjusted = true);
    assert_eq!(
        attribute(
            &only_span(adjusted, &settings()),
            "spanscore.clock_adjusted"
        )
        .unwrap(),
        "BoolValue(true)"
    );
}

#[test]
fn a_fail_is_an_error_status_only_when_configured() {
    let red = with_spans(SpanScores {
        status_on_fail: StatusOnFail::Error,
        ..SpanScores::default()
    });
    let status = only_span(fail(), &red).status.unwrap();
    assert_eq!(
        (status.code, status.message.as_str()),
        (2, "`create_order` was called before `check_inventory`")
    );
    assert_eq!(only_span(pass(), &red).status, None);
}

#[test]
fn an_error_has_a_type_and_no_score() {
    let error = EvaluationError {
        kind: "missing_argument",
        message: "`run` has no `command`".to_owned(),
    };
    let span = only_span(
        Evaluation {
            value: None,
            verdict: Verdict::Error,
            error: Some(error),
            ..fail()
        },
        &settings(),
    );
    assert_eq!(attribute(&span, "error.type").unwrap(), "missing_argument");
    assert_eq!(
        attribute(&span, "gen_ai.evaluation.score.label").unwrap(),
        "error"
    );
    assert_eq!(attribute(&span, "gen_ai.evaluation.score.value"), None);
}

#[test]
fn copied_attributes_are_a_setting() {
    let user = Scores {
        copy_attributes: vec!["user.id".to_owned(), "absent".to_owned()],
        ..settings()
    };
    let span = only_span(fail(), &user);
    assert_eq!(attribute(&span, "user.id").unwrap(), "u-7");
    assert_eq!(
        (attribute(&span, "session.id"), attribute(&span, "absent")),
        (None, None)
    );
}

#[test]
fn spans_are_grouped_by_resource_and_newer_fields_of_it_survive() {
    let other = with(pass(), |trajectory| {
        trajectory.subject.as_mut().unwrap().resource = resource("warehouse")
    });
    // An equal resource in another request belongs to the same group.
    let same = with(pass(), |trajectory| {
        trajectory.subject.as_mut().unwrap().resource = resource("shop")
    });
    let bytes = span_request(&[fail(), other, same], &settings(), &Explain::default()).unwrap();
    let request = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
    let n_spans: Vec<_> = request
        .resource_spans
        .iter()
        .map(|group| group.scope_spans[0].spans.len())
        .collect();
    assert_eq!(n_spans, [2, 1]);
    assert_eq!(
        bytes
            .windows(3)
            .filter(|window| window == &[0xa0, 0x06, 0x07])
            .count(),
        2
    );
    // Prost writes the same fields back in the same number of bytes, except for the unknown field,
    // which has three bytes and occurs twice.
    assert_eq!(request.encode_to_vec().len() + 6, bytes.len());
}

#[test]
fn passes_are_sampled_by_trace_and_nothing_else_is() {
    // Computed in Python: int(sha256(trace_id).hexdigest()[:8], 16) / 2**32 = 0.43611… for the
    // fixture's trace.
    let sampled = |evaluation: Evaluation, sample_pass| {
        span_request(
            &[evaluation],
            &with_spans(SpanScores {
                sample_pass,
                ..SpanScores::default()
            }),
            &Explain::default(),
        )
        .is_some()
    };
    assert!(sampled(pass(), 0.437));
    assert!(!sampled(pass(), 0.436));
    assert!(!sampled(pass(), 0.0));
    for verdict in [Verdict::Fail, Verdict::Error, Verdict::NotEvaluated] {
        assert!(sampled(Evaluation { verdict, ..fail() }, 0.0));
    }
    // A pass that replaces a fail must be sent, because dashboards would still show the fail; a
    // pass that replaces a pass need not be sent.
    assert!(sampled(
        Evaluation {
            revision: 1,
            previous: previous(Verdict::Fail, 0),
            ..pass()
        },
        0.0
    ));
    assert!(!sampled(
        Evaluation {
            revision: 1,
            previous: previous(Verdict::Pass, 0),
            ..pass()
        },
        0.0
    ));
}

#[test]
fn trajectories_of_log_records_have_an_event_and_no_span() {
    let of_logs = with(fail(), |trajectory| trajectory.subject = None);
    assert_eq!(
        span_request(
            std::slice::from_ref(&of_logs),
            &settings(),
            &Explain::default()
        ),
        None
    );
    let bytes = event_request(
        &[of_logs],
        &Scores {
            copy_attributes: Vec::new(),
            ..settings()
        },
        END,
    );
    let request = ExportLogsServiceRequest::decode(bytes.as_slice()).unwrap();
    let resource = request.resource_logs[0].resource.as_ref().unwrap();
    assert!(
        lines(&resource.attributes)
            .starts_with("service.name: shop\ntelemetry.distro.name: spanscore\n")
    );
    let record = &request.resource_logs[0].scope_logs[0].log_records[0];
    assert_eq!(
        (record.trace_id.as_slice(), record.span_id.len()),
        (&TRACE_ID[..], 0)
    );
}

#[test]
fn a_huge_trajectory_makes_a_span_of_bounded_size() {
    let names = (0..10_000)
        .map(|call_idx| call(call_idx, &format!("tool_{call_idx}")))
        .collect();
    let huge = saying(
        with(fail(), |trajectory| trajectory.tool_calls = names),
        |said| {
            said.offending = (0..10_000).collect();
            said.details = json!({ "actual_tool_calls_order": vec!["tool"; 10_000] });
        },
    );
    let huge = Evaluation {
        revision: 1,
        previous: previous(Verdict::Pass, 0),
        ..huge
    };
    let bytes = span_request(
        std::slice::from_ref(&huge),
        &settings(),
        &Explain::default(),
    )
    .unwrap();
    assert!(bytes.len() < 64 << 10, "{} bytes", bytes.len());
    let span = only_span(huge, &settings());
    assert_eq!(
        (span.links.len(), span.dropped_links_count),
        (128, 10_001 - 128)
    );
    let observed = json_attribute(&span, "input.value");
    let shown = observed.as_array().unwrap();
    assert_eq!(
        shown.last().unwrap()["omitted"].as_u64().unwrap() as usize + shown.len() - 1,
        10_000
    );
    assert!(
        json_attribute(&span, "output.value")["omitted_bytes"]
            .as_u64()
            .unwrap()
            > 32 << 10
    );
    assert_eq!(
        attribute(&span, "spanscore.calls.observed").unwrap(),
        "IntValue(10000)"
    );
}

// === values are private ===

#[test]
fn argument_and_result_values_appear_nowhere_unless_asked_for() {
    let contains = |bytes: &[u8]| {
        bytes
            .windows(SECRET.len())
            .any(|window| window == SECRET.as_bytes())
    };
    let all = [fail(), pass()];
    assert!(!contains(
        &span_request(&all, &settings(), &Explain::default()).unwrap()
    ));
    assert!(!contains(&event_request(&all, &settings(), END)));
    assert!(!contains(
        serde_json::to_string(&score_line::json(&fail()))
            .unwrap()
            .as_bytes()
    ));
    assert!(!contains(
        score_line::human(&fail(), Look::PLAIN).as_bytes()
    ));
    let (request, page) = metrics::counted(&all);
    assert!(!contains(&request) && !contains(page.as_bytes()));
    // Metrics contain no trace ids either, as bytes or as text: one series per trace would break
    // any metrics backend.
    assert!(!request.windows(16).any(|window| window == TRACE_ID) && !page.contains("4bf92f"));
    // Without the secret in the source the test could not fail.
    assert!(contains(
        &span_request(&all, &settings(), &values_on()).unwrap()
    ));
}

#[test]
fn shown_values_are_json_and_cut() {
    let evaluation = with(fail(), |trajectory| {
        trajectory.tool_calls.truncate(2);
        trajectory.tool_calls[1].args = None;
        let text = "\"é".repeat(200);
        trajectory.tool_calls[1].result = Some(Payload::new(text.as_str(), json!(text), false));
    });
    let request = decode(&[evaluation], &settings(), &values_on());
    let observed = json_attribute(
        &request.resource_spans[0].scope_spans[0].spans[0],
        "input.value",
    );
    assert_eq!(
        observed[0],
        json!({ "name": "validate_user", "args": { "card": SECRET }, "result": SECRET })
    );
    assert_eq!(
        observed[1],
        json!({ "name": "create_order", "result": format!("{}…", "\"é".repeat(128)) })
    );
}

proptest! {
    /// The decoded span must have the same tool name, explanation and service.
    #[test]
    fn any_tool_name_survives(
        name in any::<String>(),
        explanation in any::<String>(),
        service in ".{0,200}",
    ) {
        let evaluation = with(
            saying(fail(), |said| said.explanation.clone_from(&explanation)),
            |trajectory| {
                trajectory.tool_calls = vec![call(0, &name)];
                trajectory.subject.as_mut().unwrap().resource = resource(&service);
            },
        );
        let request = decode(&[evaluation], &settings(), &Explain::default());
        let span = &request.resource_spans[0].scope_spans[0].spans[0];
        prop_assert_eq!(
            &json_attribute(span, "input.value")[0]["name"],
            &json!(name)
        );
        prop_assert_eq!(
            attribute(span, "gen_ai.evaluation.explanation").unwrap(),
            explanation
        );
        let resource = request.resource_spans[0].resource.as_ref().unwrap();
        prop_assert_eq!(
            lines(&resource.attributes[..1]),
            format!("service.name: {}\n", service)
        );
    }
}

#[test]
fn a_score_span_names_the_case_of_its_run() {
    let of_case = with(fail(), |trajectory| {
        trajectory.expectation_attributes = ExpectationAttributes {
            case_id: Some("refund-7".into()),
            ..ExpectationAttributes::default()
        }
        .into();
    });
    let span = only_span(of_case, &settings());
    assert_eq!(
        attribute(&span, "test.case.id").as_deref(),
        Some("refund-7")
    );
    let span = only_span(fail(), &settings());
    assert_eq!(attribute(&span, "test.case.id"), None);
}
