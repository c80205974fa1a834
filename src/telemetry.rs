//! Counts and logs the sidecar's events, one row for each event. If the OpenTelemetry Collector has
//! a metric with the same meaning, our metric has a similar name.

/// Defines an event for each row: a struct with these fields, and `emit`, which runs the block with
/// the fields as variables. A row that counts has a name for its telemetry in parentheses; a row
/// that only logs has `()` or `(_)`.
macro_rules! events {
    ($(
        $(#[$meta:meta])*
        $name:ident $(<$life:lifetime>)? { $($field:ident: $kind:ty),* $(,)? }
        ($($telemetry:tt)?) $body:block
    )+) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        #[allow(missing_docs, reason = "the names of the fields say what they hold")]
        pub struct $name $(<$life>)? {
            $(pub $field: $kind,)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            pub fn emit(self $(, $telemetry: &Telemetry)?) {
                let Self { $($field),* } = self;
                $body
            }
        }
    )+};
}

mod connections;
mod coverage;
mod destinations;
mod exporting;
mod forwarding;
mod health;
mod item_accounting;
mod journal;
mod memory;
mod metrics;
mod metrics_page;
mod process;
mod reading;
mod receiving;
mod registering;
mod scoring;
mod throttled;

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

pub use connections::{
    AcceptFailed, CertificatesReplaced, CertificatesUnusable, ConnectionEvicted, ConnectionOpened,
    ConnectionRejected, HandshakeFailed, Listening, OpenConnection,
};
pub use coverage::{CoverageProblem, write_coverage};
pub use destinations::{
    Answer, AttemptEnded, DestinationAnswers, DestinationOpened, DestinationState,
    DestinationStatus,
};
pub use exporting::{
    AlarmRaised, ListenerBehind, ScoreLabelsFolded, ScoreShapeOff, ScoresCounted, ScoresOverflow,
    ScoresUnprinted,
};
pub use forwarding::{
    DestinationDown, DestinationRecovered, DestinationStillDown, PartlyRejected, ProxyIgnored,
    QueueOpened, QueueResized, QueueSize, RequestDelayed, RequestRefused, RequestRetried,
    RequestSplit, SendersElsewhere, SpansToKafka, WritingToKafka,
};
pub use health::{Heartbeat, Phase, Unhealthy};
pub use item_accounting::{ItemCounts, ItemEvent, ItemsCounted, ItemsDiscarded};
pub use journal::{
    DowntimeTooLong, JournalAbandoned, JournalAccepting, JournalCursorLost, JournalDamaged,
    JournalInMemory, JournalMetrics, JournalOpened, JournalOtherVersion, JournalProgressUnwritten,
    JournalRefusing, JournalTailTorn, JournalTracesUnread, JournalUnread, JournaledScoresFound,
    OpenTracesJournaled, TracesRestored,
};
pub use memory::{MemoryLimitChanged, MemoryShared};
pub use metrics_page::{MetricKind, MetricsPage};
use reading::KafkaClient;
pub use reading::{
    CommitEnded, PartitionsAdded, PartitionsMoved, ProgressUnknown, ReadingFailed,
    ReadingFromKafka, RecordSetAside, SettingAsideFailed, SpansMisplaced, TimestampInFuture,
};
pub use receiving::{
    AuthorizationNotPassed, IncomingRefused, NothingReceived, RequestMisdirected, ScoresReceived,
};
pub use registering::{
    ApiOpen, ApiRefused, ConfigurationRefused, ConfigurationReloaded, CriteriaActive,
    CriteriaShadowed, RegistrationsExpired, StateFileUnusable, TokenUnusable,
};
pub use scoring::{
    AlarmsPostponed, ConfigurationActive, DrainStarted, JournaledSpansUnread, NothingRecognised,
    PeersFound, PeersUnresolved, RecordingFailed, RecordingStarted, RevisionsLost, ServiceTorn,
    SessionsJudged, SpansLate, SpansUnscored, SpansWithoutIds, Stopped, Stopping, TraceHalfArrived,
    TracesClosed, TracesInMemory, TracesJudged, TracesTorn, TrajectoriesSeen,
};

use crate::sync::Mutex;
use health::HealthState;
use item_accounting::ItemAccounting;
use metrics::Metrics;
pub use throttled::Throttled;

/// A function that writes metrics counted elsewhere, such as those of the scores.
pub type MetricsSource = Arc<dyn Fn(&mut MetricsPage) + Send + Sync>;

/// All counts, the health and the status of the sidecar.
#[derive(Debug)]
pub struct Telemetry {
    /// Every request changes these counts, so they are counted without a lock that connections
    /// would share.
    items: ItemAccounting,
    metrics: Metrics,
    /// Health is separate from the metrics, because probes must not wait for a scrape.
    health: Mutex<HealthState>,
    outages: Mutex<forwarding::Outages>,
    destinations: Mutex<Vec<DestinationAnswers>>,
    alarms_logged: Mutex<exporting::AlarmsLogged>,
    kafka_clients: Mutex<Vec<KafkaClient>>,
}

impl Default for Telemetry {
    fn default() -> Self {
        let telemetry = Self {
            items: ItemAccounting::default(),
            metrics: Metrics::new(),
            health: Mutex::default(),
            outages: Mutex::default(),
            destinations: Mutex::default(),
            alarms_logged: Mutex::default(),
            kafka_clients: Mutex::default(),
        };
        // Show these metrics as zero from the start, so that alerts on rare events work before the
        // first event.
        telemetry.metrics.late_spans.add([], 0);
        telemetry.metrics.unscored_spans.add([], 0);
        TracesInMemory::default().emit(&telemetry);
        telemetry
    }
}

impl Telemetry {
    /// Returns the item counts of every signal seen so far. They balance at any time.
    pub fn item_counts(&self) -> BTreeMap<&'static str, ItemCounts> {
        self.items.read()
    }

    /// Returns a counter's value; 0 if it was never incremented.
    pub fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.gauge(name, labels).cast_unsigned()
    }

    /// Returns a gauge's value; 0 if it was never set.
    pub fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        let metrics = self.metrics.all();
        let found = metrics.iter().find(|(_, family)| family.name() == name);
        debug_assert!(found.is_some(), "there is no metric `{name}`");
        found.map_or(0, |(_, family)| family.value(labels))
    }

    /// Returns all metrics as the text of `/metrics`; `sources` add metrics that are counted
    /// elsewhere.
    pub fn metrics_text(&self, started_unix_nanos: u64, sources: &[MetricsSource]) -> String {
        let mut page = MetricsPage::new(started_unix_nanos);
        self.note_kafka_clients();
        self.items.write(&mut page);
        for (kind, family) in self.metrics.all() {
            family.write(kind, &mut page);
        }
        process::write(started_unix_nanos, &mut page);
        for source in sources {
            source(&mut page);
        }
        page.finish()
    }

    fn outages(&self) -> MutexGuard<'_, forwarding::Outages> {
        self.outages.lock()
    }
}

/// Returns names of metrics that [`Telemetry::metrics_text`] can contain, for tests of dashboards
/// and docs.
#[cfg(test)]
pub(crate) fn metric_names() -> impl Iterator<Item = String> {
    let telemetry = Telemetry::default();
    // A family whose series all have labels has no sample before the first count.
    let coverage: MetricsSource = Arc::new(|page| write_coverage(&[("pay", 1, 0)], page));
    let page = telemetry.metrics_text(0, &[coverage]);
    let shown: Vec<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| match line.split_once(' ') {
            Some((name, "counter")) => format!("{name}_total"),
            Some((name, _)) => name.to_owned(),
            None => String::new(),
        })
        .collect();
    let metrics = telemetry.metrics.all().into_iter();
    let table: Vec<String> = metrics
        .map(|(_, family)| family.name().to_owned())
        .collect();
    let journal: MetricsSource =
        Arc::new(|page| JournalMetrics::write(&[&JournalMetrics::new("requests", 0)], 0, page));
    let with_journal = telemetry.metrics_text(0, &[journal]);
    let samples = with_journal
        .lines()
        .filter(|line| line.starts_with("spanscore_journal_"));
    let of_journal: Vec<String> = samples
        .filter_map(|line| line.split(['{', ' ']).next().map(str::to_owned))
        .collect();
    shown.into_iter().chain(table).chain(of_journal)
}

#[cfg(test)]
mod tests;
