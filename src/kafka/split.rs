//! Splits the spans of an `ExportTraceServiceRequest` by their partition or trace. Copies spans and
//! their enclosing fields, including unknown ones, as they were encoded; decodes only trace ids.

use std::ops::Range;

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
    pub(super) value: Vec<u8>,
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
    outline.read(body)?;
    let mut n_without_id = 0;
    let mut placed: Vec<PlacedSpan<'_>> = Vec::with_capacity(outline.spans.len());
    // Spans of one trace are mostly adjacent.
    let mut last: Option<(TraceId, i32)> = None;
    for (raw, trace_id, scope) in outline.spans.drain(..) {
        let Some(trace_id) = trace_id else {
            n_without_id += 1;
            continue;
        };
        let partition = match last {
            Some((same, partition)) if same == trace_id => partition,
            _ => partition_of(trace_id, partitioner, n_partitions),
        };
        last = Some((trace_id, partition));
        let key = (records == KafkaRecords::Trace).then_some(trace_id);
        placed.push(PlacedSpan {
            partition,
            key,
            scope,
            raw,
        });
    }
    // The sort is stable, so the spans of a record stay in the order of the request.
    placed.sort_by_key(|span| (span.partition, span.key.map(|key| *key.as_bytes())));
    let records = placed
        .chunk_by(|a, b| (a.partition, a.key) == (b.partition, b.key))
        .map(|spans| TopicRecord {
            partition: spans[0].partition,
            key: spans[0].key,
            value: outline.encode(spans),
            n_spans: spans.len() as u64,
        })
        .collect();
    Ok(Placed {
        records,
        n_without_id,
    })
}

struct PlacedSpan<'a> {
    partition: i32,
    key: Option<TraceId>,
    /// The scope group, as an index of [`Outline::scopes`].
    scope: usize,
    raw: &'a [u8],
}

/// The levels of a request: the enclosing fields of the spans, and the spans.
#[derive(Default)]
struct Outline<'a> {
    /// Unknown fields of the request, outside its resource groups.
    top: Vec<&'a [u8]>,
    /// Fields of the resource groups except their scope groups, one group after the other.
    resource_fields: Vec<&'a [u8]>,
    /// The range of `resource_fields` of each resource group.
    resources: Vec<Range<usize>>,
    /// Fields of the scope groups except their spans, one group after the other.
    scope_fields: Vec<&'a [u8]>,
    scopes: Vec<ScopeGroup>,
    /// Encoded span, trace id if valid, and index of its scope group.
    spans: Vec<(&'a [u8], Option<TraceId>, usize)>,
}

struct ScopeGroup {
    /// Index of [`Outline::resources`].
    resource: usize,
    /// Range of [`Outline::scope_fields`].
    fields: Range<usize>,
}

impl<'a> Outline<'a> {
    fn read(&mut self, body: &'a [u8]) -> Result<(), Fault> {
        for field in fields(body) {
            let field = field?;
            match field.content {
                Some(content) if field.number == request::RESOURCE_GROUPS => {
                    self.read_resource_group(content)?;
                }
                _ => self.top.push(field.raw),
            }
        }
        Ok(())
    }

    fn read_resource_group(&mut self, group: &'a [u8]) -> Result<(), Fault> {
        let resource = self.resources.len();
        let first = self.resource_fields.len();
        for field in fields(group) {
            let field = field?;
            match field.content {
                Some(content) if field.number == resource_group::SCOPE_GROUPS => {
                    self.read_scope_group(content, resource)?;
                }
                _ => self.resource_fields.push(field.raw),
            }
        }
        self.resources.push(first..self.resource_fields.len());
        Ok(())
    }

    fn read_scope_group(&mut self, group: &'a [u8], resource: usize) -> Result<(), Fault> {
        let scope = self.scopes.len();
        let first = self.scope_fields.len();
        for field in fields(group) {
            let field = field?;
            match field.content {
                Some(content) if field.number == scope_group::ITEMS => {
                    // As in every protobuf reader, the last occurrence counts.
                    let id = delimited_fields(content, span::TRACE_ID).last();
                    let trace_id = id.and_then(TraceId::try_new);
                    self.spans.push((field.raw, trace_id, scope));
                }
                _ => self.scope_fields.push(field.raw),
            }
        }
        self.scopes.push(ScopeGroup {
            resource,
            fields: first..self.scope_fields.len(),
        });
        Ok(())
    }

    /// Encodes a request with these spans, which are in the order of their scope groups.
    fn encode(&self, spans: &[PlacedSpan<'_>]) -> Vec<u8> {
        let n_span_bytes: usize = spans.iter().map(|span| span.raw.len()).sum();
        let mut value = Vec::with_capacity(n_span_bytes + n_span_bytes / 8 + 256);
        append(&mut value, &self.top);
        let resource_of = |span: &PlacedSpan<'_>| self.scopes[span.scope].resource;
        for of_resource in spans.chunk_by(|a, b| resource_of(a) == resource_of(b)) {
            write::message(&mut value, request::RESOURCE_GROUPS, |value| {
                let fields = self.resources[resource_of(&of_resource[0])].clone();
                append(value, &self.resource_fields[fields]);
                for of_scope in of_resource.chunk_by(|a, b| a.scope == b.scope) {
                    write::message(value, resource_group::SCOPE_GROUPS, |value| {
                        let fields = self.scopes[of_scope[0].scope].fields.clone();
                        append(value, &self.scope_fields[fields]);
                        for span in of_scope {
                            value.extend_from_slice(span.raw);
                        }
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
