//! Tests scores and the marks of their traces on two simulated disks. At most one of the disks
//! stops at some operation, and then the power is cut. A mark must not survive without all scores
//! of its trace, and the records of a trace without a mark must still be needed. The test acts as
//! the queues of scores.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use bytes::Bytes;

use super::model::{DiskFault, ModelDisk, Survival};
use super::{SETTINGS, reads};
use crate::journal::judged::JudgedMarks;
use crate::journal::reader::Wanted;
use crate::journal::refusals::Refusals;
use crate::journal::segment::RecordKind;
use crate::journal::store::{LogSettings, Record, Store};
use crate::journal::writer::{JournalLog, LogShared, LogWriter};
use crate::telemetry::JournalMetrics;

const N_TRACES: u8 = 12;
const N_LANES: u8 = 2;
/// Number of traces whose scores are sent together.
const N_TOGETHER: u8 = 3;

/// Returns a time that never advances, so that a failed disk is never retried.
fn clock() -> (Instant, u64) {
    static NOW: OnceLock<Instant> = OnceLock::new();
    let now = NOW.get_or_init(|| tokio::time::Instant::now().into_std());
    (*now, 7)
}

fn settings(is_scored: bool) -> LogSettings {
    LogSettings {
        is_scored,
        drops_oldest: !is_scored,
        ..SETTINGS
    }
}

fn open(disk: &ModelDisk, is_scored: bool) -> Store {
    let rng = fastrand::Rng::with_seed(1);
    let (storage, damaged) = (Arc::new(disk.clone()), ModelDisk::default());
    let opened = Store::open(storage, &damaged, settings(is_scored), rng);
    opened.unwrap().0
}

fn start(disk: &ModelDisk, name: &'static str, is_scored: bool) -> (JournalLog, JoinHandle<()>) {
    let store = open(disk, is_scored);
    let shared = LogShared::new(
        JournalMetrics::new(name, SETTINGS.max_size),
        SETTINGS.max_size,
    );
    let shared = Arc::new(shared);
    let (sender, inbox) = sync_channel(64);
    let log = JournalLog {
        sender,
        shared: Arc::clone(&shared),
        clock,
    };
    let refusals = Refusals::new(name, SETTINGS.max_size);
    let writer = LogWriter::new(store, inbox, shared, clock, refusals);
    (log, thread::spawn(move || writer.run()))
}

/// Returns the bodies of all records of this kind.
fn bodies(disk: &ModelDisk, is_scored: bool, kind: RecordKind) -> Vec<Bytes> {
    let store = open(disk, is_scored);
    let mut reader = reads(&store, Wanted::Kind(kind));
    let stretch = reader.read(0, store.next_sequence, usize::MAX).unwrap();
    assert_eq!(stretch.damage, []);
    let records = stretch.records.into_iter();
    records.map(|record| record.body).collect()
}

/// Judges all traces, then cuts the power. With `broken`, a disk stops at an operation before that.
/// Returns the marked traces, the traces whose scores all survived, and the oldest trace that is
/// still needed.
fn judge(broken: Option<(bool, usize)>, kept: [Survival; 2]) -> (Vec<u8>, Vec<u8>, Option<u64>) {
    let [requests_disk, scores_disk] = [(); 2].map(|()| ModelDisk::default());
    let (requests, requests_thread) = start(&requests_disk, "requests", true);
    let (scores, scores_thread) = start(&scores_disk, "scores", false);
    if let Some((is_scores, n)) = broken {
        let disk = if is_scores { &scores_disk } else { &requests_disk };
        disk.set_fault(Some(DiskFault {
            from: disk.n_operations() + n,
            until: usize::MAX,
            kind: std::io::ErrorKind::Other,
            is_short: n % 2 == 0,
        }));
    }
    let marks = JudgedMarks::new(requests.clone());
    for traces in (0..N_TRACES).collect::<Vec<u8>>().chunks(3) {
        assert_eq!(traces.len(), usize::from(N_TOGETHER));
        let (tell, told) = sync_channel(64);
        for trace in traces {
            for lane in 0..N_LANES {
                let ticket = marks.ledger().issue();
                let body = Bytes::from(vec![*trace, lane]);
                let tell = tell.clone();
                let done = move |appended: Result<u64, _>| {
                    // A record that the disk rejects waits in memory, and this test never delivers
                    // it.
                    if appended.is_ok() {
                        ticket.done();
                    }
                    tell.send(()).unwrap();
                };
                let record = Record::score(lane, 1, 7, Bytes::new(), body);
                scores.append(record, Box::new(done));
            }
            marks.add(&[*trace], u64::from(*trace));
        }
        marks.turn(|| {});
        drop(tell);
        assert_eq!(told.iter().count(), usize::from(N_TOGETHER * N_LANES));
        marks.write();
    }
    scores.end();
    scores_thread.join().unwrap();
    requests.end();
    requests_thread.join().unwrap();
    let needed = marks.oldest();

    let mut rng = fastrand::Rng::with_seed(1);
    let [of_requests, of_scores] = kept;
    let requests_disk = requests_disk.after_power_cut(of_requests, &mut rng);
    let scores_disk = scores_disk.after_power_cut(of_scores, &mut rng);
    let mut marked = bodies(&requests_disk, true, RecordKind::Judged).concat();
    marked.sort_unstable();
    let scores = bodies(&scores_disk, false, RecordKind::Score);
    let has_all = |trace: &u8| {
        let of_trace = scores.iter().filter(|body| body[0] == *trace);
        of_trace.count() == usize::from(N_LANES)
    };
    let scored = (0..N_TRACES).filter(has_all).collect();
    (marked, scored, needed)
}

#[test]
fn no_mark_outlives_a_power_cut_without_all_scores_of_its_trace() {
    let all: Vec<u8> = (0..N_TRACES).collect();
    // The most dangerous case: all marks survive, and no scores that were not synced.
    let kept = [Survival::Everything, Survival::Nothing];
    assert_eq!(judge(None, kept), (all.clone(), all.clone(), None));
    let mut n_partly = 0;
    for n in 1..24 {
        for is_scores in [true, false] {
            let what = format!("the disk stops at operation {n}, of scores: {is_scores}");
            let (marked, scored, needed) = judge(Some((is_scores, n)), kept);
            for trace in &marked {
                assert!(scored.contains(trace), "{what}: {trace} lost scores");
            }
            // Unmarked traces are judged again, from records that are still needed.
            let first_unmarked = all.iter().find(|trace| !marked.contains(trace));
            let first_unmarked = first_unmarked.map(|trace| u64::from(*trace));
            if is_scores {
                assert_eq!(needed, first_unmarked, "{what}");
            } else {
                assert_eq!(scored, all, "{what}");
                // A mark may survive even if its sync failed.
                let is_needed = |first: u64| needed.is_some_and(|needed| needed <= first);
                assert!(first_unmarked.is_none_or(is_needed), "{what}: {needed:?}");
            }
            n_partly += usize::from(!marked.is_empty() && marked.len() < all.len());
        }
    }
    assert!(n_partly > 4, "{n_partly}");
}
