//! Writes spans to Apache Kafka and reads them. All spans of a trace are written to one partition
//! of a topic, so that the reader of the partition gets whole traces.

mod placement;
mod progress;
mod split;

#[cfg(feature = "kafka")]
mod aside;
#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod consumer;
#[cfg(feature = "kafka")]
mod write;

#[cfg(feature = "kafka")]
pub use aside::AsideWriter;
#[cfg(feature = "kafka")]
pub use client::{Failure, ReaderChange};
#[cfg(feature = "kafka")]
pub use consumer::{CommittedOffset, Polled, ReadRecord, TopicReader};
pub use placement::partition_of;
pub use progress::{decode as decode_progress, encode as encode_progress};
#[cfg(feature = "kafka")]
pub use write::{TopicWriter, start};
