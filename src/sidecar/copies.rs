//! Sends the receivers' requests to Kafka, too, if the configuration enables `kafka.write`.

use std::sync::Arc;

use super::StartError;
use crate::config::{Bound, Budgets, Config};
use crate::forward::ForwardHandle;
use crate::journal::JournalLog;
use crate::kafka::{self, TopicWriter, TopicWriterSettings};
use crate::telemetry::{MetricsSource, Telemetry, WritingToKafka};
use crate::transport::Delivery;

/// The delivery to a topic, and its metrics.
type WrittenToTopic = (Delivery<TopicWriter>, MetricsSource);

/// Also enqueues requests with spans for Kafka, if the configuration enables it. The caller runs
/// the delivery.
pub(super) fn into_kafka(
    forward: ForwardHandle,
    config: &Config,
    budgets: &Budgets<Bound>,
    journal: Option<JournalLog>,
    telemetry: &Arc<Telemetry>,
    rng: &mut fastrand::Rng,
) -> Result<(ForwardHandle, Option<WrittenToTopic>), StartError> {
    let kafka = &config.kafka;
    if !kafka.write.enabled {
        return Ok((forward, None));
    }
    WritingToKafka {
        brokers: kafka.brokers.join(","),
        topic: kafka.write.topic.clone(),
    }
    .emit();
    let settings = TopicWriterSettings {
        config: kafka.clone(),
        backoff: config.backoff(),
        capacity: budgets.kafka.clone(),
        accounting: forward.accounting_of_copies(),
        journal,
    };
    let (queue, delivery, writer) =
        kafka::start(settings, telemetry, rng.fork()).map_err(StartError::Kafka)?;
    let metrics: MetricsSource = Arc::new(move |page| writer.write_metrics(page));
    Ok((forward.also_into(queue), Some((delivery, metrics))))
}
