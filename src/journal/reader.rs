//! Reads the records of a log in order, for delivery and to rebuild open traces. A reader has a
//! single position; it skips and reports damaged records.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::consumed::Consumed;
use super::format::{
    Outlet, RECORD_HEAD, RECORDS_AT, RecordHead, SignalCounts, request_signal, rest_crc,
};
use super::recover::{Scan, scan};
use super::reopen::{Damage, set_aside};
use super::segment::{Index, RecordKind, Segment, read_leniently};
use super::storage::{Storage, StoredFile};
use crate::sync::Mutex;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub sequence: u64,
    pub kind: RecordKind,
    /// The number of the signal, or of the lane.
    pub signal: u8,
    /// Number of spans, log records, metric points or scores.
    pub n_items: u64,
    /// Time of arrival in Unix nanoseconds; for scores and marks, the time at which the record was
    /// created.
    pub arrived: u64,
    pub meta: Bytes,
    pub body: Bytes,
}

/// Consecutive records of a log.
#[derive(Debug, Default)]
pub struct Stretch {
    /// Oldest first.
    pub records: Vec<Stored>,
    /// The number of the first record of the next read.
    pub next: u64,
    /// Lost records, each range with its damage.
    pub damage: Vec<(std::ops::Range<u64>, Damage)>,
}

#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// The records for an outlet that were not consumed when the log was opened. `consumed` is not
    /// updated: only records that are not in memory are read, and such a record is consumed only
    /// after it was read.
    Waiting {
        consumed: Consumed,
        outlet: Outlet,
        /// Damaged records that a reader has reported. Their outlet is often unknown.
        reported: Arc<Mutex<Consumed>>,
    },
    /// All records of a kind, whether delivered or not.
    Kind(RecordKind),
}

#[derive(Debug, Clone)]
pub struct LogReader {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) damaged: Arc<dyn Storage>,
    pub(super) index: Index,
    pub(super) wanted: Wanted,
    pub(super) position: Option<Position>,
}

/// The end of the last read.
#[derive(Debug, Clone)]
pub(super) struct Position {
    sequence: u64,
    name: String,
    file: Arc<dyn StoredFile>,
    offset: u64,
}

impl LogReader {
    /// Reads records from `from` up to but excluding `to`, until they have `max_bytes` or more.
    ///
    /// # Errors
    /// Returns an error if a segment cannot be opened.
    pub fn read(&mut self, from: u64, to: u64, max_bytes: usize) -> io::Result<Stretch> {
        let mut stretch = Stretch {
            next: from,
            ..Stretch::default()
        };
        let mut n_bytes = 0;
        while stretch.next < to && n_bytes < max_bytes {
            let segment = {
                let index = self.index.lock();
                let behind = index.partition_point(|segment| segment.next <= stretch.next);
                index.get(behind).cloned()
            };
            // No segment is left: the remaining records are consumed.
            let Some(segment) = segment else {
                stretch.next = to;
                break;
            };
            stretch.next = stretch.next.max(segment.head.first);
            if stretch.next >= to {
                break;
            }
            let mut position = match self.seek(&segment, stretch.next) {
                // The segment may have been removed in the meantime.
                Err(_) if !self.index.lock().contains(&segment) => continue,
                position => position?,
            };
            let end = segment.next.min(to);
            while position.sequence < end && n_bytes < max_bytes {
                let Some(head) = head_at(&position, &segment) else {
                    self.pass_damage(&segment, &mut position, &mut stretch);
                    continue;
                };
                let is_next = head.sequence >= stretch.next;
                if let Some(kind) = self.kind_of(&head).filter(|_| is_next) {
                    let Some(parts) = parts_at(&position, &head) else {
                        self.pass_damage(&segment, &mut position, &mut stretch);
                        continue;
                    };
                    let stored = stored(&head, kind, parts);
                    n_bytes += head.n_bytes().max(stored.body.len());
                    stretch.records.push(stored);
                } else if is_next {
                    n_bytes += RECORD_HEAD;
                }
                position.offset += head.n_bytes() as u64;
                position.sequence = head.sequence + 1;
            }
            stretch.next = stretch.next.max(position.sequence);
            self.position = Some(position);
        }
        stretch.next = stretch.next.min(to);
        Ok(stretch)
    }

    /// Returns the kind of a record, if the reader wants the record.
    fn kind_of(&self, head: &RecordHead) -> Option<RecordKind> {
        let kind = RecordKind::of(head.kind)?;
        let is_wanted = match &self.wanted {
            Wanted::Waiting {
                consumed, outlet, ..
            } => {
                [RecordKind::Request, RecordKind::Score].contains(&kind)
                    && outlet.takes(head.signal)
                    && !consumed.contains(head.sequence)
            }
            Wanted::Kind(wanted) => kind == *wanted,
        };
        is_wanted.then_some(kind)
    }

    /// Returns the damage to report for unreadable records in this range, if the reader must report
    /// it. Each outlet counts its own lost items, but one of several lanes counts those of all.
    fn lost(
        &self,
        range: &std::ops::Range<u64>,
        damage: impl FnOnce() -> Damage,
    ) -> Option<Damage> {
        let is_known = match &self.wanted {
            Wanted::Kind(_) => false,
            Wanted::Waiting {
                consumed,
                outlet,
                reported,
            } => {
                let mut reported = reported.lock();
                let is_known = reported.rest_of(range).is_empty();
                let is_counted = is_known && matches!(outlet, Outlet::Lane(_));
                if is_counted || consumed.rest_of(range).is_empty() {
                    return None;
                }
                reported.insert(range.clone());
                is_known
            }
        };
        let damage = damage();
        Some(Damage { is_known, ..damage })
    }

    fn seek(&mut self, segment: &Segment, sequence: u64) -> io::Result<Position> {
        if let Some(position) = self.position.take()
            && position.name == segment.name
            && position.sequence <= sequence
        {
            return Ok(position);
        }
        Ok(Position {
            sequence: segment.head.first,
            name: segment.name.clone(),
            file: self.storage.open(&segment.name)?,
            offset: RECORDS_AT,
        })
    }

    /// Moves the position to the next intact record, and reports the damage before it.
    fn pass_damage(&self, segment: &Segment, position: &mut Position, stretch: &mut Stretch) {
        let n_bytes = usize::try_from(segment.end - RECORDS_AT).unwrap_or(0);
        let bytes = read_leniently(&*position.file, RECORDS_AT, n_bytes);
        let scan = scan(&bytes, &segment.head, Some(segment.next), 0);
        let whole = scan
            .records
            .iter()
            .find(|found| found.head.sequence >= position.sequence);
        let (next, offset) = match whole {
            Some(found) => (found.head.sequence, RECORDS_AT + found.at as u64),
            None => (segment.next, segment.end),
        };
        let lost = position.sequence.max(stretch.next)..next;
        let hole = scan
            .holes
            .iter()
            .find(|hole| hole.sequences.contains(&position.sequence));
        let damage = || {
            let [start, end] = [position.offset, offset]
                .map(|at| usize::try_from(at - RECORDS_AT).map_or(0, |at| at.min(bytes.len())));
            let evidence = &bytes[start..end];
            Damage {
                file: segment.name.clone(),
                offset: position.offset,
                n_bytes: evidence.len() as u64,
                n_records: lost.end - lost.start,
                counts: hole.map_or(SignalCounts::default(), |hole| match scan.holes.len() {
                    // With one hole the count is exact, even if no head can be read.
                    1 => missing(segment, &scan),
                    _ => hole.counts,
                }),
                copy: set_aside(
                    Some(&*self.damaged),
                    &segment.name,
                    position.offset,
                    evidence,
                ),
                ..Damage::default()
            }
        };
        if let Some(damage) = self.lost(&lost, damage) {
            stretch.damage.push((lost, damage));
        }
        position.sequence = next;
        position.offset = offset;
    }
}

/// Returns the segment's items that are in no intact record.
fn missing(segment: &Segment, scan: &Scan) -> SignalCounts {
    let mut missing = segment.counts;
    for found in &scan.records {
        if let Some(count) = missing.get_mut(usize::from(found.head.signal)) {
            *count = count.saturating_sub(found.head.n_items);
        }
    }
    missing
}

fn head_at(position: &Position, segment: &Segment) -> Option<RecordHead> {
    let mut bytes = [0; RECORD_HEAD];
    let n_read = position.file.read_at(&mut bytes, position.offset).ok()?;
    let head = RecordHead::decode(&bytes[..n_read], segment.head.salt)?;
    let is_next = head.sequence >= position.sequence && head.sequence < segment.next;
    (is_next && position.offset + head.n_bytes() as u64 <= segment.end).then_some(head)
}

fn parts_at(position: &Position, head: &RecordHead) -> Option<(Bytes, Bytes)> {
    let mut rest = vec![0; head.meta_len as usize + head.body_len as usize];
    let n_read = position
        .file
        .read_at(&mut rest, position.offset + RECORD_HEAD as u64)
        .ok()?;
    let is_whole = n_read == rest.len();
    let mut body = Bytes::from(rest);
    let meta = body.split_to(head.meta_len as usize);
    (is_whole && rest_crc(&meta, &body) == head.rest_crc).then_some((meta, body))
}

fn stored(head: &RecordHead, kind: RecordKind, (meta, body): (Bytes, Bytes)) -> Stored {
    let (signal, body) = match kind {
        RecordKind::Request => (request_signal(head.signal), body),
        RecordKind::Judged => (head.signal, body),
        RecordKind::Score => {
            // A body that could not be compressed was written as it is.
            let decoded = zstd::decode_all(&body[..]);
            (head.signal, decoded.map_or(body, Bytes::from))
        }
    };
    Stored {
        sequence: head.sequence,
        kind,
        signal,
        n_items: head.n_items,
        arrived: head.arrived,
        meta,
        body,
    }
}
