//! The inbox of a log's writer thread.

use std::time::Instant;

use super::store::{AppendError, Record};
use crate::fair::Charge;

/// A callback that gets the record's number once the record is durable, or the reason for its
/// refusal. It runs on the journal's thread, for appended records in the order of their numbers, or
/// on the caller's thread if the record is refused immediately.
pub type Done = Box<dyn FnOnce(Result<u64, AppendError>) + Send>;

pub(super) enum Message {
    Append(Box<WaitingRecord>),
    Consumed,
    End,
}

/// A record that waits for its group.
pub(super) struct WaitingRecord {
    pub(super) record: Record,
    pub(super) since: Instant,
    pub(super) charge: Option<Charge>,
    pub(super) done: Done,
}

impl WaitingRecord {
    pub(super) fn refuse(self, error: AppendError) {
        drop(self.charge);
        (self.done)(Err(error));
    }
}
