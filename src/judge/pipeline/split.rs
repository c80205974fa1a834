//! Divides a batch among partitions, and keeps its order.

use otlp::span::{Batch, TraceId};

use crate::assemble::Partition;
use crate::extract;

/// Returns the parts of a batch, each with the index of its partition. A batch of a single
/// partition is not copied. A log record without a trace goes to the first partition, which counts
/// it. The number of spans without ids and the memory that spans share refer to the whole batch,
/// and count in no part.
pub fn split(batch: Batch, n_partitions: usize) -> Vec<(usize, Batch)> {
    let index_of = |trace_id: TraceId| Partition::index_of(trace_id, n_partitions);
    let index_of_record = |record| extract::trace_of_record(record).map_or(0, index_of);
    let mut last = None;
    let of_spans: Vec<usize> = batch
        .spans
        .iter()
        .map(|span| match last {
            Some((trace_id, index)) if trace_id == span.trace_id => index,
            _ => {
                let index = index_of(span.trace_id);
                last = Some((span.trace_id, index));
                index
            }
        })
        .collect();
    let of_records: Vec<usize> = batch.log_records.iter().map(index_of_record).collect();
    let mut n_items = vec![(0, 0); n_partitions.max(1)];
    of_spans.iter().for_each(|&index| n_items[index].0 += 1);
    of_records.iter().for_each(|&index| n_items[index].1 += 1);
    let whole = (batch.spans.len(), batch.log_records.len());
    if let Some(index) = n_items.iter().position(|counts| *counts == whole) {
        return vec![(index, batch)];
    }
    let mut parts: Vec<(usize, Batch)> = n_items
        .into_iter()
        .map(|(n_spans, n_records)| Batch {
            spans: Vec::with_capacity(n_spans),
            log_records: Vec::with_capacity(n_records),
            peer: batch.peer,
            ..Batch::default()
        })
        .enumerate()
        .collect();
    for (span, index) in batch.spans.into_iter().zip(of_spans) {
        parts[index].1.spans.push(span);
    }
    for (record, index) in batch.log_records.into_iter().zip(of_records) {
        parts[index].1.log_records.push(record);
    }
    parts.retain(|(_, part)| !part.spans.is_empty() || !part.log_records.is_empty());
    parts
}
