//! Open traces whose segments go, on a simulated disk that stops at some operation before the power
//! is cut: what the records had of them is there once, by the rule by which traces are rebuilt. The
//! test plays whoever carries.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::needed::{SCORED, open_scored};
use super::{ALL_KEPT, reads};
use crate::journal::carried::CarriedRecords;
use crate::journal::carrying::CarryRequest;
use crate::journal::format::Needed;
use crate::journal::model::{DiskFault, ModelDisk, Survival};
use crate::journal::reader::Wanted;
use crate::journal::segment::RecordKind;
use crate::journal::store::{AppendError, LogSettings, Record, Store};

/// One record in this many has a part of the open trace.
const ONE_IN: u64 = 20;

/// A log, and a trace that stays open.
struct Carried {
    store: Store,
    /// The durable records with a part of the trace.
    parts: Vec<u64>,
    needed_from: u64,
    n_passes: usize,
}

impl Carried {
    fn of(disk: &ModelDisk) -> Self {
        let (store, _) = open_scored(disk);
        Self {
            store,
            parts: Vec::new(),
            needed_from: 0,
            n_passes: 0,
        }
    }

    fn records(&self) -> CarriedRecords {
        let (storage, index) = self.store.segments();
        let carrying = Arc::clone(self.store.progress().lock().carrying());
        CarriedRecords::new(storage, index, carrying)
    }

    fn append(&mut self, record: &Record) -> Result<u64, AppendError> {
        let appended = self.store.append(&[record]);
        let sequence = appended.map_err(|failure| failure.error)?.start;
        let progress = self.store.progress();
        progress.lock().consume(sequence..sequence + 1);
        Ok(sequence)
    }

    /// Another request is delivered; `visit` sees the log after each operation.
    fn step(&mut self, mut visit: impl FnMut(&Self)) -> Result<(), AppendError> {
        let next = self.store.next_sequence();
        let is_part = next.is_multiple_of(ONE_IN);
        let body = Bytes::from(vec![u8::from(is_part); 2_000]);
        self.append(&Record::new(0, 1, next, Bytes::new(), body))?;
        self.parts.extend(is_part.then_some(next));
        visit(self);
        let _ = self.store.settle(next);
        visit(self);
        if let Some(request) = self.records().request() {
            self.carry(request, &mut visit)?;
        }
        Ok(())
    }

    fn carry(
        &mut self,
        request: CarryRequest,
        visit: &mut impl FnMut(&Self),
    ) -> Result<(), AppendError> {
        let records = self.records();
        let read = records
            .reader()
            .read(self.needed_from, request.below, usize::MAX);
        let stretch = read.unwrap();
        assert_eq!(stretch.damage, []);
        let mut n_bytes = 0;
        for record in stretch.records.iter().filter(|record| record.body[0] == 1) {
            n_bytes += record.body.len() as u64;
            let copy = Record::carried(0, record.arrived, record.origin(), record.body.clone());
            self.append(&copy)?;
            visit(self);
        }
        assert!(n_bytes <= request.max_bytes, "{n_bytes} of {request:?}");
        assert!(
            self.needed_from >= records.begin(),
            "nothing went in between"
        );
        let note = Bytes::copy_from_slice(&request.below.to_le_bytes());
        self.append(&Record::open(1, note))?;
        visit(self);
        self.needed_from = request.below;
        let needed = Needed {
            from: self.needed_from,
            since_unix_nanos: 0,
        };
        self.store.progress().lock().need(needed, self.needed_from);
        let _ = self.store.settle(1);
        self.n_passes += 1;
        visit(self);
        Ok(())
    }
}

/// The parts of the trace that a start finds, and whether it finds all.
fn found(disk: &ModelDisk) -> (Vec<u64>, bool) {
    let (store, recovered) = open_scored(disk);
    assert_eq!(recovered.damage, []);
    let begin = store.needed().from;
    let read = |kinds: &'static [RecordKind]| {
        let stretch = reads(&store, Wanted::Kinds(kinds)).read(begin, u64::MAX, usize::MAX);
        stretch.unwrap().records
    };
    let notes = read(&[RecordKind::Open]);
    let is_carried = notes.iter().any(|note| {
        let below = u64::from_le_bytes(*note.body.first_chunk().unwrap());
        below >= begin
    });
    let mut parts = Vec::new();
    if is_carried {
        let carried = read(&[RecordKind::Carried]);
        parts.extend(carried.iter().map(|record| record.origin()));
        // Existing originals win over copies; a copy of a copy adds nothing.
        parts.retain(|origin| *origin < begin);
        parts.sort_unstable();
        parts.dedup();
    }
    let requests = read(&[RecordKind::Request]);
    let of_trace = requests.iter().filter(|record| record.body[0] == 1);
    parts.extend(of_trace.map(|record| record.sequence));
    (parts, begin == 0 || is_carried)
}

#[test]
fn a_trace_that_stays_open_over_many_segments_survives_a_power_cut_at_any_operation() {
    let disk = ModelDisk::default();
    let mut carried = Carried::of(&disk);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut n_states = 0;
    for n in 0..300 {
        carried
            .step(|log| {
                for kept in [Survival::Nothing, Survival::Everything, Survival::Some] {
                    let (parts, is_whole) = found(&disk.after_power_cut(kept, &mut rng));
                    let what = format!("request {n}, pass {}, {kept:?}", log.n_passes);
                    assert!(is_whole, "{what}");
                    assert!(parts.starts_with(&log.parts), "{what}: {parts:?}");
                    n_states += 1;
                }
            })
            .unwrap();
    }
    assert!(carried.n_passes > 8, "{} passes", carried.n_passes);
    assert!(n_states > 1_800, "{n_states}");
    let share = SCORED.max_size / 4 + 3 * SCORED.segment_size + carried.store.respite();
    assert!(carried.store.used() <= share, "{}", carried.store.used());
}

#[test]
fn a_trace_that_stays_open_survives_a_power_cut_within_an_operation() {
    for n in (1..2_600).step_by(7) {
        let disk = ModelDisk::default();
        let mut carried = Carried::of(&disk);
        disk.set_fault(Some(DiskFault {
            from: disk.n_operations() + n,
            until: usize::MAX,
            kind: io::ErrorKind::Other,
            is_short: n % 2 == 0,
        }));
        while carried.step(|_| ()).is_ok() {}
        let mut rng = fastrand::Rng::with_seed(n as u64);
        for kept in ALL_KEPT {
            let (parts, is_whole) = found(&disk.after_power_cut(kept, &mut rng));
            assert!(is_whole, "operation {n}, {kept:?}");
            assert!(parts.starts_with(&carried.parts), "operation {n}, {kept:?}");
        }
    }
}

#[test]
fn what_goes_early_need_not_be_carried() {
    // A record a nanosecond, of which the share of the log holds about a hundred.
    for (carried_after, has_room) in [(0, true), (50, true), (400, false)] {
        let settings = LogSettings {
            carried_after,
            ..SCORED
        };
        let disk = ModelDisk::default();
        let rng = fastrand::Rng::with_seed(1);
        let (store, _) = Store::open(Arc::new(disk), &ModelDisk::default(), settings, rng).unwrap();
        let mut carried = Carried {
            store,
            ..Carried::of(&ModelDisk::default())
        };
        let request = loop {
            let next = carried.store.next_sequence();
            let body = Bytes::from(vec![1; 2_000]);
            let record = Record::new(0, 1, next, Bytes::new(), body);
            carried.append(&record).unwrap();
            carried.store.settle(next).unwrap();
            if let Some(request) = carried.records().request() {
                break request;
            }
        };
        let n_records = carried.store.next_sequence();
        assert!((50..400).contains(&n_records), "{n_records}");
        assert_eq!(request.max_bytes > 0, has_room, "{carried_after}");
    }
}
