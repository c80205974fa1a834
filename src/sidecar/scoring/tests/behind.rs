//! Tests scoring that falls behind: requests that did not fit into memory are read from the
//! journal.

use std::fs;
use std::path::Path;
use std::thread;

use bytes::Bytes;

use crate::config::Signal;
use crate::journal::{
    JournalFolder, JournalLog, JudgedMarks, LogSettings, LogThread, Outlet, Record,
};

use super::*;

/// Scoring whose threads do not run yet, and its journal.
struct Behind {
    log: JournalLog,
    keeping: LogThread,
    queue: ScoringQueue,
    workers: Vec<Worker>,
    judgements: std::sync::mpsc::Receiver<Told>,
    telemetry: Arc<Telemetry>,
}

impl Behind {
    /// Creates scoring whose memory fits one batch.
    fn new(folder: &Path, n_threads: usize, max_unread: usize) -> Self {
        let telemetry: Arc<Telemetry> = Arc::default();
        let clock = || (now().instant, now().unix_nanos);
        let opened = JournalFolder::lock(folder).unwrap().unwrap().open(
            LogSettings::new(8 << 20, false, true),
            clock,
            fastrand::Rng::new(),
            &telemetry,
        );
        let (log, keeping) = opened.unwrap();
        let marks = JudgedMarks::new(log.clone());
        let kept = JournaledTraces {
            log: log.clone(),
            marks,
            has_peers: false,
            keeps_open: false,
            max_unread,
        };
        let (tell, judgements) = sync_channel(MAX_BATCHES);
        let judge = || -> Judge {
            let tell = tell.clone();
            Box::new(move |judged, _| tell.send(told(judged)).unwrap())
        };
        let settle = Duration::from_nanos(1);
        let (queue, workers) = ScoringQueue::prepare(
            Settings {
                settle,
                max_settle: settle,
                ..settings()
            },
            bounds(1),
            Arc::new(ArcSwap::from_pointee(rules())),
            telemetry.clone(),
            (0..n_threads).map(|_| judge()).collect(),
            Some(kept),
        );
        Self {
            log,
            keeping,
            queue,
            workers,
            judgements,
            telemetry,
        }
    }

    /// Stores a request and offers its spans once the journal has the request.
    fn offer(&self, spans: Vec<Span>) {
        let body = request(Resource::default(), spans);
        let batch = scan::scan(&body, Some(&rules())).unwrap().batch;
        let n_bytes = body.len();
        let signal = Outlet::signal_for(Signal::Traces.number(), false, false);
        let record = Record::new(signal, 1, now().unix_nanos, Bytes::new(), body.into());
        let (queue, (tell, offered)) = (self.queue.clone(), sync_channel(1));
        let done = move |number: Result<u64, _>| {
            let number = number.unwrap();
            queue.offer(batch, n_bytes, Some(number));
            tell.send(()).unwrap();
        };
        self.log.append(record, Box::new(done));
        offered.recv().unwrap();
    }

    fn unscored(&self) -> u64 {
        unscored(&self.telemetry)
    }

    /// Runs the threads until all batches and traces are judged. Returns the verdicts, and the
    /// number of spans that became unscored in that time.
    fn judge(self) -> (Told, u64) {
        let unscored_before = self.unscored();
        drop(self.queue);
        let threads = self.workers.into_iter();
        let threads: Vec<_> = threads
            .map(|worker| thread::spawn(move || worker.run()))
            .collect();
        threads.into_iter().for_each(|it| it.join().unwrap());
        let n_unread = unscored(&self.telemetry) - unscored_before;
        self.keeping.end();
        let told = self.judgements.try_iter().flatten().collect();
        (told, n_unread)
    }
}

fn unscored(telemetry: &Telemetry) -> u64 {
    telemetry.counter("spanscore_unscored_spans_total", &[])
}

#[test]
fn a_slow_judge_falls_behind_and_marks_nothing_unscored() {
    for n_threads in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let behind = Behind::new(folder.path(), n_threads, usize::MAX);
        let traces = 1..=20;
        for (id, tool) in [(1, ""), (2, "a"), (3, "b")] {
            behind.offer(traces.clone().map(|trace| span(trace, id, tool)).collect());
        }
        assert_eq!(behind.unscored(), 0);
        let (told, n_unread) = behind.judge();
        assert_eq!(told, vec![("pass", "root_ended", 0); 20], "{n_threads}");
        assert_eq!(n_unread, 0);
    }
}

#[test]
fn spans_beyond_the_share_of_the_journal_are_unscored() {
    let folder = tempfile::tempdir().unwrap();
    let behind = Behind::new(folder.path(), 1, 1);
    behind.offer(vec![span(1, 1, ""), span(1, 2, "a")]);
    behind.offer(vec![span(2, 1, ""), span(2, 2, "a"), span(2, 3, "b")]);
    assert_eq!(behind.unscored(), 0, "an empty budget accepts any request");
    behind.offer(vec![span(1, 3, "b")]);
    assert_eq!(behind.unscored(), 1);
    let (mut told, _) = behind.judge();
    told.sort_unstable();
    let expected = [
        ("not_evaluated", "incomplete", 0),
        ("pass", "root_ended", 0),
    ];
    assert_eq!(told, expected);
}

#[test]
fn spans_that_the_journal_lost_are_counted_and_open_traces_are_incomplete() {
    let folder = tempfile::tempdir().unwrap();
    let behind = Behind::new(folder.path(), 1, usize::MAX);
    behind.offer(vec![span(1, 1, ""), span(1, 2, "a")]);
    behind.offer(vec![span(1, 3, "b"), span(1, 4, "b")]);
    let files = fs::read_dir(folder.path().join("requests")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    for path in paths.filter(|path| path.extension().is_some_and(|it| it == "seg")) {
        let mut bytes = fs::read(&path).unwrap();
        bytes[4096..].fill(0);
        fs::write(&path, bytes).unwrap();
    }
    let (told, n_unread) = behind.judge();
    assert_eq!(told, [("not_evaluated", "incomplete", 0)]);
    assert_eq!(n_unread, 2);
}
