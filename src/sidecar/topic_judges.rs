//! Judges spans that are read from Kafka. Each thread is a member of one consumer group and judges
//! the partitions that the group assigns to it. Any number of threads and processes share a topic.

mod member;
mod partition;
mod set_aside;
mod status;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use judge::assemble::{Settings, Sizes};
use judge::pipeline::{LogLimits, Rules};

use super::judgements::{Judge, JudgeSink, in_memory};
use super::scoring::ScoringBounds;
use super::{StartError, kafka_error, now};
use crate::config::{Kafka, KafkaProtocol};
use crate::export::Exporter;
use crate::kafka::{AsideWriter, TopicReader};
use crate::sync::Mutex;
use crate::telemetry::{
    MetricsSource, PartitionsAdded, ReadingFailed, ReadingFromKafka, Telemetry, Throttled,
};

use member::Member;
use status::JudgesStatus;

/// What the threads share.
pub(super) struct TopicJudges {
    config: Kafka,
    settings: Settings,
    limits: LogLimits,
    bounds: ScoringBounds,
    /// Maximum bytes that a thread reads ahead.
    buffer: usize,
    rules: Arc<ArcSwap<Rules>>,
    telemetry: Arc<Telemetry>,
    exporter: Exporter,
    status: JudgesStatus,
    /// Writes unreadable records to the set-aside topic, if one is configured.
    aside: Option<AsideWriter>,
    is_stopping: AtomicBool,
    /// The topic's number of partitions; 0 until the brokers have reported it.
    n_partitions: AtomicI32,
    /// Number of threads that have not joined the group yet.
    n_joining: AtomicUsize,
    lines: Mutex<Throttled<String>>,
}

impl TopicJudges {
    pub(super) fn start(
        config: Kafka,
        settings: Settings,
        bounds: ScoringBounds,
        rules: Arc<ArcSwap<Rules>>,
        telemetry: Arc<Telemetry>,
        exporter: Exporter,
        judges: Vec<Judge>,
    ) -> Result<(Arc<Self>, Vec<JoinHandle<()>>), StartError> {
        let n_threads = judges.len();
        ReadingFromKafka {
            brokers: &config.brokers.join(","),
            topic: &config.read.topic,
            group: &config.read.group,
            n_threads,
        }
        .emit(&telemetry);
        let aside = config.read.set_aside_topic.as_deref();
        let aside = aside.map(|topic| AsideWriter::new(&config, topic));
        let aside = aside.transpose().map_err(kafka_error)?;
        let shared = Arc::new(Self {
            limits: LogLimits {
                overlap: config.read.overlap.0,
                max_replay: config.read.max_replay.0,
            },
            settings: Settings {
                // A partition contains all spans of its traces, so replicas never share a trace.
                warm_up: Duration::ZERO,
                has_peers: false,
                ..settings
            },
            config,
            buffer: bounds.queue.get() / n_threads.max(1),
            bounds,
            rules,
            telemetry,
            exporter,
            status: JudgesStatus::default(),
            aside,
            is_stopping: AtomicBool::new(false),
            n_partitions: AtomicI32::new(0),
            n_joining: AtomicUsize::new(n_threads),
            lines: Mutex::default(),
        });
        let mut threads = Vec::new();
        for (index, judge) in judges.into_iter().enumerate() {
            let name = format!("judge-{}", index + 1);
            let sink = JudgeSink::new(judge, &shared.rules, &shared.telemetry, &name);
            let member = Member::new(index, sink, Arc::clone(&shared));
            let member = member.map_err(kafka_error)?;
            let thread = thread::Builder::new().name(name);
            threads.push(thread.spawn(move || member.run())?);
        }
        Ok((shared, threads))
    }

    /// Makes the threads hand over their partitions and stop.
    pub(super) fn begin_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub(super) fn metrics(self: &Arc<Self>) -> MetricsSource {
        let shared = Arc::clone(self);
        Arc::new(move |page| shared.status.write(page))
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn reader(
        &self,
        index: usize,
        protocol: KafkaProtocol,
        is_connected: &Arc<AtomicBool>,
    ) -> Result<TopicReader, String> {
        let is_connected = Arc::clone(is_connected);
        TopicReader::new(&self.config, protocol, index, self.buffer, is_connected)
    }

    fn n_partitions(&self) -> i32 {
        self.n_partitions.load(Ordering::Relaxed)
    }

    /// Records the topic's number of partitions, and logs a change.
    fn found_partitions(&self, n_partitions: i32) {
        let before = self.n_partitions.swap(n_partitions, Ordering::Relaxed);
        if before != 0 && before != n_partitions {
            PartitionsAdded {
                topic: &self.config.read.topic,
                n_before: before,
                n_partitions,
            }
            .emit();
        }
    }

    fn may_log(&self, kind: &str) -> bool {
        let mut lines = self.lines.lock();
        lines.ready(kind.to_owned(), now().instant).is_some()
    }

    fn failed(&self, why: &str) {
        if self.may_log(why) {
            ReadingFailed { why }.emit();
        }
    }

    /// Returns the limits of one partition, which has an equal share of the memory for open and
    /// recent traces.
    fn sizes(&self) -> Sizes {
        let n = self.status.partitions.lock().len().max(1);
        let all = (self.bounds.traces)();
        Sizes {
            open: all.open / n,
            recent: all.recent / n,
            ..all
        }
    }

    fn report_use(&self) {
        let partitions = self.status.partitions.lock();
        in_memory(partitions.values().map(|it| it.stats)).emit(&self.telemetry);
    }
}
