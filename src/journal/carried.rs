//! The records whose content may have to be carried into new ones, as the thread that carries reads
//! them.

use std::sync::Arc;

use super::carrying::{CarryRequest, Carrying};
use super::reader::{LogReader, Wanted};
use super::segment::{Index, RecordKind};
use super::storage::Storage;

/// The kinds of records that are read to be carried.
const CARRIED: &[RecordKind] = &[
    RecordKind::Request,
    RecordKind::Scored,
    RecordKind::Carried,
    RecordKind::Judged,
];

/// The records that may have to be carried. Clones share them.
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

    /// The log's current request.
    pub fn request(&self) -> Option<CarryRequest> {
        self.carrying.requested()
    }

    /// Records below this number are removed, or may be at any moment.
    pub fn begin(&self) -> u64 {
        self.carrying.begin()
    }

    /// A reader of these records.
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
