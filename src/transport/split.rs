//! Splits a request body that is too large for the peer into two bodies with the same items.

use bytes::Bytes;
use otlp::wire::otlp::{metric, request, resource_group, scope_group};
use otlp::wire::{Field, fields, write};

use crate::config::Signal;

/// Field numbers of the next level towards the items. If there are several numbers, they are the
/// members of a `oneof`.
type Level = &'static [u64];

const TO_SPANS_OR_RECORDS: &[Level] = &[
    &[request::RESOURCE_GROUPS],
    &[resource_group::SCOPE_GROUPS],
    &[scope_group::ITEMS],
];
const TO_DATA_POINTS: &[Level] = &[
    &[request::RESOURCE_GROUPS],
    &[resource_group::SCOPE_GROUPS],
    &[scope_group::ITEMS],
    &metric::DATA,
    &[metric::DATA_POINTS],
];

/// Size in bytes above which a body is not split if most of it is one resource or scope. Both
/// halves would repeat the resource, so neither would become small enough, and a megabyte of
/// resource times a thousand spans would exhaust the memory.
const HEAVY: usize = 256 << 10;

/// Halves `body`, which has `n_items` spans, log records or data points, by size. Cuts between
/// resources, else between scopes, else between spans, log records or metrics, else between data
/// points. Both halves get the enclosing fields, including unknown ones. Items are copied without
/// decoding. Returns `None` if the body has a single item, is malformed, or is above [`HEAVY`] and
/// mostly one resource or scope.
pub(crate) fn split(signal: Signal, body: &Bytes, n_items: u64) -> Option<[(Bytes, u64); 2]> {
    let levels = match signal {
        Signal::Traces | Signal::Logs => TO_SPANS_OR_RECORDS,
        Signal::Metrics => TO_DATA_POINTS,
    };
    let [first, second] = halve(body, levels)?.map(Bytes::from);
    // The second half gets the remainder, so that the sum is correct whatever the receiver counted.
    let n_first = count(&first, levels)?.min(n_items);
    Some([(first, n_first), (second, n_items - n_first)])
}

fn halve(message: &[u8], levels: &[Level]) -> Option<[Vec<u8>; 2]> {
    let (children, below) = levels.split_first()?;
    let fields = all_fields(message)?;
    let child_idxs: Vec<usize> = (0..fields.len())
        .filter(|&idx| is_child(&fields[idx], children))
        .collect();
    let child_sizes: Vec<usize> = child_idxs
        .iter()
        .map(|&idx| fields[idx].raw.len())
        .collect();
    let n_child_bytes: usize = child_sizes.iter().sum();
    if message.len() > HEAVY && n_child_bytes < message.len() / 8 {
        return None;
    }
    match child_idxs[..] {
        [] => None,
        [only] => {
            let halves = halve(fields[only].content?, below)?;
            Some(halves.map(|half| {
                let mut wrapped =
                    Vec::with_capacity(message.len() - n_child_bytes + half.len() + 12);
                for (idx, field) in fields.iter().enumerate() {
                    if idx == only {
                        write::delimited(&mut wrapped, field.number, &half);
                    } else {
                        wrapped.extend_from_slice(field.raw);
                    }
                }
                wrapped
            }))
        }
        // A reader merges the occurrences of a repeated `oneof`, so splitting them would change the
        // meaning.
        _ if children.len() > 1 => None,
        _ => {
            let n_first_children = cut(&child_sizes);
            let first_of_second = child_idxs[n_first_children];
            let n_first_bytes: usize = child_sizes[..n_first_children].iter().sum();
            let mut halves = [n_child_bytes - n_first_bytes, n_first_bytes]
                .map(|n_bytes_elsewhere| Vec::with_capacity(message.len() - n_bytes_elsewhere));
            for (idx, field) in fields.iter().enumerate() {
                let in_both = !is_child(field, children);
                let in_first = in_both || idx < first_of_second;
                let in_second = in_both || idx >= first_of_second;
                for (half, is_in) in halves.iter_mut().zip([in_first, in_second]) {
                    if is_in {
                        half.extend_from_slice(field.raw);
                    }
                }
            }
            Some(halves)
        }
    }
}

/// Returns the index that cuts a row of sizes into two parts that are as equal as possible. Each
/// part has at least one element.
fn cut(sizes: &[usize]) -> usize {
    let total: usize = sizes.iter().sum();
    let mut before = 0;
    for (idx, size) in sizes.iter().enumerate() {
        // An item in the middle is added to the part with more of its bytes.
        if before + size / 2 >= total / 2 {
            return idx.clamp(1, sizes.len() - 1);
        }
        before += size;
    }
    sizes.len() - 1
}

fn count(message: &[u8], levels: &[Level]) -> Option<u64> {
    let Some((children, below)) = levels.split_first() else {
        return Some(1);
    };
    all_fields(message)?
        .iter()
        .filter(|field| is_child(field, children))
        .map(|field| count(field.content?, below))
        .sum()
}

/// Returns the fields of a message, or `None` for malformed bytes, which the receiver rejects.
fn all_fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    fields(message).collect::<Result<_, _>>().ok()
}

fn is_child(field: &Field<'_>, children: &[u64]) -> bool {
    field.content.is_some() && children.contains(&field.number)
}

#[cfg(test)]
mod tests;
