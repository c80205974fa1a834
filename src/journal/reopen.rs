//! Recovers a log from its folder: the segments, their undelivered records, and the missing
//! records. Copies damaged bytes aside. Damage never makes recovery fail. A survey of the folder
//! is a recovery that reads every segment and changes nothing.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use super::consumed::{Delivered, N_OUTLETS};
use super::format::{
    OUTLETS, RECORDS_AT, RecordHead, SegmentHead, SignalCounts, UnusableHead, add_counts, add_items,
};
use super::progress::Progress;
use super::recover::{Scan, scan};
use super::segment::{
    FileFault, OpenError, RecordKind, Segment, first_of, heads, is_for, read_head, read_leniently,
};
use super::storage::{Storage, StoredFile};
use crate::telemetry::{JournalDamaged, Telemetry};

/// No items.
const NONE: SignalCounts = [0; 8];

/// Damage to acknowledged records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Damage {
    /// The name of the segment, or of a neighbour if the segment is missing.
    pub file: String,
    /// Offset in the segment.
    pub offset: u64,
    /// Number of bytes; 0 if the segment is missing.
    pub n_bytes: u64,
    pub n_records: u64,
    /// The lost items, as far as they are known.
    pub counts: SignalCounts,
    /// The copy of the bytes in `damaged/`.
    pub copy: Option<String>,
    /// True for each outlet that lost records, if a start found the damage.
    pub lost_by: [bool; N_OUTLETS],
    /// True if another reader of the log has reported the damage.
    pub is_known: bool,
}

impl Damage {
    /// Counts and logs the damage; `file` is the name or path of the segment.
    pub fn emit(&self, file: String, telemetry: &Telemetry) {
        if self.is_known {
            return;
        }
        JournalDamaged {
            file,
            offset: self.offset,
            n_bytes: self.n_bytes,
            n_records: self.n_records,
            copy: self.copy.clone(),
        }
        .emit(telemetry);
    }
}

/// The records and the damage that a start found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Recovered {
    /// The undelivered items of each outlet, including damaged ones.
    pub counts: [SignalCounts; N_OUTLETS],
    /// True if records may have waited for an outlet that the log no longer has.
    pub is_abandoned: bool,
    /// Approximate bytes of the undelivered records.
    pub n_bytes: u64,
    /// Time at which the oldest undelivered record arrived, in Unix nanoseconds.
    pub oldest: Option<u64>,
    pub damage: Vec<Damage>,
    /// The segment with a torn tail: its last group was written only in part, and was never
    /// acknowledged.
    pub torn: Option<String>,
    /// True if there are segments but no readable cursor, so that delivered records may be
    /// delivered again.
    pub is_cursor_lost: bool,
    /// The time in the cursor: see [`CursorSlot::written`](super::format::CursorSlot::written).
    pub stopped: Option<u64>,
    /// True if all records that scoring needs are present.
    pub is_past_whole: bool,
}

/// The records of a segment that a recovery has read.
#[derive(Debug, Clone, Default)]
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
    /// Arrival of the oldest undelivered record in Unix nanoseconds.
    pub oldest: Option<u64>,
}

impl Recovered {
    fn add(&mut self, counts: [SignalCounts; N_OUTLETS]) {
        for (sums, counts) in self.counts.iter_mut().zip(&counts) {
            add_counts(sums, counts);
        }
    }
}

/// A file that may be a segment.
struct Candidate {
    name: String,
    first: u64,
    file: Arc<dyn StoredFile>,
    /// `None` if the head is damaged, or if it is the head of another segment: a kill may have
    /// interrupted the recycling of the file.
    head: Option<SegmentHead>,
}

/// Reads the folder, cuts a torn tail, and syncs the last segment, because a killed process may
/// have written bytes without syncing them. `damaged` is the folder for copies of damaged bytes.
/// Without it, changes nothing and reads every segment, perhaps while a process uses the folder.
pub(super) fn recover<'a>(
    storage: &'a Arc<dyn Storage>,
    damaged: Option<&'a dyn Storage>,
    outlets: [bool; N_OUTLETS],
) -> Result<Recovery<'a>, OpenError> {
    // List the files before reading the cursor: if a segment is removed in the meantime, the cursor
    // counts its records as consumed.
    let candidates = candidates(&**storage)?;
    let first = candidates.first().map(|first| first.first);
    let mut recovery = Recovery::new(storage, damaged, outlets, first)?;
    // A power cut may have lost the last writes of the cursor.
    let mut latest = candidates.iter().rev();
    let low = latest.find_map(|it| {
        let heads = heads(&*it.file, it.head?.salt, u64::MAX);
        heads.iter().map(|(_, head)| head.low).max()
    });
    if let Some(low) = low {
        recovery.progress.delivered.consume_everywhere(0..low);
        recovery.next_sequence = recovery.next_sequence.max(low);
    }
    let mut next = None;
    let mut kept = Vec::new();
    for candidate in candidates.into_iter().rev() {
        let (first, consumed) = (candidate.first, &recovery.progress.delivered);
        let needed_from = recovery.progress.needed.from;
        let is_done = |next| next <= needed_from && consumed.covers(&(first..next));
        if next.is_some_and(is_done) || candidate.head.is_none() && consumed.contains(first) {
            recovery.remove(&candidate.name)?;
        } else {
            kept.push((candidate, next.replace(first)));
        }
    }
    let low = recovery.progress.delivered.low();
    if let Some((first, _)) = kept.last() {
        recovery.lose(&first.name, 0, &[], low..first.first, NONE);
    }
    for (candidate, next) in kept.into_iter().rev() {
        recovery.take(candidate, next)?;
    }
    if recovery.damaged.is_some() {
        storage.sync().map_err(FileFault::of("."))?;
    }
    recovery.finish();
    Ok(recovery)
}

fn counts_of(head: &RecordHead) -> SignalCounts {
    let mut counts = NONE;
    add_items(&mut counts, head.signal, head.n_items);
    counts
}

fn candidates(storage: &dyn Storage) -> Result<Vec<Candidate>, OpenError> {
    let mut candidates = Vec::new();
    for name in storage.names().map_err(FileFault::of("."))? {
        let Some(first) = first_of(&name) else {
            continue;
        };
        let file = match storage.open(&name) {
            // A process that uses the folder has removed the file.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            file => file.map_err(FileFault::of(&name))?,
        };
        let head = match read_head(&*file) {
            Err(UnusableHead::OtherVersion(version)) => {
                return Err(OpenError::OtherVersion(version));
            }
            head => head.ok().filter(|head| head.first == first),
        };
        candidates.push(Candidate {
            name,
            first,
            file,
            head,
        });
    }
    candidates.sort_by_key(|candidate| candidate.first);
    Ok(candidates)
}

/// A log during its recovery. [`recover`] returns it ready for new records.
pub(super) struct Recovery<'a> {
    storage: &'a dyn Storage,
    damaged: Option<&'a dyn Storage>,
    pub(super) progress: Progress,
    pub(super) segments: Vec<Segment>,
    /// The segments of which every record was read.
    pub(super) surveyed: Vec<SurveyedSegment>,
    pub(super) next_sequence: u64,
    pub(super) next_group: u64,
    pub(super) recovered: Recovered,
}

impl<'a> Recovery<'a> {
    fn new(
        storage: &'a Arc<dyn Storage>,
        damaged: Option<&'a dyn Storage>,
        outlets: [bool; N_OUTLETS],
        first: Option<u64>,
    ) -> Result<Self, OpenError> {
        let mut progress = Progress::read(Arc::clone(storage))?;
        let stopped = progress.stopped;
        if stopped.is_none() {
            // Without a cursor, missing segments before the first segment cannot be noticed.
            progress.delivered = Delivered::below(first.unwrap_or_default());
        }
        let next_sequence = progress.durable.max(progress.delivered.low());
        let recovered = Recovered {
            is_abandoned: progress.delivered.set_outlets(outlets, next_sequence),
            stopped,
            is_past_whole: stopped.is_some(),
            is_cursor_lost: stopped.is_none() && first.is_some(),
            ..Recovered::default()
        };
        Ok(Self {
            storage: &**storage,
            damaged,
            progress,
            segments: Vec::new(),
            surveyed: Vec::new(),
            next_sequence,
            next_group: 1,
            recovered,
        })
    }

    fn remove(&self, name: &str) -> Result<(), OpenError> {
        if self.damaged.is_some() {
            self.storage.remove(name).map_err(FileFault::of(name))?;
        }
        Ok(())
    }

    fn take(&mut self, candidate: Candidate, next: Option<u64>) -> Result<(), OpenError> {
        let (name, file) = (candidate.name, candidate.file);
        let size = file.n_bytes().map_err(FileFault::of(&name))?;
        let Some(head) = candidate.head else {
            // Without the salt, records cannot be distinguished from other bytes.
            let bytes = read_leniently(&*file, 0, usize::try_from(size).unwrap_or(0));
            let durable = self.progress.durable.max(candidate.first);
            let lost = candidate.first..next.unwrap_or(durable);
            self.lose(&name, 0, &bytes, lost, NONE);
            return self.remove(&name);
        };
        let mut segment = Segment {
            name,
            head,
            size,
            end: RECORDS_AT,
            next: head.first,
            counts: SignalCounts::default(),
            oldest: 0,
        };
        self.next_group = self.next_group.max(head.group);
        self.next_sequence = self.next_sequence.max(head.first);
        if self.damaged.is_some()
            && let (Some(next), Some(sealed)) = (next, segment.sealed(&*file))
            && self.take_sealed(&sealed)
        {
            self.next_sequence = self.next_sequence.max(sealed.next);
            // A segment has at most as many groups as records.
            self.next_group = self.next_group.max(head.group + sealed.next - head.first);
            self.lose(&sealed.name, 0, &[], sealed.next..next, NONE);
            self.segments.push(sealed);
            return Ok(());
        }
        let n_bytes = usize::try_from(size.saturating_sub(RECORDS_AT)).unwrap_or(0);
        let bytes = read_leniently(&*file, RECORDS_AT, n_bytes);
        let names = || self.storage.names().map_err(FileFault::of("."));
        if self.damaged.is_none() && !names()?.contains(&segment.name) {
            // A process that uses the folder may have written other records to the file.
            return Ok(());
        }
        let scan = scan(&bytes, &head, next, self.progress.durable);
        segment.end = RECORDS_AT + scan.end as u64;
        self.take_records(&mut segment, &scan);
        for hole in &scan.holes {
            if hole.is_torn {
                self.progress
                    .delivered
                    .consume_everywhere(hole.sequences.clone());
                self.recovered.torn = Some(segment.name.clone());
                continue;
            }
            let evidence = &bytes[hole.at..hole.at + hole.n_bytes];
            // Do not copy free space at the end of a file.
            let n_used = evidence.iter().rposition(|byte| *byte != 0);
            let evidence = &evidence[..n_used.map_or(0, |last| last + 1)];
            let (offset, lost) = (RECORDS_AT + hole.at as u64, hole.sequences.clone());
            self.lose(&segment.name, offset, evidence, lost, hole.counts);
        }
        if next.is_none() && self.damaged.is_some() {
            self.cut(&*file, &mut segment, &scan)?;
        }
        if scan.records.is_empty() {
            return self.remove(&segment.name);
        }
        self.segments.push(segment);
        Ok(())
    }

    /// Counts the undelivered records of a finished segment from its seal. Returns false if an
    /// outlet has consumed only some of them, so that the records must be read.
    fn take_sealed(&mut self, segment: &Segment) -> bool {
        let range = segment.head.first..segment.next;
        let rests = (self.progress.delivered.0.each_ref()).map(|it| it.rest_of(&range));
        let is_known = rests.iter().all(|rest| rest.is_empty() || rest[0] == range);
        // Scoring may need a segment whose records are all delivered.
        if is_known && !self.progress.delivered.covers(&range) {
            let counts = rests.map(|rest| if rest.is_empty() { NONE } else { segment.counts });
            self.waits(counts, segment.end - RECORDS_AT, segment.oldest);
        }
        is_known
    }

    fn take_head(&mut self, head: &RecordHead, surveyed: &mut SurveyedSegment) {
        let kind = RecordKind::of(head.kind);
        let (mut is_request, items) = (false, counts_of(head));
        let counts = OUTLETS.map(|outlet| {
            let sequences = head.sequence..head.sequence + 1;
            if !is_for(kind, head.signal, outlet) {
                self.progress.delivered.0[outlet.index()].insert(sequences);
                return NONE;
            }
            is_request = true;
            let is_consumed = self.progress.delivered.0[outlet.index()].contains(head.sequence);
            if is_consumed { NONE } else { items }
        });
        surveyed.n_requests += usize::from(is_request);
        if !self.progress.delivered.contains(head.sequence) {
            let n_bytes = head.n_bytes() as u64;
            self.waits(counts, n_bytes, head.arrived);
            surveyed.n_waiting += 1;
            surveyed.n_waiting_bytes += n_bytes;
            add_counts(&mut surveyed.waiting, &items);
            surveyed.oldest = surveyed.oldest.or(Some(head.arrived));
        }
    }

    fn take_records(&mut self, segment: &mut Segment, scan: &Scan) {
        if let Some(first) = scan.records.first() {
            segment.oldest = first.head.arrived;
        }
        let mut surveyed = SurveyedSegment {
            name: segment.name.clone(),
            size: segment.size,
            ..SurveyedSegment::default()
        };
        for found in &scan.records {
            let head = &found.head;
            add_counts(&mut segment.counts, &counts_of(head));
            segment.next = head.sequence + 1;
            self.next_sequence = self.next_sequence.max(segment.next);
            self.next_group = self.next_group.max(head.group + 1);
            self.take_head(head, &mut surveyed);
        }
        self.surveyed.push(surveyed);
    }

    fn cut(
        &mut self,
        file: &dyn StoredFile,
        segment: &mut Segment,
        scan: &Scan,
    ) -> Result<(), OpenError> {
        if scan.has_torn_tail {
            self.recovered.torn = Some(segment.name.clone());
        }
        if scan.records.is_empty() {
            return Ok(());
        }
        let cut = file
            .set_len(segment.end)
            .and_then(|()| segment.seal(file))
            .and_then(|()| file.sync());
        match cut {
            Ok(()) => segment.size = segment.end,
            // If the disk is full, the file is not cut. Readers accept the longer file.
            Err(error) if error.kind() == ErrorKind::StorageFull => {}
            Err(error) => return Err(FileFault::of(&segment.name)(error).into()),
        }
        Ok(())
    }

    /// Counts lost records as consumed, and reports those that were not delivered everywhere.
    /// `bytes` are the damaged bytes; none if records are missing next to the segment `name`.
    fn lose(
        &mut self,
        name: &str,
        offset: u64,
        bytes: &[u8],
        range: Range<u64>,
        counts: SignalCounts,
    ) {
        let lost = self.progress.delivered.rest_of(&range);
        if lost.is_empty() {
            return;
        }
        let lost_by = (self.progress.delivered.0)
            .each_ref()
            .map(|it| !it.covers(&range));
        self.progress.delivered.consume_everywhere(range);
        self.recovered
            .add(lost_by.map(|is_lost| if is_lost { counts } else { NONE }));
        self.recovered.damage.push(Damage {
            file: name.to_owned(),
            offset,
            n_bytes: bytes.len() as u64,
            n_records: lost.iter().map(|range| range.end - range.start).sum(),
            counts,
            copy: set_aside(self.damaged, name, offset, bytes),
            lost_by,
            is_known: false,
        });
    }

    fn waits(&mut self, counts: [SignalCounts; N_OUTLETS], n_bytes: u64, arrived: u64) {
        let recovered = &mut self.recovered;
        recovered.add(counts);
        recovered.n_bytes += n_bytes;
        let oldest = recovered.oldest.unwrap_or(arrived);
        recovered.oldest = Some(oldest.min(arrived));
    }

    fn finish(&mut self) {
        self.recovered.is_past_whole &= self.recovered.damage.is_empty();
        let first = self.segments.first();
        let first_kept = first.map_or(self.next_sequence, |segment| segment.head.first);
        if first_kept > self.progress.needed.from {
            // For example, a program without scoring has run in the meantime, or files were
            // deleted.
            self.progress.needed.from = first_kept;
            match first {
                Some(first) => {
                    let since = &mut self.progress.needed.since_unix_nanos;
                    *since = first.oldest.max(*since);
                }
                None => self.recovered.is_past_whole = false,
            }
        }
        self.progress.needed.from = self.progress.needed.from.min(self.next_sequence);
    }
}

/// Copies damaged bytes, so that people can inspect them. Returns the name of the copy; `None` if
/// there are no bytes, or if the copy could not be written.
pub(super) fn set_aside(
    damaged: Option<&dyn Storage>,
    name: &str,
    offset: u64,
    bytes: &[u8],
) -> Option<String> {
    if bytes.is_empty() {
        return None;
    }
    let copy = format!("{name}.{offset}");
    let written = damaged?
        .create(&copy)
        .and_then(|file| file.write_at(&[bytes], 0));
    written.is_ok().then_some(copy)
}
