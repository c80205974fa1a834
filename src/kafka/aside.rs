//! Writes unreadable records to a separate topic, byte for byte, with headers that name their
//! position. Makes one attempt; the judge of the partition retries.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::client::{Failure, Producer};
use super::consumer::ReadRecord;
use crate::config::{self, ByteSize, Kafka};

/// Maximum size of a record in the client library, in bytes; the brokers' limit is usually lower.
const MAX_SIZE: usize = 256 << 20;

/// Time for which a judging thread waits until the brokers have acknowledged a record.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Writes to the set-aside topic. Shared by all judging threads.
pub struct AsideWriter {
    producer: Producer,
    runtime: Handle,
}

impl AsideWriter {
    /// Creates a writer, which connects in the background. Must be called within a runtime.
    ///
    /// # Errors
    /// Returns an error if the client library rejects a setting.
    pub fn new(config: &Kafka, topic: &str) -> Result<Self, String> {
        let mut config = config.clone();
        config.write.topic = topic.to_owned();
        config.write.max_message_size = ByteSize(MAX_SIZE);
        config.write.linger = config::Duration::from_secs(0);
        Ok(Self {
            producer: Producer::new(&config, MAX_SIZE, TIMEOUT, Arc::default())?,
            runtime: Handle::current(),
        })
    }

    /// Writes a record of `topic` that cannot be read. Blocks until the brokers have described the
    /// set-aside topic, at most for `METADATA_TIMEOUT`, and until they have acknowledged the
    /// record, at most for `TIMEOUT`. Must be called outside of a runtime.
    ///
    /// # Errors
    /// Returns an error if the record was not acknowledged.
    pub fn write(&self, topic: &str, record: &ReadRecord, reason: &str) -> Result<(), Failure> {
        // If the topic is missing, the library would wait without a message.
        self.producer.n_partitions()?;
        let (partition, offset) = (record.partition.to_string(), record.offset.to_string());
        let headers = [
            ("topic", topic),
            ("partition", &partition),
            ("offset", &offset),
            ("reason", reason),
        ];
        let sent = self.producer.send_with(&record.value, headers)?;
        self.runtime.block_on(self.producer.finish(sent))
    }
}
