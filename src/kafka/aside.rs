//! Writes unreadable records to a separate topic, byte for byte, with headers that name their
//! position. Makes one attempt and does not wait for its outcome; the judge of the partition
//! retries.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::client::{Failure, InFlight, Producer};
use crate::config::{ByteSize, Duration, Kafka};
use crate::sync::Mutex;

/// Maximum size of a record in the client library, in bytes; the brokers' limit is usually lower.
const MAX_SIZE: usize = 256 << 20;

/// Writes to the set-aside topic. Shared by all judging threads.
pub struct AsideWriter {
    /// The configuration, whose `write` describes the set-aside topic.
    config: Kafka,
    producer: Mutex<Arc<Producer>>,
}

/// A record that cannot be read.
#[derive(Debug)]
pub struct AsideRecord<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub offset: u64,
    pub reason: &'a str,
    pub value: &'a [u8],
}

pub struct AsideInFlight {
    producer: Arc<Producer>,
    sent: InFlight,
}

/// The reason why the brokers did not accept a record.
#[derive(Debug)]
pub enum AsideFailure {
    TooLarge(String),
    /// The brokers may accept the record later. The text has the reason.
    Later(String),
}

impl AsideWriter {
    /// Creates a writer, which connects in the background.
    ///
    /// # Errors
    /// Returns an error if the client library rejects a setting.
    pub fn new(config: &Kafka, topic: &str) -> Result<Self, String> {
        let mut config = config.clone();
        config.write.topic = topic.to_owned();
        config.write.max_message_size = ByteSize(MAX_SIZE);
        config.write.linger = Duration::from_secs(0);
        let producer = Producer::new(&config, MAX_SIZE, Arc::<AtomicBool>::default())?;
        Ok(Self {
            config,
            producer: Mutex::new(Arc::new(producer)),
        })
    }

    /// Sends a record. Blocks until the brokers have described the topic, at most for
    /// `METADATA_TIMEOUT`.
    ///
    /// # Errors
    /// Returns an error if the record was not sent.
    pub fn send(&self, record: &AsideRecord<'_>) -> Result<AsideInFlight, AsideFailure> {
        let producer = Arc::clone(&self.producer.lock());
        // If the topic is missing, the library would wait without a message.
        let sent = producer.n_partitions().and_then(|_| {
            let (partition, offset) = (record.partition.to_string(), record.offset.to_string());
            let headers = [
                ("topic", record.topic),
                ("partition", &partition),
                ("offset", &offset),
                ("reason", record.reason),
            ];
            producer.send_with(record.value, headers)
        });
        match sent {
            Ok(sent) => Ok(AsideInFlight { producer, sent }),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// Returns the outcome of a record; `None` while the record is in flight.
    pub fn outcome(&self, in_flight: &mut AsideInFlight) -> Option<Result<(), AsideFailure>> {
        let AsideInFlight { producer, sent } = in_flight;
        let outcome = producer.outcome(sent)?;
        Some(outcome.map_err(|failure| self.failed(failure)))
    }

    fn failed(&self, failure: Failure) -> AsideFailure {
        match failure {
            Failure::TooLarge { why } => AsideFailure::TooLarge(why),
            Failure::Later { why } => AsideFailure::Later(why),
            Failure::Full => {
                AsideFailure::Later("the queue of the Kafka client is full".to_owned())
            }
            Failure::Fatal { why } => {
                let unwatched = Arc::<AtomicBool>::default();
                if let Ok(new) = Producer::new(&self.config, MAX_SIZE, unwatched) {
                    *self.producer.lock() = Arc::new(new);
                }
                AsideFailure::Later(why)
            }
        }
    }
}
