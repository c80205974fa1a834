//! `inspect --verbose`: explains how extraction interpreted each span of a recording. Reads the
//! requests, because nothing else contains the attributes of unrecognised spans.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use judge::assemble::Trace;
use judge::evaluate::{FromSpans, SpanExpectations};
use judge::extract::{self, CRITERIA, EXPECT, SpanReport, SpanRole, Trajectory};
use judge::pipeline::Rules;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use otlp::span::{SpanId, TraceId};
use prost::Message;
use text::abbreviated;

use super::replayed::Watcher;
use crate::config::Spelling;
use crate::export::score_line::Clean;

/// Maximum number of indentation levels. Deeper spans are not indented further.
const MAX_INDENT: u32 = 16;
/// Maximum number of shown attributes of an unrecognised span.
const MAX_ATTRIBUTES: usize = 12;
/// Maximum characters of a shown attribute value.
const MAX_VALUE: usize = 40;

/// Collects the requests that `replayed` reads and the traces that it closes.
#[derive(Debug)]
pub(super) struct Explainer<'a> {
    rules: &'a Rules,
    attributes: HashMap<(TraceId, SpanId), Vec<(String, String)>>,
    /// For each trace, the spans that have an expectation, each with the attribute key of its
    /// expectation. Includes spans that extraction does not read.
    saying: HashMap<TraceId, Vec<(SpanId, &'static str)>>,
    /// Traces in order of arrival.
    pub(super) traces: Vec<Explained>,
}

/// A trace, and how its spans were interpreted.
#[derive(Debug)]
pub(super) struct Explained {
    pub(super) trace_id: TraceId,
    /// The number of the trace by first arrival, which identifies its trajectory.
    pub(super) arrival: u64,
    pub(super) notes: Vec<SpanReport>,
}

impl Watcher for Explainer<'_> {
    fn request(&mut self, body: &Bytes) {
        // `judge_watched` calls this only with valid requests.
        let request = ExportTraceServiceRequest::decode(body.clone()).unwrap_or_default();
        let scopes = request
            .resource_spans
            .into_iter()
            .flat_map(|resource| resource.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            if let (Some(trace_id), Some(span_id)) = (
                TraceId::try_new(&span.trace_id),
                SpanId::try_new(&span.span_id),
            ) {
                let says = |key: &&str| {
                    span.attributes
                        .iter()
                        .any(|attribute| attribute.key == **key)
                };
                let said = [CRITERIA, EXPECT]
                    .into_iter()
                    .filter(says)
                    .map(|key| (span_id, key));
                self.saying.entry(trace_id).or_default().extend(said);
                let mut attributes: Vec<(String, String)> =
                    span.attributes.into_iter().map(shown).collect();
                // Show short values first, because marks, names and ids are short.
                attributes.sort_by_key(|(_, value)| value.chars().count() > MAX_VALUE);
                attributes.truncate(MAX_ATTRIBUTES);
                self.attributes.insert((trace_id, span_id), attributes);
            }
        }
    }

    fn trace(&mut self, trace: &Trace) {
        self.traces.push(Explained {
            trace_id: trace.trace_id,
            arrival: trace.arrival,
            notes: extract::span_reports(trace, &self.rules.recogniser),
        });
    }
}

impl<'a> Explainer<'a> {
    pub(super) fn new(rules: &'a Rules) -> Self {
        Self {
            rules,
            attributes: HashMap::new(),
            saying: HashMap::new(),
            traces: Vec::new(),
        }
    }

    fn attributes_of(&self, trace_id: TraceId, note: &SpanReport) -> &[(String, String)] {
        self.attributes
            .get(&(trace_id, note.span_id))
            .map_or(&[], Vec::as_slice)
    }

    /// Returns a line for the run's case, for each criterion that its spans name, for its own
    /// expectation, and for each attribute with expectations that is ignored.
    pub(super) fn span_expectations(
        &self,
        explained: &Explained,
        trajectory: &Arc<Trajectory>,
    ) -> String {
        let Rules {
            criteria,
            expectations,
            ..
        } = self.rules;
        let mut lines = Vec::new();
        if let Some(case_id) = &trajectory.expectation_attributes.case_id {
            let what = match expectations.case_of(trajectory) {
                Some(case) => format!(
                    "the cases file has an expectation for it ({})",
                    case.evaluator_name()
                ),
                None if expectations.cases.is_empty() => "there is no cases file".to_owned(),
                None => "the cases file does not contain it".to_owned(),
            };
            lines.push(format!("case `{case_id}`: {what}"));
        }
        let SpanExpectations { names, own } = expectations.from_spans(trajectory, criteria);
        lines.extend(names.iter().map(|name| {
            format!("names the criterion `{name}`, which applies regardless of its selector")
        }));
        lines.extend(own.map(|own| match own {
            Ok(own) => format!(
                "has an expectation of its own, criterion `{}`: {}",
                own.name,
                own.evaluate.name()
            ),
            Err(invalid) => format!(
                "criterion `{}` is in error: {}",
                invalid.name, invalid.error.message
            ),
        }));
        for (span_id, key) in self.saying.get(&explained.trace_id).into_iter().flatten() {
            let said = if *key == CRITERIA {
                &trajectory.expectation_attributes.criteria
            } else {
                &trajectory.expectation_attributes.expect
            };
            if said.is_empty() {
                let mode = expectations.from_spans;
                let why = match (mode, *key) {
                    (FromSpans::Off, _) | (FromSpans::NamesOnly, EXPECT) => {
                        format!("`expectations.from_spans` is `{}`", mode.as_str())
                    }
                    _ => {
                        "only the evaluated span and its ancestors may have expectations".to_owned()
                    }
                };
                lines.push(format!("`{key}` of span {span_id} is ignored: {why}"));
            }
        }
        lines
            .iter()
            .map(|line| format!("  {}\n", Clean(line)))
            .collect()
    }

    /// Returns one line per span, indented as a tree. Lines of unrecognised spans show attributes.
    pub(super) fn spans(&self, explained: &Explained) -> String {
        let mut text = String::new();
        for note in &explained.notes {
            let indent = note.depth.min(MAX_INDENT) as usize * 2;
            let name = shorten(&note.name);
            let records = match note.n_records {
                0 => String::new(),
                1 => ", with the messages of a log record".to_owned(),
                n => format!(", with the messages of {n} log records"),
            };
            let line = format!("{name}: {}{records}", note.role);
            let _ = writeln!(text, "  {} {:indent$}{}", note.span_id, "", Clean(&line));
            let attributes = self.attributes_of(explained.trace_id, note);
            if note.role == SpanRole::Other && !attributes.is_empty() {
                let attributes: Vec<String> = attributes
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                let _ = writeln!(
                    text,
                    "  {:16} {:indent$}  with {}",
                    "",
                    "",
                    Clean(&attributes.join(" "))
                );
            }
        }
        text
    }

    /// Returns a configuration that would recognise tool calls in a trace that has none, if one of
    /// its spans looks like a tool call. If a trace has tool calls, its other spans are internals
    /// of the framework (listing tools, running nodes).
    pub(super) fn hint(&self) -> Option<String> {
        let has_calls = |explained: &&Explained| {
            explained
                .notes
                .iter()
                .any(|note| matches!(note.role, SpanRole::Call(_)))
        };
        let spans = self
            .traces
            .iter()
            .filter(|explained| !has_calls(explained))
            .flat_map(|explained| {
                let unknown = explained
                    .notes
                    .iter()
                    .filter(|note| note.role == SpanRole::Other);
                unknown.map(|note| (note, self.attributes_of(explained.trace_id, note)))
            });
        let guesses = spans.filter_map(|(note, attributes)| {
            let attributes = attributes.iter().map(|(key, value)| (&**key, &**value));
            Some((note, Spelling::guess(attributes)?))
        });
        let (note, spelling) = guesses.min_by_key(|(_, spelling)| !spelling.is_marked())?;
        Some(format!(
            "span {} looks like a tool call of an unknown convention; try this in \
             spanscore.yaml:\n\n{}",
            note.span_id,
            spelling.setting()
        ))
    }
}

fn shown(attribute: KeyValue) -> (String, String) {
    let value = match attribute.value.and_then(|AnyValue { value }| value) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::BoolValue(value)) => value.to_string(),
        Some(any_value::Value::IntValue(value)) => value.to_string(),
        Some(any_value::Value::DoubleValue(value)) => value.to_string(),
        Some(any_value::Value::BytesValue(_)) => "(bytes)".to_owned(),
        Some(_) => "(structured)".to_owned(),
        None => String::new(),
    };
    (attribute.key, shorten(&value))
}

fn shorten(text: &str) -> String {
    abbreviated(text, MAX_VALUE).replace(char::is_control, " ")
}
