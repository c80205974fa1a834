//! Wraps the Kafka client library, which only this file and `consumer` name: a producer with its
//! settings, and error messages with remedies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::metadata::Metadata;
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _};
use text::truncated;

use super::split::TopicRecord;
use crate::config::{Kafka, Sasl};
use crate::sync::Mutex;

/// Timeout for the brokers' description of a topic.
pub(super) const METADATA_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval in milliseconds at which the library reports the brokers that it is connected to.
const STATISTICS_INTERVAL: &str = "2000";

/// Text that marks a connected broker in the library's statistics; nothing else in the statistics
/// has this state.
const BROKER_IS_UP: &[u8] = br#""state":"UP""#;

/// Text in the library's statistics for a group whose coordinator is connected.
const GROUP_IS_UP: &[u8] = br#""cgrp": { "state": "up""#;

/// Bytes of a record in addition to its value: headers of the protocol, and its key.
const OVERHEAD: usize = 1 << 10;

/// Maximum length of the library's messages when our messages quote them, in characters.
const LONGEST_WHY: usize = 300;

/// The reason why the brokers or the library rejected a record or a request.
#[derive(Debug)]
pub enum Failure {
    /// The record is too large; a smaller one may be accepted.
    TooLarge(String),
    /// The library's queue is full.
    Full,
    /// A later attempt may succeed. The text has the reason, with its remedy if one is known.
    Later(String),
}

impl Failure {
    pub fn text(self) -> String {
        match self {
            Self::TooLarge(why) | Self::Later(why) => why,
            Self::Full => "the queue of the Kafka client is full".to_owned(),
        }
    }
}

/// Writes records to one topic.
pub(super) struct Producer {
    settings: ClientConfig,
    context: Context,
    /// The library's producer, which is replaced after a fatal error.
    inner: Mutex<FutureProducer<Context>>,
    words: ErrorTexts,
}

/// Turns the library's errors into messages.
pub(super) struct ErrorTexts {
    pub(super) topic: String,
    /// Our use of the topic, as a verb: `write` or `read`.
    pub(super) verb: &'static str,
    /// The permissions that our use needs.
    pub(super) needs: String,
    pub(super) sasl: Option<Sasl>,
    pub(super) last_complaint: LastComplaint,
}

/// A record that the library has, and the producer that writes it.
pub(super) struct InFlight(FutureProducer<Context>, DeliveryFuture);

/// What the library reports. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    /// The last error message, because the library's error codes seldom name the cause.
    pub(super) last_complaint: LastComplaint,
    pub(super) is_connected: Arc<AtomicBool>,
    /// True if a reader has ever been connected to the coordinator of its group.
    pub(super) has_found_group: Arc<AtomicBool>,
    /// The changes of a reader, for its polling loop.
    pub(super) changes: Arc<Mutex<VecDeque<ReaderChange>>>,
    /// True once a reader leaves its group.
    pub(super) is_closing: Arc<AtomicBool>,
}

/// A change of a reader's partitions, or the outcome of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReaderChange {
    /// These partitions were assigned to this member; `TopicReader::begin` begins to read them.
    Assigned(Vec<i32>),
    /// These partitions were revoked. Other members wait for them until `TopicReader::release`.
    Revoked {
        partitions: Vec<i32>,
        /// True if the group has evicted this member, so other members may already have the
        /// partitions.
        is_lost: bool,
    },
    /// A commit that did not block its caller has ended. True if the brokers accepted it.
    Committed(bool),
}

pub(super) type LastComplaint = Arc<Mutex<Option<String>>>;

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(
            ?level,
            facility,
            message,
            "message of the Kafka client library"
        );
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let says_less = matches!(error, KafkaError::Global(RDKafkaErrorCode::AllBrokersDown));
        let mut last = self.last_complaint.lock();
        if last.is_none() || !says_less {
            *last = Some(truncated(reason, LONGEST_WHY).to_owned());
        }
        if says_less {
            self.is_connected.store(false, Ordering::Relaxed);
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        let is_connected = memchr::memmem::find(statistics, BROKER_IS_UP).is_some();
        self.is_connected.store(is_connected, Ordering::Relaxed);
        let has_found_group = memchr::memmem::find(statistics, GROUP_IS_UP).is_some();
        self.has_found_group
            .fetch_or(has_found_group, Ordering::Relaxed);
    }
}

impl Producer {
    /// Creates a producer, which connects in the background. `buffer` is the maximum bytes of its
    /// unacknowledged records. The library retries a record for `timeout`. The producer updates
    /// `is_connected`.
    ///
    /// # Errors
    /// Returns an error if the client library rejects a setting.
    pub(super) fn new(
        config: &Kafka,
        buffer: usize,
        timeout: Duration,
        is_connected: Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let context = Context {
            is_connected,
            ..Context::default()
        };
        let settings = settings(config, buffer, timeout);
        let inner = settings.create_with_context(context.clone());
        Ok(Self {
            inner: Mutex::new(inner.map_err(unusable)?),
            words: ErrorTexts {
                topic: config.write.topic.clone(),
                verb: "write",
                needs: "WRITE and DESCRIBE on the topic".to_owned(),
                sasl: config.sasl.clone(),
                last_complaint: Arc::clone(&context.last_complaint),
            },
            settings,
            context,
        })
    }

    /// Queries the brokers for the number of the topic's partitions. Blocks.
    pub(super) fn n_partitions(&self) -> Result<i32, Failure> {
        let (producer, topic) = (self.inner.lock().clone(), &*self.words.topic);
        let metadata = producer
            .client()
            .fetch_metadata(Some(topic), METADATA_TIMEOUT);
        let metadata = metadata.map_err(|error| self.failure(&producer, &error))?;
        self.words.n_partitions(&metadata)
    }

    /// Enqueues a record in the library, which copies it.
    pub(super) fn send(&self, record: &TopicRecord) -> Result<InFlight, Failure> {
        let key = record.key.map(|trace_id| trace_id.to_string());
        let topic = FutureRecord::to(&self.words.topic).partition(record.partition);
        self.enqueue(FutureRecord {
            key: key.as_ref(),
            ..topic.payload(&record.value)
        })
    }

    /// Enqueues a record with headers in the library, which chooses its partition and copies it.
    pub(super) fn send_with(
        &self,
        value: &[u8],
        headers: [(&str, &str); 4],
    ) -> Result<InFlight, Failure> {
        let all = headers.into_iter().map(|(key, value)| Header {
            key,
            value: Some(value),
        });
        let all = all.fold(OwnedHeaders::new(), OwnedHeaders::insert);
        let record = FutureRecord::<String, [u8]>::to(&self.words.topic);
        self.enqueue(record.payload(value).headers(all))
    }

    fn enqueue(&self, record: FutureRecord<'_, String, [u8]>) -> Result<InFlight, Failure> {
        let producer = self.inner.lock().clone();
        match producer.send_result(record) {
            Ok(delivery) => Ok(InFlight(producer, delivery)),
            Err((error, _)) => Err(self.failure(&producer, &error)),
        }
    }

    /// Waits until the brokers have acknowledged the record or the delivery has failed.
    pub(super) async fn finish(
        &self,
        InFlight(producer, delivery): InFlight,
    ) -> Result<(), Failure> {
        match delivery.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err((error, _))) => Err(self.failure(&producer, &error)),
            Err(_) => Err(Failure::Later("the Kafka client ended".to_owned())),
        }
    }

    fn failure(&self, producer: &FutureProducer<Context>, error: &KafkaError) -> Failure {
        if let Some((_, why)) = producer.client().fatal_error() {
            let mut inner = self.inner.lock();
            // Another failure may have replaced the unusable producer already.
            if inner.client().fatal_error().is_some()
                && let Ok(new) = self.settings.create_with_context(self.context.clone())
            {
                *inner = new;
            }
            return Failure::Later(why);
        }
        match error.rdkafka_error_code() {
            Some(code) => self.words.failure_of(code),
            None => Failure::Later(error.to_string()),
        }
    }
}

impl ErrorTexts {
    pub(super) fn n_partitions(&self, metadata: &Metadata) -> Result<i32, Failure> {
        let mut topics = metadata.topics().iter();
        let described = topics.find(|found| found.name() == self.topic);
        let (error, n) =
            described.map_or((None, 0), |topic| (topic.error(), topic.partitions().len()));
        match (error.map(RDKafkaErrorCode::from), i32::try_from(n)) {
            (None | Some(RDKafkaErrorCode::NoError), Ok(n @ 1..)) => Ok(n),
            (Some(code), _) => Err(self.failure_of(code)),
            _ => Err(self.failure_of(RDKafkaErrorCode::UnknownTopicOrPartition)),
        }
    }

    /// Returns the failure of an error code, with its remedy if one is known.
    pub(super) fn failure_of(&self, code: RDKafkaErrorCode) -> Failure {
        let (topic, verb, needs) = (&self.topic, self.verb, &self.needs);
        let complaint = self.last_complaint.lock().clone();
        let why = match code {
            RDKafkaErrorCode::QueueFull => return Failure::Full,
            RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize => {
                return Failure::TooLarge(format!(
                    "the brokers reject records of this size in `{topic}`; raise the topic's \
                     `max.message.bytes`"
                ));
            }
            RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownPartition => format!(
                "topic `{topic}` does not exist; create it: kafka-topics --create --topic {topic} \
                 --partitions 48 --config message.timestamp.type=LogAppendTime"
            ),
            RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed => {
                let user = self.sasl.as_ref().map(|sasl| &*sasl.username);
                let user = user.unwrap_or("this client");
                format!("`{user}` may not {verb} `{topic}`: it needs {needs}")
            }
            RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => {
                self.login_failed(complaint)
            }
            _ => match complaint {
                Some(complaint) if is_about_login(&complaint) => self.login_failed(Some(complaint)),
                Some(complaint) if is_about_tls(&complaint) => {
                    format!("TLS with the brokers failed, see `kafka.tls`: {complaint}")
                }
                Some(complaint) => format!("{code}: {complaint}"),
                None => code.to_string(),
            },
        };
        Failure::Later(why)
    }

    fn login_failed(&self, complaint: Option<String>) -> String {
        let complaint = complaint.map_or(String::new(), |complaint| format!(": {complaint}"));
        match &self.sasl {
            Some(sasl) => format!(
                "the brokers do not accept user `{}` with {}{complaint}",
                sasl.username,
                sasl.mechanism.as_str()
            ),
            None => {
                format!("the brokers reject clients without login; set `kafka.sasl`{complaint}")
            }
        }
    }
}

fn is_about_login(complaint: &str) -> bool {
    // Search for more than `sasl`, because the broker's address in every message begins with
    // `sasl_ssl://`.
    complaint.contains("SASL ") || complaint.contains("uthentication")
}

fn is_about_tls(complaint: &str) -> bool {
    complaint.contains("SSL") || complaint.contains("certificate")
}

/// Returns the reason why the library rejects its settings.
pub(super) fn unusable(error: KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, text, key, _) => format!("{key}: {text}"),
        other => other.to_string(),
    }
}

fn settings(config: &Kafka, buffer: usize, timeout: Duration) -> ClientConfig {
    let write = &config.write;
    let max_size = write.max_message_size.0 + OVERHEAD;
    // A record of `buffer` bytes must fit, with its key.
    let max_queued = (buffer >> 10) + 1;
    let mut settings = connection(config);
    settings
        // An acknowledged record is on every in-sync replica, once and in order.
        .set("enable.idempotence", "true")
        .set("compression.type", write.compression.as_str())
        .set("linger.ms", write.linger.0.as_millis().to_string())
        .set("message.max.bytes", max_size.to_string())
        .set("queue.buffering.max.kbytes", max_queued.to_string())
        .set("message.timeout.ms", timeout.as_millis().to_string());
    settings
}

/// Returns the settings of the connection to the brokers. librdkafka's CONFIGURATION.md has their
/// names and meanings.
pub(super) fn connection(config: &Kafka) -> ClientConfig {
    let mut settings = ClientConfig::new();
    let protocol = match (&config.tls, &config.sasl) {
        (None, None) => "plaintext",
        (None, Some(_)) => "sasl_plaintext",
        (Some(_), None) => "ssl",
        (Some(_), Some(_)) => "sasl_ssl",
    };
    settings
        .set("bootstrap.servers", config.brokers.join(","))
        .set("client.id", &config.client_id)
        .set("security.protocol", protocol)
        .set("statistics.interval.ms", STATISTICS_INTERVAL)
        // With the default, each unreachable broker adds a line every second.
        .set("log.connection.close", "false");
    if let Some(rack) = &config.rack {
        settings.set("client.rack", rack);
    }
    if let Some(tls) = &config.tls {
        let files = [
            ("ssl.ca.location", &tls.ca_file),
            ("ssl.certificate.location", &tls.cert_file),
            ("ssl.key.location", &tls.key_file),
        ];
        for (key, file) in files {
            if let Some(file) = file {
                settings.set(key, file.to_string_lossy());
            }
        }
        if tls.insecure_skip_verify {
            settings.set("enable.ssl.certificate.verification", "false");
        }
    }
    if let Some(sasl) = &config.sasl {
        settings
            .set("sasl.mechanism", sasl.mechanism.as_str())
            .set("sasl.username", &sasl.username)
            .set("sasl.password", sasl.password.expose());
    }
    settings
}
