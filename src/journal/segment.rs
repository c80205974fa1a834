//! A segment of a log: its name, the head and the seal of its file, and its content.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::format::{
    HEADS_AT, Outlet, RECORD_HEAD, RECORDS_AT, RecordHead, SEAL, SEAL_AT, SEGMENT_HEAD,
    SegmentHead, SignalCounts, UnusableHead, decode_seal, encode_seal, head_of,
};
use super::storage::{Storage, StoredFile};
use crate::sync::Mutex;

/// The content of a record. The number is written to disk and must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    Request = 1,
    /// Marks of traces that were judged.
    Judged = 2,
    /// Scores to deliver. The number of their lane is in the field of the signal.
    Score = 3,
}

impl RecordKind {
    /// Returns `None` for an unknown kind. Readers skip records of that kind.
    pub(super) fn of(number: u8) -> Option<Self> {
        let all = [Self::Request, Self::Judged, Self::Score];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Returns true if a request or score with this field `signal` is for an outlet. The lanes share
/// the progress of the downstream.
pub(super) fn is_for(kind: Option<RecordKind>, signal: u8, outlet: Outlet) -> bool {
    match kind {
        Some(RecordKind::Request) => outlet.takes(signal),
        Some(RecordKind::Score) => outlet == Outlet::Downstream,
        Some(RecordKind::Judged) | None => false,
    }
}

/// Size in bytes of the reads of heads, and of the reads around an unreadable sector.
const PAGE: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) name: String,
    pub(super) head: SegmentHead,
    /// The length of the file.
    pub(super) size: u64,
    /// The end of the last record.
    pub(super) end: u64,
    /// One more than the number of the last record.
    pub(super) next: u64,
    pub(super) counts: SignalCounts,
    /// Time at which the first record arrived, or at which a probe of the disk created the segment,
    /// in Unix nanoseconds.
    pub(super) oldest: u64,
}

impl Segment {
    /// Writes a summary of the finished segment, so that the next start can skip its records. The
    /// seal contains the salt, so that the seal of an earlier use does not make a recycled file
    /// look finished.
    pub(super) fn seal(&self, file: &dyn StoredFile) -> io::Result<()> {
        let [a, b, c, d, e, f, g, h] = self.counts;
        let (salt, last) = (self.head.salt, self.next.saturating_sub(1));
        let numbers = [salt, self.end, last, a, b, c, d, e, f, g, h, self.oldest];
        file.write_at(&[&encode_seal(numbers)], SEAL_AT)
    }

    /// Returns the segment as its seal describes it; `None` if the segment is not finished or the
    /// seal is damaged.
    pub(super) fn sealed(&self, file: &dyn StoredFile) -> Option<Self> {
        let mut bytes = [0; SEAL];
        file.read_at(&mut bytes, SEAL_AT).ok()?;
        let [salt, end, last, counts @ .., oldest] = decode_seal(&bytes)?;
        (salt == self.head.salt && end <= self.size).then(|| Self {
            end,
            next: last + 1,
            counts,
            oldest,
            ..self.clone()
        })
    }
}

/// The segments in order, shared with the readers.
pub(super) type Index = Arc<Mutex<Vec<Segment>>>;

#[derive(Debug)]
pub struct FileFault {
    pub(super) file: String,
    pub error: io::Error,
}

impl FileFault {
    pub(super) fn of(file: &str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |error| Self { file, error }
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.error)
    }
}

/// The reason why a log cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Another version wrote the log.
    OtherVersion(u32),
    /// The folder cannot be read or written.
    FileFault(FileFault),
}

impl From<FileFault> for OpenError {
    fn from(fault: FileFault) -> Self {
        Self::FileFault(fault)
    }
}

pub(super) fn segment_name(first: u64) -> String {
    format!("{first:016x}.seg")
}

/// Returns the number of the segment's first record; `None` if the name is not one of a segment.
pub(super) fn first_of(name: &str) -> Option<u64> {
    let digits = name
        .strip_suffix(".seg")
        .filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

pub(super) fn write_heads(file: &dyn StoredFile, head: &SegmentHead) -> io::Result<()> {
    let bytes: [u8; SEGMENT_HEAD] = head.encode();
    for at in HEADS_AT {
        file.write_at(&[&bytes], at)?;
    }
    Ok(())
}

pub(super) fn read_head(file: &dyn StoredFile) -> Result<SegmentHead, UnusableHead> {
    head_of(&read_leniently(file, 0, PAGE))
}

/// Returns the heads of a segment's records, each with its offset, up to the first unreadable head.
pub(super) fn heads_of(storage: &dyn Storage, segment: &Segment) -> Vec<(u64, RecordHead)> {
    let Ok(file) = storage.open(&segment.name) else {
        return Vec::new();
    };
    heads(&*file, segment.head.salt, segment.end)
}

/// Returns the heads of the records before `end`, as [`heads_of`].
pub(super) fn heads(file: &dyn StoredFile, salt: u64, end: u64) -> Vec<(u64, RecordHead)> {
    // The window has space for a few small records, or for the head of a large one.
    let mut window = [0; PAGE];
    let (mut begins, mut n_read) = (0, 0);
    let (mut offset, mut heads) = (RECORDS_AT, Vec::new());
    while offset < end {
        if offset + RECORD_HEAD as u64 > begins + n_read as u64 {
            begins = offset;
            n_read = file.read_at(&mut window, offset).unwrap_or_default();
        }
        let at = usize::try_from(offset - begins).unwrap_or(n_read);
        let Some(head) = RecordHead::decode(&window[at.min(n_read)..n_read], salt) else {
            break;
        };
        heads.push((offset, head));
        offset += head.n_bytes() as u64;
    }
    heads
}

/// Reads up to `n_bytes` from `offset`. Unreadable bytes become zeros.
pub(super) fn read_leniently(file: &dyn StoredFile, offset: u64, n_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; n_bytes];
    match file.read_at(&mut bytes, offset) {
        Ok(n_read) => bytes.truncate(n_read),
        Err(_) => {
            for (idx, page) in bytes.chunks_mut(PAGE).enumerate() {
                if file.read_at(page, offset + (idx * PAGE) as u64).is_err() {
                    page.fill(0);
                }
            }
        }
    }
    bytes
}
