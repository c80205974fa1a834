//! The byte layouts of the journal's files: a segment's head and seal, a record's head, and a slot
//! of the cursor.

use bytes::{Buf, BufMut};

use super::consumed::{Consumed, Delivered, N_OUTLETS};

/// The version of these layouts. Versions 1 and 2 were never released.
pub(super) const VERSION: u32 = 3;

pub(super) const RECORDS_AT: u64 = 4096;

/// Offsets of the two copies of a segment's head, in its first 4 KiB. No single damaged byte
/// destroys both.
pub(super) const HEADS_AT: [u64; 2] = [0, 2048];

/// Offset of a segment's seal, in a separate sector.
pub(super) const SEAL_AT: u64 = 1024;

pub(super) const SLOTS_AT: [u64; 2] = [0, 4096];

/// Maximum number of ranges of consumed records in a slot of the cursor, so that a slot fits into 4
/// KiB.
pub(super) const MAX_RANGES: usize = 249;

/// Maximum number of pairs of numbers in a slot: one pair for scoring, one for the topic, and the
/// ranges.
const MAX_PAIRS: usize = MAX_RANGES + 2;

pub(super) const SEGMENT_HEAD: usize = 48;
const SEAL_NUMBERS: usize = 12;
pub(super) const SEAL: usize = 112;
pub(super) const RECORD_HEAD: usize = 64;
const SLOT_HEAD: usize = 48;
pub(super) const SLOT: usize = SLOT_HEAD + MAX_PAIRS * 16 + 4;

const SEGMENT_MAGIC: &[u8; 8] = b"SPANJSEG";
const SEAL_MAGIC: &[u8; 8] = b"SPANJEND";
const SLOT_MAGIC: &[u8; 8] = b"SPANJCUR";

pub(super) const RECORD_MAGIC: [u8; 4] = [0xf1, b'S', b'J', b'r'];

/// Alignment of records in bytes.
pub(super) const ALIGNMENT: usize = 8;

const LAST_OF_GROUP: u8 = 1;

/// Numbers of items, indexed by the field `signal` of their records: see [`Outlet`].
pub type SignalCounts = [u64; 8];

/// A destination of a log's records. The field `signal` of a record names the signal or the lane,
/// and which outlets get the record: 0 to 2 are spans, log records and metric points for the
/// downstream, 5 to 7 are the same for no outlet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlet {
    Downstream,
    Topic,
    /// A queue of scores.
    Lane(u8),
}

/// Spans for the downstream and the topic.
const SPANS_FOR_BOTH: u8 = 3;

/// Spans for the topic only.
const SPANS_FOR_TOPIC: u8 = 4;

/// Spans that are only scored; the next numbers are log records and metric points.
const ONLY_SCORED: u8 = 5;

/// The outlets of a log of requests, by [`Outlet::index`].
pub(super) const OUTLETS: [Outlet; N_OUTLETS] = [Outlet::Downstream, Outlet::Topic];

impl Outlet {
    /// Returns the field `signal` of a request with this signal (0, 1 or 2). A topic gets only
    /// spans.
    pub fn signal_for(signal: u8, downstream: bool, topic: bool) -> u8 {
        match (downstream, topic) {
            (true, true) => SPANS_FOR_BOTH,
            (false, true) => SPANS_FOR_TOPIC,
            (true, false) => signal,
            (false, false) => ONLY_SCORED + signal,
        }
    }

    /// Returns true if the outlet gets the records with this field `signal`.
    pub(super) fn takes(self, signal: u8) -> bool {
        match self {
            Self::Downstream => signal < SPANS_FOR_TOPIC,
            Self::Topic => [SPANS_FOR_BOTH, SPANS_FOR_TOPIC].contains(&signal),
            Self::Lane(lane) => signal == lane,
        }
    }

    pub(super) fn index(self) -> usize {
        usize::from(self == Self::Topic)
    }

    /// Returns the counts of this outlet: spans, log records and metric points, or the scores at
    /// the index of the lane.
    pub fn counts(self, counts: &SignalCounts) -> SignalCounts {
        let mut own = *counts;
        for (signal, count) in (0..).zip(&mut own) {
            if !self.takes(signal) {
                *count = 0;
            }
        }
        if matches!(self, Self::Lane(_)) { own } else { request_counts(&own) }
    }
}

/// Returns the numbers of spans, log records and metric points for any outlet.
pub fn request_counts(counts: &SignalCounts) -> SignalCounts {
    let mut sums = SignalCounts::default();
    for (signal, n_items) in (0..).zip(counts) {
        sums[usize::from(request_signal(signal))] += n_items;
    }
    sums
}

pub(super) fn add_items(counts: &mut SignalCounts, signal: u8, n_items: u64) {
    if let Some(count) = counts.get_mut(usize::from(signal)) {
        *count = count.saturating_add(n_items);
    }
}

pub(super) fn add_counts(sums: &mut SignalCounts, counts: &SignalCounts) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count;
    }
}

/// Returns the signal of a request (0, 1 or 2) from the field `signal` of its record.
pub(super) fn request_signal(signal: u8) -> u8 {
    match signal {
        SPANS_FOR_BOTH | SPANS_FOR_TOPIC => 0,
        ONLY_SCORED.. => signal - ONLY_SCORED,
        _ => signal,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHead {
    /// The number of the segment's first record.
    pub(super) first: u64,
    /// The group of the segment's first record.
    pub(super) group: u64,
    /// A random number for each use of the file. The checksum of every record's head includes the
    /// salt, so that neither records of an earlier use nor bytes inside a request look like
    /// records.
    pub(super) salt: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHead {
    pub(super) kind: u8,
    /// The index into [`SignalCounts`].
    pub(super) signal: u8,
    /// True if the record ends its group.
    pub(super) is_last: bool,
    pub(super) sequence: u64,
    pub(super) group: u64,
    /// Unix time of arrival in nanoseconds; for scores and marks, the time at which the record was
    /// created.
    pub(super) arrived: u64,
    pub(super) n_items: u64,
    pub(super) meta_len: u32,
    pub(super) body_len: u32,
    /// The checksum of meta and body.
    pub(super) rest_crc: u32,
    /// Every record below this number was consumed when this record was written.
    pub(super) low: u64,
}

/// A slot of the cursor: the consumed records, and the durable part of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CursorSlot {
    /// A number that grows with each write.
    pub(super) number: u64,
    /// Every record below this number was durable when the slot was written.
    pub(super) durable: u64,
    /// Unix time of the write in nanoseconds. Until scoring has rebuilt its traces, each write
    /// repeats the time in the cursor of the previous process.
    pub(super) written: u64,
    /// The consumed records, with at most [`MAX_RANGES`] ranges above the lowest numbers. After a
    /// kill, records in later ranges may be delivered again.
    pub(super) delivered: Delivered,
    /// Records that scoring needs.
    pub(super) needed: Needed,
}

/// The records that scoring needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needed {
    /// The oldest record with spans of an open or remembered trace.
    pub from: u64,
    /// Unix nanoseconds: the start of the trace history. A trace that began later was judged, or
    /// all its spans are in the records from `from` on.
    pub since_unix_nanos: u64,
}

/// The reason why the beginning of a file cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnusableHead {
    /// Bytes are missing, or the magic or the checksum is wrong.
    Damaged,
    /// Another version wrote the file.
    OtherVersion(u32),
}

impl SegmentHead {
    pub(super) fn encode(self) -> [u8; SEGMENT_HEAD] {
        let mut bytes = [0; SEGMENT_HEAD];
        bytes[..8].copy_from_slice(SEGMENT_MAGIC);
        (&mut bytes[8..]).put_u32_le(VERSION);
        (&mut bytes[16..]).put_u64_le(self.first);
        (&mut bytes[24..]).put_u64_le(self.group);
        (&mut bytes[32..]).put_u64_le(self.salt);
        seal_with_crc(&mut bytes);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; SEGMENT_HEAD]) -> Result<Self, UnusableHead> {
        check(bytes, SEGMENT_MAGIC)?;
        Ok(Self {
            first: (&bytes[16..]).get_u64_le(),
            group: (&bytes[24..]).get_u64_le(),
            salt: (&bytes[32..]).get_u64_le(),
        })
    }
}

pub fn is_segment(bytes: &[u8]) -> bool {
    bytes.starts_with(SEGMENT_MAGIC)
}

/// Returns the head of a segment, from either of its offsets.
pub(super) fn head_of(bytes: &[u8]) -> Result<SegmentHead, UnusableHead> {
    let [first, second] = HEADS_AT.map(|at| {
        let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
        let head = rest.and_then(<[u8]>::first_chunk);
        SegmentHead::decode(head.ok_or(UnusableHead::Damaged)?)
    });
    if first.is_ok() || second == Err(UnusableHead::Damaged) {
        first
    } else {
        second
    }
}

/// Encodes the seal of a segment; [`Segment::seal`](super::segment::Segment::seal) names the
/// numbers.
pub(super) fn encode_seal(numbers: [u64; SEAL_NUMBERS]) -> [u8; SEAL] {
    let mut bytes = [0; SEAL];
    bytes[..8].copy_from_slice(SEAL_MAGIC);
    let mut rest = &mut bytes[8..];
    for number in numbers {
        rest.put_u64_le(number);
    }
    seal_with_crc(&mut bytes);
    bytes
}

pub(super) fn decode_seal(bytes: &[u8; SEAL]) -> Option<[u64; SEAL_NUMBERS]> {
    let (content, mut crc) = bytes.split_at(SEAL - 4);
    let mut numbers = content.strip_prefix(SEAL_MAGIC)?;
    let is_intact = crc.get_u32_le() == crc32fast::hash(content);
    is_intact.then(|| std::array::from_fn(|_| numbers.get_u64_le()))
}

impl RecordHead {
    pub(super) fn encode(self, salt: u64) -> [u8; RECORD_HEAD] {
        let mut bytes = [0; RECORD_HEAD];
        bytes[..4].copy_from_slice(&RECORD_MAGIC);
        bytes[4] = self.kind;
        bytes[5] = if self.is_last { LAST_OF_GROUP } else { 0 };
        bytes[6] = self.signal;
        (&mut bytes[8..]).put_u64_le(self.sequence);
        (&mut bytes[16..]).put_u64_le(self.group);
        (&mut bytes[24..]).put_u64_le(self.arrived);
        (&mut bytes[32..]).put_u64_le(self.n_items);
        (&mut bytes[40..]).put_u32_le(self.meta_len);
        (&mut bytes[44..]).put_u32_le(self.body_len);
        (&mut bytes[48..]).put_u32_le(self.rest_crc);
        (&mut bytes[52..]).put_u64_le(self.low);
        let crc = salted(salt, &bytes[..RECORD_HEAD - 4]);
        (&mut bytes[RECORD_HEAD - 4..]).put_u32_le(crc);
        bytes
    }

    /// Decodes the head at the start of `bytes`; `None` unless its checksum, which includes the
    /// salt, is right.
    pub(super) fn decode(bytes: &[u8], salt: u64) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEAD)?;
        let (content, crc) = bytes.split_at(RECORD_HEAD - 4);
        if content[..4] != RECORD_MAGIC || (&crc[..]).get_u32_le() != salted(salt, content) {
            return None;
        }
        Some(Self {
            kind: content[4],
            is_last: content[5] & LAST_OF_GROUP != 0,
            signal: content[6],
            sequence: (&content[8..]).get_u64_le(),
            group: (&content[16..]).get_u64_le(),
            arrived: (&content[24..]).get_u64_le(),
            n_items: (&content[32..]).get_u64_le(),
            meta_len: (&content[40..]).get_u32_le(),
            body_len: (&content[44..]).get_u32_le(),
            rest_crc: (&content[48..]).get_u32_le(),
            low: (&content[52..]).get_u64_le(),
        })
    }

    pub(super) fn n_bytes(&self) -> usize {
        n_record_bytes(self.meta_len as usize, self.body_len as usize)
    }
}

/// Returns the bytes of a record, including padding.
pub(super) fn n_record_bytes(meta_len: usize, body_len: usize) -> usize {
    (RECORD_HEAD + meta_len + body_len).next_multiple_of(ALIGNMENT)
}

pub(super) fn rest_crc(meta: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(meta);
    hasher.update(body);
    hasher.finalize()
}

impl CursorSlot {
    pub(super) fn encode(&self) -> Vec<u8> {
        let [first, topic] = &self.delivered.0;
        let n_first = first.above().count() as u64;
        // Each pair of numbers is written like a range.
        let mut pairs = vec![
            self.needed.from..self.needed.since_unix_nanos,
            topic.low..n_first,
        ];
        pairs.extend(first.above().chain(topic.above()));
        let mut bytes = vec![0; SLOT_HEAD + pairs.len() * 16 + 4];
        bytes[..8].copy_from_slice(SLOT_MAGIC);
        (&mut bytes[8..]).put_u32_le(VERSION);
        (&mut bytes[12..]).put_u32_le(u32::try_from(pairs.len()).unwrap_or_default());
        (&mut bytes[16..]).put_u64_le(self.number);
        (&mut bytes[24..]).put_u64_le(first.low);
        (&mut bytes[32..]).put_u64_le(self.durable);
        (&mut bytes[40..]).put_u64_le(self.written);
        let mut rest = &mut bytes[SLOT_HEAD..];
        for pair in pairs {
            rest.put_u64_le(pair.start);
            rest.put_u64_le(pair.end);
        }
        seal_with_crc(&mut bytes);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, UnusableHead> {
        let head = bytes.get(..SLOT_HEAD).ok_or(UnusableHead::Damaged)?;
        let n_pairs = (&head[12..]).get_u32_le() as usize;
        if n_pairs > MAX_PAIRS {
            return Err(UnusableHead::Damaged);
        }
        let bytes = bytes
            .get(..SLOT_HEAD + n_pairs * 16 + 4)
            .ok_or(UnusableHead::Damaged)?;
        check(bytes, SLOT_MAGIC)?;
        let pairs = bytes[SLOT_HEAD..bytes.len() - 4].chunks_exact(16);
        let mut pairs = pairs.map(|mut pair| (pair.get_u64_le(), pair.get_u64_le()));
        let mut pair = || pairs.next().ok_or(UnusableHead::Damaged);
        let (from, since_unix_nanos) = pair()?;
        let (topic_low, n_first) = pair()?;
        let mut outlets = [(&bytes[24..]).get_u64_le(), topic_low].map(Consumed::below);
        for (idx, (start, end)) in (0..).zip(pairs) {
            outlets[usize::from(idx >= n_first)].insert(start..end);
        }
        Ok(Self {
            number: (&bytes[16..]).get_u64_le(),
            durable: (&bytes[32..]).get_u64_le(),
            written: (&bytes[40..]).get_u64_le(),
            delivered: Delivered(outlets),
            needed: Needed {
                from,
                since_unix_nanos,
            },
        })
    }
}

// === bytes ===

fn salted(salt: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

fn seal_with_crc(bytes: &mut [u8]) {
    let end = bytes.len() - 4;
    let crc = crc32fast::hash(&bytes[..end]);
    (&mut bytes[end..]).put_u32_le(crc);
}

/// Checks the magic, the checksum at the end, and the version, in this order, so that a flipped bit
/// does not look like another version.
fn check(bytes: &[u8], magic: &[u8; 8]) -> Result<(), UnusableHead> {
    let (content, crc) = bytes.split_at(bytes.len() - 4);
    if content[..8] != *magic || (&crc[..]).get_u32_le() != crc32fast::hash(content) {
        return Err(UnusableHead::Damaged);
    }
    match (&content[8..]).get_u32_le() {
        version if version != VERSION => Err(UnusableHead::OtherVersion(version)),
        _ => Ok(()),
    }
}
