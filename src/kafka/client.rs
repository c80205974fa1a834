//! Wraps the Kafka client library, which only this file and `consumer` name: a producer with its
//! settings, and error messages with remedies.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll, Waker};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::metadata::Metadata;
use rdkafka::producer::future_producer::OwnedDeliveryResult;
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _};
use text::truncated;

use super::split::TopicRecord;
use crate::config::{Kafka, Sasl};
use crate::sync::Mutex;

/// Time for which the library retries a record before our own retries begin. Longer than a broker's
/// failover.
const RECORD_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout for the brokers' description of a topic.
pub(super) const METADATA_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which the library reports the brokers that it is connected to.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(2);

/// Text that marks a connected broker in the library's statistics; nothing else in the statistics
/// has this state.
const BROKER_IS_UP: &[u8] = br#""state":"UP""#;

/// Bytes of a record in addition to its value: headers of the protocol, and its key.
const OVERHEAD: usize = 1 << 10;

/// Maximum length of the library's messages when our messages quote them, in characters.
const LONGEST_WHY: usize = 300;

/// The reason why the brokers or the library rejected a record or a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The record is too large; a smaller one may be accepted.
    TooLarge { why: String },
    /// The library's queue is full.
    Full,
    /// A later attempt may succeed.
    Later {
        /// The reason, with its remedy if one is known.
        why: String,
    },
    /// This producer is unusable; a new one must be created.
    Fatal { why: String },
}

impl Failure {
    pub(super) fn text(self) -> String {
        match self {
            Self::TooLarge { why } | Self::Later { why } | Self::Fatal { why } => why,
            Self::Full => "the queue of the Kafka client is full".to_owned(),
        }
    }
}

/// Writes records to one topic.
pub(super) struct Producer {
    inner: FutureProducer<Context>,
    topic: String,
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

pub(super) struct InFlight(DeliveryFuture);

/// Stores the state of the connection, and the library's last error message, because its error
/// codes seldom name the cause.
#[derive(Debug, Default)]
pub(super) struct Context {
    pub(super) last_complaint: LastComplaint,
    pub(super) is_connected: Arc<AtomicBool>,
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
    }
}

impl Producer {
    /// Creates a producer, which connects in the background. `buffer` is the maximum bytes of its
    /// unacknowledged records. The producer updates `is_connected`.
    ///
    /// # Errors
    /// Returns an error if the client library rejects a setting.
    pub(super) fn new(
        config: &Kafka,
        buffer: usize,
        is_connected: Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let last_complaint = LastComplaint::default();
        let context = Context {
            last_complaint: last_complaint.clone(),
            is_connected,
        };
        let inner = settings(config, buffer)
            .create_with_context(context)
            .map_err(unusable)?;
        let topic = config.write.topic.clone();
        Ok(Self {
            inner,
            topic: topic.clone(),
            words: ErrorTexts {
                topic,
                verb: "write",
                needs: "WRITE and DESCRIBE on the topic".to_owned(),
                sasl: config.sasl.clone(),
                last_complaint,
            },
        })
    }

    /// Queries the brokers for the number of the topic's partitions. Blocks.
    pub(super) fn n_partitions(&self) -> Result<i32, Failure> {
        let metadata = self
            .inner
            .client()
            .fetch_metadata(Some(&self.topic), METADATA_TIMEOUT)
            .map_err(|error| self.failure(&error))?;
        self.words.n_partitions(&metadata)
    }

    /// Enqueues a record in the library, which copies it.
    pub(super) fn send(&self, record: &TopicRecord) -> Result<InFlight, Failure> {
        let key = record.key.map(|trace_id| trace_id.to_string());
        let out = FutureRecord {
            topic: &self.topic,
            partition: Some(record.partition),
            payload: Some(&record.value),
            key: key.as_ref(),
            timestamp: None,
            headers: None,
        };
        match self.inner.send_result(out) {
            Ok(delivery) => Ok(InFlight(delivery)),
            Err((error, _)) => Err(self.failure(&error)),
        }
    }

    /// Enqueues a record with headers in the library, which chooses its partition and copies it.
    pub(super) fn send_with(
        &self,
        value: &[u8],
        headers: [(&str, &str); 4],
    ) -> Result<InFlight, Failure> {
        let mut all = OwnedHeaders::new();
        for (key, value) in headers {
            let value = Some(value);
            all = all.insert(Header { key, value });
        }
        let out: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(&self.topic).payload(value).headers(all);
        match self.inner.send_result(out) {
            Ok(delivery) => Ok(InFlight(delivery)),
            Err((error, _)) => Err(self.failure(&error)),
        }
    }

    /// Waits until the brokers have acknowledged the record or the delivery has failed.
    pub(super) async fn finish(&self, InFlight(delivery): InFlight) -> Result<(), Failure> {
        self.delivered(delivery.await.ok())
    }

    /// Returns the outcome of a record; `None` while the record is in flight.
    pub(super) fn outcome(&self, in_flight: &mut InFlight) -> Option<Result<(), Failure>> {
        let mut context = task::Context::from_waker(Waker::noop());
        match Pin::new(&mut in_flight.0).poll(&mut context) {
            Poll::Pending => None,
            Poll::Ready(delivery) => Some(self.delivered(delivery.ok())),
        }
    }

    fn delivered(&self, delivery: Option<OwnedDeliveryResult>) -> Result<(), Failure> {
        match delivery {
            Some(Ok(_)) => Ok(()),
            Some(Err((error, _))) => Err(self.failure(&error)),
            None => Err(Failure::Later {
                why: "the Kafka client ended".to_owned(),
            }),
        }
    }

    fn failure(&self, error: &KafkaError) -> Failure {
        if let Some((_, why)) = self.inner.client().fatal_error() {
            return Failure::Fatal { why };
        }
        match error.rdkafka_error_code() {
            Some(code) => self.words.failure_of(code),
            None => Failure::Later {
                why: error.to_string(),
            },
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
        let Self {
            topic,
            verb,
            needs,
            sasl,
            last_complaint,
        } = self;
        let complaint = last_complaint.lock().clone();
        let why = match code {
            RDKafkaErrorCode::QueueFull => return Failure::Full,
            RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize => {
                return Failure::TooLarge {
                    why: format!(
                        "the brokers reject records of this size in `{topic}`; raise the topic's \
                         `max.message.bytes`"
                    ),
                };
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
                let user = sasl
                    .as_ref()
                    .map_or("this client", |sasl| sasl.username.as_str());
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
        Failure::Later { why }
    }

    fn login_failed(&self, complaint: Option<String>) -> String {
        let complaint = complaint.map_or(String::new(), |complaint| format!(": {complaint}"));
        match &self.sasl {
            Some(Sasl {
                mechanism,
                username,
                ..
            }) => format!(
                "the brokers do not accept user `{username}` with {}{complaint}",
                mechanism.as_str()
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

fn settings(config: &Kafka, buffer: usize) -> ClientConfig {
    let write = &config.write;
    let mut settings = connection(config);
    settings
        // An acknowledged record is on every in-sync replica, once and in order.
        .set("enable.idempotence", "true")
        .set("compression.type", write.compression.as_str())
        .set("linger.ms", write.linger.0.as_millis().to_string())
        .set(
            "message.max.bytes",
            (write.max_message_size.0 + OVERHEAD).to_string(),
        )
        .set(
            "queue.buffering.max.kbytes",
            // A record of `buffer` bytes must fit, with its key.
            ((buffer >> 10) + 1).to_string(),
        )
        .set("message.timeout.ms", RECORD_TIMEOUT.as_millis().to_string());
    settings
}

/// Returns the settings of the connection to the brokers. librdkafka's CONFIGURATION.md has their
/// names and meanings.
pub(super) fn connection(config: &Kafka) -> ClientConfig {
    let Kafka {
        brokers,
        tls,
        sasl,
        client_id,
        rack,
        ..
    } = config;
    let mut settings = ClientConfig::new();
    let protocol = match (tls, sasl) {
        (None, None) => "plaintext",
        (None, Some(_)) => "sasl_plaintext",
        (Some(_), None) => "ssl",
        (Some(_), Some(_)) => "sasl_ssl",
    };
    settings
        .set("bootstrap.servers", brokers.join(","))
        .set("client.id", client_id)
        .set("security.protocol", protocol)
        .set(
            "statistics.interval.ms",
            STATISTICS_INTERVAL.as_millis().to_string(),
        )
        // With the default, each unreachable broker adds a line every second.
        .set("log.connection.close", "false");
    if let Some(rack) = rack {
        settings.set("client.rack", rack);
    }
    if let Some(tls) = tls {
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
    if let Some(sasl) = sasl {
        settings
            .set("sasl.mechanism", sasl.mechanism.as_str())
            .set("sasl.username", &sasl.username)
            .set("sasl.password", sasl.password.expose());
    }
    settings
}
