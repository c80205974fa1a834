//! Enqueues the encoded requests of each shape and backend, delivers them and counts their scores
//! by outcome.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::task::JoinSet;

use super::lanes::{LANES, lane_of};
use crate::config::{Bound, Destination, Signal};
use crate::journal::{JournalLog, Outlet, SignalCounts};
use crate::telemetry::{ItemEvent, ScoresCounted, ScoresOverflow, Telemetry};
use crate::transport::queue::Accounting;
use crate::transport::{Client, Delivery, Queue, SentHeaders, TransportError, Undelivered};

#[derive(Debug)]
pub(super) struct ScoreQueues {
    /// Capacity of each queue, in bytes.
    pub(super) capacity: Bound,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) queues: Vec<Queue>,
    pub(super) journal: Option<JournalLog>,
    pub(super) spans: Option<Queue>,
    pub(super) deliveries: JoinSet<(&'static str, Undelivered)>,
}

impl ScoreQueues {
    pub(super) fn open(
        &mut self,
        name: &'static str,
        destination: &Destination,
        rng: fastrand::Rng,
    ) -> Result<(Queue, SentHeaders), TransportError> {
        let client = Client::new(destination, &self.telemetry)?;
        let headers = client.headers().clone();
        let accounting = Arc::new(ScoreAccounting {
            shape: name,
            is_overflowing: AtomicBool::new(false),
            telemetry: self.telemetry.clone(),
        });
        let mut queue = Queue::new(name, self.capacity.clone(), accounting, &self.telemetry);
        if let Some(log) = &self.journal {
            queue = queue.journaled_in(log, Outlet::Lane(lane_of(name)));
        }
        let mut delivery = Delivery::new(queue.clone(), client, self.telemetry.clone(), rng);
        delivery.spans = self.spans.clone();
        self.queues.push(queue.clone());
        self.deliveries
            .spawn(async move { (name, delivery.run().await) });
        Ok((queue, headers))
    }

    /// Delivers until `deadline`; returns the number of undelivered items by queue.
    pub(super) async fn drain(mut self, deadline: Instant) -> BTreeMap<&'static str, u64> {
        for queue in &self.queues {
            queue.close(deadline);
        }
        let mut left = BTreeMap::new();
        while let Some(ended) = self.deliveries.join_next().await {
            if let Ok((name, undelivered)) = ended {
                let n_items: u64 = undelivered.values().sum();
                if n_items > 0 {
                    left.insert(name, n_items);
                }
            }
        }
        left
    }
}

#[derive(Debug)]
struct ScoreAccounting {
    shape: &'static str,
    /// True if an overflow was logged and no request was delivered since.
    is_overflowing: AtomicBool,
    telemetry: Arc<Telemetry>,
}

impl Accounting for ScoreAccounting {
    fn count(&self, _: Signal, n_items: u64, event: ItemEvent) {
        let shape = self.shape;
        ScoresCounted {
            shape,
            n_items,
            event,
        }
        .emit(&self.telemetry);
        match event {
            ItemEvent::Sent => self.is_overflowing.store(false, Ordering::Relaxed),
            ItemEvent::Dropped("queue_full")
                if !self.is_overflowing.swap(true, Ordering::Relaxed) =>
            {
                ScoresOverflow { shape }.emit(&self.telemetry);
            }
            _ => {}
        }
    }

    /// Counts the items of all lanes.
    fn count_all(&self, counts: SignalCounts, event: ItemEvent) {
        let found = LANES.into_iter().zip(counts);
        for (shape, n_items) in found.filter(|(_, n_items)| *n_items > 0) {
            ScoresCounted {
                shape,
                n_items,
                event,
            }
            .emit(&self.telemetry);
        }
    }
}
