//! Evaluations for the export tests, built by hand.

use std::sync::Arc;

use judge::evaluate::{
    Criterion, Evaluation, EvaluationText, Explain, JudgedBy, Previous, Verdict,
};
use judge::extract::{CallUncertainty, CapturedParts, Payload, Subject, ToolCall, Trajectory};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource as ProtoResource;
use otlp::span::{Resource, SpanId, StoredAttributes, TraceId};
use prost::Message;
use serde_json::json;

use crate::config::Scores;
use crate::export::score_wire::ScoreBatch;
use crate::export::{score_event, score_span};

/// A text that must never appear while values are off.
pub(super) const SECRET: &str = "4111-1111-1111-1111";

pub(super) const TRACE_ID: [u8; 16] = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes();
pub(super) const SPAN_ID: [u8; 8] = 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes();
pub(super) const END: u64 = 1_790_000_000_000_000_000;

pub(super) fn criterion(name: &str) -> JudgedBy {
    let text = json!({
        "name": name,
        "evaluate": { "tool_call_order": { "tool_calls_order": [
            "validate_user",
            "check_inventory",
            "create_order",
        ] } },
        "threshold": 0.8,
    });
    let criterion: Criterion = serde_json::from_value(text).unwrap();
    JudgedBy::Criterion(criterion.into())
}

pub(super) fn resource(service: &str) -> Arc<Resource> {
    let pairs = [
        ("service.name", service),
        ("service.instance.id", "pod-1"),
        ("telemetry.sdk.name", "opentelemetry"),
        ("telemetry.sdk.language", "python"),
        ("telemetry.distro.name", "someone-else"),
        ("process.command_line", "python agent.py --key=hunter2"),
        ("openinference.project.name", "shop-project"),
    ];
    let text = |value: &str| AnyValue {
        value: Some(any_value::Value::StringValue(value.to_owned())),
    };
    let attributes = pairs.map(|(key, value)| KeyValue {
        key: key.to_owned(),
        value: Some(text(value)),
        ..Default::default()
    });
    let mut encoded = ProtoResource {
        attributes: attributes.to_vec(),
        dropped_attributes_count: 3,
        ..Default::default()
    }
    .encode_to_vec();
    // Add a field that no proto has: number 100, varint 7.
    encoded.extend_from_slice(&[0xa0, 0x06, 0x07]);
    Arc::new(Resource {
        encoded: encoded.into(),
        service: service.into(),
        kept: StoredAttributes::default(),
    })
}

pub(super) fn call(call_idx: u64, name: &str) -> ToolCall {
    let payload = |text: String, json| Some(Payload::new(text, json, false));
    ToolCall {
        name: name.into(),
        call_id: None,
        args: payload(
            format!(r#"{{"card":"{SECRET}"}}"#),
            json!({ "card": SECRET }),
        ),
        result: payload(SECRET.to_owned(), json!(SECRET)),
        captured: CapturedParts::default(),
        error: false,
        agent: Some("checkout".into()),
        agent_run: None,
        step: 0,
        parallel_group: None,
        span_id: SpanId::try_new(&(0x1000 + call_idx).to_be_bytes()),
        start_unix_nanos: END - 1_000_000 + call_idx,
        end_unix_nanos: END - 900_000 + call_idx,
        convention: "gen_ai".into(),
        partial: false,
        untimed: false,
        uncertainty: CallUncertainty::default(),
    }
}

pub(super) fn trajectory() -> Trajectory {
    Trajectory {
        subject: Some(Subject {
            span_id: SpanId::try_new(&SPAN_ID).unwrap(),
            name: "invoke_agent checkout".into(),
            start_unix_nanos: END - 2_000_000,
            end_unix_nanos: END,
            flags: 0x301,
            trace_state: "vendor=1".into(),
            resource: resource("shop"),
            attributes: vec![
                ("gen_ai.agent.name".into(), "checkout".into()),
                ("user.id".into(), "u-7".into()),
            ],
        }),
        service: "shop".into(),
        root: "POST /checkout".into(),
        agent: Some("checkout".into()),
        session: Some("s-1".into()),
        n_spans: 5,
        latest_end_unix_nanos: END + 50,
        ..Trajectory::of_calls(
            TraceId::try_new(&TRACE_ID).unwrap(),
            vec![
                call(0, "validate_user"),
                call(1, "create_order"),
                call(2, "check_inventory"),
            ],
        )
    }
}

/// Returns a failed evaluation: two of three calls are in order.
pub(super) fn fail() -> Evaluation {
    Evaluation {
        criterion: criterion("checkout-order"),
        trajectory: Arc::new(trajectory()),
        value: Some(2.0 / 3.0),
        verdict: Verdict::Fail,
        error: None,
        n_expected: 3,
        findings: EvaluationText {
            explanation: "`create_order` was called before `check_inventory`".to_owned(),
            details: json!({ "lcs": ["validate_user", "create_order"] }),
            offending: vec![1],
        }
        .into(),
        revision: 0,
        previous: None,
        replayed: false,
        stage: judge::evaluate::Stage::Final,
    }
}

pub(super) fn pass() -> Evaluation {
    let pass = Evaluation {
        value: Some(1.0),
        verdict: Verdict::Pass,
        ..fail()
    };
    saying(pass, |said| {
        (said.explanation, said.offending) = ("all 3 calls in order".to_owned(), Vec::new())
    })
}

pub(super) fn saying(
    evaluation: Evaluation,
    change: impl FnOnce(&mut EvaluationText),
) -> Evaluation {
    let (explanation, details) = (
        evaluation.explanation().to_owned(),
        evaluation.details().clone(),
    );
    let mut said = EvaluationText {
        explanation,
        details,
        offending: evaluation.offending().to_vec(),
    };
    change(&mut said);
    Evaluation {
        findings: said.into(),
        ..evaluation
    }
}

pub(super) fn with(evaluation: Evaluation, change: impl FnOnce(&mut Trajectory)) -> Evaluation {
    let mut trajectory = Trajectory::clone(&evaluation.trajectory);
    change(&mut trajectory);
    Evaluation {
        trajectory: Arc::new(trajectory),
        ..evaluation
    }
}

/// Returns a previous evaluation of the same span, with this verdict and revision.
pub(super) fn previous(verdict: Verdict, revision: u32) -> Option<Previous> {
    Some(Previous {
        subject: trajectory().subject.map(|subject| subject.span_id),
        verdict,
        revision,
    })
}

/// Encodes these evaluations as an `ExportTraceServiceRequest`; returns `None` if no evaluation
/// becomes a span.
pub(super) fn span_request(
    evaluations: &[Evaluation],
    settings: &Scores,
    explain: &Explain,
) -> Option<Vec<u8>> {
    let mut batch = ScoreBatch::default();
    for evaluation in evaluations {
        score_span::push(&mut batch, evaluation, settings, explain);
    }
    (batch.n_items() > 0).then(|| batch.take())
}

/// Encodes these evaluations as an `ExportLogsServiceRequest`. `observed_unix_nanos` is the current
/// time.
pub(super) fn event_request(
    evaluations: &[Evaluation],
    settings: &Scores,
    observed_unix_nanos: u64,
) -> Vec<u8> {
    let mut batch = ScoreBatch::default();
    for evaluation in evaluations {
        score_event::push(&mut batch, evaluation, settings, observed_unix_nanos);
    }
    batch.take()
}
