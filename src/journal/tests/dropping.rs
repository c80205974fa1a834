//! Tests a log of scores on a simulated disk. A full log must drop only its oldest records.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::model::{DiskFault, ModelDisk};
use super::{ALL_KEPT, SETTINGS, reads};
use crate::journal::format::Outlet;
use crate::journal::reader::Wanted;
use crate::journal::reopen::Recovered;
use crate::journal::store::{LogSettings, LostRecord, Record, Store};

const SCORES: LogSettings = LogSettings {
    max_size: 128 << 10,
    drops_oldest: true,
    ..SETTINGS
};

fn open(disk: &ModelDisk) -> (Store, Recovered) {
    let rng = fastrand::Rng::with_seed(1);
    Store::open(Arc::new(disk.clone()), &ModelDisk::default(), SCORES, rng).unwrap()
}

/// Returns bytes that cannot be compressed.
fn body(n: u64) -> Vec<u8> {
    let mut body = vec![0; 500 + (n % 7) as usize * 400];
    fastrand::Rng::with_seed(n).fill(&mut body);
    body
}

fn record(lane: u8, n: u64) -> Record {
    Record::score(lane, n, 7, Bytes::from_static(b"meta"), body(n).into())
}

/// Returns the number and the items of each waiting record of a lane.
fn waiting(store: &Store, lane: u8) -> BTreeMap<u64, u64> {
    let consumed = store.progress.delivered.0[0].clone();
    let wanted = Wanted::Waiting {
        consumed,
        outlet: Outlet::Lane(lane),
        reported: Arc::default(),
    };
    let end = store.next_sequence;
    let stretch = reads(store, wanted)
        .read(store.low(), end, usize::MAX)
        .unwrap();
    assert_eq!(stretch.damage, []);
    let records = stretch.records.into_iter();
    let records = records.map(|stored| {
        assert_eq!(stored.body, body(stored.n_items));
        (stored.sequence, stored.n_items)
    });
    records.collect()
}

#[test]
fn a_full_log_of_scores_gives_up_the_oldest_and_says_which() {
    let disk = ModelDisk::default();
    let (mut store, _) = open(&disk);
    let mut lost = Vec::new();
    for n in 0..600 {
        let lane = (n % 3) as u8;
        store.append(&[&record(lane, n)]).unwrap();
        lost.extend(std::mem::take(&mut store.lost));
        assert!(store.used() <= SCORES.max_size);
    }
    let expected: Vec<LostRecord> = (0..lost.len() as u64)
        .map(|n| LostRecord {
            sequence: n,
            lane: (n % 3) as u8,
            n_items: n,
        })
        .collect();
    assert_eq!(lost, expected, "the oldest, each once");
    assert!((400..580).contains(&lost.len()), "{}", lost.len());
    // A restart must not change this.
    store.sync().unwrap();
    for store in [store, open(&disk.after_kill()).0] {
        let left: BTreeMap<u64, u64> = (0..3).flat_map(|lane| waiting(&store, lane)).collect();
        let expected = (lost.len() as u64..600).map(|n| (n, n));
        assert_eq!(left, expected.collect());
    }
}

#[test]
fn what_was_delivered_is_not_lost() {
    let disk = ModelDisk::default();
    let (mut store, _) = open(&disk);
    for n in 0..600 {
        store.append(&[&record(0, n)]).unwrap();
        if n > 0 {
            store.progress.consume_everywhere(n - 1..n);
        }
        store.settle(1).unwrap();
        assert_eq!(std::mem::take(&mut store.lost), []);
    }
}

#[test]
fn scores_that_were_not_given_up_survive_a_power_cut_at_any_operation() {
    for seed in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = ModelDisk::default();
        let (mut store, _) = open(&disk);
        let mut promised = BTreeMap::new();
        for n in 0..160 {
            match rng.u8(..10) {
                0..8 => {
                    let sequences = store.append(&[&record(0, n)]).unwrap();
                    promised.insert(sequences.start, n);
                    for lost in std::mem::take(&mut store.lost) {
                        promised.remove(&lost.sequence);
                    }
                }
                8 => {
                    if let Some(sequence) = rng.choice(promised.keys().copied().take(8)) {
                        promised.remove(&sequence);
                        store.progress.consume_everywhere(sequence..sequence + 1);
                    }
                    store.settle(1).unwrap();
                }
                _ => store.sync().unwrap(),
            }
            for kept in ALL_KEPT {
                let (reopened, recovered) = open(&disk.after_power_cut(kept, &mut rng));
                let what = format!("seed {seed}, step {n}, {kept:?}");
                assert_eq!(recovered.damage, [], "{what}");
                let left = waiting(&reopened, 0);
                for (sequence, n_items) in &promised {
                    assert_eq!(left.get(sequence), Some(n_items), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_disk_that_fails_while_the_oldest_go_loses_nothing_else() {
    let undisturbed = {
        let disk = ModelDisk::default();
        let (mut store, _) = open(&disk);
        for n in 0..160 {
            store.append(&[&record(0, n)]).unwrap();
        }
        disk.n_operations()
    };
    for from in 0..undisturbed {
        let disk = ModelDisk::default();
        let (mut store, _) = open(&disk);
        disk.set_fault(Some(DiskFault {
            from,
            until: from + 2,
            kind: std::io::ErrorKind::StorageFull,
            is_short: true,
        }));
        let mut promised = BTreeMap::new();
        for n in 0..160 {
            if let Ok(sequences) = store.append(&[&record(0, n)]) {
                promised.insert(sequences.start, n);
            }
            for lost in std::mem::take(&mut store.lost) {
                promised.remove(&lost.sequence);
            }
        }
        assert!(promised.len() > 20, "it goes on: {}", promised.len());
        let (reopened, _) = open(&disk.after_kill());
        let left = waiting(&reopened, 0);
        for (sequence, n_items) in &promised {
            assert_eq!(left.get(sequence), Some(n_items), "fault at {from}");
        }
    }
}
