//! Tests the store on a simulated disk: random states after a power cut at any operation, faults of
//! the disk at any operation, and flipped bits. Few tests use a real folder. No test uses a real
//! power cut or another file system.

mod consumed;
mod dropping;
mod judged;
pub(super) mod model;
mod needed;
mod opening;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use self::model::{DiskFault, ModelDisk, Survival};
use super::consumed::{Consumed, N_OUTLETS};
use super::format::{
    HEADS_AT, OUTLETS, Outlet, RECORDS_AT, RecordHead, SEGMENT_HEAD, VERSION, head_of, rest_crc,
};
use super::progress::CURSOR;
use super::reader::{LogReader, Wanted};
use super::reopen::{Damage, Recovered};
use super::segment::{FileFault, OpenError, RecordKind, segment_name};
use super::storage::{Folder, Storage};
use super::store::{AppendError, LogSettings, Record, Store};
use crate::sync::Mutex;

const SETTINGS: LogSettings = LogSettings {
    max_size: 1 << 20,
    segment_size: 24 << 10,
    sync: true,
    is_scored: false,
    drops_oldest: false,
    outlets: [true, false],
};

const FOR_BOTH: LogSettings = LogSettings {
    outlets: [true, true],
    ..SETTINGS
};

/// Spans for the downstream, for both outlets, and for the topic.
const SIGNALS: [u8; 3] = [0, 3, 4];

/// A log under test, with the records that it must and may contain.
struct Tested {
    disk: ModelDisk,
    store: Store,
    rng: fastrand::Rng,
    promised: Promised,
}

#[derive(Debug, Clone, Default)]
struct Promised {
    /// Every body that was offered to the store.
    offered: BTreeSet<Bytes>,
    /// Records that were appended and not consumed, by the index of the outlet and the number.
    waiting: BTreeMap<(usize, u64), Bytes>,
    n_bodies: u64,
    /// True if the log has two outlets.
    for_both: bool,
    /// Every record that was appended, by the index of each outlet that gets it, and its number.
    appended: BTreeSet<(usize, u64)>,
}

impl Promised {
    /// Nothing is promised yet. Every second seed has a log with two outlets.
    fn nothing(seed: u64) -> Self {
        Self {
            for_both: seed % 2 == 1,
            ..Self::default()
        }
    }
}

fn why(fault: Option<FileFault>) -> AppendError {
    fault.map_or(AppendError::Full, |fault| AppendError::of(&fault.error))
}

impl Tested {
    fn open(disk: ModelDisk, seed: u64, promised: Promised) -> (Self, Recovered) {
        let storage = Arc::new(disk.clone());
        let rng = fastrand::Rng::with_seed(seed);
        let settings = if promised.for_both { FOR_BOTH } else { SETTINGS };
        let (store, recovered) =
            Store::open(storage, &ModelDisk::default(), settings, rng.clone()).unwrap();
        let tested = Self {
            disk,
            store,
            rng,
            promised,
        };
        (tested, recovered)
    }

    fn outlets(&self) -> impl Iterator<Item = Outlet> {
        let n_outlets = if self.promised.for_both { 2 } else { 1 };
        OUTLETS.into_iter().take(n_outlets)
    }

    fn body(&mut self) -> Bytes {
        self.promised.n_bodies += 1;
        let mut body = self.promised.n_bodies.to_le_bytes().to_vec();
        let n_bytes = match self.rng.u8(..10) {
            0 => self.rng.usize(..9_000),
            _ => self.rng.usize(..700),
        };
        body.extend((0..n_bytes).map(|_| self.rng.u8(..)));
        let body = Bytes::from(body);
        self.promised.offered.insert(body.clone());
        body
    }

    /// Performs a random operation. Failures of the disk are tolerated.
    fn step(&mut self) {
        match self.rng.u8(..10) {
            0..5 => {
                let n_records = self.rng.usize(1..5);
                let bodies: Vec<Bytes> = (0..n_records).map(|_| self.body()).collect();
                let _ = self.append(&bodies);
            }
            5..8 => {
                let n_consumed = self.rng.usize(..6);
                for _ in 0..n_consumed {
                    let outlet_idx = self.rng.usize(..N_OUTLETS);
                    let waiting = self.promised.waiting.keys().copied();
                    let waiting = waiting.filter(|(idx, _)| *idx >= outlet_idx);
                    let waiting: Vec<(usize, u64)> = waiting.take(8).collect();
                    if let Some((idx, sequence)) = self.rng.choice(waiting) {
                        self.promised.waiting.remove(&(idx, sequence));
                        self.consume(idx, sequence);
                    }
                }
                let _ = self.store.settle(1);
            }
            _ => {
                let _ = self.store.sync();
            }
        }
    }

    /// Consumes a record, with the records before it that the outlet does not get, as a queue does.
    fn consume(&mut self, outlet_idx: usize, sequence: u64) {
        let mut before = self.promised.appended.range(..(outlet_idx, sequence));
        let before = before.next_back().filter(|(idx, _)| *idx == outlet_idx);
        let from = before.map_or(0, |(_, before)| before + 1);
        self.store.progress.consume(outlet_idx, from..sequence + 1);
    }

    fn append(&mut self, bodies: &[Bytes]) -> Result<(), AppendError> {
        let records: Vec<Record> = bodies
            .iter()
            .map(|body| {
                let signals = if self.promised.for_both { &SIGNALS[..] } else { &SIGNALS[..1] };
                let signal = self.rng.choice(signals.iter().copied()).unwrap();
                Record::new(signal, 1, 7, Bytes::from_static(b"meta"), body.clone())
            })
            .collect();
        let mut rest: Vec<&Record> = records.iter().collect();
        while !rest.is_empty() {
            let sequences = self.store.append(&rest).map_err(why)?;
            let n_appended = (sequences.end - sequences.start) as usize;
            for (sequence, record) in sequences.zip(rest.drain(..n_appended)) {
                for outlet in OUTLETS.into_iter().filter(|it| it.takes(record.signal)) {
                    let key = (outlet.index(), sequence);
                    self.promised.waiting.insert(key, record.body.clone());
                    self.promised.appended.insert(key);
                }
            }
        }
        Ok(())
    }

    /// Returns all records that wait for delivery, and the damage.
    fn read_all(&self) -> (BTreeMap<(usize, u64), Bytes>, Vec<Damage>) {
        let (mut waiting, mut damage) = (BTreeMap::new(), Vec::new());
        let reported = Arc::default();
        for outlet in self.outlets() {
            let mut reader = reader_for(&self.store, outlet, &reported);
            let mut from = self.store.lows()[outlet.index()];
            while from < self.store.next_sequence {
                let stretch = reader.read(from, self.store.next_sequence, 3_000).unwrap();
                assert!(stretch.next > from, "it goes on");
                from = stretch.next;
                for record in stretch.records {
                    assert_eq!((&record.meta[..], record.signal), (&b"meta"[..], 0));
                    waiting.insert((outlet.index(), record.sequence), record.body);
                }
                let unknown = stretch.damage.into_iter().map(|(_, damage)| damage);
                damage.extend(unknown.filter(|damage| !damage.is_known));
            }
        }
        (waiting, damage)
    }

    fn check_running(&self, what: &str) {
        let (read, damage) = self.read_all();
        assert_eq!(damage, [], "{what}: false damage");
        assert!(read == self.promised.waiting, "{what}");
    }

    /// Checks that every promised record is present, and that every present record was offered.
    fn check(&self, recovered: &Recovered, what: &str) {
        let (read, damage) = self.read_all();
        assert_eq!(recovered.damage, [], "{what}: false damage");
        assert_eq!(damage, [], "{what}: false damage");
        for (sequence, body) in &self.promised.waiting {
            assert!(
                read.get(sequence) == Some(body),
                "{what}: {sequence:?} is lost"
            );
        }
        for (sequence, body) in &read {
            let is_offered = self.promised.offered.contains(body);
            assert!(is_offered, "{what}: {sequence:?} was never offered");
        }
        for outlet in self.outlets() {
            let n_items = outlet.counts(&recovered.counts[outlet.index()])[0];
            let n_read = read
                .keys()
                .filter(|(idx, _)| *idx == outlet.index())
                .count();
            assert_eq!(n_items, n_read as u64, "{what}: the books balance");
        }
    }
}

fn reader_of(store: &Store) -> LogReader {
    reader_for(store, Outlet::Downstream, &Arc::default())
}

fn reader_for(store: &Store, outlet: Outlet, reported: &Arc<Mutex<Consumed>>) -> LogReader {
    let consumed = &store.progress.delivered.0[outlet.index()];
    let wanted = Wanted::Waiting {
        consumed: consumed.clone(),
        outlet,
        reported: Arc::clone(reported),
    };
    reads(store, wanted)
}

fn reads(store: &Store, wanted: Wanted) -> LogReader {
    let (storage, index) = store.segments();
    LogReader {
        storage,
        damaged: Arc::new(ModelDisk::default()),
        index,
        wanted,
        position: None,
    }
}

const ALL_KEPT: [Survival; 6] = [
    Survival::Nothing,
    Survival::Everything,
    Survival::Some,
    Survival::Some,
    Survival::Some,
    Survival::Some,
];

/// Returns the number of sequences of operations that a test tries. `SPANSCORE_TEST_SEEDS`
/// overrides it.
#[expect(
    clippy::disallowed_methods,
    reason = "how this run of the tests was asked for"
)]
fn n_seeds(usual: u64) -> u64 {
    let asked_for = std::env::var("SPANSCORE_TEST_SEEDS");
    asked_for.map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn nothing_acknowledged_is_lost_in_a_power_cut_at_any_operation() {
    let mut n_states = 0;
    let n_seeds = n_seeds(12);
    for seed in 0..n_seeds {
        let (mut tested, _) = Tested::open(ModelDisk::default(), seed, Promised::nothing(seed));
        for step in 0..60 {
            tested.step();
            for kept in ALL_KEPT {
                let disk = tested.disk.after_power_cut(kept, &mut tested.rng);
                let what = format!("seed {seed}, step {step}, {kept:?}");
                // Continue with the remaining records, and cut the power again.
                let (mut second, recovered) =
                    Tested::open(disk, seed + 100, tested.promised.clone());
                second.check(&recovered, &what);
                n_states += 1;
                second.promised.waiting = second.read_all().0;
                for _ in 0..3 {
                    second.step();
                }
                let disk = second.disk.after_power_cut(kept, &mut tested.rng);
                let (third, recovered) = Tested::open(disk, seed + 200, second.promised.clone());
                third.check(&recovered, &format!("{what}, again"));
                n_states += 1;
            }
        }
    }
    assert_eq!(n_states, n_seeds * 60 * 6 * 2);
}

#[test]
fn nothing_acknowledged_is_lost_in_a_power_cut_within_an_operation() {
    for seed in 0..40 {
        // The n-th operation and all later ones fail, as if the machine had stopped there.
        for n in 1..60 {
            let (mut tested, _) = Tested::open(ModelDisk::default(), seed, Promised::nothing(seed));
            let from = tested.disk.n_operations() + n;
            tested.disk.set_fault(Some(DiskFault {
                from,
                until: usize::MAX,
                kind: io::ErrorKind::Other,
                is_short: n % 2 == 0,
            }));
            while tested.disk.n_operations() < from {
                tested.step();
            }
            for kept in [
                Survival::Nothing,
                Survival::Everything,
                Survival::Some,
                Survival::Some,
            ] {
                let disk = tested.disk.after_power_cut(kept, &mut tested.rng);
                let (again, recovered) = Tested::open(disk, seed, tested.promised.clone());
                again.check(&recovered, &format!("seed {seed}, operation {n}, {kept:?}"));
            }
        }
    }
}

#[test]
fn after_a_fault_of_the_disk_service_resumes_and_nothing_is_lost() {
    let kinds = [
        io::ErrorKind::StorageFull,
        io::ErrorKind::Other,
        io::ErrorKind::ReadOnlyFilesystem,
    ];
    for seed in 0..15 {
        for (n, kind) in (1..80).zip(kinds.into_iter().cycle()) {
            let (mut tested, _) = Tested::open(ModelDisk::default(), seed, Promised::nothing(seed));
            let from = tested.disk.n_operations() + n;
            tested.disk.set_fault(Some(DiskFault {
                from,
                until: from + 1 + n % 5,
                kind,
                is_short: n % 2 == 0,
            }));
            while tested.disk.n_operations() < from + 6 {
                tested.step();
            }
            let body = tested.body();
            assert_eq!(tested.append(&[body]), Ok(()), "seed {seed}, operation {n}");
            tested.store.settle(2).unwrap();
            tested.store.sync().unwrap();
            tested.check_running(&format!("seed {seed}, operation {n}"));
            for kept in [Survival::Nothing, Survival::Everything, Survival::Some] {
                let disk = tested.disk.after_power_cut(kept, &mut tested.rng);
                let (again, recovered) = Tested::open(disk, seed, tested.promised.clone());
                again.check(&recovered, &format!("seed {seed}, operation {n}, {kept:?}"));
            }
        }
    }
}

#[test]
fn a_flipped_bit_loses_at_most_its_record_and_is_noticed() {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut n_lost, mut n_noticed) = (0, 0);
    for seed in 0..30 {
        let (mut tested, _) = Tested::open(ModelDisk::default(), seed, Promised::nothing(seed));
        for _ in 0..40 {
            tested.step();
        }
        tested.store.settle(1).unwrap();
        tested.store.sync().unwrap();
        for _ in 0..40 {
            let disk = tested.disk.after_kill();
            let files = disk.files();
            let (name, n_bytes) = rng.choice(&files).unwrap();
            let byte = rng.usize(..*n_bytes);
            disk.flip(name, byte, rng.u8(..8));
            let what = format!("seed {seed}, byte {byte} of {name}");
            let (again, recovered) = Tested::open(disk, seed, tested.promised.clone());
            let (read, damage) = again.read_all();
            let lost = again.promised.waiting.keys();
            let lost = lost.filter(|key| !read.contains_key(*key));
            let lost: BTreeSet<u64> = lost.map(|(_, sequence)| *sequence).collect();
            assert!(lost.len() <= 1, "{what}: {lost:?} are lost");
            for (sequence, body) in &read {
                let is_offered = again.promised.offered.contains(body);
                assert!(is_offered, "{what}: {sequence:?} was never offered");
            }
            let n_damaged: u64 = recovered
                .damage
                .iter()
                .chain(&damage)
                .map(|damage| damage.n_records)
                .sum();
            n_lost += lost.len();
            n_noticed += usize::from(n_damaged > 0 && !lost.is_empty());
            // Whether the topic gets a record with a damaged head is unknown, so the record counts
            // as lost if the topic has not consumed its number.
            let n_unneeded = n_damaged.saturating_sub(lost.len() as u64);
            assert!(n_unneeded <= u64::from(again.promised.for_both), "{what}");
            assert_eq!(
                n_damaged - n_unneeded,
                lost.len() as u64,
                "{what}: it is noticed"
            );
        }
    }
    assert!(n_lost > 50, "the flips hit records: {n_lost}");
    assert_eq!(n_noticed, n_lost);
}

// === full, missing, newer ===

#[test]
fn a_full_log_refuses_and_takes_again_once_something_is_consumed() {
    let (mut tested, _) = Tested::open(ModelDisk::default(), 1, Promised::default());
    let body = Bytes::from(vec![7; 8_000]);
    let mut n_appended = 0;
    while tested.append(std::slice::from_ref(&body)) == Ok(()) {
        n_appended += 1;
        assert!(tested.store.used() <= SETTINGS.max_size);
    }
    assert!(
        n_appended * body.len() > SETTINGS.max_size as usize / 2,
        "{n_appended}"
    );
    assert!(tested.store.room() < body.len() as u64);
    let small = Bytes::from_static(b"small");
    let room_before = tested.store.room();
    assert_eq!(
        tested.append(&[small]).is_ok(),
        room_before > 0,
        "as much as was said"
    );
    for sequence in 0..4 {
        tested
            .store
            .progress
            .consume_everywhere(sequence..sequence + 1);
    }
    tested.store.settle(1).unwrap();
    assert!(
        tested.store.room() >= body.len() as u64,
        "the first segment is free"
    );
    assert_eq!(tested.append(&[body]), Ok(()));
}

#[test]
fn a_record_that_is_never_delivered_holds_only_its_segment() {
    let (mut tested, _) = Tested::open(ModelDisk::default(), 1, Promised::default());
    let body = Bytes::from(vec![7; 8_000]);
    for sequence in 0..2_000 {
        assert_eq!(
            tested.append(std::slice::from_ref(&body)),
            Ok(()),
            "{sequence}"
        );
        if sequence > 0 {
            tested
                .store
                .progress
                .consume_everywhere(sequence..sequence + 1);
        }
        tested.store.settle(1).unwrap();
    }
    assert_eq!(
        tested.read_all().0.into_keys().collect::<Vec<_>>(),
        [(0, 0)]
    );
}

#[test]
fn a_removed_destination_pins_nothing_and_a_new_one_gets_later_records() {
    let disk = ModelDisk::default();
    let open = |settings| {
        let rng = fastrand::Rng::with_seed(1);
        Store::open(Arc::new(disk.clone()), &ModelDisk::default(), settings, rng).unwrap()
    };
    let record = |signal, body: &'static str| Record::new(signal, 1, 7, Bytes::new(), body.into());
    let waiting = |store: &Store, outlet| {
        let mut reader = reader_for(store, outlet, &Arc::default());
        let read = reader.read(0, store.next_sequence, usize::MAX).unwrap();
        read.records
            .into_iter()
            .map(|record| record.body)
            .collect::<Vec<_>>()
    };
    let (mut store, _) = open(FOR_BOTH);
    let for_both = [record(3, "one"), record(3, "two")];
    store.append(&[&for_both[0], &for_both[1]]).unwrap();
    store.progress.consume(0, 0..1);
    store.progress.write_durably(1).unwrap();

    let (mut store, recovered) = open(SETTINGS);
    assert_eq!((recovered.is_abandoned, store.low()), (true, 1));
    assert_eq!(waiting(&store, Outlet::Downstream), ["two"]);
    store.append(&[&record(0, "three")]).unwrap();
    store.progress.write_durably(1).unwrap();

    let (mut store, recovered) = open(FOR_BOTH);
    assert!(!recovered.is_abandoned);
    store.append(&[&record(3, "four")]).unwrap();
    assert_eq!(
        waiting(&store, Outlet::Downstream),
        ["two", "three", "four"]
    );
    assert_eq!(waiting(&store, Outlet::Topic), ["four"]);
}

/// While the topic is away, most records between those for the topic are for the downstream alone.
#[test]
fn records_for_one_destination_leave_no_gaps_in_the_progress_of_the_other() {
    let disk = ModelDisk::default();
    let (mut tested, _) = Tested::open(disk.clone(), 1, Promised::nothing(1));
    let record = |signal| Record::new(signal, 1, 7, "meta".into(), vec![7; 1_000].into());
    let (spans, logs) = (record(3), record(1));
    for _ in 0..300 {
        tested.store.append(&[&spans]).unwrap();
        tested.store.append(&[&logs]).unwrap();
    }
    for _ in 0..100 {
        tested.store.append(&[&logs]).unwrap();
    }
    tested.store.progress.consume(0, 0..700);
    tested.store.settle(1).unwrap();
    let (mut tested, recovered) = Tested::open(disk.after_kill(), 2, Promised::nothing(1));
    assert_eq!(recovered.damage, []);
    let waiting = tested.read_all().0.into_keys();
    assert!(waiting.eq((0..300).map(|n| (1, 2 * n))));
    // A queue consumes a record together with the others before it.
    for n in 0..300_u64 {
        tested
            .store
            .progress
            .consume(1, (2 * n).saturating_sub(1)..2 * n + 1);
    }
    tested.store.progress.consume(1, 599..700);
    tested.store.settle(1).unwrap();
    assert_eq!(
        (tested.store.low(), tested.store.used()),
        (700, 2 * (24 << 10))
    );
}

#[test]
fn a_record_that_waits_retains_no_later_segment_of_others() {
    let (mut tested, _) = Tested::open(ModelDisk::default(), 1, Promised::nothing(1));
    let record = |signal| Record::new(signal, 1, 7, "meta".into(), vec![7; 1_000].into());
    tested.store.append(&[&record(3)]).unwrap();
    for n in 1..2_000 {
        tested.store.append(&[&record(1)]).unwrap();
        tested.store.progress.consume(0, 0..n + 1);
        tested.store.settle(1).unwrap();
    }
    // The first segment waits for the topic. The others are the last one and two spares.
    assert!(tested.store.used() <= 4 * (24 << 10));
    assert!(tested.read_all().0.into_keys().eq([(1, 0)]));
}

/// A slot has fewer ranges than may be consumed.
#[test]
fn a_removed_segment_stays_consumed_whatever_is_consumed_before_it() {
    let disk = ModelDisk::default();
    let (mut tested, _) = Tested::open(disk.clone(), 1, Promised::default());
    let record = Record::new(0, 1, 7, "meta".into(), vec![7; 100].into());
    for _ in 0..4_000 {
        tested.store.append(&[&record]).unwrap();
    }
    tested.store.progress.consume(0, 1_000..3_000);
    let used = tested.store.used();
    tested.store.settle(1).unwrap();
    assert!(tested.store.used() < used, "segments are removed");
    for n in 0..500 {
        tested.store.progress.consume(0, 2 * n + 1..2 * n + 2);
    }
    tested.store.settle(1).unwrap();
    let (_, recovered) = Tested::open(disk.after_kill(), 2, Promised::default());
    assert_eq!(recovered.damage, []);
}

#[test]
fn what_is_only_scored_waits_for_no_destination_even_after_a_kill() {
    let disk = ModelDisk::default();
    let open = |disk: &ModelDisk| {
        let settings = SETTINGS.for_outlets(false, false);
        let rng = fastrand::Rng::with_seed(1);
        Store::open(Arc::new(disk.clone()), &ModelDisk::default(), settings, rng).unwrap()
    };
    let (mut store, _) = open(&disk);
    let signal = Outlet::signal_for(0, false, false);
    let scored = Record::new(signal, 1, 7, Bytes::new(), vec![7; 1_000].into());
    for _ in 0..100 {
        store.append(&[&scored]).unwrap();
    }
    assert_eq!(store.low(), 100);
    // The cursor was not written before the kill.
    let (store, recovered) = open(&disk.after_kill());
    assert_eq!((store.low(), recovered.counts), (100, [[0; 8]; 2]));
}

#[test]
fn a_missing_segment_is_damage_and_the_rest_is_delivered() {
    for missing in 0..3 {
        let (mut tested, _) = Tested::open(ModelDisk::default(), 1, Promised::default());
        for _ in 0..6 {
            let body = Bytes::from(vec![7; 9_000]);
            tested.promised.offered.insert(body.clone());
            tested.append(&[body]).unwrap();
        }
        tested.store.settle(1).unwrap();
        let names: Vec<String> = tested
            .disk
            .files()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names.len(), 4, "three segments and the cursor");
        Storage::remove(&tested.disk, &names[missing]).unwrap();
        let (again, recovered) = Tested::open(tested.disk.clone(), 1, Promised::default());
        let n_lost: u64 = recovered.damage.iter().map(|damage| damage.n_records).sum();
        let (read, damage) = again.read_all();
        let n_lost_later: u64 = damage.iter().map(|damage| damage.n_records).sum();
        assert_eq!(
            (n_lost + n_lost_later, read.len()),
            (2, 4),
            "segment {missing}"
        );
        // The damage must be logged only once.
        let mut again = again;
        again.store.settle(2).unwrap();
        let (_, recovered) = Tested::open(again.disk.clone(), 1, Promised::default());
        assert_eq!(recovered.damage, []);
    }
}

#[test]
fn what_a_newer_version_wrote_is_not_touched() {
    const NEWER: u32 = VERSION + 1;
    let disk = ModelDisk::default();
    let (mut tested, _) = Tested::open(disk.clone(), 1, Promised::default());
    tested.append(&[Bytes::from_static(b"x")]).unwrap();
    let name = segment_name(0);
    let file = Storage::open(&disk, &name).unwrap();
    let mut head = [0; SEGMENT_HEAD];
    file.read_at(&mut head, 0).unwrap();
    head[8] = NEWER as u8;
    let crc = crc32fast::hash(&head[..SEGMENT_HEAD - 4]);
    head[SEGMENT_HEAD - 4..].copy_from_slice(&crc.to_le_bytes());
    for at in HEADS_AT {
        file.write_at(&[&head], at).unwrap();
    }
    let n_operations = disk.n_operations();
    let opened = Store::open(
        Arc::new(disk.clone()),
        &ModelDisk::default(),
        SETTINGS,
        fastrand::Rng::with_seed(1),
    );
    assert!(matches!(opened, Err(OpenError::OtherVersion(NEWER))));
    assert!(
        disk.n_operations() <= n_operations + 1,
        "nothing was written"
    );
}

/// After a rollback, the log may contain kinds of records that a newer program wrote in the same
/// format.
#[test]
fn a_record_of_a_kind_that_is_not_known_is_passed_over() {
    const UNKNOWN: u8 = 200;
    let disk = ModelDisk::default();
    let (mut tested, _) = Tested::open(disk.clone(), 1, Promised::default());
    let bodies = ["before", "of a newer program", "after"];
    for body in bodies {
        let body = Bytes::from_static(body.as_bytes());
        tested.promised.offered.insert(body.clone());
        tested.append(&[body]).unwrap();
    }
    let file = Storage::open(&disk, &segment_name(0)).unwrap();
    let mut bytes = vec![0; file.n_bytes().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let salt = head_of(&bytes).unwrap().salt;
    let record = &bytes[RECORDS_AT as usize..];
    let first = RecordHead::decode(record, salt).unwrap().n_bytes();
    let mut head = RecordHead::decode(&record[first..], salt).unwrap();
    head.kind = UNKNOWN;
    let at = RECORDS_AT + first as u64;
    file.write_at(&[&head.encode(salt)], at).unwrap();

    let (mut again, recovered) = Tested::open(disk, 1, Promised::default());
    assert_eq!(recovered.damage, []);
    let all = reader_of(&again.store).read(0, 3, usize::MAX).unwrap();
    assert_eq!(all.damage, []);
    let sequences: Vec<u64> = all.records.iter().map(|record| record.sequence).collect();
    assert_eq!(sequences, [0, 2]);
    again.append(&[Bytes::from_static(b"later")]).unwrap();
}

#[test]
fn bytes_inside_a_request_are_never_taken_for_a_record() {
    let disk = ModelDisk::default();
    let (mut tested, _) = Tested::open(disk.clone(), 1, Promised::default());
    tested.append(&[Bytes::from_static(b"first")]).unwrap();
    // This request contains the bytes of a record, but its sender cannot guess the salt.
    let head = RecordHead {
        kind: RecordKind::Request as u8,
        signal: 0,
        is_last: true,
        sequence: 1,
        group: 2,
        arrived: 0,
        n_items: 1,
        meta_len: 4,
        body_len: 4,
        rest_crc: rest_crc(b"meta", b"evil"),
        low: 0,
    };
    let forged = [&head.encode(0)[..], b"metaevil"].concat();
    let body = Bytes::from([&[0; 60][..], &forged[..], &[0; 100]].concat());
    tested
        .append(&[body, Bytes::from_static(b"third")])
        .unwrap();
    tested.store.settle(1).unwrap();
    // Damage the head of this request's record.
    disk.flip(&segment_name(0), RECORDS_AT as usize + 80 + 9, 1);
    let (again, _) = Tested::open(disk, 1, tested.promised.clone());
    let (read, _) = again.read_all();
    assert_eq!(read.into_values().collect::<Vec<_>>(), ["first", "third"]);
}

#[test]
fn a_real_folder_keeps_what_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let storage = Arc::new(Folder::make(&folder.path().join("requests")).unwrap());
        let rng = fastrand::Rng::with_seed(1);
        Store::open(storage, &ModelDisk::default(), SETTINGS, rng).unwrap()
    };
    let body = Bytes::from(vec![7; 5_000]);
    let record = |n: u64| Record::new(0, n, 7, Bytes::new(), body.clone());
    let (mut store, recovered) = open();
    assert_eq!(recovered, Recovered::default());
    for n in 0..30 {
        store.append(&[&record(n), &record(1)]).unwrap();
        store.progress.consume_everywhere(n..n + 1);
        store.settle(1).unwrap();
    }
    store.sync().unwrap();
    drop(store);
    let (store, recovered) = open();
    assert_eq!((recovered.damage.len(), recovered.torn), (0, None));
    assert_eq!((store.low(), store.next_sequence), (30, 60));
    let n_spans = (15..30).sum::<u64>() + 15;
    assert_eq!(recovered.counts[0][..3], [n_spans, 0, 0]);
    let mut reader = reader_of(&store);
    let stretch = reader.read(30, 60, usize::MAX).unwrap();
    assert_eq!((stretch.records.len(), stretch.next), (30, 60));
    assert!(stretch.records.iter().all(|record| record.body == body));
}

#[test]
fn ten_thousand_requests_of_one_span_survive_a_power_cut_in_order() {
    const N_REQUESTS: u64 = 10_000;
    let settings = LogSettings {
        max_size: 4 << 20,
        ..SETTINGS
    };
    let disk = ModelDisk::default();
    let open = |disk: &ModelDisk| {
        let rng = fastrand::Rng::with_seed(1);
        let damaged = ModelDisk::default();
        Store::open(Arc::new(disk.clone()), &damaged, settings, rng).unwrap()
    };
    let records: Vec<Record> = (0..N_REQUESTS)
        .map(|n| {
            let body = Bytes::from(n.to_le_bytes().to_vec());
            Record::new(0, 1, n, Bytes::new(), body)
        })
        .collect();
    let (mut store, _) = open(&disk);
    let mut rng = fastrand::Rng::with_seed(2);
    let mut rest: Vec<&Record> = records.iter().collect();
    while !rest.is_empty() {
        let group = rest.len().min(rng.usize(1..100));
        let appended = store.append(&rest[..group]).unwrap();
        rest.drain(..(appended.end - appended.start) as usize);
    }
    let (store, recovered) = open(&disk.after_power_cut(Survival::Nothing, &mut rng));
    assert_eq!(
        (recovered.damage.len(), recovered.counts[0][0]),
        (0, N_REQUESTS)
    );
    let mut reader = reader_of(&store);
    let stretch = reader.read(0, N_REQUESTS, usize::MAX).unwrap();
    let numbers = stretch.records.iter().map(|record| record.arrived);
    assert!(numbers.eq(0..N_REQUESTS));
}
