//! Which requests of a queue are only in its journal, and how a request's own headers are written
//! there. Knows nothing of files.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, BufMut, Bytes};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::journal::{JournalLog, LogReader, OpenedLog, Stretch};

/// Most bytes read from the journal at once.
const MAX_READ: usize = 4 << 20;

/// The part of a queue that is on the disk and not in memory: everything behind the requests in
/// memory.
#[derive(Debug)]
pub(super) struct OnDisk {
    pub(super) log: JournalLog,
    /// The first record that is not in memory.
    next: u64,
    /// Behind the last record.
    end: u64,
    /// `None` before the log is open, and while it reads.
    reader: Option<LogReader>,
}

impl OnDisk {
    /// A log that may not be open yet.
    pub(super) fn new(log: JournalLog) -> Self {
        Self {
            log,
            next: 0,
            end: 0,
            reader: None,
        }
    }

    /// The log is open. Nothing was appended yet.
    pub(super) fn opened(&mut self, log: &OpenedLog) {
        let waiting = log.waiting();
        (self.next, self.end) = (waiting.start, waiting.end);
        self.reader = Some(log.reader());
    }

    /// Everything that waits is in memory.
    pub(super) fn is_empty(&self) -> bool {
        self.next >= self.end
    }

    /// A record was appended. Returns whether it comes next, so that it may stay in memory.
    pub(super) fn appended(&mut self, sequence: u64, has_room: bool) -> bool {
        let stays = self.is_empty() && has_room;
        self.end = sequence + 1;
        if stays {
            self.next = self.end;
        }
        stays
    }

    /// What to read next, if memory has become half empty.
    pub(super) fn begin_read(&mut self, n_bytes: usize, capacity: usize) -> Option<ToRead> {
        if self.is_empty() || n_bytes > capacity / 2 {
            return None;
        }
        Some(ToRead {
            reader: self.reader.take()?,
            sequences: self.next..self.end,
            max_bytes: MAX_READ.min(capacity - n_bytes),
        })
    }

    /// The reader is done.
    pub(super) fn return_reader(&mut self, reader: LogReader) {
        self.reader = Some(reader);
    }

    /// Everything below `next` was read.
    pub(super) fn read_up_to(&mut self, next: u64) {
        self.next = self.next.max(next);
    }
}

/// A stretch of the journal to read.
#[derive(Debug)]
pub(super) struct ToRead {
    reader: LogReader,
    sequences: Range<u64>,
    max_bytes: usize,
}

impl ToRead {
    /// Reads it. Blocks.
    pub(super) fn read(mut self) -> (LogReader, io::Result<Stretch>) {
        let Range { start, end } = self.sequences;
        let stretch = self.reader.read(start, end, self.max_bytes);
        (self.reader, stretch)
    }
}

/// The record of a request, shared by the parts that it was split into.
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

    /// A part became two.
    pub(super) fn split(&self) {
        self.n_parts.fetch_add(1, Ordering::Relaxed);
    }

    /// A part is done. Returns the record's number after the last one.
    pub(super) fn finish(&self) -> Option<u64> {
        (self.n_parts.fetch_sub(1, Ordering::Relaxed) == 1).then_some(self.sequence)
    }
}

/// Writes headers: for each its name and value, both with their lengths.
pub(super) fn encode_headers(headers: &HeaderMap) -> Bytes {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        // HTTP/2 and hyper's own limits keep both far below these lengths.
        bytes.put_u16_le(u16::try_from(name.as_str().len()).unwrap_or(u16::MAX));
        bytes.put_u32_le(u32::try_from(value.len()).unwrap_or(u32::MAX));
        bytes.put_slice(name.as_str().as_bytes());
        bytes.put_slice(value.as_bytes());
    }
    bytes.into()
}

/// Reads them back. What a later version wrote behind them is left out.
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
