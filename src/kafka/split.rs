//! Splits the spans of an `ExportTraceServiceRequest` by their partition or trace. Copies spans and
//! their enclosing fields, including unknown ones, as they were encoded; decodes only trace ids.

use bytes::Bytes;
use otlp::span::TraceId;
use otlp::wire::otlp::{request, resource_group, scope_group, span};
use otlp::wire::{Fault, delimited_fields, fields, write};

use super::placement::partition_of;
use crate::config::{KafkaPartitioner, KafkaRecords};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct TopicRecord {
    pub(super) partition: i32,
    /// The trace id, if each record contains one trace; in hex, it is the record's key.
    pub(super) key: Option<TraceId>,
    /// The value: an `ExportTraceServiceRequest`.
    pub(super) value: Bytes,
    pub(super) n_spans: u64,
}

/// The records of a split request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Placed {
    /// Records in the order of partitions, then of trace ids.
    pub(super) records: Vec<TopicRecord>,
    /// Number of spans without a valid trace id. They belong to no trace and are in no record.
    pub(super) n_without_id: u64,
}

/// Splits a request among `n_partitions`, which is at least 1. The receiver has validated the
/// request. If it is malformed nevertheless, the error contains the position.
pub(super) fn place(
    body: &[u8],
    records: KafkaRecords,
    partitioner: KafkaPartitioner,
    n_partitions: i32,
) -> Result<Placed, Fault> {
    let mut outline = Outline::default();
    let mut placed: Vec<PlacedSpan<'_>> = Vec::new();
    let mut n_without_id = 0;
    // Spans of one trace are mostly adjacent.
    let mut last: Option<(TraceId, i32)> = None;
    outline.top = others(body, request::RESOURCE_GROUPS, |_, group| {
        let fields = others(group, resource_group::SCOPE_GROUPS, |_, group| {
            let fields = others(group, scope_group::ITEMS, |raw, content| {
                // As in every protobuf reader, the last occurrence counts.
                let id = delimited_fields(content, span::TRACE_ID).last();
                let Some(trace_id) = id.and_then(TraceId::try_new) else {
                    n_without_id += 1;
                    return Ok(());
                };
                let partition = match last {
                    Some((same, partition)) if same == trace_id => partition,
                    _ => partition_of(trace_id, partitioner, n_partitions),
                };
                last = Some((trace_id, partition));
                placed.push(PlacedSpan {
                    partition,
                    key: (records == KafkaRecords::Trace).then_some(trace_id),
                    scope: outline.scopes.len(),
                    raw,
                });
                Ok(())
            })?;
            outline.scopes.push((outline.resources.len(), fields));
            Ok(())
        })?;
        outline.resources.push(fields);
        Ok(())
    })?;
    // The sort is stable, so the spans of a record stay in the order of the request.
    placed.sort_by_key(|span| (span.partition, span.key.map(|key| *key.as_bytes())));
    let records = placed
        .chunk_by(|a, b| (a.partition, a.key) == (b.partition, b.key))
        .map(|spans| TopicRecord {
            partition: spans[0].partition,
            key: spans[0].key,
            value: outline.encode(spans).into(),
            n_spans: spans.len() as u64,
        })
        .collect();
    Ok(Placed {
        records,
        n_without_id,
    })
}

/// Calls `take` with each field that has this number and a delimited content, encoded and as its
/// content. Returns all other fields as they are encoded.
fn others<'a>(
    message: &'a [u8],
    number: u64,
    mut take: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), Fault>,
) -> Result<Vec<&'a [u8]>, Fault> {
    let mut others = Vec::new();
    for field in fields(message) {
        let field = field?;
        match field.content {
            Some(content) if field.number == number => take(field.raw, content)?,
            _ => others.push(field.raw),
        }
    }
    Ok(others)
}

struct PlacedSpan<'a> {
    partition: i32,
    key: Option<TraceId>,
    /// The scope group, as an index of [`Outline::scopes`].
    scope: usize,
    raw: &'a [u8],
}

/// The enclosing fields of a request's spans.
#[derive(Default)]
struct Outline<'a> {
    /// Unknown fields of the request, outside its resource groups.
    top: Vec<&'a [u8]>,
    /// The fields of each resource group except its scope groups.
    resources: Vec<Vec<&'a [u8]>>,
    /// The fields of each scope group except its spans, and the index of its resource group.
    scopes: Vec<(usize, Vec<&'a [u8]>)>,
}

impl Outline<'_> {
    /// Encodes a request with these spans, which are in the order of their scope groups.
    fn encode(&self, spans: &[PlacedSpan<'_>]) -> Vec<u8> {
        let n_span_bytes: usize = spans.iter().map(|span| span.raw.len()).sum();
        let mut value = Vec::with_capacity(n_span_bytes + n_span_bytes / 8 + 256);
        append(&mut value, &self.top);
        let resource_of = |span: &PlacedSpan<'_>| self.scopes[span.scope].0;
        for of_resource in spans.chunk_by(|a, b| resource_of(a) == resource_of(b)) {
            write::message(&mut value, request::RESOURCE_GROUPS, |value| {
                append(value, &self.resources[resource_of(&of_resource[0])]);
                for of_scope in of_resource.chunk_by(|a, b| a.scope == b.scope) {
                    write::message(value, resource_group::SCOPE_GROUPS, |value| {
                        append(value, &self.scopes[of_scope[0].scope].1);
                        of_scope
                            .iter()
                            .for_each(|span| value.extend_from_slice(span.raw));
                    });
                }
            });
        }
        value
    }
}

fn append(out: &mut Vec<u8>, fields: &[&[u8]]) {
    for field in fields {
        out.extend_from_slice(field);
    }
}

#[cfg(test)]
mod tests;
