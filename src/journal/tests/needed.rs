//! Tests which records are retained for the score plane on a simulated disk: delivered requests,
//! and marks of judged traces.

use std::sync::Arc;

use bytes::Bytes;

use super::model::ModelDisk;
use super::{ALL_KEPT, SETTINGS, reader_of, reads};
use crate::journal::format::{Needed, Outlet};
use crate::journal::reader::Wanted;
use crate::journal::reopen::Recovered;
use crate::journal::resent::LastRecords;
use crate::journal::segment::RecordKind;
use crate::journal::store::{LogSettings, Record, Store};

pub(super) const SCORED: LogSettings = LogSettings {
    is_scored: true,
    ..SETTINGS
};

pub(super) fn open_scored(disk: &ModelDisk) -> (Store, Recovered) {
    let rng = fastrand::Rng::with_seed(1);
    Store::open(Arc::new(disk.clone()), &ModelDisk::default(), SCORED, rng).unwrap()
}

/// Returns the numbers of the requests that scoring needs, whether delivered or not.
fn past(store: &Store) -> Vec<u64> {
    let mut reader = reads(store, Wanted::Kind(RecordKind::Request));
    let from = store.progress.needed.from;
    let stretch = reader.read(from, store.next_sequence, usize::MAX).unwrap();
    assert_eq!(stretch.damage, []);
    stretch
        .records
        .iter()
        .map(|record| record.sequence)
        .collect()
}

#[test]
fn what_is_delivered_is_kept_while_it_is_needed() {
    let disk = ModelDisk::default();
    let (mut store, _) = open_scored(&disk);
    let mut rng = fastrand::Rng::with_seed(1);
    let record = Record::new(0, 1, 7, Bytes::new(), Bytes::from(vec![7; 5_000]));
    for n in 0..400 {
        store.append(&[&record]).unwrap();
        store.progress.consume_everywhere(n..n + 1);
        let from = n.saturating_sub(20);
        let needed = Needed {
            from,
            since_unix_nanos: n,
        };
        store.progress.need(needed);
        store.settle(1).unwrap();
        assert_eq!(past(&store), (from..=n).collect::<Vec<_>>());
        for kept in ALL_KEPT {
            let (again, recovered) = open_scored(&disk.after_power_cut(kept, &mut rng));
            assert_eq!(recovered.damage, []);
            assert!(recovered.is_past_whole || n == 0);
            let (all, needed) = (past(&again), again.progress.needed);
            assert!(
                needed.from <= from,
                "{n}, {kept:?}: nothing needed is given up"
            );
            assert_eq!(all, (needed.from..=n).collect::<Vec<_>>(), "{n}, {kept:?}");
        }
    }
    assert!(store.used() < SCORED.max_size / 2, "{} bytes", store.used());
}

#[test]
fn a_trace_that_stays_open_holds_a_quarter_of_the_log_and_refuses_nothing() {
    let disk = ModelDisk::default();
    let (mut store, _) = open_scored(&disk);
    let body = Bytes::from(vec![7; 5_000]);
    for n in 0..1_000 {
        let record = Record::new(0, 1, n, Bytes::new(), body.clone());
        store.append(&[&record]).unwrap();
        store.progress.consume_everywhere(n..n + 1);
        store.settle(n).unwrap();
    }
    // In addition to scoring's quarter there are two spare segments and the open one.
    let share = SCORED.max_size / 4 + 3 * SCORED.segment_size;
    assert!(store.used() <= share, "{} bytes", store.used());
    let needed = store.progress.needed;
    assert!(needed.from > 900, "{needed:?}");
    assert_eq!(
        needed.since_unix_nanos, needed.from,
        "what came before is forgotten"
    );
    // From now on nothing is delivered, so telemetry uses the quarter, too.
    let n_segments = SCORED.max_size / SCORED.segment_size - 2;
    for n in 0..4 * n_segments {
        let record = Record::new(0, 1, 2_000 + n, Bytes::new(), body.clone());
        assert!(store.append(&[&record]).is_ok(), "{n}");
        store.settle(n).unwrap();
    }
    assert!(
        store.progress.needed.from > needed.from,
        "{:?}",
        store.progress.needed
    );
}

#[test]
fn marks_are_read_back_and_never_delivered() {
    let disk = ModelDisk::default();
    let (mut store, _) = open_scored(&disk);
    let request = Record::new(0, 1, 7, Bytes::new(), Bytes::from_static(b"request"));
    let scored = Record::new(
        Outlet::signal_for(0, false, false),
        1,
        7,
        Bytes::new(),
        "scored".into(),
    );
    let marks = Record::judged(7, Bytes::from_static(b"marks"));
    store
        .append(&[&request, &marks, &scored, &request])
        .unwrap();
    store.sync().unwrap();
    for is_again in [false, true] {
        let (store, _) =
            if is_again { open_scored(&disk.after_kill()) } else { open_scored(&disk) };
        let waiting = reader_of(&store).read(0, 4, 1 << 20).unwrap();
        let bodies: Vec<_> = waiting
            .records
            .iter()
            .map(|record| &record.body[..])
            .collect();
        assert_eq!(bodies, [b"request", b"request"]);
        let mut judged = reads(&store, Wanted::Kind(RecordKind::Judged));
        let judged = judged.read(0, 4, 1 << 20).unwrap();
        assert_eq!(judged.records.len(), 1);
        assert_eq!(judged.records[0].body, "marks");
    }
}

#[test]
fn a_request_that_is_sent_again_is_recognised_once_and_to_the_byte() {
    const SECOND: u64 = 1_000_000_000;
    let disk = ModelDisk::default();
    let (mut store, _) = open_scored(&disk);
    let record = |n: u8, arrived: u64| {
        let body = Bytes::from(vec![n; 9_000]);
        Record::new(0, 1, arrived, Bytes::from_static(b"headers"), body)
    };
    // The first record is too old to be sent again. The records fill several segments.
    for (n, arrived) in [(1, 1), (2, 15), (3, 16), (4, 20), (5, 20)] {
        store.append(&[&record(n, arrived * SECOND)]).unwrap();
    }
    store.settle(1).unwrap();
    store.sync().unwrap();
    let (store, _) = open_scored(&disk.after_kill());
    let (storage, segments) = store.segments();
    let mut last = LastRecords::find(storage, &segments);
    assert!(!last.take(&record(1, 99)), "too old");
    for n in 2..=5 {
        assert!(last.take(&record(n, 99)), "{n}");
        assert!(!last.take(&record(n, 99)), "{n}: only once");
    }
    let (storage, segments) = store.segments();
    let mut last = LastRecords::find(storage, &segments);
    let other = Record::new(
        0,
        1,
        99,
        Bytes::from_static(b"HEADERS"),
        record(5, 99).body.clone(),
    );
    assert!(!last.take(&other), "other headers");
    let of_other_signal = Record::new(1, 1, 99, Bytes::from_static(b"headers"), other.body.clone());
    assert!(!last.take(&of_other_signal), "another signal");
}
