//! Gives the thread that rewrites open traces access to the records that may contain their spans.

use std::sync::Arc;

use super::carrying::{CarryRequest, Carrying};
use super::reader::{LogReader, Wanted};
use super::segment::{Index, RecordKind};
use super::storage::Storage;

/// The kinds of records that may have to be rewritten.
const CARRIED: &[RecordKind] = &[
    RecordKind::Request,
    RecordKind::Scored,
    RecordKind::Carried,
    RecordKind::Judged,
];

/// The records that may have to be rewritten. Clones share them.
#[derive(Debug, Clone)]
pub struct CarriedRecords {
    storage: Arc<dyn Storage>,
    index: Index,
    carrying: Arc<Carrying>,
}

impl CarriedRecords {
    pub(super) fn new(storage: Arc<dyn Storage>, index: Index, carrying: Arc<Carrying>) -> Self {
        Self {
            storage,
            index,
            carrying,
        }
    }

    /// Returns what the log requests to be rewritten; `None` if nothing.
    pub fn request(&self) -> Option<CarryRequest> {
        self.carrying.requested()
    }

    /// Returns the number of the first record that the log keeps. Records with smaller numbers may
    /// be removed at any moment.
    pub fn begin(&self) -> u64 {
        self.carrying.begin()
    }

    /// Returns a reader of these records.
    pub fn reader(&self) -> LogReader {
        let (storage, index) = (Arc::clone(&self.storage), Arc::clone(&self.index));
        LogReader::new(
            Arc::clone(&storage),
            storage,
            index,
            Wanted::Copied(CARRIED),
        )
    }
}
