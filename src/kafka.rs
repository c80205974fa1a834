//! Writes spans to Apache Kafka: those of a trace go into one partition of a topic, so that whoever
//! reads a partition has whole traces. Knows records and partitions; does not know what is in
//! a span, but for its trace id.

mod placement;
mod split;

#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod write;

#[cfg(feature = "kafka")]
pub use write::{TopicWriter, TopicWriterSettings, start};
