//! Counts and removes the items of a valid request that claim to be spanscore's scores. Any sender
//! can mark an item, so the mark proves nothing.

use super::scan::logs::event_name;
use super::scan_metrics::n_points;
use crate::span::ScopeHash;
use crate::wire::otlp::{any_value, key_value, request, resource_group, scope, scope_group, span};
use crate::wire::{Field, delimited_fields, fields, write};

/// A test of an item in spanscore's instrumentation scope. Returns the number of scores in the
/// item; 0 for an item that is not a score.
pub type ScoreTest = fn(&[u8]) -> usize;

/// Returns 1 for a span that is marked as an evaluation.
pub fn score_spans(item: &[u8]) -> usize {
    let last = |bytes, number| delimited_fields(bytes, number).last().unwrap_or_default();
    let mut attributes = delimited_fields(item, span::ATTRIBUTES);
    let is_evaluation = attributes.any(|attribute| {
        let value = last(attribute, key_value::VALUE);
        last(attribute, key_value::KEY) == b"gen_ai.operation.name"
            && last(value, any_value::STRING) == b"evaluation"
    });
    usize::from(is_evaluation)
}

/// Returns 1 for a log record of an evaluation's result.
pub fn score_records(item: &[u8]) -> usize {
    usize::from(event_name(item) == b"gen_ai.evaluation.result")
}

/// Returns the number of data points, because every metric of spanscore's scope is a score.
pub fn score_points(item: &[u8]) -> usize {
    n_points(item)
}

/// Counts the items that claim to be scores.
pub fn count(body: &[u8], test: ScoreTest) -> usize {
    let groups = delimited_fields(body, request::RESOURCE_GROUPS)
        .flat_map(|group| delimited_fields(group, resource_group::SCOPE_GROUPS))
        .filter(|group| is_ours(group));
    let items = groups.flat_map(|group| delimited_fields(group, scope_group::ITEMS));
    items.map(test).sum()
}

/// Returns the request without scores, and without groups that contain only scores. All other
/// fields retain their content.
pub fn without(body: &[u8], test: ScoreTest) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len());
    copy(body, request::RESOURCE_GROUPS, &mut out, |group, out| {
        copy(group, resource_group::SCOPE_GROUPS, out, |group, out| {
            if !is_ours(group) {
                out.extend_from_slice(group);
                return true;
            }
            copy(group, scope_group::ITEMS, out, |item, out| {
                out.extend_from_slice(item);
                test(item) == 0
            })
        })
    });
    out
}

/// Copies a message. `child` writes the content of each field `child_number` and returns false to
/// remove the field. Returns false if there were such fields and all were removed.
fn copy(
    message: &[u8],
    child_number: u64,
    out: &mut Vec<u8>,
    mut child: impl FnMut(&[u8], &mut Vec<u8>) -> bool,
) -> bool {
    let (mut n_kept, mut n_removed) = (0, 0);
    for Field {
        number,
        raw,
        content,
    } in fields(message).flatten()
    {
        let Some(content) = content.filter(|_| number == child_number) else {
            out.extend_from_slice(raw);
            continue;
        };
        let start = out.len();
        let content_start = write::begin(out, number);
        if child(content, out) {
            write::end(out, content_start);
            n_kept += 1;
        } else {
            out.truncate(start);
            n_removed += 1;
        }
    }
    n_kept > 0 || n_removed == 0
}

fn is_ours(scope_group: &[u8]) -> bool {
    let scopes = delimited_fields(scope_group, scope_group::SCOPE);
    let names = scopes.flat_map(|scope| delimited_fields(scope, scope::NAME));
    names.last() == Some(ScopeHash::OWN_NAME.as_bytes())
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::{
        AnyValue, InstrumentationScope, KeyValue, any_value,
    };
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
    use prost::Message;

    use super::*;

    fn group(scope: &str, operations: &[&str]) -> ScopeSpans {
        let span = |operation: &&str| Span {
            name: (*operation).to_owned(),
            attributes: vec![KeyValue {
                key: "gen_ai.operation.name".to_owned(),
                value: Some(AnyValue {
                    value: Some(any_value::Value::StringValue((*operation).to_owned())),
                }),
                ..KeyValue::default()
            }],
            ..Span::default()
        };
        ScopeSpans {
            scope: Some(InstrumentationScope {
                name: scope.to_owned(),
                ..InstrumentationScope::default()
            }),
            spans: operations.iter().map(span).collect(),
            schema_url: "https://opentelemetry.io/schemas/1.36.0".to_owned(),
        }
    }

    fn body(groups: &[&[ScopeSpans]]) -> Vec<u8> {
        let resource_spans = groups.iter().map(|groups| ResourceSpans {
            scope_spans: groups.to_vec(),
            ..ResourceSpans::default()
        });
        let request = ExportTraceServiceRequest {
            resource_spans: resource_spans.collect(),
        };
        request.encode_to_vec()
    }

    #[test]
    fn only_scores_are_removed_and_the_rest_keeps_its_bytes() {
        let app = || group("app", &["evaluation", "execute_tool"]);
        let mixed = group("spanscore", &["execute_tool", "evaluation"]);
        let scores = group("spanscore", &["evaluation", "evaluation"]);
        let sent = body(&[&[app(), mixed, scores.clone()], &[scores], &[app()]]);
        assert_eq!(count(&sent, score_spans), 5);
        let unknown = [0xf8, 0x3f, 0x01];
        let mut sent_unknown = sent;
        sent_unknown.extend(unknown);
        let call = group("spanscore", &["execute_tool"]);
        let mut expected = body(&[&[app(), call], &[app()]]);
        expected.extend(unknown);
        assert_eq!(without(&sent_unknown, score_spans), expected);
        let foreign = body(&[&[app()]]);
        assert_eq!(without(&foreign, score_spans), foreign);
        assert_eq!(without(&body(&[]), score_spans), body(&[]));
    }
}
