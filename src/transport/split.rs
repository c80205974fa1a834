//! Pure. A request body that was too large for the peer in, two bodies that together hold the same
//! items out. Knows on which field numbers the items of each signal lie; does not know what is in
//! them, nor who sends them.

use bytes::Bytes;

use crate::config::Signal;

/// Field numbers that lead one level closer to the items. Where a level has several, they are the
/// arms of a `oneof`.
type Level = &'static [u32];

/// `resource_spans`, `scope_spans`, `spans`; logs are numbered alike.
const SPANS_OR_RECORDS: &[Level] = &[&[1], &[2], &[2]];
/// `resource_metrics`, `scope_metrics`, `metrics`, then gauge, sum, histogram, exponential
/// histogram or summary, then `data_points`.
const POINTS: &[Level] = &[&[1], &[2], &[2], &[5, 7, 9, 10, 11], &[1]];

/// From here on a body is not split when its resource or scope is most of it: both halves would
/// carry that along, nothing would get small enough, and a megabyte of resource times a thousand
/// spans would eat the memory.
const HEAVY: usize = 256 << 10;

/// Halves `body`, which holds `n_items` spans, log records or metric points, by size: between
/// resources, else between scopes, else between items. Enclosing fields, unknown ones too, go into
/// both halves; items are copied as they are, never decoded. `None` if there is nothing to split: a
/// single item, or bytes that are no such message.
pub(crate) fn split(signal: Signal, body: &Bytes, n_items: u64) -> Option<[(Bytes, u64); 2]> {
    let levels = match signal {
        Signal::Traces | Signal::Logs => SPANS_OR_RECORDS,
        Signal::Metrics => POINTS,
    };
    let [first, second] = match between_resources(body, levels) {
        Some(halves) => halves,
        None => halve(body, levels)?.map(Bytes::from),
    };
    // The second half is what the first leaves, so that the books balance whatever the receiver
    // counted.
    let n_first = count(&first, levels)?.min(n_items);
    Some([(first, n_first), (second, n_items - n_first)])
}

/// The usual large request has many resources and nothing else at the top: its halves are slices of
/// it, without a copy.
fn between_resources(body: &Bytes, levels: &[Level]) -> Option<[Bytes; 2]> {
    let fields = fields(body)?;
    let children = levels.first()?;
    if fields.len() < 2 || fields.iter().any(|field| !field.is_child(children)) {
        return None;
    }
    let middle: usize = fields[..cut(&fields
        .iter()
        .map(|field| field.raw.len())
        .collect::<Vec<_>>())]
        .iter()
        .map(|field| field.raw.len())
        .sum();
    Some([body.slice(..middle), body.slice(middle..)])
}

fn halve(message: &[u8], levels: &[Level]) -> Option<[Vec<u8>; 2]> {
    let (children, below) = levels.split_first()?;
    let fields = fields(message)?;
    let child_idxs: Vec<usize> = (0..fields.len())
        .filter(|&idx| fields[idx].is_child(children))
        .collect();
    let n_child_bytes: usize = child_idxs.iter().map(|&idx| fields[idx].raw.len()).sum();
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
                        put_varint(&mut wrapped, u64::from(field.number) << 3 | 2);
                        put_varint(&mut wrapped, half.len() as u64);
                        wrapped.extend_from_slice(&half);
                    } else {
                        wrapped.extend_from_slice(field.raw);
                    }
                }
                wrapped
            }))
        }
        // A oneof that occurs twice is merged by whoever reads it: taking it apart would change
        // what it says.
        _ if children.len() > 1 => None,
        _ => {
            let first_of_second = child_idxs[cut(&child_idxs
                .iter()
                .map(|&idx| fields[idx].raw.len())
                .collect::<Vec<_>>())];
            let n_first_bytes: usize = child_idxs
                .iter()
                .filter(|&&idx| idx < first_of_second)
                .map(|&idx| fields[idx].raw.len())
                .sum();
            let mut halves = [n_child_bytes - n_first_bytes, n_first_bytes]
                .map(|n_others| Vec::with_capacity(message.len() - n_others));
            for (idx, field) in fields.iter().enumerate() {
                let in_first = !field.is_child(children) || idx < first_of_second;
                let in_second = !field.is_child(children) || idx >= first_of_second;
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

/// Where to cut a row of sizes so that both sides are as equal as can be; at least one stays on
/// either side.
fn cut(sizes: &[usize]) -> usize {
    let total: usize = sizes.iter().sum();
    let mut before = 0;
    for (idx, size) in sizes.iter().enumerate() {
        // The one across the middle goes where more of it lies.
        if before + size / 2 >= total / 2 {
            return idx.clamp(1, sizes.len() - 1);
        }
        before += size;
    }
    sizes.len() - 1
}

/// Items of a message.
fn count(message: &[u8], levels: &[Level]) -> Option<u64> {
    let Some((children, below)) = levels.split_first() else {
        return Some(1);
    };
    fields(message)?
        .iter()
        .filter(|field| field.is_child(children))
        .map(|field| count(field.content?, below))
        .sum()
}

// === the wire ===

struct Field<'a> {
    number: u32,
    /// Tag, length and content, as they came.
    raw: &'a [u8],
    /// Of length-delimited fields.
    content: Option<&'a [u8]>,
}

impl Field<'_> {
    fn is_child(&self, children: &[u32]) -> bool {
        self.content.is_some() && children.contains(&self.number)
    }
}

fn fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let start = rest;
        let (number, content) = skip_field(&mut rest, 0)?;
        fields.push(Field {
            number,
            raw: &start[..start.len() - rest.len()],
            content,
        });
    }
    Some(fields)
}

/// Steps over one field. `None` for what is no field; the receiver has validated the bytes, so that
/// is theory.
fn skip_field<'a>(rest: &mut &'a [u8], depth: u32) -> Option<(u32, Option<&'a [u8]>)> {
    let tag = varint(rest)?;
    let number = u32::try_from(tag >> 3).ok()?;
    let content = match tag & 7 {
        0 => {
            varint(rest)?;
            None
        }
        1 => rest.split_off(..8).and(None),
        2 => {
            let len = usize::try_from(varint(rest)?).ok()?;
            Some(rest.split_off(..len)?)
        }
        3 if depth < 100 => {
            loop {
                let mut ahead = *rest;
                let inner = varint(&mut ahead)?;
                if inner == (tag & !7 | 4) {
                    *rest = ahead;
                    break;
                }
                skip_field(rest, depth + 1)?;
            }
            None
        }
        5 => rest.split_off(..4).and(None),
        _ => return None,
    };
    Some((number, content))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests;
