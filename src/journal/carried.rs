//! Read access for the compaction thread to the records that it may have to rewrite: records that
//! hold spans of open traces.

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

    /// Returns the log's current request.
    pub fn request(&self) -> Option<CarryRequest> {
        self.carrying.requested()
    }

    /// Returns the first record that is kept; records with smaller numbers may be removed at any
    /// moment.
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
