//! Converts lists of calls to OTLP requests as an agent's SDK would send them: an agent run, a
//! model span before the calls of each step, and `execute_tool` spans of the OpenTelemetry
//! conventions for generative AI. Does not cover other conventions.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use serde::Deserialize;
use serde_json::Value;

/// One call as a test case writes it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SpanCall {
    pub(crate) name: String,
    pub(crate) args: Option<Value>,
    pub(crate) result: Option<Value>,
    pub(crate) step: Option<u32>,
    /// A stable identifier of the tool, sent as the attribute `tool.id`.
    #[serde(default)]
    pub(crate) id: Option<String>,
    /// `Some(false)` if the call's span never ended.
    #[serde(default)]
    pub(crate) completed: Option<bool>,
}

/// Returns the spans of one agent run, root first. `attributes` are added to the agent's span.
pub(crate) fn spans_of_run(
    trace: u64,
    attributes: &[(&str, &str)],
    calls: &[SpanCall],
) -> Vec<Span> {
    let mut run = Run {
        trace,
        spans: Vec::new(),
    };
    let run_attributes = [
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.agent.name", "tester"),
    ];
    run.push(
        "invoke_agent tester",
        run_attributes
            .iter()
            .chain(attributes)
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned())),
    );
    let mut n_models = 0;
    for call in calls {
        // A model turn precedes the calls of each step.
        while call.step.is_some_and(|step| n_models <= step) {
            run.push(
                "chat",
                [("gen_ai.operation.name".to_owned(), "chat".to_owned())],
            );
            n_models += 1;
        }
        let text = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        };
        let fields = [
            ("gen_ai.operation.name", Some("execute_tool".to_owned())),
            ("gen_ai.tool.name", Some(call.name.clone())),
            (
                "gen_ai.tool.call.arguments",
                call.args.as_ref().map(Value::to_string),
            ),
            ("gen_ai.tool.call.result", call.result.as_ref().map(text)),
            ("tool.id", call.id.clone()),
        ];
        run.push(
            "execute_tool",
            fields
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?))),
        );
        if call.completed == Some(false)
            && let Some(span) = run.spans.last_mut()
        {
            span.end_time_unix_nano = 0;
        }
    }
    let end = run.now();
    run.spans[0].end_time_unix_nano = end;
    run.spans
}

pub(crate) fn request(spans: Vec<Span>) -> Vec<u8> {
    let scope = ScopeSpans {
        spans,
        ..ScopeSpans::default()
    };
    request_of("tests", vec![scope])
}

pub(crate) fn request_of(service: &str, scope_spans: Vec<ScopeSpans>) -> Vec<u8> {
    let resource = Resource {
        attributes: vec![attribute("service.name", service)],
        ..Resource::default()
    };
    let resource_spans = vec![ResourceSpans {
        resource: Some(resource),
        scope_spans,
        ..ResourceSpans::default()
    }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

pub(crate) fn attribute(key: &str, text: &str) -> KeyValue {
    let value = Some(AnyValue {
        value: Some(any_value::Value::StringValue(text.to_owned())),
    });
    KeyValue {
        key: key.to_owned(),
        value,
        ..KeyValue::default()
    }
}

struct Run {
    trace: u64,
    spans: Vec<Span>,
}

impl Run {
    /// Returns the start of the next span. Each span except the root lasts one microsecond, and the
    /// next span starts one microsecond later.
    fn now(&self) -> u64 {
        1_700_000_000_000_000_000 + self.spans.len() as u64 * 2_000
    }

    fn push(&mut self, name: &str, attributes: impl IntoIterator<Item = (String, String)>) {
        let id = |number: u64| number.to_be_bytes().to_vec();
        let start = self.now();
        self.spans.push(Span {
            trace_id: [id(7), id(self.trace)].concat(),
            span_id: id(self.spans.len() as u64 + 1),
            parent_span_id: if self.spans.is_empty() { Vec::new() } else { id(1) },
            name: name.to_owned(),
            start_time_unix_nano: start,
            end_time_unix_nano: start + 1_000,
            attributes: attributes
                .into_iter()
                .map(|(key, text)| attribute(&key, &text))
                .collect(),
            ..Span::default()
        });
    }
}
