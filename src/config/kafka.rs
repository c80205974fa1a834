//! The `kafka` section: the brokers, the topic to write, and the topic to read.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forward::QueueLimits;
use super::units::{ByteSize, Duration, Secret};

/// The `kafka` section. Needs a program that is built with the feature `kafka`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Kafka {
    /// Brokers from which all other brokers are discovered: `host:port`.
    pub brokers: Vec<String>,
    /// TLS to the brokers; `{}` trusts the system's authorities.
    pub tls: Option<KafkaTls>,
    /// The user to log in as.
    pub sasl: Option<Sasl>,
    /// The client's name in the brokers' logs and quotas.
    pub client_id: String,
    /// The zone of this process, as in `broker.rack`: records are read from a replica in this zone.
    pub rack: Option<String>,
    /// Writing spans to a topic.
    pub write: KafkaWrite,
    /// Reading spans from a topic and judging them.
    pub read: KafkaRead,
}

impl Kafka {
    /// Returns true if this process judges a topic and receives no requests.
    pub fn only_reads(&self) -> bool {
        self.read.enabled && !self.write.enabled
    }
}

/// TLS to the brokers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaTls {
    /// Authorities to trust instead of the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate chain, PEM.
    pub cert_file: Option<PathBuf>,
    /// The client's private key, PEM.
    pub key_file: Option<PathBuf>,
    /// Accept any certificate. For tests only.
    pub insecure_skip_verify: bool,
}

/// The `kafka.sasl` section.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sasl {
    /// The SASL mechanism.
    pub mechanism: SaslMechanism,
    /// The user name.
    pub username: String,
    /// The password.
    pub password: Secret,
}

/// SASL mechanisms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum SaslMechanism {
    /// The password is sent unencrypted: use only over TLS.
    #[serde(rename = "PLAIN")]
    Plain,
    /// RFC 5802 with SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// RFC 5802 with SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl SaslMechanism {
    /// Returns the registered name of the mechanism.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// The `kafka.write` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaWrite {
    /// Write the spans of every request to the topic, in addition to forwarding and scoring.
    pub enabled: bool,
    /// The topic. It must exist.
    pub topic: String,
    /// Function from a trace id to a partition; all writers of the topic must use the same
    /// function.
    pub partitioner: KafkaPartitioner,
    /// Grouping of a request's spans into records: one for each partition, or one for each trace.
    pub records: KafkaRecords,
    /// Compression of records.
    pub compression: KafkaCompression,
    /// Maximum bytes of a record before compression, at least 1; not more than the brokers accept.
    /// A larger record is split between its spans.
    pub max_message_size: ByteSize,
    /// Maximum time that a record waits for further ones that are sent with it.
    pub linger: Duration,
    /// The queue of requests that wait for the brokers; when full, it refuses requests as
    /// retryable.
    pub queue: QueueLimits,
}

/// The `kafka.read` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaRead {
    /// Judge the spans of the topic instead of received spans.
    pub enabled: bool,
    /// The topic. It must exist.
    pub topic: String,
    /// The consumer group, whose members share the topic's partitions.
    pub group: String,
    /// The group protocol, which assigns the partitions.
    pub protocol: KafkaProtocol,
    /// Start position in a partition that the group has never read.
    pub start: KafkaStart,
    /// A name that only this process uses: a restart within `session_timeout` moves no partition.
    pub instance_id: Option<String>,
    /// Time without a heartbeat after which a reader is evicted from the group, and other readers
    /// get its partitions. Only for the protocol `classic`; with `consumer` the brokers'
    /// `group.consumer.session.timeout.ms` decides.
    pub session_timeout: Duration,
    /// A new owner of a partition starts reading this long before the oldest open trace.
    pub overlap: Duration,
    /// Maximum age of an open trace that is read again; after a takeover, an older trace is
    /// `incomplete`.
    pub max_replay: Duration,
    /// Another topic, for records that are not OTLP. It must exist. Without it, such records are
    /// skipped.
    pub set_aside_topic: Option<String>,
}

/// Protocols of a consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KafkaProtocol {
    /// The members assign the partitions among themselves. All brokers support this protocol.
    #[default]
    Classic,
    /// The brokers assign the partitions (KIP-848, since Kafka 4.0).
    Consumer,
    /// `consumer` if the brokers support it, else `classic`.
    Auto,
}

/// Start positions in a partition that was never read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KafkaStart {
    /// At the next record.
    #[default]
    Latest,
    /// At the oldest record.
    Earliest,
}

/// Functions from a trace id, as 32 lower-case hex letters, to a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KafkaPartitioner {
    /// FNV-1a, the default of the OpenTelemetry Collector.
    #[default]
    SaramaCompat,
    /// Murmur2, the default of Kafka's Java clients.
    Murmur2,
}

/// Groupings of spans into records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KafkaRecords {
    /// The spans of one request for one partition. The record has no key.
    #[default]
    Partition,
    /// The spans of one request in one trace. The trace id is the record's key.
    Trace,
}

/// Compression of written records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KafkaCompression {
    /// No compression.
    None,
    /// LZ4.
    Lz4,
    /// zstd.
    #[default]
    Zstd,
}

impl KafkaCompression {
    /// Returns Kafka's name of the compression.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl Default for Kafka {
    fn default() -> Self {
        Self {
            brokers: Vec::new(),
            tls: None,
            sasl: None,
            client_id: "spanscore".to_owned(),
            rack: None,
            write: KafkaWrite::default(),
            read: KafkaRead::default(),
        }
    }
}

impl Default for KafkaRead {
    fn default() -> Self {
        Self {
            enabled: false,
            topic: "otlp_spans".to_owned(),
            group: "spanscore".to_owned(),
            protocol: KafkaProtocol::default(),
            start: KafkaStart::default(),
            instance_id: None,
            session_timeout: Duration::from_secs(10),
            overlap: Duration::from_secs(120),
            max_replay: Duration::from_secs(600),
            set_aside_topic: None,
        }
    }
}

impl Default for KafkaWrite {
    fn default() -> Self {
        Self {
            enabled: false,
            topic: "otlp_spans".to_owned(),
            partitioner: KafkaPartitioner::default(),
            records: KafkaRecords::default(),
            compression: KafkaCompression::default(),
            max_message_size: ByteSize(1_000_000),
            linger: Duration(std::time::Duration::from_millis(10)),
            queue: QueueLimits::default(),
        }
    }
}
