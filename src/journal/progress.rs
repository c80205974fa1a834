//! Decides what survives a crash: which records of a log need no delivery, in memory and in the
//! log's file `cursor`.
//!
//! 1. A record is *durable*, and its sender is answered, once its group is written and synced; with
//!    `sync: false`, once it is written. The next start delivers all durable records that are not
//!    consumed.
//! 2. A record is *consumed* once it is delivered, permanently refused, or dropped and counted, or
//!    if it needs no delivery. Within 10 ms the log writes that to the cursor, where it survives a
//!    kill. It syncs the cursor once a second. Each group also stores the number below which all
//!    records are consumed, so a power cut repeats at most the deliveries since the last sync, and
//!    of these only records above the number in the last group.
//! 3. A segment is removed once all its records are consumed, scoring does not need them, and a
//!    durable cursor says so. So a missing segment above the cursor is damage. Scoring needs the
//!    records of open and remembered traces; they may use a quarter of the log's size, and are
//!    evicted before the log refuses a record.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::consumed::{Delivered, N_OUTLETS};
use super::format::{CursorSlot, MAX_RANGES, Needed, SLOT, SLOTS_AT, UnusableHead};
use super::segment::{FileFault, OpenError};
use super::storage::{Storage, StoredFile};

pub(super) const CURSOR: &str = "cursor";

/// The name of a new cursor file until it replaces the old one, at the first write and after a
/// failure.
const NEW_CURSOR: &str = "cursor.new";

/// The consumed records, in memory and on disk.
#[derive(Debug)]
pub(super) struct Progress {
    storage: Arc<dyn Storage>,
    pub(super) delivered: Delivered,
    /// The content of the last slot. A start knows no more.
    pub(super) written: Delivered,
    /// For each outlet, one more than the number of the last record that it gets.
    ends: [u64; N_OUTLETS],
    /// Every record below this number is durable.
    pub(super) durable: u64,
    pub(super) needed: Needed,
    /// The time in the cursor of the previous process; `None` without such a cursor, without
    /// scoring, and after scoring has rebuilt its traces. Until then each write repeats this time,
    /// so that the next start measures the whole outage even if this process ends early.
    pub(super) stopped: Option<u64>,
    cursor: CursorFile,
    /// True if anything changed since the last write of the cursor.
    has_moved: bool,
}

impl Progress {
    /// Reads the cursor of a folder.
    pub(super) fn read(storage: Arc<dyn Storage>) -> Result<Self, OpenError> {
        let (cursor, slot) = CursorFile::open(&*storage)?;
        let stopped = slot.as_ref().map(|slot| slot.written);
        let slot = slot.unwrap_or_default();
        Ok(Self {
            storage,
            written: slot.delivered.clone(),
            delivered: slot.delivered,
            ends: [slot.durable; N_OUTLETS],
            durable: slot.durable,
            needed: slot.needed,
            stopped,
            cursor,
            has_moved: true,
        })
    }

    /// Begins a log in which every record below `durable` is durable.
    pub(super) fn begin(&mut self, durable: u64, is_scored: bool) {
        self.durable = durable;
        self.ends = [durable; N_OUTLETS];
        self.stopped = self.stopped.filter(|_| is_scored);
    }

    /// Marks a range as consumed by an outlet. The range of a record begins after the previous
    /// record for the same outlet, so that other records leave no gaps.
    pub(super) fn consume(&mut self, outlet_idx: usize, range: Range<u64>) {
        self.delivered.0[outlet_idx].insert(range);
        self.skip_others(outlet_idx);
        self.has_moved = true;
    }

    /// Records that a group was appended, whose last record for the outlet, if any, is before
    /// `end`.
    pub(super) fn appended(&mut self, outlet_idx: usize, end: Option<u64>) {
        if let Some(end) = end {
            self.ends[outlet_idx] = end;
        }
        self.skip_others(outlet_idx);
    }

    /// Consumes a finished segment for each outlet that gets none of its records, so that one
    /// record that waits retains no later segments.
    pub(super) fn finished(&mut self, segment: Range<u64>) {
        for outlet_idx in 0..N_OUTLETS {
            if self.ends[outlet_idx] <= segment.start {
                self.delivered.0[outlet_idx].insert(segment.clone());
            }
        }
    }

    /// Consumes the records after the last one for the outlet, if that one is consumed.
    fn skip_others(&mut self, outlet_idx: usize) {
        if self.delivered.0[outlet_idx].low >= self.ends[outlet_idx] {
            self.delivered.0[outlet_idx].insert(0..self.durable);
        }
    }

    pub(super) fn consume_everywhere(&mut self, range: Range<u64>) {
        self.delivered.consume_everywhere(range);
        self.has_moved = true;
    }

    /// Sets the records that scoring needs. Do not call it before scoring has rebuilt its traces.
    pub(super) fn need(&mut self, needed: Needed) {
        self.stopped = None;
        self.release(needed);
    }

    /// Advances the oldest record that scoring needs and the start of the trace history. Ignores
    /// smaller values.
    pub(super) fn release(&mut self, needed: Needed) {
        let known = &mut self.needed;
        known.from = known.from.max(needed.from);
        known.since_unix_nanos = known.since_unix_nanos.max(needed.since_unix_nanos);
        self.has_moved = true;
    }

    pub(super) fn set_durable(&mut self, durable: u64) {
        self.durable = durable;
        self.has_moved = true;
    }

    pub(super) fn write(&mut self, unix_nanos: u64) -> Result<(), FileFault> {
        if self.has_moved { self.touch(unix_nanos) } else { Ok(()) }
    }

    /// Writes the cursor to renew its time. A change of the time alone needs no sync.
    pub(super) fn touch(&mut self, unix_nanos: u64) -> Result<(), FileFault> {
        let is_dirty = self.cursor.is_dirty;
        let slot = CursorSlot {
            number: self.cursor.number + 1,
            durable: self.durable,
            written: self.stopped.unwrap_or(unix_nanos),
            delivered: self.delivered.truncated(MAX_RANGES, &self.written),
            needed: self.needed,
        };
        let written = self.cursor.write(&*self.storage, &slot);
        written.map_err(FileFault::of(CURSOR))?;
        self.written = slot.delivered;
        self.cursor.is_dirty &= is_dirty || self.has_moved;
        self.has_moved = false;
        Ok(())
    }

    pub(super) fn sync(&mut self) -> Result<(), FileFault> {
        self.cursor.sync().map_err(FileFault::of(CURSOR))
    }

    pub(super) fn write_durably(&mut self, unix_nanos: u64) -> Result<(), FileFault> {
        self.write(unix_nanos)?;
        self.sync()
    }
}

/// The file `cursor`, which has two slots. One slot has the content of the last sync, and only the
/// other one is overwritten, so that one slot is intact after every crash.
#[derive(Debug, Default)]
struct CursorFile {
    /// `None` while there is no file, and after a failed write or sync, because the file cannot be
    /// trusted after a failure.
    file: Option<Arc<dyn StoredFile>>,
    /// The slot to write next.
    slot_idx: usize,
    number: u64,
    is_dirty: bool,
}

impl CursorFile {
    /// Reads the file, and returns its later intact slot.
    fn open(storage: &dyn Storage) -> Result<(Self, Option<CursorSlot>), OpenError> {
        let names = storage.names().map_err(FileFault::of(CURSOR))?;
        if !names.iter().any(|name| name == CURSOR) {
            return Ok(Default::default());
        }
        let file = storage.open(CURSOR).map_err(FileFault::of(CURSOR))?;
        let (mut cursor, mut found) = (Self::default(), None::<CursorSlot>);
        for (idx, at) in SLOTS_AT.into_iter().enumerate() {
            let mut bytes = vec![0; SLOT];
            let n_read = file.read_at(&mut bytes, at).unwrap_or_default();
            match CursorSlot::decode(&bytes[..n_read]) {
                Err(UnusableHead::OtherVersion(version)) => {
                    return Err(OpenError::OtherVersion(version));
                }
                Ok(slot) if found.is_none() || slot.number >= cursor.number => {
                    (cursor.slot_idx, cursor.number) = (1 - idx, slot.number);
                    found = Some(slot);
                }
                Ok(_) | Err(UnusableHead::Damaged) => {}
            }
        }
        // The slot that was read may not be durable yet. Make it durable before the other slot is
        // overwritten.
        cursor.file = file.sync().is_ok().then_some(file);
        Ok((cursor, found))
    }

    /// Writes a slot, which then survives a kill, but not always a power cut.
    fn write(&mut self, storage: &dyn Storage, slot: &CursorSlot) -> io::Result<()> {
        // A new file is durable immediately. If it were dirty, the next sync would make its only
        // slot the one to overwrite.
        let is_dirty = self.file.is_some();
        let written = match &self.file {
            Some(file) => file.write_at(&[&slot.encode()], SLOTS_AT[self.slot_idx]),
            None => self.replace(storage, slot),
        };
        written.inspect_err(|_| self.file = None)?;
        (self.number, self.is_dirty) = (slot.number, is_dirty);
        Ok(())
    }

    /// Makes the written slot durable, so that it survives a power cut.
    fn sync(&mut self) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.is_dirty) else {
            return Ok(());
        };
        file.sync().inspect_err(|_| self.file = None)?;
        (self.is_dirty, self.slot_idx) = (false, 1 - self.slot_idx);
        Ok(())
    }

    fn replace(&mut self, storage: &dyn Storage, slot: &CursorSlot) -> io::Result<()> {
        let file = storage.create(NEW_CURSOR)?;
        // Allocate both slots, so that later writes need no new space.
        file.allocate(SLOTS_AT[1] + SLOT as u64)?;
        file.write_at(&[&slot.encode()], SLOTS_AT[0])?;
        file.sync()?;
        storage.rename(NEW_CURSOR, CURSOR)?;
        storage.sync()?;
        self.file = Some(file);
        self.slot_idx = 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::model::ModelDisk;

    #[test]
    fn the_only_slot_is_never_overwritten() {
        let disk = ModelDisk::default();
        let mut progress = Progress::read(Arc::new(disk.clone())).unwrap();
        for (low, is_touched) in [(7, true), (8, false)] {
            progress.consume_everywhere(0..low);
            if is_touched {
                progress.touch(1).unwrap();
            } else {
                progress.write(1).unwrap();
            }
            progress.sync().unwrap();
        }
        let file = disk.open(CURSOR).unwrap();
        let lows = SLOTS_AT.map(|at| {
            let mut bytes = vec![0; SLOT];
            let n_read = file.read_at(&mut bytes, at).unwrap();
            CursorSlot::decode(&bytes[..n_read])
                .unwrap()
                .delivered
                .low()
        });
        assert_eq!(lows, [7, 8]);
    }
}
