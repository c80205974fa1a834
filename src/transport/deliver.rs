//! The delivery loop: takes from a queue, sends through a client, and tries again until each
//! request is delivered or refused for good. It reads the clock and moves things; when to try again
//! is `retry`'s business, how to cut a request in two is `split`'s.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{Id, JoinError, JoinSet};

use crate::config::Signal;
use crate::telemetry::{
    DestinationDown, DestinationRecovered, DestinationStillDown, PartlyRejected, Pulse,
    RequestHeldUp, RequestRefused, RequestRetried, RequestSplit, Telemetry,
};

use super::Client;
use super::answer::Answer;
use super::queue::{Entry, Queue};
use super::retry::{Attempt, Line, Outage, Pacer, Seldom, wait};
use super::split::split;

/// Requests under way at once. Over gRPC they share a connection.
const MAX_IN_FLIGHT: usize = 8;

/// How long a peer may say that it does not know what a request is about: spans reach a backend
/// late, but not that late.
const UNKNOWN_FOR: Duration = Duration::from_secs(600);

/// What was still undelivered at the deadline, by signal; for the last line of the log.
pub type Undelivered = BTreeMap<Signal, u64>;

/// Empties a [`Queue`] into a [`Client`].
#[derive(Debug)]
pub struct Delivery {
    queue: Queue,
    client: Client,
    telemetry: Arc<Telemetry>,
    rng: fastrand::Rng,
    pacer: Pacer,
    outage: Outage,
    /// Why the last attempt failed.
    last_why: String,
    attempts: JoinSet<Answer>,
    /// What is under way, by its task. A handful.
    under_way: Vec<(Id, Attempt, Entry)>,
    rejections: Seldom,
    hold_ups: Seldom,
    /// Refusals by reason.
    refusals: BTreeMap<&'static str, Seldom>,
    is_closing: bool,
}

impl Delivery {
    /// A delivery that has not begun. `rng` is for the jitter.
    pub fn new(
        queue: Queue,
        client: Client,
        telemetry: Arc<Telemetry>,
        rng: fastrand::Rng,
    ) -> Self {
        let pacer = Pacer::new(client.destination().retry.clone(), MAX_IN_FLIGHT);
        Self {
            queue,
            client,
            telemetry,
            rng,
            pacer,
            outage: Outage::default(),
            last_why: String::new(),
            attempts: JoinSet::new(),
            under_way: Vec::new(),
            rejections: Seldom::default(),
            hold_ups: Seldom::default(),
            refusals: BTreeMap::new(),
            is_closing: false,
        }
    }

    /// Delivers until the queue is closed and empty, or its deadline has passed. What is then left
    /// is dropped as `shutdown` and told.
    pub async fn run(mut self) -> Undelivered {
        let pulse = self
            .telemetry
            .pulse(format!("{} delivery", self.queue.name()), now());
        let undelivered = self.deliver(&pulse).await;
        pulse.rest();
        undelivered
    }

    async fn deliver(&mut self, pulse: &Pulse) -> Undelivered {
        loop {
            let now = now();
            pulse.beat(now);
            let deadline = self.queue.deadline();
            if deadline.is_some() && !self.is_closing {
                self.is_closing = true;
                self.pacer.hurry(now);
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return self.abandon();
            }
            self.start(now);
            if deadline.is_some() && self.under_way.is_empty() && self.queue.is_empty() {
                return Undelivered::new();
            }
            let due_at = if self.pacer.is_up() {
                self.queue.due_at()
            } else {
                self.pacer.wake_at()
            };
            // What was due by now has been started, or waits for a place: then an attempt that ends
            // is what to wake up for.
            let due_at = due_at.filter(|due_at| *due_at > now);
            let wake_at = [due_at, deadline]
                .into_iter()
                .flatten()
                .fold(now + Pulse::INTERVAL, Instant::min);
            tokio::select! {
                Some(ended) = self.attempts.join_next_with_id() => self.settle(ended),
                () = self.queue.changed() => {}
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
        }
    }

    fn start(&mut self, now: Instant) {
        for _ in 0..self.pacer.room(self.under_way.len(), now) {
            let entry = if self.pacer.is_up() {
                self.queue.take(now)
            } else {
                self.queue.take_probe()
            };
            let Some(entry) = entry else { return };
            let attempt = self.pacer.start(now);
            let client = self.client.clone();
            let parcel = entry.parcel.clone();
            let task = self
                .attempts
                .spawn(async move { client.deliver(parcel).await });
            self.under_way.push((task.id(), attempt, entry));
        }
    }

    fn settle(&mut self, ended: Result<(Id, Answer), JoinError>) {
        let now = now();
        let (id, answer) = match ended {
            Ok((id, answer)) => (id, answer),
            Err(error) => (
                error.id(),
                Answer::retry(format!("the attempt did not end well: {error}")),
            ),
        };
        let Some(idx) = self
            .under_way
            .iter()
            .position(|(under_way, ..)| *under_way == id)
        else {
            return;
        };
        let (_, attempt, mut entry) = self.under_way.swap_remove(idx);
        let Entry { parcel, .. } = &entry;
        let (signal, n_items) = (parcel.signal, parcel.n_items);
        match answer {
            Answer::Retry { after, why } => {
                self.pacer.failed(attempt, after, now, self.rng.f64());
                RequestRetried {
                    queue: self.queue.name(),
                }
                .emit(&self.telemetry);
                entry.n_failures = entry.n_failures.saturating_add(1);
                let wait = wait(
                    &self.client.destination().retry,
                    entry.n_failures,
                    after,
                    self.rng.f64(),
                );
                // Twice may be a hiccup.
                if self.pacer.is_up()
                    && entry.n_failures > 2
                    && let Some(n_held_back) = self.hold_ups.ready(now)
                {
                    let (n_attempts, why) = (entry.n_failures, why.clone());
                    RequestHeldUp {
                        origin: self.origin(),
                        signal: signal.as_str(),
                        n_attempts,
                        why,
                        n_held_back,
                    }
                    .emit(&self.telemetry);
                }
                self.queue.put_back(entry, now + wait);
                self.last_why = why;
                self.tell(now);
                return;
            }
            Answer::Delivered {
                n_rejected,
                message,
            } => {
                let n_rejected = n_rejected.min(n_items);
                self.queue.ledger().sent(signal, n_items - n_rejected);
                if n_rejected > 0 {
                    self.queue.ledger().dropped(signal, n_rejected, "rejected");
                }
                if (n_rejected > 0 || message.is_some())
                    && let Some(n_held_back) = self.rejections.ready(now)
                {
                    let message = message.unwrap_or_default();
                    PartlyRejected {
                        origin: self.origin(),
                        signal: signal.as_str(),
                        n_items: n_rejected,
                        message,
                        n_held_back,
                    }
                    .emit(&self.telemetry);
                }
                self.queue.finish(&entry);
            }
            Answer::Unknown { why } => {
                let since = *entry.unknown_since.get_or_insert(now);
                if now.duration_since(since) < UNKNOWN_FOR {
                    RequestRetried {
                        queue: self.queue.name(),
                    }
                    .emit(&self.telemetry);
                    entry.n_failures = entry.n_failures.saturating_add(1);
                    let wait = wait(
                        &self.client.destination().retry,
                        entry.n_failures,
                        None,
                        self.rng.f64(),
                    );
                    self.queue.put_back(entry, now + wait);
                } else {
                    self.refuse(&entry, "unknown_span", why, now);
                }
            }
            Answer::TooLarge { why } => match split(signal, &parcel.body, n_items) {
                Some(halves) => {
                    RequestSplit {
                        queue: self.queue.name(),
                    }
                    .emit(&self.telemetry);
                    self.queue.replace(entry, halves);
                }
                None => self.refuse(&entry, "too_large", why, now),
            },
            Answer::Refused { reason, why } => self.refuse(&entry, reason, why, now),
        }
        self.pacer.answered(attempt, now);
        self.tell(now);
    }

    fn refuse(&mut self, entry: &Entry, reason: &'static str, why: String, now: Instant) {
        let (signal, n_items) = (entry.parcel.signal, entry.parcel.n_items);
        self.queue.ledger().dropped(signal, n_items, reason);
        self.queue.finish(entry);
        if let Some(n_held_back) = self.refusals.entry(reason).or_default().ready(now) {
            RequestRefused {
                origin: self.origin(),
                signal: signal.as_str(),
                n_items,
                reason,
                why,
                n_held_back,
            }
            .emit(&self.telemetry);
        }
    }

    fn tell(&mut self, now: Instant) {
        let Some(line) = self.outage.observe(self.pacer.is_up(), now) else {
            return;
        };
        let (origin, endpoint, n_bytes) = (
            self.origin(),
            self.client.destination().endpoint.to_string(),
            self.queue.n_bytes(),
        );
        let (queue, why) = (self.queue.name(), self.last_why.clone());
        match line {
            Line::Down => DestinationDown {
                queue,
                origin,
                endpoint,
                why,
            }
            .emit(&self.telemetry),
            Line::StillDown(since) => DestinationStillDown {
                queue,
                origin,
                endpoint,
                why,
                since,
                n_bytes,
            }
            .emit(&self.telemetry),
            Line::Recovered(after) => DestinationRecovered {
                queue,
                origin,
                endpoint,
                after,
                n_bytes,
            }
            .emit(&self.telemetry),
        }
    }

    fn origin(&self) -> String {
        self.client.destination().origin.clone()
    }

    fn abandon(&mut self) -> Undelivered {
        while let Some(ended) = self.attempts.try_join_next_with_id() {
            self.settle(ended);
        }
        self.attempts.abort_all();
        let mut left = self.queue.drain();
        for (_, _, entry) in self.under_way.drain(..) {
            self.queue.finish(&entry);
            left.push(entry);
        }
        let mut undelivered = Undelivered::new();
        for Entry { parcel, .. } in left {
            self.queue
                .ledger()
                .dropped(parcel.signal, parcel.n_items, "shutdown");
            *undelivered.entry(parcel.signal).or_default() += parcel.n_items;
        }
        undelivered
    }
}

/// Tokio's clock, so that tests can turn it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
