//! A log: appends groups of records to segments, syncs each group unless `sync` is false, and
//! removes consumed segments. Runs on the journal's thread once the log is open. Time and
//! randomness are arguments.

mod consumption;
mod record;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::consumed::N_OUTLETS;
use super::format::{
    ALIGNMENT, OUTLETS, RECORDS_AT, RecordHead, SegmentHead, SignalCounts, add_items,
};
use super::progress::Progress;
use super::reopen::{Recovered, recover};
use super::segment::{FileFault, Index, OpenError, Segment, is_for, segment_name, write_heads};
use super::storage::{Storage, StoredFile};
use super::{REQUESTS, SCORES};
use crate::sync::Mutex;

pub use self::record::Record;

const MAX_GROUP: usize = 8 << 20;

/// Segments that only scoring needs may use the log's size divided by this number.
const NEEDED_SHARE: u64 = 4;

/// Maximum number of consumed segments that are stored for recycling.
const MAX_SPARES: usize = 2;

/// Minimum usual size of a segment in bytes. If space is short, a segment may be smaller.
const LEAST_SEGMENT: u64 = 4 << 20;
const LARGEST_SEGMENT: u64 = 64 << 20;

#[derive(Debug, Clone, Copy)]
pub struct LogSettings {
    /// Maximum bytes of the log's segments.
    pub(super) max_size: u64,
    /// Usual size of a segment in bytes.
    pub(super) segment_size: u64,
    /// True if a record must be durable before it counts as appended. Otherwise an appended record
    /// survives a crash of the process, but a power cut may lose it.
    pub(super) sync: bool,
    /// True if delivered records are retained while open traces have spans in them.
    pub(super) is_scored: bool,
    /// True if the log has scores. A full one evicts its oldest records; otherwise it refuses new
    /// ones.
    pub(super) drops_oldest: bool,
    /// True for each outlet that the log has.
    pub(super) outlets: [bool; N_OUTLETS],
}

impl LogSettings {
    pub fn new(max_size: u64, sync: bool, is_scored: bool) -> Self {
        let segment_size = (max_size / 32).clamp(LEAST_SEGMENT, LARGEST_SEGMENT);
        Self {
            max_size,
            segment_size: segment_size.min(max_size),
            sync,
            is_scored,
            drops_oldest: false,
            outlets: [true, false],
        }
    }

    /// Sets the destinations of a log of requests.
    #[must_use]
    pub fn for_outlets(self, downstream: bool, topic: bool) -> Self {
        Self {
            outlets: [downstream, topic],
            ..self
        }
    }

    /// Returns the name of the log's folder.
    pub(super) fn name(&self) -> &'static str {
        if self.drops_oldest { SCORES } else { REQUESTS }
    }

    /// Returns the settings of a log of scores, which evicts its oldest records when full.
    pub fn of_scores(max_size: u64, sync: bool) -> Self {
        Self {
            drops_oldest: true,
            ..Self::new(max_size, sync, false)
        }
    }
}

/// A record that a full log has evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostRecord {
    pub sequence: u64,
    pub lane: u8,
    /// Number of the record's scores.
    pub n_items: u64,
}

/// The reason why records were not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendError {
    /// `max_size`, or the sender's share of it, is used up, or the thread's inbox is full.
    Full,
    DiskFull,
    DiskFailed,
}

impl AppendError {
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            _ => Self::DiskFailed,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::DiskFull => "disk_full",
            Self::DiskFailed => "disk_error",
        }
    }
}

#[derive(Debug)]
pub(super) struct Store {
    storage: Arc<dyn Storage>,
    settings: LogSettings,
    index: Index,
    /// The file of the index's last segment, if records can be appended to it.
    tail: Option<Arc<dyn StoredFile>>,
    /// True if the tail has records that were not synced.
    is_unsynced: bool,
    /// Consumed segments of the usual size, to be recycled.
    spares: Vec<String>,
    /// Records that were evicted and that nobody was told of.
    pub(super) lost: Vec<LostRecord>,
    pub(super) next_sequence: u64,
    next_group: u64,
    pub(super) progress: Progress,
    rng: fastrand::Rng,
}

impl Store {
    /// Opens the log of a folder. Its existing segments get no more records.
    pub(super) fn open(
        storage: Arc<dyn Storage>,
        damaged: &dyn Storage,
        settings: LogSettings,
        rng: fastrand::Rng,
    ) -> Result<(Self, Recovered), OpenError> {
        let mut recovery = recover(&storage, Some(damaged), settings.outlets)?;
        let next_sequence = recovery.next_sequence;
        recovery.progress.begin(next_sequence, settings.is_scored);
        let store = Self {
            storage: Arc::clone(&storage),
            settings,
            index: Arc::new(Mutex::new(recovery.segments)),
            tail: None,
            is_unsynced: false,
            spares: Vec::new(),
            lost: Vec::new(),
            next_sequence,
            next_group: recovery.next_group,
            progress: recovery.progress,
            rng,
        };
        Ok((store, recovery.recovered))
    }

    pub(super) fn segments(&self) -> (Arc<dyn Storage>, Index) {
        (Arc::clone(&self.storage), Arc::clone(&self.index))
    }

    /// Returns the number below which every record is consumed.
    pub(super) fn low(&self) -> u64 {
        self.progress.delivered.low()
    }

    /// Returns, for each outlet, the number below which every record is consumed.
    pub(super) fn lows(&self) -> [u64; N_OUTLETS] {
        OUTLETS.map(|outlet| self.progress.delivered.0[outlet.index()].low)
    }

    pub(super) fn capacity(&self) -> u64 {
        self.settings.max_size
    }

    /// Returns the number of segments, and the arrival of the first record in the oldest segment
    /// with undelivered records.
    pub(super) fn extent(&self) -> (usize, Option<u64>) {
        let index = self.index.lock();
        let low = self.low();
        let is_waiting = low < self.next_sequence;
        let oldest = index.iter().find(|segment| segment.next > low);
        let oldest = oldest.filter(|_| is_waiting).map(|segment| segment.oldest);
        (index.len(), oldest)
    }

    /// Returns the bytes of all segments and spares.
    pub(super) fn used(&self) -> u64 {
        let segments: u64 = self.index.lock().iter().map(|segment| segment.size).sum();
        segments + self.spares.len() as u64 * self.settings.segment_size
    }

    fn left(&self) -> u64 {
        self.settings.max_size.saturating_sub(self.used())
    }

    /// Returns the bytes of the largest record that can be appended.
    pub(super) fn room(&self) -> u64 {
        if self.settings.drops_oldest {
            return self.settings.max_size.saturating_sub(RECORDS_AT);
        }
        self.tail_room()
            .max(self.reclaimable().saturating_sub(RECORDS_AT))
    }

    fn tail_room(&self) -> u64 {
        let index = self.index.lock();
        match (&self.tail, index.last()) {
            (Some(_), Some(segment)) => segment.size - segment.end,
            _ => 0,
        }
    }

    /// Appends records from the front as one group: as many as the segment and [`MAX_GROUP`] allow,
    /// at least one. Syncs them unless `sync` is false. Returns their numbers, or the fault of the
    /// disk, or no fault if the log is full.
    pub(super) fn append(&mut self, records: &[&Record]) -> Result<Range<u64>, Option<FileFault>> {
        let Some(first) = records.first() else {
            return Ok(self.next_sequence..self.next_sequence);
        };
        if (first.n_bytes() as u64) > self.tail_room() {
            self.roll(first.n_bytes() as u64, first.arrived)?;
        }
        let mut room = usize::try_from(self.tail_room()).unwrap_or(usize::MAX);
        room = room.min(MAX_GROUP.max(first.n_bytes()));
        let mut n_bytes = 0;
        let fitting = records.iter().take_while(|record| {
            n_bytes += record.n_bytes();
            n_bytes <= room
        });
        let group = &records[..fitting.count()];
        if let Err(fault) = self.write_group(group) {
            self.abandon_tail();
            return Err(Some(fault));
        }
        let sequences = self.next_sequence..self.next_sequence + group.len() as u64;
        if let Some(segment) = self.index.lock().last_mut() {
            segment.next = sequences.end;
            for record in group {
                segment.end += record.n_bytes() as u64;
                add_items(&mut segment.counts, record.signal, record.n_items);
            }
        }
        self.next_sequence = sequences.end;
        self.next_group += 1;
        self.progress.set_durable(self.next_sequence);
        for outlet in OUTLETS {
            let is_its = |it: &&Record| is_for(Some(it.kind), it.signal, outlet);
            let last = group.iter().rposition(is_its);
            let end = last.map(|nth| sequences.start + nth as u64 + 1);
            self.progress.appended(outlet.index(), end);
        }
        if self.settings.outlets == [false; N_OUTLETS] {
            self.progress.consume_everywhere(sequences.clone());
        }
        Ok(sequences)
    }

    fn write_group(&mut self, group: &[&Record]) -> Result<(), FileFault> {
        const PADDING: [u8; ALIGNMENT] = [0; ALIGNMENT];
        let (Some(file), Some(segment)) = (&self.tail, self.index.lock().last().cloned()) else {
            return Ok(());
        };
        let low = self.low();
        let heads: Vec<_> = (self.next_sequence..)
            .zip(group)
            .enumerate()
            .map(|(idx, (sequence, record))| {
                let head = RecordHead {
                    kind: record.kind as u8,
                    signal: record.signal,
                    is_last: idx + 1 == group.len(),
                    sequence,
                    group: self.next_group,
                    arrived: record.arrived,
                    n_items: record.n_items,
                    // The lengths fit: `Journal::largest_request` limits a request to deliver to 2
                    // GiB, and `receivers.otlp.max_request_size` limits one that is only scored.
                    meta_len: u32::try_from(record.meta.len()).unwrap_or(u32::MAX),
                    body_len: u32::try_from(record.body.len()).unwrap_or(u32::MAX),
                    rest_crc: record.rest_crc,
                    low,
                };
                head.encode(segment.head.salt)
            })
            .collect();
        let mut slices: Vec<&[u8]> = Vec::with_capacity(4 * group.len());
        for (head, record) in heads.iter().zip(group) {
            let n_padding = record.n_bytes() - head.len() - record.meta.len() - record.body.len();
            slices.extend([&head[..], &record.meta, &record.body, &PADDING[..n_padding]]);
        }
        let written = file.write_at(&slices, segment.end);
        let synced = written.and_then(|()| if self.settings.sync { file.sync() } else { Ok(()) });
        self.is_unsynced |= !self.settings.sync;
        synced.map_err(FileFault::of(&segment.name))
    }

    /// Abandons the tail after a failed write or sync. Cuts the segment back to the records that
    /// were appended earlier and never writes to it again, because a later sync of the same file
    /// could succeed without the bytes.
    fn abandon_tail(&mut self) {
        if let Some(file) = self.tail.take() {
            let mut index = self.index.lock();
            if let Some(segment) = index.last_mut() {
                let is_cut = file.set_len(segment.end).is_ok();
                if is_cut {
                    segment.size = segment.end;
                }
                if segment.end == RECORDS_AT {
                    let _ = self.storage.remove(&segment.name);
                    index.pop();
                }
            }
        }
        self.is_unsynced = false;
        self.next_group += 1;
    }

    // === segments ===

    /// Finishes the tail and starts a segment with space for `n_bytes`.
    fn roll(&mut self, n_bytes: u64, arrived: u64) -> Result<(), Option<FileFault>> {
        let least = RECORDS_AT + n_bytes;
        // The tail stays open, because a smaller record may fit.
        if !self.settings.drops_oldest && self.reclaimable() < least {
            return Err(None);
        }
        self.finish_tail()?;
        let head = SegmentHead {
            first: self.next_sequence,
            group: self.next_group,
            salt: self.rng.u64(..),
        };
        let name = segment_name(head.first);
        let usual = self.settings.segment_size;
        let spare = if usual >= least { self.spares.pop() } else { None };
        let (file, size) = match spare {
            Some(spare) => self
                .prepare(&name, &head, usual, Some(&spare))
                .map_err(FileFault::of(&name))?,
            None => self.make(&name, &head, least, arrived)?,
        };
        self.tail = Some(file);
        self.index.lock().push(Segment {
            name,
            head,
            size,
            end: RECORDS_AT,
            next: head.first,
            counts: SignalCounts::default(),
            oldest: arrived,
        });
        Ok(())
    }

    fn finish_tail(&mut self) -> Result<(), FileFault> {
        let Some(file) = self.tail.take() else {
            return Ok(());
        };
        let Some(segment) = self.index.lock().last().cloned() else {
            return Ok(());
        };
        self.progress.finished(segment.head.first..segment.next);
        // Ignore an error: without a seal, the next start reads the whole segment.
        let _ = segment.seal(&*file);
        if std::mem::take(&mut self.is_unsynced) {
            file.sync().map_err(FileFault::of(&segment.name))?;
        }
        Ok(())
    }

    /// Creates a segment of the usual size, or a larger one for a large record, or a smaller one if
    /// space is short.
    fn make(
        &mut self,
        name: &str,
        head: &SegmentHead,
        least: u64,
        arrived: u64,
    ) -> Result<(Arc<dyn StoredFile>, u64), Option<FileFault>> {
        // First evict records that only scoring needs, because scoring must never make the log
        // refuse telemetry. An evicted segment may become a spare, which frees no bytes, so it goes
        // next. It is not recycled, because a reader may be reading it.
        while self.left() < least
            && (self.drop_spare()
                || self.release_oldest(arrived)
                || self.settings.drops_oldest && self.drop_oldest(arrived))
        {}
        let free = self.left();
        if free < least {
            return Err(None);
        }
        let usual = self.settings.segment_size.max(least).min(free);
        let made = self.prepare(name, head, usual, None).or_else(|_| {
            // The disk may be full.
            while self.drop_spare() {}
            self.prepare(name, head, LEAST_SEGMENT.max(least).min(usual), None)
        });
        let made = made.or_else(|_| self.prepare(name, head, least, None));
        Ok(made.map_err(FileFault::of(name))?)
    }

    /// Prepares the file of a segment: creates it with `size` bytes, or recycles a spare, whose
    /// blocks are already allocated, so that a sync writes only data.
    fn prepare(
        &self,
        name: &str,
        head: &SegmentHead,
        size: u64,
        spare: Option<&str>,
    ) -> io::Result<(Arc<dyn StoredFile>, u64)> {
        let prepare = || {
            let file = match spare {
                Some(spare) => self.storage.open(spare)?,
                None => self.storage.create(name)?,
            };
            file.allocate(size)?;
            write_heads(&*file, head)?;
            file.sync()?;
            if let Some(spare) = spare {
                self.storage.rename(spare, name)?;
            }
            self.storage.sync()?;
            Ok((file, size))
        };
        prepare().inspect_err(|_| {
            for name in spare.into_iter().chain([name]) {
                let _ = self.storage.remove(name);
            }
        })
    }

    /// Removes the newest spare. Returns false if there is none.
    fn drop_spare(&mut self) -> bool {
        let Some(name) = self.spares.pop() else {
            return false;
        };
        // If a file cannot be removed, the next start finds its records consumed and removes it.
        let _ = self.storage.remove(&name);
        true
    }

    /// Tries to create a segment, to check whether the disk works again.
    pub(super) fn probe(&mut self, arrived: u64) -> Result<(), Option<FileFault>> {
        if self.tail.is_some() {
            return Ok(());
        }
        self.roll(ALIGNMENT as u64, arrived)
    }
}
