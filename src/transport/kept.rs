//! The requests of a queue that are only in its journal, and the encoding of a request's headers in
//! the journal.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, BufMut, Bytes};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::journal::{JournalLog, LogReader, OpenedLog, Stretch};

use super::completion::CompletionGuard;

/// Maximum bytes that are read from the journal at once.
const MAX_READ: usize = 4 << 20;

/// The lane of a queue in a log of scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptLane {
    /// The number of the lane.
    pub number: u8,
    /// True if this lane reports damaged records; one lane of a log does.
    pub reports_damage: bool,
}

/// The requests of a queue that are on disk and not in memory: all requests after those in memory.
#[derive(Debug)]
pub struct OnDisk {
    pub(super) log: JournalLog,
    /// The number of the first record that is not in memory.
    next: u64,
    /// One more than the number of the last record.
    end: u64,
    /// The reader; `None` before the log is open, and during a read.
    reader: Option<LogReader>,
    /// The lane, if the log is a log of scores.
    lane: Option<KeptLane>,
    /// Completions of records that are not in memory.
    completions: BTreeMap<u64, CompletionGuard>,
    /// The completion of the records from before the start, and one more than the number of their
    /// last record.
    restored: Option<(u64, CompletionGuard)>,
}

impl OnDisk {
    /// Creates the value for a log that may not be open yet.
    pub(super) fn new(log: JournalLog) -> Self {
        Self {
            log,
            next: 0,
            end: 0,
            reader: None,
            lane: None,
            completions: BTreeMap::new(),
            restored: None,
        }
    }

    /// Creates the value for a lane of a log of scores.
    pub fn of_lane(log: JournalLog, lane: KeptLane, restored: Option<CompletionGuard>) -> Self {
        Self {
            lane: Some(lane),
            // `opened` sets the number.
            restored: restored.map(|restored| (u64::MAX, restored)),
            ..Self::new(log)
        }
    }

    /// Sets the range of undelivered records when the log opens, before the first append.
    pub fn opened(&mut self, log: &OpenedLog) {
        let waiting = log.waiting();
        (self.next, self.end) = (waiting.start, waiting.end);
        self.reader = Some(match self.lane {
            Some(lane) => log.lane_reader(lane.number, lane.reports_damage),
            None => log.reader(),
        });
        if let Some((below, _)) = &mut self.restored {
            *below = self.end;
        }
        self.forget_restored();
    }

    /// Returns true if all undelivered requests are in memory.
    pub fn is_empty(&self) -> bool {
        self.next >= self.end
    }

    /// Adds an appended record. Returns true if the record may stay in memory: it comes next, and
    /// there is space.
    pub fn appended(&mut self, sequence: u64, has_room: bool) -> bool {
        let stays = self.is_empty() && has_room;
        self.end = sequence + 1;
        if stays {
            self.next = self.end;
        }
        stays
    }

    /// Returns the next records to read, if memory is at most half full.
    pub fn begin_read(&mut self, n_bytes: usize, capacity: usize) -> Option<ToRead> {
        if self.is_empty() || n_bytes > capacity / 2 {
            return None;
        }
        Some(ToRead {
            reader: self.reader.take()?,
            sequences: self.next..self.end,
            max_bytes: MAX_READ.min(capacity - n_bytes),
        })
    }

    /// Returns the reader that [`Self::begin_read`] lent.
    pub fn return_reader(&mut self, reader: LogReader) {
        self.reader = Some(reader);
    }

    /// Notes that all records below `next` were read.
    pub fn read_up_to(&mut self, next: u64) {
        self.next = self.next.max(next);
        self.forget_restored();
    }

    fn forget_restored(&mut self) {
        if matches!(&self.restored, Some((below, _)) if self.next >= *below) {
            self.restored = None;
        }
    }

    /// Removes the records up to `last`, which the log has evicted.
    pub fn give_up(&mut self, last: u64) {
        self.completions.retain(|sequence, _| *sequence > last);
        if self.next <= last {
            self.read_up_to((last + 1).min(self.end.max(self.next)));
        }
    }

    /// Returns true if a record is on the disk and not in memory.
    pub fn has(&self, sequence: u64) -> bool {
        (self.next..self.end).contains(&sequence)
    }

    /// Stores the completion of a record that is not in memory.
    pub(super) fn hold(&mut self, sequence: u64, completion: CompletionGuard) {
        self.completions.insert(sequence, completion);
    }

    /// Removes and returns the completion of a record that was read.
    pub(super) fn completion_of(&mut self, sequence: u64) -> Option<CompletionGuard> {
        let restored = self.restored.as_ref();
        let restored = restored.filter(|(below, _)| sequence < *below);
        let restored = restored.map(|(_, completion)| completion.clone());
        self.completions.remove(&sequence).or(restored)
    }

    pub(super) fn lane(&self) -> Option<KeptLane> {
        self.lane
    }

    pub(super) fn lane_number(&self) -> u8 {
        self.lane.map_or(u8::MAX, |lane| lane.number)
    }
}

/// A range of the journal to read.
#[derive(Debug)]
pub struct ToRead {
    reader: LogReader,
    sequences: Range<u64>,
    max_bytes: usize,
}

impl ToRead {
    /// Reads the range. Blocks.
    pub fn read(mut self) -> (LogReader, io::Result<Stretch>) {
        let Range { start, end } = self.sequences;
        let stretch = self.reader.read(start, end, self.max_bytes);
        (self.reader, stretch)
    }
}

/// The record of a request, shared by the parts that the request was split into.
#[derive(Debug, Clone)]
pub(super) struct KeptRecord {
    sequence: u64,
    n_parts: Arc<AtomicUsize>,
}

impl KeptRecord {
    pub(super) fn new(sequence: u64) -> Self {
        Self {
            sequence,
            n_parts: Arc::new(AtomicUsize::new(1)),
        }
    }

    /// Counts one more part.
    pub(super) fn split(&self) {
        self.n_parts.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the record's number.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Counts a part as done. Returns the record's number after the last part.
    pub(super) fn finish(&self) -> Option<u64> {
        (self.n_parts.fetch_sub(1, Ordering::Relaxed) == 1).then_some(self.sequence)
    }
}

/// Encodes headers: the lengths of name and value, then name and value.
pub(super) fn encode_headers(headers: &HeaderMap) -> Bytes {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        // The limits of HTTP/2 and hyper are far below these lengths.
        bytes.put_u16_le(u16::try_from(name.as_str().len()).unwrap_or(u16::MAX));
        bytes.put_u32_le(u32::try_from(value.len()).unwrap_or(u32::MAX));
        bytes.put_slice(name.as_str().as_bytes());
        bytes.put_slice(value.as_bytes());
    }
    bytes.into()
}

/// Decodes headers. Ignores bytes that a later version appends.
pub(super) fn decode_headers(mut bytes: Bytes) -> HeaderMap {
    let mut headers = HeaderMap::new();
    while bytes.len() >= 6 {
        let (n_name, n_value) = (usize::from(bytes.get_u16_le()), bytes.get_u32_le() as usize);
        if bytes.len() < n_name + n_value {
            break;
        }
        let (name, value) = (bytes.split_to(n_name), bytes.split_to(n_value));
        if let (Ok(name), Ok(mut value)) = (
            HeaderName::from_bytes(&name),
            HeaderValue::from_maybe_shared(value),
        ) {
            value.set_sensitive(true);
            headers.append(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_back_in_order_and_kept_out_of_debug_output() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-tenant", "a"),
            ("authorization", "key"),
            ("x-tenant", "b"),
        ] {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        let read = decode_headers(encode_headers(&headers));
        assert_eq!(read, headers);
        assert!(read.values().all(HeaderValue::is_sensitive));
        assert_eq!(decode_headers(Bytes::new()), HeaderMap::new());
        let cut = encode_headers(&headers).slice(..20);
        assert_eq!(decode_headers(cut).len(), 1, "what is cut is left out");
    }
}
