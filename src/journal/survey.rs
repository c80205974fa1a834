//! Summarises a journal's folder for `spanscore journal`: the undelivered records, their age, and
//! damage. Changes nothing, and may run while a process uses the folder.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use super::consumed::{Delivered, n_records};
use super::format::{
    OUTLETS, Outlet, RECORDS_AT, SegmentHead, SignalCounts, UnusableHead, request_signal,
};
use super::progress::{CursorFile, CursorRead};
use super::recover::{Found, parts_at, scan};
use super::reopen::Damage;
use super::segment::{RecordKind, consumed_below, first_of, is_for, read_head, read_leniently};
use super::storage::{Folder, Storage, StoredFile};

#[derive(Debug, Default)]
pub struct JournalSurvey {
    /// The process that uses the folder. The numbers may change while it runs.
    pub in_use_by: Option<String>,
    /// The version of the files, if it is not ours. Then the logs are empty.
    pub other_version: Option<u32>,
    pub requests: LogSurvey,
    pub scores: LogSurvey,
}

#[derive(Debug, Default)]
pub struct LogSurvey {
    /// The segments, oldest first.
    pub segments: Vec<SurveyedSegment>,
    pub damage: Vec<Damage>,
}

#[derive(Debug, Default)]
pub struct SurveyedSegment {
    pub name: String,
    /// The size of the file in bytes.
    pub size: u64,
    pub n_requests: usize,
    /// Number of undelivered records. Marks and requests that are only scored do not count.
    pub n_waiting: usize,
    pub n_waiting_bytes: u64,
    /// Undelivered spans, log records and metric points; in a log of scores, scores by queue.
    pub waiting: SignalCounts,
    /// Number of undelivered items of any kind.
    pub n_waiting_items: u64,
    /// Arrival of the oldest undelivered record in Unix nanoseconds.
    pub oldest: Option<u64>,
}

/// Reads the folder of a journal.
///
/// # Errors
/// Returns an error if the folder is not a journal or cannot be read.
pub fn survey(directory: &Path) -> io::Result<JournalSurvey> {
    let mut survey = JournalSurvey {
        in_use_by: process_with(&directory.join("lock")),
        ..JournalSurvey::default()
    };
    let is_in_use = survey.in_use_by.is_some();
    let requests = survey_log(directory, super::REQUESTS, RecordKind::Request, is_in_use)?;
    // An older spanscore, or one that sends no scores, has no log of scores.
    let scores = match survey_log(directory, super::SCORES, RecordKind::Score, is_in_use) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LogSurvey::default()),
        log => log?,
    };
    match (requests, scores) {
        (Ok(requests), Ok(scores)) => {
            survey.requests = requests;
            survey.scores = scores;
        }
        (Err(version), _) | (_, Err(version)) => survey.other_version = Some(version),
    }
    Ok(survey)
}

/// Reads a log; returns the version if another version wrote it.
fn survey_log(
    directory: &Path,
    folder: &str,
    kind: RecordKind,
    is_in_use: bool,
) -> io::Result<Result<LogSurvey, u32>> {
    let mut survey = LogSurvey::default();
    let storage = Folder::read_only(&directory.join(folder));
    // List the files before reading the cursor: if a segment is removed in the meantime, the cursor
    // counts its records as consumed.
    let mut names: Vec<(u64, String)> = storage
        .names()?
        .into_iter()
        .filter_map(|name| Some((first_of(&name)?, name)))
        .collect();
    names.sort();
    let (_, cursor) = CursorFile::open(&storage)?;
    let first = names.first().map_or(0, |(first, _)| *first);
    let (mut consumed, durable) = match cursor {
        CursorRead::OtherVersion(version) => return Ok(Err(version)),
        CursorRead::Slot(slot) => (slot.delivered, slot.durable),
        CursorRead::Absent | CursorRead::Damaged => (Delivered::below(first), 0),
    };
    // The records, too, say what was consumed: a power cut may have lost the cursor's last writes.
    let low = names.iter().rev().find_map(|(first, name)| {
        let file = storage.open(name).ok()?;
        let head = read_head(&*file).ok().filter(|head| head.first == *first)?;
        consumed_below(&*file, head.salt)
    });
    consumed.consume_everywhere(0..low.unwrap_or_default());
    if !is_in_use && consumed.low() < first {
        let n_lost = count(&consumed, consumed.low()..first);
        if n_lost > 0 {
            survey.damage.push(Damage {
                file: names[0].1.clone(),
                n_records: n_lost,
                ..Damage::default()
            });
        }
    }
    for (idx, (first, name)) in names.iter().enumerate() {
        let next = names.get(idx + 1).map(|(next, _)| *next);
        let file = match storage.open(name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let is_consumed =
            |end: Option<u64>| end.is_some_and(|end| count(&consumed, *first..end) == 0);
        match read_head(&*file) {
            Ok(head) if head.first == *first => {
                let log = LogState {
                    kind,
                    is_in_use,
                    consumed: &consumed,
                    durable,
                };
                log.look_into(&mut survey, name, &*file, &head, next)?;
            }
            Err(UnusableHead::OtherVersion(version)) => return Ok(Err(version)),
            _ if is_consumed(next) || consumed.contains(*first) => {}
            _ => survey.damage.push(Damage {
                file: name.clone(),
                n_bytes: file.n_bytes()?,
                n_records: next.map_or(0, |next| count(&consumed, *first..next)),
                ..Damage::default()
            }),
        }
    }
    Ok(Ok(survey))
}

/// The state of a log before its segments are read.
struct LogState<'a> {
    kind: RecordKind,
    is_in_use: bool,
    consumed: &'a Delivered,
    durable: u64,
}

impl LogState<'_> {
    fn is_wanted(&self, found: &Found) -> bool {
        self.is_any(found, |_| true)
    }

    /// Returns true if an outlet for which `is_it` is true gets the record.
    fn is_any(&self, found: &Found, is_it: impl Fn(Outlet) -> bool) -> bool {
        let kind = RecordKind::of(found.head.kind).filter(|kind| *kind == self.kind);
        let mut outlets = OUTLETS.into_iter();
        outlets.any(|outlet| is_for(kind, found.head.signal, outlet) && is_it(outlet))
    }

    fn is_waiting(&self, found: &Found) -> bool {
        self.is_any(found, |outlet| {
            !(self.consumed.to(outlet.index())).contains(found.head.sequence)
        })
    }

    fn look_into(
        &self,
        survey: &mut LogSurvey,
        name: &str,
        file: &dyn StoredFile,
        head: &SegmentHead,
        next: Option<u64>,
    ) -> io::Result<()> {
        let size = file.n_bytes()?;
        let n_bytes = usize::try_from(size.saturating_sub(RECORDS_AT)).unwrap_or(0);
        let bytes = read_leniently(file, RECORDS_AT, n_bytes);
        let scan = scan(&bytes, head, next, self.durable);
        let mut segment = SurveyedSegment {
            name: name.to_owned(),
            size,
            n_requests: scan
                .records
                .iter()
                .filter(|found| self.is_wanted(found))
                .count(),
            ..SurveyedSegment::default()
        };
        for found in &scan.records {
            if !self.is_waiting(found) {
                continue;
            }
            segment.n_waiting += 1;
            segment.n_waiting_bytes += found.head.n_bytes() as u64;
            segment.oldest = segment.oldest.or(Some(found.head.arrived));
            segment.n_waiting_items += found.head.n_items;
            if let Some(count) = segment.waiting.get_mut(usize::from(found.head.signal)) {
                *count += found.head.n_items;
            }
        }
        survey.segments.push(segment);
        let is_written = self.is_in_use && next.is_none();
        for hole in scan
            .holes
            .iter()
            .filter(|hole| !hole.is_torn && !is_written)
        {
            let n_lost = count(self.consumed, hole.sequences.clone());
            if n_lost > 0 {
                survey.damage.push(Damage {
                    file: name.to_owned(),
                    offset: RECORDS_AT + hole.at as u64,
                    n_bytes: hole.n_bytes as u64,
                    n_records: n_lost,
                    counts: hole.counts,
                    ..Damage::default()
                });
            }
        }
        Ok(())
    }
}

fn count(consumed: &Delivered, range: std::ops::Range<u64>) -> u64 {
    n_records(&consumed.rest_of(&range))
}

/// Returns the process that has locked the folder.
fn process_with(lock: &Path) -> Option<String> {
    let file = File::open(lock).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(
            fs::read_to_string(lock)
                .unwrap_or_default()
                .trim()
                .to_owned(),
        ),
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct SegmentRequest {
    /// The signal: 0, 1 or 2.
    pub signal: u8,
    pub body: bytes::Bytes,
}

/// Returns all intact requests in the bytes of a segment, delivered or not; `None` if its head is
/// damaged or of another version.
pub fn segment_requests(bytes: &bytes::Bytes) -> Option<Vec<SegmentRequest>> {
    let head = super::format::head_of(bytes)?;
    let records_at = usize::try_from(RECORDS_AT).ok()?;
    let records = bytes.slice(records_at.min(bytes.len())..);
    let found = scan(&records, &head, None, 0).records.into_iter();
    let requests = found.filter(|found| found.head.kind == RecordKind::Request as u8);
    let requests = requests.filter_map(|found| {
        let (_, body) = parts_at(&records, found.at, &found.head)?;
        Some(SegmentRequest {
            signal: request_signal(found.head.signal),
            body: records.slice_ref(body),
        })
    });
    Some(requests.collect())
}
