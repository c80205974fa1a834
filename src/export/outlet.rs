//! Encoded requests of one shape in, delivered to its destination. Knows the queue and the delivery
//! of `transport` and enters what becomes of scores in the books; does not know what the bytes say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::config::{Destination, Signal};
use crate::telemetry::{ScoresDropped, ScoresOverflow, ScoresQueued, ScoresSent, Telemetry};
use crate::transport::queue::{Accounting, CompletionGuard, OutboundRequest, Queue, WhenFull};
use crate::transport::{Client, Delivery, TransportError, Undelivered};

/// The way out of one shape. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub(super) struct Outlet {
    signal: Signal,
    queue: Queue,
}

/// All ways out, and the tasks that deliver.
#[derive(Debug)]
pub(super) struct Outlets {
    /// Capacity of each queue, in bytes.
    capacity: usize,
    telemetry: Arc<Telemetry>,
    queues: Vec<Queue>,
    /// Shapes that go to the same place share its connections.
    clients: Vec<(Destination, Client)>,
    deliveries: JoinSet<(&'static str, Undelivered)>,
}

impl Outlet {
    /// Queues a request; a full queue drops its oldest. The token is let go of when the request is
    /// done with.
    pub(super) fn send(&self, n_items: usize, body: Vec<u8>, token: Option<CompletionGuard>) {
        let parcel = OutboundRequest {
            completion: token,
            ..OutboundRequest::otlp(self.signal, Bytes::from(body), n_items as u64)
        };
        // A queue that drops the oldest refuses nothing; what it cannot take is in the books.
        let _ = self.queue.offer(parcel);
    }
}

impl Outlets {
    pub(super) fn new(capacity: usize, telemetry: Arc<Telemetry>) -> Self {
        Self {
            capacity,
            telemetry,
            queues: Vec::new(),
            clients: Vec::new(),
            deliveries: JoinSet::new(),
        }
    }

    /// Opens a way out and starts its delivery.
    pub(super) fn open(
        &mut self,
        name: &'static str,
        signal: Signal,
        destination: &Destination,
        rng: fastrand::Rng,
    ) -> Result<Outlet, TransportError> {
        let known = self
            .clients
            .iter()
            .find(|(known, _)| known == destination)
            .map(|(_, client)| client.clone());
        let client = match known {
            Some(client) => client,
            None => {
                let client = Client::new(destination, &self.telemetry)?;
                self.clients.push((destination.clone(), client.clone()));
                client
            }
        };
        let books = Arc::new(Books::new(name, self.telemetry.clone()));
        let queue = Queue::new(
            name,
            self.capacity,
            WhenFull::DropOldest,
            books,
            &self.telemetry,
        );
        let delivery = Delivery::new(queue.clone(), client, self.telemetry.clone(), rng);
        self.queues.push(queue.clone());
        self.deliveries
            .spawn(async move { (name, delivery.run().await) });
        Ok(Outlet { signal, queue })
    }

    /// Delivers what it can until `deadline`; how many items of which queue were left.
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

/// What becomes of the scores of one shape.
#[derive(Debug)]
pub(super) struct Books {
    shape: &'static str,
    /// Told in the log; nothing was delivered since.
    is_overflowing: AtomicBool,
    telemetry: Arc<Telemetry>,
}

impl Books {
    pub(super) fn new(shape: &'static str, telemetry: Arc<Telemetry>) -> Self {
        Self {
            shape,
            is_overflowing: AtomicBool::new(false),
            telemetry,
        }
    }
}

impl Accounting for Books {
    fn queued(&self, _: Signal, n_items: u64) {
        ScoresQueued {
            shape: self.shape,
            n_items,
        }
        .emit(&self.telemetry);
    }

    fn sent(&self, _: Signal, n_items: u64) {
        self.is_overflowing.store(false, Ordering::Relaxed);
        ScoresSent {
            shape: self.shape,
            n_items,
        }
        .emit(&self.telemetry);
    }

    fn dropped(&self, _: Signal, n_items: u64, reason: &'static str) {
        ScoresDropped {
            shape: self.shape,
            n_items,
            reason,
        }
        .emit(&self.telemetry);
        if reason == "queue_full" && !self.is_overflowing.swap(true, Ordering::Relaxed) {
            ScoresOverflow { shape: self.shape }.emit(&self.telemetry);
        }
    }
}
