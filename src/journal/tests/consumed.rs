//! Tests which records a start finds consumed after a power cut has lost the last writes of the
//! cursor.

use super::*;

fn open(disk: &ModelDisk, settings: LogSettings) -> (Store, Recovered) {
    let rng = fastrand::Rng::with_seed(1);
    Store::open(Arc::new(disk.clone()), &ModelDisk::default(), settings, rng).unwrap()
}

fn append(store: &mut Store, n: u64) {
    let body = Bytes::from(n.to_le_bytes().to_vec());
    let record = Record::new(0, 1, n, Bytes::new(), body);
    store.append(&[&record]).unwrap();
}

fn waiting(store: &Store) -> Vec<u64> {
    let mut reader = reader_of(store);
    let stretch = reader
        .read(store.low(), store.next_sequence, usize::MAX)
        .unwrap();
    let records = stretch.records.iter();
    records.map(|record| record.arrived).collect()
}

#[test]
fn what_was_delivered_before_the_last_group_is_not_delivered_again_after_a_power_cut() {
    let disk = ModelDisk::default();
    let (mut store, _) = open(&disk, SETTINGS);
    for n in 0..300 {
        append(&mut store, n);
        if n >= 3 {
            // Write the cursor, but never sync it.
            store.progress.consume_everywhere(n - 3..n - 2);
            store.progress.write(1).unwrap();
        }
    }
    let mut rng = fastrand::Rng::with_seed(2);
    let disk = disk.after_power_cut(Survival::Nothing, &mut rng);
    let (store, recovered) = open(&disk, SETTINGS);
    assert_eq!(recovered.damage, []);
    // The last group records all deliveries except the last one.
    assert_eq!(waiting(&store), [296, 297, 298, 299]);
    assert_eq!(recovered.counts[0][..3], [4, 0, 0]);
}

#[test]
fn without_its_cursor_a_log_delivers_again_what_came_since_the_last_group() {
    let disk = ModelDisk::default();
    let (mut store, _) = open(&disk, SETTINGS);
    for n in 0..10 {
        append(&mut store, n);
    }
    store.progress.consume_everywhere(0..8);
    append(&mut store, 10);
    store.progress.consume_everywhere(8..9);
    store.settle(1).unwrap();
    store.sync().unwrap();
    let disk = disk.after_kill();
    Storage::remove(&disk, CURSOR).unwrap();
    let (store, recovered) = open(&disk, SETTINGS);
    assert!(recovered.is_cursor_lost);
    assert_eq!(waiting(&store), [8, 9, 10]);
}

/// Without a sync, a power cut may lose earlier, delivered records but not a later one.
#[test]
fn what_comes_after_a_power_cut_is_never_taken_for_delivered() {
    let settings = LogSettings {
        sync: false,
        ..SETTINGS
    };
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = ModelDisk::default();
        let (mut store, _) = open(&disk, settings);
        append(&mut store, 0);
        store.sync().unwrap();
        for n in 1..40 {
            append(&mut store, n);
            store.progress.consume_everywhere(0..n + 1);
        }
        let disk = disk.after_power_cut(Survival::Some, &mut rng);
        let (mut store, _) = open(&disk, settings);
        append(&mut store, 100);
        assert_eq!(waiting(&store).last(), Some(&100), "seed {seed}");
        let (store, _) = open(&disk.after_kill(), settings);
        assert_eq!(waiting(&store).last(), Some(&100), "seed {seed}, again");
    }
}
