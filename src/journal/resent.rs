//! Recognises requests that senders repeat after a restart because a crash lost the answer,
//! although the log has their records. Compares lengths and checksums first, then every byte.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::format::{OUTLETS, RECORD_HEAD, RecordHead, request_signal};
use super::segment::{Index, heads_of};
use super::storage::Storage;
use super::store::Record;

/// A record that is older than the last record by at most this time may be unanswered: the default
/// timeout of OTLP exporters.
const BEFORE_END: Duration = Duration::from_secs(10);

/// Time after a start during which a request may be a repeated one. Exporters retry for about a
/// minute.
pub(super) const AFTER_START: Duration = Duration::from_secs(60);

/// The last records of the previous process.
#[derive(Debug)]
pub(super) struct LastRecords {
    storage: Arc<dyn Storage>,
    /// Positions of records, by checksum and length.
    places: HashMap<(u32, usize), Vec<Place>>,
}

#[derive(Debug)]
struct Place {
    file: String,
    offset: u64,
    head: RecordHead,
}

impl LastRecords {
    /// Finds the records that arrived within [`BEFORE_END`] before the last record. Misses records
    /// after an unreadable head in the same segment.
    pub(super) fn find(storage: Arc<dyn Storage>, index: &Index) -> Self {
        let segments = index.lock().clone();
        let (mut found, mut latest) = (Vec::new(), 0);
        let age = |latest: u64, at| Duration::from_nanos(latest.saturating_sub(at));
        for segment in segments.iter().rev() {
            for (offset, head) in heads_of(&*storage, segment) {
                latest = latest.max(head.arrived);
                found.push(Place {
                    file: segment.name.clone(),
                    offset,
                    head,
                });
            }
            if age(latest, segment.oldest) > BEFORE_END {
                break;
            }
        }
        let mut places: HashMap<_, Vec<Place>> = HashMap::new();
        for place in found {
            if age(latest, place.head.arrived) <= BEFORE_END {
                let key = (place.head.rest_crc, place.n_bytes());
                places.entry(key).or_default().push(place);
            }
        }
        Self { storage, places }
    }

    /// Returns true if the log has the record. Each record of the log matches only once.
    pub(super) fn take(&mut self, record: &Record) -> bool {
        let key = (record.rest_crc, record.meta.len() + record.body.len());
        let Some(places) = self.places.get_mut(&key) else {
            return false;
        };
        let is_it = |place: &Place| {
            let head = &place.head;
            head.kind == record.kind as u8
                && request_signal(head.signal) == request_signal(record.signal)
                && (OUTLETS.iter()).all(|it| !it.takes(record.signal) || it.takes(head.signal))
                && head.meta_len as usize == record.meta.len()
                && is_equal(&*self.storage, place, record)
        };
        let found = places.iter().position(is_it);
        found.map(|idx| places.swap_remove(idx)).is_some()
    }
}

impl Place {
    fn n_bytes(&self) -> usize {
        self.head.meta_len as usize + self.head.body_len as usize
    }
}

fn is_equal(storage: &dyn Storage, place: &Place, record: &Record) -> bool {
    let mut bytes = vec![0; place.n_bytes()];
    let read = storage
        .open(&place.file)
        .and_then(|file| file.read_at(&mut bytes, place.offset + RECORD_HEAD as u64));
    let (meta, body) = bytes.split_at(record.meta.len());
    read.is_ok_and(|n_read| n_read == place.n_bytes())
        && *meta == *record.meta
        && *body == *record.body
}
