//! The Kafka client library's consumer: a member of a group, which polls its assigned partitions
//! from given offsets and commits its progress.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer as _, ConsumerContext, RebalanceProtocol,
};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Message as _, Timestamp};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;

use super::client::{
    Context, ErrorTexts, Failure, METADATA_TIMEOUT, ReaderChange, connection, unusable,
};
use crate::config::{Kafka, KafkaProtocol};

/// Timeout for the brokers' answer to a query about a partition.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout for the library's next error message. With a timeout of 0, a log line of the library
/// would hide the messages after it.
const COMPLAINT_WAIT: Duration = Duration::from_millis(20);

/// Interval in milliseconds between queries for the number of the topic's partitions.
const METADATA_INTERVAL: &str = "10000";

/// Maximum number of error messages of the library that are read in a row.
const MAX_COMPLAINTS: usize = 100;

/// A member of a consumer group that reads one topic.
pub struct TopicReader {
    inner: Arc<BaseConsumer<Context>>,
    words: ErrorTexts,
    /// The queue of the thread that commits. The thread waits for each commit, because the library
    /// reports the end of a commit only to a waiting caller.
    commits: SyncSender<TopicPartitionList>,
    committer: JoinHandle<()>,
}

#[derive(Debug)]
pub struct ReadRecord {
    pub partition: i32,
    pub offset: u64,
    /// Unix time in milliseconds of the append, or of the creation by the writer's clock.
    pub unix_millis: Option<u64>,
    /// True if the brokers set the time.
    pub is_log_append: bool,
    pub value: Vec<u8>,
}

#[derive(Debug)]
pub enum Polled {
    /// There is no record yet, or there is a [change](TopicReader::changes).
    Nothing,
    Record(ReadRecord),
    /// Polling failed for this reason; the library resumes by itself.
    Failed(String),
    /// This member is unusable; a new one must be created.
    Ended {
        /// The reason, with its remedy if one is known.
        why: String,
        /// True if the brokers do not support the group's protocol.
        is_unsupported: bool,
    },
}

/// The offset and metadata that the group has committed for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The offset of the next record.
    pub offset: u64,
    pub metadata: String,
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        kind: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let is_assignment = kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.is_closing.load(Ordering::Acquire) {
            // Nobody polls after this, and leaving the group waits until the partitions are
            // released.
            if !is_assignment {
                let _ = release(consumer, partitions);
            }
            return;
        }
        let elements = partitions.elements();
        let partitions = elements.iter().map(|it| it.partition()).collect();
        self.changes.lock().push_back(if is_assignment {
            ReaderChange::Assigned(partitions)
        } else {
            ReaderChange::Revoked {
                partitions,
                is_lost: consumer.assignment_lost(),
            }
        });
    }
}

fn release(consumer: &BaseConsumer<Context>, partitions: &TopicPartitionList) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(partitions),
        _ => consumer.unassign(),
    }
}

impl TopicReader {
    /// Creates a member, which connects in the background. `index` is its number in this process,
    /// `buffer` the maximum bytes that it reads ahead. The member updates `is_connected`.
    ///
    /// # Errors
    /// Returns an error if the client library rejects a setting.
    pub fn new(
        config: &Kafka,
        protocol: KafkaProtocol,
        index: usize,
        buffer: usize,
        is_connected: Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let read = &config.read;
        let context = Context {
            is_connected,
            ..Context::default()
        };
        let words = ErrorTexts {
            topic: read.topic.clone(),
            verb: "read",
            needs: format!(
                "READ and DESCRIBE on the topic, READ on group `{}`",
                read.group
            ),
            sasl: config.sasl.clone(),
            last_complaint: Arc::clone(&context.last_complaint),
        };
        let inner: BaseConsumer<_> = settings(config, protocol, index, buffer)
            .create_with_context(context)
            .map_err(unusable)?;
        let inner = Arc::new(inner);
        let (commits, lists) = sync_channel::<TopicPartitionList>(1);
        let consumer = Arc::clone(&inner);
        let committer = thread::Builder::new()
            .name(format!("commit-{}", index + 1))
            .spawn(move || {
                for list in lists {
                    let is_taken = consumer.commit(&list, CommitMode::Sync).is_ok();
                    let change = ReaderChange::Committed(is_taken);
                    consumer.context().changes.lock().push_back(change);
                }
            })
            .map_err(|error| error.to_string())?;
        Ok(Self {
            inner,
            words,
            commits,
            committer,
        })
    }

    /// Returns true if the member has ever been connected to the coordinator of the group.
    pub fn has_found_group(&self) -> bool {
        let context = self.inner.context();
        context.has_found_group.load(Ordering::Relaxed)
    }

    /// Joins the group, if the topic exists. Returns the number of its partitions. Blocks.
    pub fn join(&self) -> Result<i32, String> {
        let n_partitions = self.n_partitions().or_else(|_| {
            // The library reports its error messages only through `poll`, which cannot return a
            // record before the member joins the group. They say more than the first failure.
            for _ in 0..MAX_COMPLAINTS {
                if self.inner.poll(COMPLAINT_WAIT).is_none() {
                    break;
                }
            }
            self.n_partitions()
        })?;
        self.told(self.inner.subscribe(&[&self.words.topic]))?;
        Ok(n_partitions)
    }

    /// Queries the brokers for the number of the topic's partitions. Blocks.
    pub fn n_partitions(&self) -> Result<i32, String> {
        let topic = Some(&*self.words.topic);
        let metadata = self.told(self.inner.fetch_metadata(topic, METADATA_TIMEOUT))?;
        self.words.n_partitions(&metadata).map_err(Failure::text)
    }

    /// Waits for a record or a change, at most for `timeout`.
    pub fn poll(&self, timeout: Duration) -> Polled {
        match self.inner.poll(timeout) {
            None => Polled::Nothing,
            Some(Err(error)) => self.failed(&error),
            Some(Ok(message)) => {
                let (millis, is_log_append) = match message.timestamp() {
                    Timestamp::LogAppendTime(millis) => (Some(millis), true),
                    Timestamp::CreateTime(millis) => (Some(millis), false),
                    Timestamp::NotAvailable => (None, false),
                };
                Polled::Record(ReadRecord {
                    partition: message.partition(),
                    offset: message.offset().cast_unsigned(),
                    unix_millis: millis.and_then(|millis| u64::try_from(millis).ok()),
                    is_log_append,
                    value: message.payload().unwrap_or_default().to_vec(),
                })
            }
        }
    }

    /// Returns the changes since the last call, in order.
    pub fn changes(&self) -> Vec<ReaderChange> {
        mem::take(&mut *self.inner.context().changes.lock()).into()
    }

    /// Returns the group's commits for these partitions, by partition. Blocks.
    pub fn committed(&self, partitions: &[i32]) -> Result<BTreeMap<i32, CommittedOffset>, String> {
        let list = self.list(partitions);
        let committed = self.told(self.inner.committed_offsets(list, METADATA_TIMEOUT))?;
        let committed = committed.elements().into_iter().filter_map(|found| {
            let Offset::Offset(offset) = found.offset() else {
                return None;
            };
            let committed = CommittedOffset {
                offset: u64::try_from(offset).ok()?,
                metadata: found.metadata().to_owned(),
            };
            Some((found.partition(), committed))
        });
        Ok(committed.collect())
    }

    /// Returns the first offset of each partition, as its leader reports it. Blocks.
    pub fn starts(&self, partitions: &[i32]) -> Result<Vec<u64>, String> {
        self.ask(partitions, Offset::Beginning)
    }

    /// Returns one more than the last offset of each partition, as its leader reports it. Blocks.
    pub fn ends(&self, partitions: &[i32]) -> Result<Vec<u64>, String> {
        self.ask(partitions, Offset::End)
    }

    /// Sends one query to each leader, which answers only between its waits for records.
    fn ask(&self, partitions: &[i32], which: Offset) -> Result<Vec<u64>, String> {
        // The client library rejects an empty list.
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let mut list = self.list(partitions);
        self.told(list.set_all_offsets(which))?;
        let told = self.told(self.inner.offsets_for_times(list, ANSWER_TIMEOUT))?;
        let offset_of = |partition: &i32| {
            let found = told.find_partition(&self.words.topic, *partition);
            let found = found.ok_or("a broker's answer lacks a partition")?;
            self.told(found.error())?;
            match found.offset() {
                Offset::Offset(offset) => Ok(offset.max(0).cast_unsigned()),
                other => Err(format!("a leader answered {other:?}")),
            }
        };
        partitions.iter().map(offset_of).collect()
    }

    /// Begins to read assigned partitions, each from the given offset.
    pub fn begin(&self, partitions: &[(i32, u64)]) -> Result<(), String> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for (partition, offset) in partitions {
            let offset = Offset::Offset(offset.cast_signed());
            self.told(list.add_partition_offset(&self.words.topic, *partition, offset))?;
        }
        self.told(match self.inner.rebalance_protocol() {
            RebalanceProtocol::Cooperative => self.inner.incremental_assign(&list),
            _ => self.inner.assign(&list),
        })
    }

    pub fn release(&self, partitions: &[i32]) -> Result<(), String> {
        self.told(release(&self.inner, &self.list(partitions)))
    }

    pub fn pause(&self, partitions: &[i32], is_paused: bool) -> Result<(), String> {
        let list = self.list(partitions);
        self.told(if is_paused { self.inner.pause(&list) } else { self.inner.resume(&list) })
    }

    /// Commits offsets of partitions. If `blocks`, returns the outcome; else the outcome arrives as
    /// a [change](Self::changes), unless earlier commits are still pending, which is an error.
    pub fn commit(
        &self,
        partitions: &[(i32, CommittedOffset)],
        blocks: bool,
    ) -> Result<(), String> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for (partition, CommittedOffset { offset, metadata }) in partitions {
            let mut element = list.add_partition(&self.words.topic, *partition);
            self.told(element.set_offset(Offset::Offset(offset.cast_signed())))?;
            element.set_metadata(metadata);
        }
        if blocks {
            return self.told(self.inner.commit(&list, CommitMode::Sync));
        }
        self.commits
            .try_send(list)
            .map_err(|_| "earlier commits are still pending".to_owned())
    }

    /// Leaves the group. Blocks until pending commits have ended and the consumer has left.
    pub fn leave(self) {
        let is_closing = &self.inner.context().is_closing;
        is_closing.store(true, Ordering::Release);
        drop(self.commits);
        // If the thread panicked, the panic was reported then.
        let _ = self.committer.join();
        // Dropping the consumer waits until it has left the group.
        let _ = self.inner.unassign();
    }

    fn failed(&self, error: &KafkaError) -> Polled {
        let Some((code, why)) = self.inner.client().fatal_error() else {
            return Polled::Failed(self.why(error));
        };
        // Old brokers do not offer the request of this protocol. Newer ones offer it, but reject it
        // if the protocol is disabled.
        let is_unsupported = matches!(
            code,
            RDKafkaErrorCode::UnsupportedFeature | RDKafkaErrorCode::UnsupportedVersion
        );
        let why = match code {
            _ if is_unsupported => "the brokers do not support the group protocol `consumer`: set \
                                    `kafka.read.protocol` to `classic` or `auto`"
                .to_owned(),
            RDKafkaErrorCode::GroupAuthorizationFailed => self.words.failure_of(code).text(),
            _ => why,
        };
        Polled::Ended {
            why,
            is_unsupported,
        }
    }

    fn list(&self, partitions: &[i32]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            list.add_partition(&self.words.topic, *partition);
        }
        list
    }

    /// Replaces the library's error by our message.
    fn told<T>(&self, result: KafkaResult<T>) -> Result<T, String> {
        result.map_err(|error| self.why(&error))
    }

    fn why(&self, error: &KafkaError) -> String {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::UnknownMemberId | RDKafkaErrorCode::IllegalGeneration) => {
                "the group evicted this consumer; rejoining".to_owned()
            }
            Some(code) => self.words.failure_of(code).text(),
            None => error.to_string(),
        }
    }
}

fn settings(config: &Kafka, protocol: KafkaProtocol, index: usize, buffer: usize) -> ClientConfig {
    let read = &config.read;
    let session = read.session_timeout.0.as_millis();
    let max_queued = (buffer >> 10).max(64);
    let mut settings = connection(config);
    match protocol {
        KafkaProtocol::Classic => settings
            .set("session.timeout.ms", session.to_string())
            .set(
                "heartbeat.interval.ms",
                // This setting limits the time until the other members notice that a member has
                // left.
                (session / 10).clamp(1, 250).to_string(),
            )
            .set("partition.assignment.strategy", "cooperative-sticky"),
        // With these protocols the brokers decide the timeouts.
        KafkaProtocol::Consumer | KafkaProtocol::Auto => settings.set("group.protocol", "consumer"),
    };
    settings
        .set("group.id", &read.group)
        // This setting limits the time until partitions that are added to the topic are polled.
        .set("topic.metadata.refresh.interval.ms", METADATA_INTERVAL)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // This setting applies if the record to read from was deleted.
        .set("auto.offset.reset", "earliest")
        .set("queued.max.messages.kbytes", max_queued.to_string())
        .set("fetch.queue.backoff.ms", "50")
        // A broker answers no other query while it waits for records.
        .set("fetch.wait.max.ms", "100");
    if let Some(name) = &read.instance_id {
        settings.set("group.instance.id", format!("{name}-{index}"));
    }
    settings
}
