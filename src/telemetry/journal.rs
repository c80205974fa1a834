//! Events and metrics of the journal.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::{MetricKind, MetricsPage, Telemetry};

use crate::rfc3339::rfc3339;

/// The states of a log; `state_idx` is an index into this list.
const STATES: [&str; 4] = ["ok", "full", "disk_full", "disk_error"];

#[derive(Debug)]
pub struct JournalMetrics {
    /// The name of the log: `requests`, …
    log: &'static str,
    capacity: u64,
    size: AtomicU64,
    n_segments: AtomicU64,
    /// Unix time of the oldest undelivered record in seconds; 0 if all are delivered.
    oldest: AtomicU64,
    state_idx: AtomicI64,
    syncs: Histogram,
    acknowledgements: Histogram,
    n_resent: AtomicU64,
}

impl JournalMetrics {
    pub fn new(log: &'static str, capacity: u64) -> Self {
        Self {
            log,
            capacity,
            size: AtomicU64::new(0),
            n_segments: AtomicU64::new(0),
            oldest: AtomicU64::new(0),
            state_idx: AtomicI64::new(0),
            syncs: Histogram::default(),
            acknowledgements: Histogram::default(),
            n_resent: AtomicU64::new(0),
        }
    }

    /// Records that the log's files changed. `oldest` is the Unix time of the oldest undelivered
    /// record in seconds.
    pub fn resized(&self, size: u64, n_segments: usize, oldest: Option<u64>) {
        self.size.store(size, Ordering::Relaxed);
        self.n_segments.store(n_segments as u64, Ordering::Relaxed);
        self.oldest.store(oldest.unwrap_or(0), Ordering::Relaxed);
    }

    pub fn log(&self) -> &'static str {
        self.log
    }

    pub fn set_state(&self, state: &'static str) {
        let idx = STATES.iter().position(|known| *known == state);
        let idx = idx.and_then(|idx| i64::try_from(idx).ok());
        self.state_idx.store(idx.unwrap_or(0), Ordering::Relaxed);
    }

    pub fn synced(&self, took: Duration) {
        self.syncs.observe(took);
    }

    /// Records how long after its arrival in the queue a request became durable.
    pub fn acknowledged(&self, after: Duration) {
        self.acknowledgements.observe(after);
    }

    /// Counts a request that the log already had at the start and that its sender repeated.
    pub fn resent(&self) {
        self.n_resent.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the metrics of a journal's logs. The log of requests must come first.
    pub fn write(logs: &[&Self], now_unix_secs: u64, page: &mut MetricsPage) {
        let gauge = |page: &mut MetricsPage, name: &str, help: &str, value: fn(&Self) -> u64| {
            page.metric(name, MetricKind::Gauge, help);
            for log in logs {
                page.sample(name, [("log", log.log)], value(log));
            }
        };
        gauge(
            page,
            "spanscore_journal_size_bytes",
            "Bytes of the journal's files, by log",
            |log| log.size.load(Ordering::Relaxed),
        );
        gauge(
            page,
            "spanscore_journal_capacity_bytes",
            "Maximum bytes of the journal's files, by log",
            |log| log.capacity,
        );
        gauge(
            page,
            "spanscore_journal_segments",
            "Files of the journal that contain records, by log",
            |log| log.n_segments.load(Ordering::Relaxed),
        );
        let name = "spanscore_journal_oldest_seconds";
        page.metric(
            name,
            MetricKind::Gauge,
            "Age of the oldest record that waits, by log; 0 if none waits",
        );
        for log in logs {
            let oldest = match log.oldest.load(Ordering::Relaxed) {
                0 => 0,
                secs => now_unix_secs.saturating_sub(secs),
            };
            page.sample(name, [("log", log.log)], oldest);
        }
        let name = "spanscore_journal_state";
        page.metric(
            name,
            MetricKind::Gauge,
            "1 for the journal's state: ok, or why it refuses",
        );
        for log in logs {
            let current = log.state_idx.load(Ordering::Relaxed);
            for (idx, state) in (0..).zip(STATES) {
                let labels = [("log", log.log), ("state", state)];
                page.sample(name, labels, u8::from(idx == current));
            }
        }
        let Some(requests) = logs.first() else { return };
        let name = "spanscore_journal_resent_requests";
        let help = "Requests sent again after a restart that the journal had";
        page.metric(name, MetricKind::Counter, help);
        page.total(name, [], requests.n_resent.load(Ordering::Relaxed));
        requests.syncs.write(
            "spanscore_journal_sync_seconds",
            "Time to write and sync a group of requests",
            page,
        );
        requests.acknowledgements.write(
            "spanscore_journal_ack_seconds",
            "Time from handing a request to the journal until it is durable",
            page,
        );
    }
}

/// Upper bounds of the buckets in seconds.
const BOUNDS: [(&str, Duration); 9] = [
    ("0.0005", Duration::from_micros(500)),
    ("0.001", Duration::from_millis(1)),
    ("0.0025", Duration::from_micros(2_500)),
    ("0.01", Duration::from_millis(10)),
    ("0.025", Duration::from_millis(25)),
    ("0.1", Duration::from_millis(100)),
    ("0.25", Duration::from_millis(250)),
    ("1.0", Duration::from_secs(1)),
    ("5.0", Duration::from_secs(5)),
];

#[derive(Debug, Default)]
struct Histogram {
    /// Counts by bound; the last element counts all longer times.
    counts: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let idx = BOUNDS.partition_point(|(_, bound)| *bound < time);
        self.counts[idx].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn write(&self, name: &str, help: &str, page: &mut MetricsPage) {
        page.metric(name, MetricKind::Histogram, help);
        let mut sum = 0;
        let bounds = BOUNDS.iter().map(|(bound, _)| *bound).chain(["+Inf"]);
        for (count, bound) in self.counts.iter().zip(bounds) {
            sum += count.load(Ordering::Relaxed);
            page.sample(&format!("{name}_bucket"), [("le", bound)], sum);
        }
        page.sample(&format!("{name}_count"), [], sum);
        let secs = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64();
        page.sample(&format!("{name}_sum"), [], format_args!("{secs:?}"));
    }
}

events! {
    JournalOpened {
        folder: String,
        n_restored: [u64; 3],
        n_bytes: u64,
        oldest: Option<u64>,
        took: Duration,
    } () {
        let [n_spans, n_log_records, n_points] = n_restored;
        let millis = took.as_millis();
        match oldest.map(rfc3339) {
            Some(oldest) => tracing::info!(
                folder,
                n_spans,
                n_log_records,
                n_points,
                n_bytes,
                oldest,
                millis,
                "journal opened; delivering undelivered records first"
            ),
            None => tracing::info!(folder, millis, "journal opened; no undelivered records"),
        }
    }

    /// Requests waited for a destination that is no longer configured.
    JournalAbandoned { folder: String } () {
        tracing::warn!(
            folder,
            "requests that wait in the journal for a destination that the configuration no longer \
             has are not sent to it"
        );
    }

    JournaledScoresFound { folder: String, n_bytes: u64, oldest: Option<u64> } () {
        if let Some(oldest) = oldest.map(rfc3339) {
            tracing::info!(folder, n_bytes, oldest, "sending scores left in the journal");
        }
    }

    TracesRestored { n_open: usize, n_judged: usize, n_spans: usize, took: Duration } (telemetry) {
        let metrics = &telemetry.metrics;
        metrics.journal_restored_traces.add([], n_open as u64);
        if n_spans > 0 {
            let millis = took.as_millis();
            tracing::info!(
                n_open,
                n_judged,
                n_spans,
                millis,
                "open traces restored from the journal"
            );
        }
    }

    DowntimeTooLong { silence: Duration, n_open: usize } () {
        tracing::warn!(
            silent_secs = silence.as_secs(),
            n_open,
            "spanscore was down for longer than OTLP exporters retry, so spans of the open traces \
             may be missing: they are judged as incomplete"
        );
    }

    OpenTracesJournaled { n_traces: usize } () {
        tracing::info!(
            n_traces,
            "open traces stay in the journal; the next start on this folder resumes them"
        );
    }

    JournalTracesUnread { why: String } () {
        tracing::error!(
            why,
            "cannot read the journal; traces open at the last stop are judged as incomplete or not \
             at all; check the disk"
        );
    }

    JournalTailTorn { file: String } () {
        tracing::info!(
            file,
            "the last write to the journal was cut short by the end of the process; \
             nothing acknowledged is affected"
        );
    }

    JournalDamaged {
        file: String,
        offset: u64,
        n_bytes: u64,
        n_records: u64,
        copy: Option<String>,
    } (telemetry) {
        let metrics = &telemetry.metrics;
        metrics.journal_damaged_records.add([], n_records);
        metrics.journal_damaged_bytes.add([], n_bytes);
        match copy {
            Some(copy) => tracing::error!(
                file,
                offset,
                n_bytes,
                n_records,
                "the journal is damaged: acknowledged requests are lost; the damaged bytes are in \
                 `{copy}`; check the disk"
            ),
            None => tracing::error!(
                file,
                n_records,
                "acknowledged requests are missing from the journal; did something delete its \
                 files?"
            ),
        }
    }

    JournalInMemory { folder: String } () {
        tracing::warn!(
            folder,
            "journal is on a tmpfs; it survives a container restart but not a reboot, and uses \
             the container's memory"
        );
    }

    JournalCursorLost { folder: String } () {
        tracing::error!(
            folder,
            "the file `cursor` of the journal is missing or damaged: some requests that were \
             delivered are delivered again"
        );
    }

    JournalOtherVersion { folder: String, moved_to: String, version: u32 } (telemetry) {
        telemetry.metrics.journal_too_new.add([], 1);
        tracing::error!(
            folder,
            moved_to,
            version,
            "another version of spanscore wrote this journal, so its requests are not delivered; \
             to deliver them, move the folder back and start that version"
        );
    }

    JournalRefusing {
        log: &'static str,
        state: &'static str,
        why: Option<String>,
        size: u64,
        capacity: u64,
    } () {
        match state {
            _ if log == "scores" => tracing::error!(
                state,
                size,
                why,
                "journal rejects scores; new scores are kept in memory only; check the disk of \
                 `journal.directory`"
            ),
            "full" => tracing::warn!(
                size,
                capacity,
                why,
                "journal full; requests are refused until all destinations accept some, senders \
                 retry; raise `journal.max_size` to bridge longer outages"
            ),
            "disk_full" => tracing::error!(
                size,
                why,
                "disk of the journal full; requests are refused, senders retry; free space or \
                 lower `journal.max_size`"
            ),
            _ => tracing::error!(
                size,
                why,
                "cannot write the journal; requests are refused, senders retry; check the disk of \
                 `journal.directory`"
            ),
        }
    }

    JournalAccepting { log: &'static str, after: Duration } () {
        let (log, refused_secs) = (log, after.as_secs());
        tracing::info!(refused_secs, "journal accepts {log} again");
    }

    JournalProgressUnwritten { why: String } () {
        tracing::error!(
            why,
            "cannot write the journal's progress; after a crash, delivered requests may be sent \
             again"
        );
    }

    JournalUnread { why: String } () {
        tracing::error!(
            why,
            "cannot read a journal segment, retrying"
        );
    }
}
