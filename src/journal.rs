//! Stores requests on disk until they are delivered and, within a share of the space, until they
//! are judged. Stores scores until they are delivered or evicted. The clock and randomness are
//! arguments.

mod consumed;
mod format;
mod recover;
mod storage;

mod segment;

mod progress;

mod reopen;

mod reader;

mod store;

mod segment_charges;
mod waiting;

mod resent;

mod opening;

mod gathering;
mod refusals;

mod writer;

mod starting;

mod ticket;

mod judged;

mod survey;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread::JoinHandle;

pub use format::{Needed, Outlet, SignalCounts, is_segment, request_counts};
pub use judged::JudgedMarks;
pub use opening::{Clock, JournalError, JournalFolder, OpenedLog, Past};
pub use reader::{LogReader, Stored, Stretch};
pub use reopen::SurveyedSegment;
pub use segment::{OpenError, RecordKind};
pub use storage::is_in_memory;
pub use store::{AppendError, LogSettings, LostRecord, Record};
pub use survey::{JournalSurvey, LogSurvey, segment_requests, survey};
pub use ticket::{Ledger, Ticket};
pub use waiting::Done;
pub use writer::{JournalLog, WhenLost, WhenOpen};

const REQUESTS: &str = "requests";

const SCORES: &str = "scores";

/// Owns a log's thread and keeps the journal's folder locked.
#[derive(Debug)]
pub struct LogThread {
    log: JournalLog,
    thread: JoinHandle<()>,
    _folder: Arc<JournalFolder>,
}

impl LogThread {
    /// Writes the cursor and stops the thread. Blocks.
    pub fn end(self) {
        self.log.end();
        // A panic of the thread has already been reported.
        let _ = self.thread.join();
    }
}
