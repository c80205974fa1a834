//! Finds the intact records in a segment's bytes, and classifies the gaps between them. Gaps in a
//! group that was not synced contain nothing that was acknowledged. All other gaps are damage.

use std::ops::Range;

use super::format::{
    ALIGNMENT, RECORD_MAGIC, RecordHead, SegmentHead, SignalCounts, add_items, rest_crc,
};

/// An intact record: its head, and its position in the scanned bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) at: usize,
    pub(super) head: RecordHead,
}

/// Bytes that should contain records, but contain no intact record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) at: usize,
    pub(super) n_bytes: usize,
    pub(super) sequences: Range<u64>,
    /// True if the hole is in the last group and the cursor does not count the group as durable.
    /// The hole then counts as a write whose sync had not returned, so that none of the group's
    /// records was acknowledged.
    pub(super) is_torn: bool,
    /// The lost items of the records whose heads are readable.
    pub(super) counts: SignalCounts,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Scan {
    pub(super) records: Vec<Found>,
    pub(super) holes: Vec<Hole>,
    /// The end of the last intact record in the scanned bytes.
    pub(super) end: usize,
    /// True if an incomplete record begins at `end`.
    pub(super) has_torn_tail: bool,
}

/// Scans all bytes after a segment's head. `next` is the first record of the next segment, if there
/// is one. The cursor counts every record below `durable` as durable.
pub(super) fn scan(bytes: &[u8], head: &SegmentHead, next: Option<u64>, durable: u64) -> Scan {
    let limit = next.unwrap_or(u64::MAX);
    let mut scan = Scan::default();
    let mut expected = head.first;
    // The group of the previous record, and true if the record ended the group.
    let (mut group, mut has_ended) = (head.group.saturating_sub(1), true);
    // Holes inside a group: the index of each hole, and its group.
    let mut within_group = Vec::new();
    while let Some(found) = next_whole(bytes, scan.end, head.salt, expected..limit, group) {
        if found.head.sequence > expected || found.at > scan.end {
            if found.head.group == group + u64::from(has_ended) {
                within_group.push((scan.holes.len(), found.head.group));
            }
            let lost = expected..found.head.sequence;
            scan.holes
                .push(hole(bytes, scan.end..found.at, head.salt, lost));
        }
        expected = found.head.sequence + 1;
        (group, has_ended) = (found.head.group, found.head.is_last);
        scan.end = found.at + found.head.n_bytes();
        scan.records.push(found);
    }
    if next.is_none() {
        // Only one group is written at a time, so with `sync: true` only the last group can lack a
        // sync.
        for (idx, of_group) in within_group {
            let hole = &mut scan.holes[idx];
            hole.is_torn = of_group == group && hole.sequences.start >= durable;
        }
        scan.has_torn_tail = RecordHead::decode(&bytes[scan.end..], head.salt).is_some();
    }
    let lost = expected..next.unwrap_or(durable.max(expected));
    if !lost.is_empty() {
        scan.has_torn_tail = false;
        scan.holes
            .push(hole(bytes, scan.end..bytes.len(), head.salt, lost));
    }
    scan
}

fn hole(bytes: &[u8], range: Range<usize>, salt: u64, sequences: Range<u64>) -> Hole {
    Hole {
        at: range.start,
        n_bytes: range.len(),
        counts: counts_of_heads(bytes, range, salt, &sequences),
        sequences,
        is_torn: false,
    }
}

/// Returns the first intact record at or after `from` with a number in `sequences` and no group
/// before `group`.
fn next_whole(
    bytes: &[u8],
    from: usize,
    salt: u64,
    sequences: Range<u64>,
    group: u64,
) -> Option<Found> {
    let mut at = from;
    while at < bytes.len() {
        if let Some(head) = whole_at(bytes, at, salt)
            && sequences.contains(&head.sequence)
            && head.group >= group
        {
            return Some(Found { at, head });
        }
        at = next_magic(bytes, at + ALIGNMENT)?;
    }
    None
}

/// Returns the head of the record at `at`, if the record is intact.
pub(super) fn whole_at(bytes: &[u8], at: usize, salt: u64) -> Option<RecordHead> {
    let head = RecordHead::decode(bytes.get(at..)?, salt)?;
    let (meta, body) = parts_at(bytes, at, &head)?;
    (rest_crc(meta, body) == head.rest_crc).then_some(head)
}

pub(super) fn parts_at<'a>(
    bytes: &'a [u8],
    at: usize,
    head: &RecordHead,
) -> Option<(&'a [u8], &'a [u8])> {
    let rest = bytes.get(at + super::format::RECORD_HEAD..at + head.n_bytes())?;
    let (meta, rest) = rest.split_at_checked(head.meta_len as usize)?;
    Some((meta, rest.get(..head.body_len as usize)?))
}

fn next_magic(bytes: &[u8], from: usize) -> Option<usize> {
    (from..bytes.len())
        .step_by(ALIGNMENT)
        .find(|&at| bytes[at..].starts_with(&RECORD_MAGIC))
}

/// Returns the items of lost records whose heads can still be read.
fn counts_of_heads(
    bytes: &[u8],
    range: Range<usize>,
    salt: u64,
    sequences: &Range<u64>,
) -> SignalCounts {
    let mut counts = SignalCounts::default();
    let mut at = range.start;
    while at < range.end {
        let head = RecordHead::decode(&bytes[at..], salt)
            .filter(|head| sequences.contains(&head.sequence));
        at = match head {
            Some(head) => {
                add_items(&mut counts, head.signal, head.n_items);
                at + head.n_bytes()
            }
            None => next_magic(&bytes[..range.end], at + ALIGNMENT).unwrap_or(range.end),
        };
    }
    counts
}
