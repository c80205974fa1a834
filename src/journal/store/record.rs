//! A record before it is appended.

use bytes::Bytes;
use otlp::span::PeerId;

use crate::journal::format::{n_record_bytes, rest_crc};
use crate::journal::segment::RecordKind;

/// The level of zstd for scores: it compresses about 2 GB/s, to less than half (a batch of one
/// trace) or a fortieth (hundreds of traces).
const SCORE_LEVEL: i32 = -1;

/// A record to append: a request, scores, or marks of judged traces.
#[derive(Debug, Clone)]
pub struct Record {
    pub(in crate::journal) kind: RecordKind,
    pub(in crate::journal) signal: u8,
    pub(in crate::journal) n_items: u64,
    pub(in crate::journal) arrived: u64,
    pub(in crate::journal) meta: Bytes,
    pub(in crate::journal) body: Bytes,
    pub(in crate::journal) rest_crc: u32,
    /// The sender. A record without a sender is never refused in favour of other senders.
    pub(in crate::journal) peer: Option<PeerId>,
}

impl Record {
    /// Creates a record of a request with `n_items` items. `signal` is that of
    /// [`Outlet`](crate::journal::Outlet). Computes the checksum here, in the task of the request,
    /// not on the journal's thread.
    pub fn new(signal: u8, n_items: u64, arrived: u64, meta: Bytes, body: Bytes) -> Self {
        Self {
            kind: RecordKind::Request,
            signal,
            n_items,
            arrived,
            rest_crc: rest_crc(&meta, &body),
            meta,
            body,
            peer: None,
        }
    }

    /// Charges the record's bytes to this sender until the record's segment is delivered or
    /// evicted.
    #[must_use]
    pub fn of(self, peer: PeerId) -> Self {
        Self {
            peer: Some(peer),
            ..self
        }
    }

    pub fn judged(written: u64, marks: Bytes) -> Self {
        Self {
            kind: RecordKind::Judged,
            ..Self::new(0, 0, written, Bytes::new(), marks)
        }
    }

    /// Creates a record of a request with `n_items` scores, for the destination of a lane. The body
    /// is compressed, because scores repeat most of their text, and their log must last as long as
    /// the log of requests. A reader returns the body as it was.
    pub fn score(lane: u8, n_items: u64, written: u64, meta: Bytes, body: Bytes) -> Self {
        let body = zstd::bulk::compress(&body, SCORE_LEVEL).map_or(body, Bytes::from);
        Self {
            kind: RecordKind::Score,
            ..Self::new(lane, n_items, written, meta, body)
        }
    }

    pub(in crate::journal) fn n_bytes(&self) -> usize {
        n_record_bytes(self.meta.len(), self.body.len())
    }
}
