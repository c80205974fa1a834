//! Divides a batch among partitions and preserves its order.

use otlp::span::Batch;

use crate::assemble::Partition;

/// Returns the parts of a batch, each with the index of its partition. A batch that belongs to a
/// single partition is not copied. `n_without_ids` and `shared_size` describe the whole batch, so
/// they are 0 if there are several parts.
pub fn split(batch: Batch, n_partitions: usize) -> Vec<(usize, Batch)> {
    let mut last = None;
    let indexes: Vec<usize> = batch
        .spans
        .iter()
        .map(|span| match last {
            Some((trace_id, index)) if trace_id == span.trace_id => index,
            _ => {
                let index = Partition::index_of(span.trace_id, n_partitions);
                last = Some((span.trace_id, index));
                index
            }
        })
        .collect();
    let mut n_spans = vec![0; n_partitions.max(1)];
    indexes.iter().for_each(|&index| n_spans[index] += 1);
    if let Some(index) = n_spans.iter().position(|&n| n == batch.spans.len()) {
        return vec![(index, batch)];
    }
    let mut parts: Vec<(usize, Batch)> = n_spans
        .into_iter()
        .map(|n_spans| Batch {
            spans: Vec::with_capacity(n_spans),
            peer: batch.peer,
            watched_by: batch.watched_by,
            ..Batch::default()
        })
        .enumerate()
        .collect();
    for (span, index) in batch.spans.into_iter().zip(indexes) {
        parts[index].1.spans.push(span);
    }
    parts.retain(|(_, part)| !part.spans.is_empty());
    parts
}
