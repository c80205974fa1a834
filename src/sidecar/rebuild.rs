//! What the journal means to the scoring thread, of which there is one then: rebuilds the open
//! traces at the start, tells the journal which records are still needed, and keeps open traces at
//! the end. Must not know files.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::now;
use crate::config::Signal;
use crate::journal::{JournalLog, JudgedMarks, LogReader, Needed, Past, Stored};
use crate::pipeline::{CrossTraceAccess, Pipeline, Rebuilding, Rules, TraceMark};
use crate::receive::{scan, scan_logs};
use crate::span::{Batch, KeySet, Now};
use crate::sync::Mutex;
use crate::telemetry::{
    JournalSilence, JournalTracesUnread, Telemetry, TracesKeptOpen, TracesRestored,
};

/// How long after a stop senders still hold what they could not send: the default deadline of OTLP
/// exporters. What they send then completes the traces.
const SENDERS_PATIENCE: Duration = Duration::from_secs(10);

/// How often the journal hears which records are needed.
const NEED_INTERVAL: Duration = Duration::from_secs(1);

/// Most bytes of records read at once.
const MAX_READ: usize = 4 << 20;

/// The journal of a scoring thread.
#[derive(Debug)]
pub(super) struct KeptTraces {
    log: JournalLog,
    marks: JudgedMarks,
    /// What the journal held when it was opened; read once.
    past: Arc<Mutex<Option<Past>>>,
    /// That was read: from then on the journal hears what is needed.
    is_rebuilt: bool,
    /// Replicas may have taken spans while we were away.
    has_peers: bool,
    /// At the end open traces stay in the journal, and are not judged.
    keeps_open: bool,
    need_at: Option<Instant>,
    last_need: Needed,
}

/// What was rebuilt.
#[derive(Debug, Default)]
struct Rebuilt {
    n_spans: usize,
    n_marks: usize,
    /// Records could not be read.
    is_damaged: bool,
}

impl KeptTraces {
    pub(super) fn new(
        log: JournalLog,
        marks: JudgedMarks,
        has_peers: bool,
        keeps_open: bool,
    ) -> Self {
        let past = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&past);
        log.when_open(Box::new(move |opened| *slot.lock() = Some(opened.past())));
        Self {
            log,
            marks,
            past,
            is_rebuilt: false,
            has_peers,
            keeps_open,
            need_at: None,
            last_need: Needed::default(),
        }
    }

    /// Rebuilds the open traces, once the journal is open. They settle as if their spans had come
    /// now. Until then every request was refused, so that none is ahead of them.
    pub(super) fn rebuild<C: CrossTraceAccess>(
        &mut self,
        pipeline: &mut Pipeline<C>,
        rules: &Rules,
        started: Now,
        telemetry: &Telemetry,
        mut beat: impl FnMut(),
    ) {
        if self.is_rebuilt {
            return;
        }
        let Some(mut past) = self.past.lock().take() else {
            return;
        };
        self.is_rebuilt = true;
        pipeline.mark_judged();
        let begun = now();
        // However late this thread comes to it.
        let silence = past.silence;
        let is_whole = silence.is_some_and(|silence| silence <= SENDERS_PATIENCE);
        if is_whole && !self.has_peers {
            pipeline.restore_memory(past.needed.since_unix_nanos);
        }
        let rebuilt = match restore(&mut past, pipeline, rules, started, &mut beat) {
            Ok(rebuilt) => rebuilt,
            Err(error) => {
                JournalTracesUnread {
                    why: error.to_string(),
                }
                .emit();
                Rebuilt {
                    is_damaged: true,
                    ..Rebuilt::default()
                }
            }
        };
        let n_open = pipeline.stats().n_open;
        let is_whole = is_whole && !rebuilt.is_damaged;
        if !is_whole {
            pipeline.restore_memory(past.opened_unix_nanos);
            pipeline.mark_restored_incomplete();
            if let Some(silence) = silence.filter(|silence| *silence > SENDERS_PATIENCE)
                && n_open > 0
            {
                JournalSilence { silence, n_open }.emit();
            }
        }
        // Should we be killed before long, the next start knows when memory began.
        self.log.need(Needed {
            from: past.needed.from,
            since_unix_nanos: pipeline.memory_unix_nanos(),
        });
        TracesRestored {
            n_open,
            n_judged: rebuilt.n_marks,
            n_spans: rebuilt.n_spans,
            took: now().instant.saturating_duration_since(begun.instant),
        }
        .emit(telemetry);
    }

    /// Tells the journal which records are needed. Everything below `taken_below` was taken in.
    pub(super) fn need<C: CrossTraceAccess>(
        &mut self,
        pipeline: &Pipeline<C>,
        taken_below: u64,
        now: Instant,
    ) {
        if !self.is_rebuilt || self.need_at.is_some_and(|at| now < at) {
            return;
        }
        self.need_at = Some(now + NEED_INTERVAL);
        let oldest = [pipeline.oldest_record(), self.marks.oldest()];
        let from = oldest.into_iter().flatten().fold(taken_below, u64::min);
        let needed = Needed {
            from,
            since_unix_nanos: pipeline.memory_unix_nanos(),
        };
        if needed != self.last_need {
            self.last_need = needed;
            self.log.need(needed);
        }
    }

    pub(super) fn keeps_open_traces(&self) -> bool {
        self.keeps_open
    }

    /// The open traces stay in the journal.
    pub(super) fn report_open<C: CrossTraceAccess>(&self, pipeline: &Pipeline<C>) {
        let n_traces = pipeline.stats().n_open;
        TracesKeptOpen { n_traces }.emit();
    }
}

/// Takes in what the journal has, and closes what was judged where it was judged.
fn restore<C: CrossTraceAccess>(
    past: &mut Past,
    pipeline: &mut Pipeline<C>,
    rules: &Rules,
    started: Now,
    beat: &mut impl FnMut(),
) -> io::Result<Rebuilt> {
    let Past {
        marks,
        requests,
        needed,
        end,
        ..
    } = past;
    let mut rebuilt = Rebuilt::default();
    let mut judged = Vec::new();
    rebuilt.read(marks, needed.from..*end, |record| {
        beat();
        judged.extend(TraceMark::decode_all(&record.body, rules));
    })?;
    rebuilt.n_marks = judged.len();
    let mut rebuilding = Rebuilding::new(pipeline, rules, judged, started);
    let mut n_spans = 0;
    rebuilt.read(requests, needed.from..*end, |record| {
        beat();
        let sequence = record.sequence;
        let batch = batch_of(record, rules.keys());
        n_spans += batch.spans.len() + batch.log_records.len();
        rebuilding.take(batch, sequence);
    })?;
    rebuilding.finish();
    rebuilt.n_spans = n_spans;
    Ok(rebuilt)
}

impl Rebuilt {
    /// Reads a stretch of the log.
    fn read(
        &mut self,
        reader: &mut LogReader,
        records: Range<u64>,
        mut take: impl FnMut(Stored),
    ) -> io::Result<()> {
        let mut from = records.start;
        while from < records.end {
            let stretch = reader.read(from, records.end, MAX_READ)?;
            self.is_damaged |= !stretch.damage.is_empty();
            from = stretch.next;
            stretch.records.into_iter().for_each(&mut take);
        }
        Ok(())
    }
}

/// The spans and log records of a request, as the receivers read them.
fn batch_of(record: Stored, keys: &KeySet) -> Batch {
    let (body, keys) = (&record.body, Some(keys));
    let batch = match Signal::of_number(record.signal) {
        Signal::Traces => scan::scan(body, keys).map(|scanned| scanned.batch),
        Signal::Logs => scan_logs::scan(body, keys).map(|scanned| scanned.batch),
        Signal::Metrics => Ok(Batch::default()),
    };
    // It was valid when it was acknowledged.
    batch.unwrap_or_default()
}
