//! The delivery loop: takes requests from a queue, sends them through a client, and retries until
//! each is delivered or permanently refused. This file reads the clock and moves requests; `retry`
//! decides when to retry, `split` how to halve a request.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{Id, JoinError, JoinSet};

use crate::config::Signal;
use crate::journal::{LogReader, Stretch};
use crate::telemetry::{
    Answer, AttemptEnded, DestinationAnswers, DestinationDown, DestinationOpened,
    DestinationRecovered, DestinationStillDown, Heartbeat, ItemEvent, JournalUnread,
    PartlyRejected, RequestDelayed, RequestRefused, RequestRetried, RequestSplit, Telemetry,
    Throttled,
};

use super::outcome::DeliveryOutcome;
use super::queue::{Queue, QueueStage, QueuedRequest};
use super::retry::{Attempt, Outage, OutageEvent, Pacer, wait};
use super::split::split;
use super::{Client, Recipient};

/// Time after which a request is dropped if the peer does not have the span that the request is
/// about. The time begins with the peer's first such answer after the queue of spans has delivered
/// the span, because the backend stores the span a little later.
const UNKNOWN_FOR: Duration = Duration::from_secs(600);

/// Delay before the journal is read again after a failure.
const UNREAD_RETRY: Duration = Duration::from_secs(1);

/// Numbers of items that a closed queue dropped at its deadline, by signal.
pub type Undelivered = BTreeMap<Signal, u64>;

/// Delivers the requests of a [`Queue`] to a [`Recipient`].
#[derive(Debug)]
pub struct Delivery<P = Client> {
    queue: Queue,
    peer: P,
    telemetry: Arc<Telemetry>,
    rng: fastrand::Rng,
    pacer: Pacer,
    outage: Outage,
    last_why: String,
    /// The latest answers, for `/v1/status`.
    answers: DestinationAnswers,
    attempts: JoinSet<DeliveryOutcome>,
    /// Attempts in flight: at most [`Recipient::max_concurrency`], and a probe.
    in_flight: Vec<InFlight>,
    /// Limits the log lines about requests, by their reason.
    lines: Throttled<&'static str>,
    /// The stage of the queue when the loop last read it.
    stage: QueueStage,
    /// The queue of the spans to which this queue's requests refer. Until that queue has delivered
    /// a span, the peer may not have the span.
    pub(crate) spans: Option<Queue>,
    /// The task that reads requests that are only in the journal.
    reading: JoinSet<(LogReader, io::Result<Stretch>)>,
    /// Earliest time of the next read of the journal, after a failed read.
    unread_until: Option<Instant>,
}

#[derive(Debug)]
struct InFlight {
    task_id: Id,
    attempt: Attempt,
    entry: QueuedRequest,
}

impl<P: Recipient> Delivery<P> {
    /// Creates a delivery that has not started. `rng` creates the jitter.
    pub fn new(queue: Queue, peer: P, telemetry: Arc<Telemetry>, rng: fastrand::Rng) -> Self {
        let pacer = Pacer::new(peer.backoff().clone(), peer.max_concurrency());
        let answers = DestinationOpened {
            queue: queue.name(),
            origin: peer.origin().to_owned(),
            endpoint: peer.address(),
        }
        .emit(&telemetry);
        Self {
            queue,
            peer,
            telemetry,
            rng,
            pacer,
            outage: Outage::default(),
            last_why: String::new(),
            answers,
            attempts: JoinSet::new(),
            in_flight: Vec::new(),
            lines: Throttled::default(),
            stage: QueueStage::Open,
            spans: None,
            reading: JoinSet::new(),
            unread_until: None,
        }
    }

    /// Delivers until the queue is closed and empty, or its deadline has passed. Then drops the
    /// requests that are not in a journal, with the reason `shutdown`, and returns the numbers of
    /// their items.
    pub async fn run(mut self) -> Undelivered {
        let heartbeat = self
            .telemetry
            .heartbeat(format!("{} delivery", self.queue.name()), now());
        let undelivered = self.deliver(&heartbeat).await;
        heartbeat.finish();
        undelivered
    }

    async fn deliver(&mut self, heartbeat: &Heartbeat) -> Undelivered {
        loop {
            let now = now();
            heartbeat.beat(now);
            let stage = self.queue.stage();
            if stage != self.stage {
                self.stage = stage;
                self.pacer.begin_drain(now);
            }
            let deadline = match stage {
                QueueStage::Open | QueueStage::Draining => None,
                QueueStage::Closed { deadline } => Some(deadline),
            };
            if deadline.is_some_and(|deadline| deadline <= now) {
                return self.abandon();
            }
            self.read(now);
            self.start(now);
            if deadline.is_some() && self.in_flight.is_empty() && self.queue.is_empty() {
                return Undelivered::new();
            }
            let due_at =
                if self.pacer.is_up() { self.queue.due_at() } else { self.pacer.wake_at() };
            // If a due request was not started, it waits for a free slot. The end of an attempt
            // wakes the loop then.
            let due_at = due_at.filter(|due_at| *due_at > now);
            let wake_at = [due_at, deadline, self.unread_until]
                .into_iter()
                .flatten()
                .fold(now + Heartbeat::INTERVAL, Instant::min);
            tokio::select! {
                Some(ended) = self.attempts.join_next_with_id() => self.settle(ended),
                Some(Ok(read)) = self.reading.join_next() => self.take_read(read),
                () = self.queue.changed() => {}
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
        }
    }

    /// Starts to read the journal, if the queue has space for undelivered records.
    fn read(&mut self, now: Instant) {
        if self.unread_until.is_some_and(|until| until > now) {
            return;
        }
        self.unread_until = None;
        if let Some(read) = self.queue.to_read() {
            self.reading.spawn_blocking(read);
        }
    }

    fn take_read(&mut self, (reader, read): (LogReader, io::Result<Stretch>)) {
        self.queue.return_reader(reader);
        match read {
            Ok(stretch) => {
                for (_, damage) in &stretch.damage {
                    damage.emit(damage.file.clone(), &self.telemetry);
                }
                self.queue.take_read(stretch);
            }
            Err(error) => {
                let now = now();
                self.unread_until = Some(now + UNREAD_RETRY);
                if self.lines.ready("unread", now).is_some() {
                    let why = error.to_string();
                    JournalUnread { why }.emit();
                }
            }
        }
    }

    fn start(&mut self, now: Instant) {
        for _ in 0..self.pacer.n_free_slots(self.in_flight.len(), now) {
            let entry =
                if self.pacer.is_up() { self.queue.take(now) } else { self.queue.take_probe() };
            let Some(entry) = entry else { return };
            let attempt = self.pacer.start(now);
            let peer = self.peer.clone();
            let request = entry.request.clone();
            let task = self
                .attempts
                .spawn(async move { peer.deliver(request).await });
            self.in_flight.push(InFlight {
                task_id: task.id(),
                attempt,
                entry,
            });
        }
    }

    fn settle(&mut self, ended: Result<(Id, DeliveryOutcome), JoinError>) {
        let now = now();
        let (task_id, outcome) = match ended {
            Ok(ended) => ended,
            Err(error) => (
                error.id(),
                DeliveryOutcome::retry(format!("the attempt failed: {error}")),
            ),
        };
        let Some(idx) = self
            .in_flight
            .iter()
            .position(|in_flight| in_flight.task_id == task_id)
        else {
            return;
        };
        let InFlight { attempt, entry, .. } = self.in_flight.swap_remove(idx);
        AttemptEnded {
            at: now,
            answer: answer_of(&outcome),
        }
        .emit(&self.answers);
        if let DeliveryOutcome::Retry { after, .. } = outcome {
            self.pacer.failed(attempt, after, now, self.rng.f64());
            self.finish(entry, outcome, now);
        } else {
            self.finish(entry, outcome, now);
            let was_up = self.pacer.is_up();
            self.pacer.answered(attempt, now);
            if !was_up && self.pacer.is_up() {
                // The backoff of failed requests grew during the outage. Without this call, younger
                // requests would overtake them.
                self.queue.retry_all();
            }
        }
        self.note_outage(now);
    }

    /// Requeues a request whose attempt failed.
    fn retry(
        &mut self,
        mut entry: QueuedRequest,
        after: Option<Duration>,
        why: String,
        now: Instant,
    ) {
        let wait = self.back_off(&mut entry, after);
        // Two failures may be a brief disruption.
        if self.pacer.is_up()
            && entry.n_failures > 2
            && let Some(n_suppressed) = self.lines.ready("delayed", now)
        {
            RequestDelayed {
                origin: self.origin(),
                signal: entry.request.signal.as_str(),
                n_attempts: entry.n_failures,
                why: why.clone(),
                n_suppressed,
            }
            .emit(&self.telemetry);
        }
        self.queue.put_back(entry, Some(now + wait));
        self.last_why = why;
    }

    /// Counts a failure of a request, and returns the time until its next attempt.
    fn back_off(&mut self, entry: &mut QueuedRequest, after: Option<Duration>) -> Duration {
        RequestRetried {
            queue: self.queue.name(),
        }
        .emit(&self.telemetry);
        entry.n_failures = entry.n_failures.saturating_add(1);
        wait(self.peer.backoff(), entry.n_failures, after, self.rng.f64())
    }

    fn finish(&mut self, mut entry: QueuedRequest, outcome: DeliveryOutcome, now: Instant) {
        let (signal, n_items) = (entry.request.signal, entry.request.n_items);
        match outcome {
            DeliveryOutcome::Retry { after, why } => self.retry(entry, after, why, now),
            DeliveryOutcome::Delivered {
                n_rejected,
                message,
            } => {
                let n_rejected = n_rejected.min(n_items);
                self.count(signal, n_items - n_rejected, n_rejected);
                if (n_rejected > 0 || message.is_some())
                    && let Some(n_suppressed) = self.lines.ready("partly_rejected", now)
                {
                    let message = message.unwrap_or_default();
                    PartlyRejected {
                        origin: self.origin(),
                        signal: signal.as_str(),
                        n_items: n_rejected,
                        message,
                        n_suppressed,
                    }
                    .emit(&self.telemetry);
                }
                self.queue.finish(entry);
            }
            DeliveryOutcome::Partly {
                rest,
                n_items: n_left,
                n_rejected,
            } => {
                let n_left = n_left.min(n_items);
                let n_rejected = n_rejected.min(n_items - n_left);
                self.count(signal, n_items - n_left - n_rejected, n_rejected);
                entry.request.body = rest;
                entry.request.n_items = n_left;
                self.queue.put_back(entry, None);
            }
            DeliveryOutcome::Unknown { why } => {
                if entry.unknown_for(self.spans.as_ref(), now) < UNKNOWN_FOR {
                    let wait = self.back_off(&mut entry, None);
                    self.queue.put_back(entry, Some(now + wait));
                } else {
                    self.refuse(entry, "unknown_span", why, now);
                }
            }
            DeliveryOutcome::TooLarge { why } => {
                match split(signal, &entry.request.body, n_items) {
                    Some(halves) => {
                        RequestSplit {
                            queue: self.queue.name(),
                        }
                        .emit(&self.telemetry);
                        self.queue.replace(entry, halves);
                    }
                    None => self.refuse(entry, "too_large", why, now),
                }
            }
            DeliveryOutcome::Refused { reason, why } => self.refuse(entry, reason, why, now),
        }
    }

    fn count(&self, signal: Signal, n_sent: u64, n_rejected: u64) {
        let accounting = self.queue.accounting();
        accounting.count(signal, n_sent, ItemEvent::Sent);
        if n_rejected > 0 {
            accounting.count(signal, n_rejected, ItemEvent::Dropped("rejected"));
        }
    }

    fn refuse(&mut self, entry: QueuedRequest, reason: &'static str, why: String, now: Instant) {
        let (signal, n_items) = (entry.request.signal, entry.request.n_items);
        self.queue
            .accounting()
            .count(signal, n_items, ItemEvent::Dropped(reason));
        self.queue.finish(entry);
        if let Some(n_suppressed) = self.lines.ready(reason, now) {
            RequestRefused {
                origin: self.origin(),
                signal: signal.as_str(),
                n_items,
                reason,
                why,
                n_suppressed,
            }
            .emit(&self.telemetry);
        }
    }

    fn note_outage(&mut self, now: Instant) {
        self.queue.set_destination_down(!self.pacer.is_up());
        let Some(event) = self.outage.observe(self.pacer.is_up(), now) else {
            return;
        };
        let (origin, endpoint, n_bytes) =
            (self.origin(), self.peer.address(), self.queue.n_bytes());
        let (queue, why) = (self.queue.name(), self.last_why.clone());
        match event {
            OutageEvent::Down => DestinationDown {
                queue,
                origin,
                endpoint,
                why,
            }
            .emit(&self.telemetry),
            OutageEvent::StillDown(since) => DestinationStillDown {
                queue,
                origin,
                endpoint,
                why,
                since,
                n_bytes,
            }
            .emit(&self.telemetry),
            OutageEvent::Recovered(after) => DestinationRecovered {
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
        self.peer.origin().to_owned()
    }

    fn abandon(&mut self) -> Undelivered {
        while let Some(ended) = self.attempts.try_join_next_with_id() {
            self.settle(ended);
        }
        self.attempts.abort_all();
        let in_flight = self.in_flight.drain(..).map(|in_flight| in_flight.entry);
        let mut left = self.queue.drain();
        left.extend(in_flight.filter(|entry| !entry.is_journaled()));
        let mut undelivered = Undelivered::new();
        for QueuedRequest { request, .. } in left {
            self.queue.accounting().count(
                request.signal,
                request.n_items,
                ItemEvent::Dropped("shutdown"),
            );
            *undelivered.entry(request.signal).or_default() += request.n_items;
        }
        self.queue.moved();
        undelivered
    }
}

fn answer_of(outcome: &DeliveryOutcome) -> Answer<'_> {
    const PARTLY: &str = "part of a request was rejected";
    match outcome {
        DeliveryOutcome::Delivered {
            n_rejected: 1..,
            message,
        } => Answer::Refused(message.as_deref().unwrap_or(PARTLY)),
        DeliveryOutcome::Partly {
            n_rejected: 1.., ..
        } => Answer::Refused(PARTLY),
        DeliveryOutcome::Refused { why, .. } => Answer::Refused(why),
        DeliveryOutcome::Retry { why, .. } => Answer::Failed(why),
        DeliveryOutcome::Delivered { .. }
        | DeliveryOutcome::Partly { .. }
        | DeliveryOutcome::TooLarge { .. }
        | DeliveryOutcome::Unknown { .. } => Answer::Accepted,
    }
}

/// Returns the time of tokio's clock, which tests can advance.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
