//! Tests how a start measures the time during which no process ran, on a real folder.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::journal::format::Needed;
use crate::journal::opening::{Clock, JournalFolder, OpenedLog, Opener};
use crate::journal::store::{LogSettings, Store};
use crate::telemetry::Telemetry;

const SECOND: u64 = 1_000_000_000;

#[expect(clippy::disallowed_methods, reason = "an `Instant` cannot be made up")]
fn at_second(second: u64) -> (Instant, u64) {
    (Instant::now(), second * SECOND)
}

fn open(folder: &Path, clock: Clock) -> (Store, OpenedLog) {
    let mut opener = Opener {
        folder: JournalFolder::unlocked(folder),
        settings: LogSettings::new(1 << 20, false, true),
        clock,
        rng: fastrand::Rng::with_seed(1),
        telemetry: Arc::new(Telemetry::default()),
    };
    opener.open().unwrap()
}

#[test]
fn a_process_that_is_killed_after_its_start_leaves_a_proof_of_what_it_heard() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), || at_second(100));
    assert_eq!(first.1.past.silence, None, "nothing is known of before");
    drop(first);
    let second = open(folder.path(), || at_second(103));
    let past = second.1.past;
    assert_eq!(past.silence, Some(Duration::from_secs(3)));
    assert_eq!(past.needed.since_unix_nanos, 100 * SECOND);
}

#[test]
fn a_process_that_has_rebuilt_nothing_does_not_end_a_silence() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), || at_second(100)));
    let (mut store, _) = open(folder.path(), || at_second(200));
    store.progress.touch(201 * SECOND).unwrap();
    drop(store);

    let (mut store, log) = open(folder.path(), || at_second(202));
    let past = log.past;
    assert_eq!(past.silence, Some(Duration::from_secs(102)));
    let progress = &mut store.progress;
    let needed = Needed {
        from: 0,
        since_unix_nanos: 202 * SECOND,
    };
    progress.need(needed);
    progress.write(203 * SECOND).unwrap();
    drop(store);

    let fourth = open(folder.path(), || at_second(204));
    let past = fourth.1.past;
    assert_eq!(past.silence, Some(Duration::from_secs(1)));
    assert_eq!(past.needed.since_unix_nanos, 202 * SECOND);
}

#[test]
fn a_clock_that_was_set_back_or_forward_proves_nothing_and_stops_no_start() {
    const HOUR: u64 = 3_600;
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), || at_second(10 * HOUR)));
    let set_back = open(folder.path(), || at_second(9 * HOUR));
    assert_eq!(set_back.1.past.silence, Some(Duration::MAX));
    drop(set_back);
    let set_forward = open(folder.path(), || at_second(11 * HOUR));
    let silence = set_forward.1.past.silence;
    assert!(silence.is_some_and(|silence| silence >= Duration::from_secs(HOUR)));
}
