//! The requests of a queue that are only in its journal.

use std::io;

use crate::journal::{JournalLog, LogReader, OpenedLog, Outlet, Stretch, Ticket};

/// Maximum bytes in one read of the journal.
const MAX_READ: usize = 4 << 20;

/// The requests of a queue that are on disk and not in memory: all requests after those in memory.
#[derive(Debug)]
pub(super) struct Backlog {
    pub(super) log: JournalLog,
    /// The number of the first record that is not in memory.
    next: u64,
    /// One more than the number of the last record.
    end: u64,
    /// The reader; `None` before the log is open, and during a read.
    reader: Option<LogReader>,
    pub(super) outlet: Outlet,
}

impl Backlog {
    pub(super) fn new(log: JournalLog, outlet: Outlet) -> Self {
        Self {
            log,
            next: 0,
            end: 0,
            reader: None,
            outlet,
        }
    }

    /// Sets the range of undelivered records when the log opens, before the first append.
    pub(super) fn opened(&mut self, log: &OpenedLog) {
        let waiting = log.waiting(self.outlet);
        (self.next, self.end) = (waiting.start, waiting.end);
        self.reader = Some(log.reader(self.outlet));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next >= self.end
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Adds an appended record. Returns its ticket if the record may stay in memory: all earlier
    /// requests are in memory, and there is space.
    pub(super) fn appended(&mut self, sequence: u64, has_room: bool) -> Option<Ticket> {
        let stays = self.is_empty() && has_room;
        let ticket = stays.then(|| self.ticket(self.end, sequence));
        self.end = sequence + 1;
        if stays {
            self.next = self.end;
        }
        ticket
    }

    /// Returns the ticket of a record. Between it and `from` are only records for other outlets,
    /// which are consumed with it. Records of other lanes are not.
    fn ticket(&self, from: u64, sequence: u64) -> Ticket {
        let from = if self.is_lane() { sequence } else { from };
        Ticket::of_record(&self.log, self.outlet, from..sequence + 1)
    }

    /// Returns the ticket of the next record that was read.
    pub(super) fn next_ticket(&self, sequence: u64) -> Ticket {
        self.ticket(self.next, sequence)
    }

    pub(super) fn is_lane(&self) -> bool {
        matches!(self.outlet, Outlet::Lane(_))
    }

    /// Returns a function that reads the next records, if memory is at most half full.
    pub(super) fn begin_read(
        &mut self,
        n_bytes: usize,
        capacity: usize,
    ) -> Option<impl FnOnce() -> (LogReader, io::Result<Stretch>) + use<>> {
        if self.is_empty() || n_bytes > capacity / 2 {
            return None;
        }
        let (next, end, max_bytes) = (self.next, self.end, MAX_READ.min(capacity - n_bytes));
        let mut reader = self.reader.take()?;
        Some(move || {
            let stretch = reader.read(next, end, max_bytes);
            (reader, stretch)
        })
    }

    pub(super) fn return_reader(&mut self, reader: LogReader) {
        self.reader = Some(reader);
    }

    /// Records that all records below `next` were read or evicted. Returns the number of the first
    /// record that is not in memory.
    pub(super) fn read_up_to(&mut self, next: u64) -> u64 {
        self.next = self.next.max(next.min(self.end));
        self.next
    }

    /// Consumes the records from `next` on, which the reader skipped, up to `to`.
    pub(super) fn skip_to(&self, to: u64) {
        if !self.is_lane() && self.next < to {
            self.log.consume(self.outlet, self.next..to);
        }
    }

    /// Returns true if a record is on the disk and not in memory.
    pub(super) fn has(&self, sequence: u64) -> bool {
        (self.next..self.end).contains(&sequence)
    }
}
