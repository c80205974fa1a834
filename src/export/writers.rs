//! Evaluations in, delivered to the backends' own score APIs. Knows when a score may go: not before
//! the export of its score span is done with, since the backend has to know the trace, and not
//! before what was said of the same trace earlier has arrived, or a revision would be overwritten
//! by what it corrects. Does not know what a call says.
//!
//! What waits for that is held here, what may go is in a queue of `transport`, each bounded to half
//! of a writer's share of memory.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Instant;

use bytes::Bytes;
use hyper::Method;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::outlet::Books;
use super::writer::{Call, api_calls};
use crate::config::{Config, Signal, Writer};
use crate::evaluate::Evaluation;
use crate::span::TraceId;
use crate::sync::Mutex;
use crate::telemetry::{Heartbeat, Telemetry};
use crate::transport::queue::{
    Accounting, ApiTarget, CompletionGuard, OutboundRequest, Queue, Route, WhenFull,
};
use crate::transport::{Client, Delivery, TransportError, Undelivered};

/// All writers. Clones are handles of the same ones.
#[derive(Debug, Clone)]
pub(super) struct Writers {
    rooms: Arc<[Room]>,
    bell: Arc<Bell>,
}

/// The tasks of the writers.
#[derive(Debug)]
pub(super) struct Running {
    writers: Writers,
    porter: JoinSet<()>,
    stop: watch::Sender<()>,
    deliveries: JoinSet<(&'static str, Undelivered)>,
}

/// Stands for an open batch of score spans. Whoever holds on to it weakly sees when the batch,
/// however it was split, is done with.
#[derive(Debug)]
pub(super) struct Ticket {
    bell: Arc<Bell>,
}

/// Rung when something that scores waited for is done with. A leaf among locks: it is rung while a
/// queue holds its own.
#[derive(Debug, Default)]
struct Bell {
    /// Traces whose request is done with, by the position of their writer.
    finished: Mutex<Vec<(usize, TraceId)>>,
    /// A batch of score spans is done with.
    is_released: AtomicBool,
    rung: Notify,
}

/// What goes to one backend.
#[derive(Debug)]
struct Room {
    writer: Writer,
    /// Label of its metrics, name of its queue.
    name: &'static str,
    writer_idx: usize,
    capacity: usize,
    queue: Queue,
    books: Arc<Ledgered>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In order of arrival: their score spans are on their way.
    held: VecDeque<Held>,
    /// Traces with a request in the queue, and what waits behind it.
    under_way: HashMap<TraceId, VecDeque<OutboundRequest>>,
    /// Cost of all that waits here.
    n_bytes: usize,
}

#[derive(Debug)]
struct Held {
    trace_id: TraceId,
    /// The batches that its score spans are in.
    tickets: Vec<Weak<Ticket>>,
    parcel: OutboundRequest,
}

/// Says that a trace's request is done with.
struct Turn {
    writer_idx: usize,
    trace_id: TraceId,
    bell: Arc<Bell>,
}

// === impl Writers ===

impl Writers {
    /// Starts the configured writers; `None` if there are none. `share` is the memory of each, in
    /// bytes.
    pub(super) fn start(
        config: &Config,
        share: usize,
        telemetry: &Arc<Telemetry>,
        rng: &mut fastrand::Rng,
    ) -> Result<Option<(Self, Running)>, TransportError> {
        let (mut rooms, mut deliveries) = (Vec::new(), JoinSet::new());
        for (writer_idx, writer) in config.scores.writers.iter().enumerate() {
            let name = label(writer);
            let client = Client::new(&config.writer_destination(writer_idx, writer), telemetry)?;
            let books = Arc::new(Ledgered(Books::new(name, telemetry.clone())));
            let queue = Queue::new(
                name,
                share / 2,
                WhenFull::DropOldest,
                books.clone(),
                telemetry,
            );
            let delivery = Delivery::new(queue.clone(), client, telemetry.clone(), rng.fork());
            deliveries.spawn(async move { (name, delivery.run().await) });
            rooms.push(Room {
                writer: writer.clone(),
                name,
                writer_idx,
                capacity: share / 2,
                queue,
                books,
                state: Mutex::default(),
            });
        }
        if rooms.is_empty() {
            return Ok(None);
        }
        let writers = Self {
            rooms: rooms.into(),
            bell: Arc::default(),
        };
        let (stop, stopped) = watch::channel(());
        let heartbeat =
            telemetry.heartbeat("score writers", tokio::time::Instant::now().into_std());
        let mut porter = JoinSet::new();
        porter.spawn(writers.clone().carry(stopped, heartbeat));
        Ok(Some((
            writers.clone(),
            Running {
                writers,
                porter,
                stop,
                deliveries,
            },
        )))
    }

    /// A ticket for a batch that is begun.
    pub(super) fn ticket(&self) -> Arc<Ticket> {
        Arc::new(Ticket {
            bell: self.bell.clone(),
        })
    }

    /// Takes evaluations, traces one after another, with the ticket of the batch that each one's
    /// score span is in, if it is in one. Never waits.
    pub(super) fn take(
        &self,
        evaluations: &[Evaluation],
        tickets: &[Option<Weak<Ticket>>],
        now_unix_nanos: u64,
    ) {
        let (mut start, mut is_ready) = (0, false);
        for chunk in evaluations
            .chunk_by(|left, right| left.trajectory.trace_id == right.trajectory.trace_id)
        {
            let mut tickets: Vec<Weak<Ticket>> = tickets
                .get(start..start + chunk.len())
                .unwrap_or_default()
                .iter()
                .flatten()
                .cloned()
                .collect();
            tickets.dedup_by(|left, right| left.ptr_eq(right));
            start += chunk.len();
            let evaluations: Vec<&Evaluation> = chunk.iter().collect();
            for room in self.rooms.iter() {
                for call in api_calls(&room.writer, &evaluations, now_unix_nanos) {
                    room.hold(Held {
                        trace_id: chunk[0].trajectory.trace_id,
                        tickets: tickets.clone(),
                        parcel: parcel(call),
                    });
                }
            }
            // Looked at after they are held: a batch that is done with from here on says so.
            is_ready |= may_go(&tickets);
        }
        self.advance(is_ready);
    }

    /// Lets everything go that may. What is held is looked through only where some of it may:
    /// `is_ready`, or a batch was done with.
    fn advance(&self, is_ready: bool) {
        let is_ready = self.bell.is_released.swap(false, Ordering::AcqRel) || is_ready;
        let finished = std::mem::take(&mut *self.bell.finished.lock());
        for room in self.rooms.iter() {
            let of_room = finished
                .iter()
                .filter(|(writer_idx, _)| *writer_idx == room.writer_idx);
            room.advance(of_room.map(|(_, trace_id)| *trace_id), is_ready, &self.bell);
        }
    }

    /// Carries scores on whenever something they waited for is done with.
    async fn carry(self, mut stopped: watch::Receiver<()>, heartbeat: Heartbeat) {
        loop {
            let now = tokio::time::Instant::now();
            heartbeat.beat(now.into_std());
            self.advance(false);
            tokio::select! {
                () = self.bell.rung.notified() => {}
                () = tokio::time::sleep_until(now + Heartbeat::INTERVAL) => {}
                _ = stopped.changed() => return heartbeat.finish(),
            }
        }
    }
}

// === impl Room ===

impl Room {
    fn hold(&self, held: Held) {
        let mut state = self.state();
        let (cost, n_items) = (held.parcel.cost(), held.parcel.n_items);
        self.books.0.queued(Signal::Traces, n_items);
        while cost <= self.capacity
            && state.n_bytes + cost > self.capacity
            && let Some(oldest) = state.held.pop_front()
        {
            state.n_bytes -= oldest.parcel.cost();
            self.drop_of(oldest.parcel.n_items, "queue_full");
        }
        if state.n_bytes + cost > self.capacity {
            return self.drop_of(n_items, "queue_full");
        }
        state.n_bytes += cost;
        state.held.push_back(held);
    }

    fn advance(&self, finished: impl Iterator<Item = TraceId>, is_ready: bool, bell: &Arc<Bell>) {
        let mut state = self.state();
        for trace_id in finished {
            match state
                .under_way
                .get_mut(&trace_id)
                .and_then(VecDeque::pop_front)
            {
                Some(parcel) => {
                    state.n_bytes -= parcel.cost();
                    self.send(trace_id, parcel, bell);
                }
                None => {
                    state.under_way.remove(&trace_id);
                }
            }
        }
        if !is_ready {
            return;
        }
        // What was said of a trace earlier goes first, also where its batch takes longer.
        let mut still_held = HashSet::new();
        let mut rest = VecDeque::with_capacity(state.held.len());
        for held in std::mem::take(&mut state.held) {
            if !may_go(&held.tickets) || still_held.contains(&held.trace_id) {
                still_held.insert(held.trace_id);
                rest.push_back(held);
            } else if let Some(behind) = state.under_way.get_mut(&held.trace_id) {
                behind.push_back(held.parcel);
            } else {
                state.under_way.insert(held.trace_id, VecDeque::new());
                state.n_bytes -= held.parcel.cost();
                self.send(held.trace_id, held.parcel, bell);
            }
        }
        state.held = rest;
    }

    /// Into the queue, which drops its oldest when it is full.
    fn send(&self, trace_id: TraceId, parcel: OutboundRequest, bell: &Arc<Bell>) {
        let turn = Turn {
            writer_idx: self.writer_idx,
            trace_id,
            bell: bell.clone(),
        };
        // A queue that drops the oldest refuses nothing; what it cannot take is in the books.
        let _ = self.queue.offer(OutboundRequest {
            completion: Some(CompletionGuard(Arc::new(turn))),
            ..parcel
        });
    }

    /// Gives up what still waits here.
    fn abandon(&self) {
        let mut state = self.state();
        let held = std::mem::take(&mut state.held)
            .into_iter()
            .map(|held| held.parcel);
        let behind = std::mem::take(&mut state.under_way).into_values().flatten();
        let n_items: u64 = held.chain(behind).map(|parcel| parcel.n_items).sum();
        state.n_bytes = 0;
        if n_items > 0 {
            self.drop_of(n_items, "shutdown");
        }
    }

    fn n_waiting(&self) -> u64 {
        let state = self.state();
        let held = state.held.iter().map(|held| &held.parcel);
        held.chain(state.under_way.values().flatten())
            .map(|parcel| parcel.n_items)
            .sum()
    }

    fn drop_of(&self, n_items: u64, reason: &'static str) {
        self.books.dropped(Signal::Traces, n_items, reason);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn may_go(tickets: &[Weak<Ticket>]) -> bool {
    tickets.iter().all(|ticket| ticket.strong_count() == 0)
}

fn parcel(call: Call) -> OutboundRequest {
    let targets = call.targets.into_iter().map(|target| {
        let method = if target.method == "PATCH" {
            Method::PATCH
        } else {
            Method::POST
        };
        ApiTarget {
            method,
            path: target.path,
        }
    });
    // A score says something of a trace, whatever it travels as.
    OutboundRequest {
        route: Route::Api {
            targets: targets.collect(),
        },
        ..OutboundRequest::otlp(
            Signal::Traces,
            Bytes::from(call.body),
            call.n_evaluations as u64,
        )
    }
}

// === impl Running ===

impl Running {
    /// Delivers what it can until `deadline`, after every score span is done with; how many scores
    /// of which writer were left.
    pub(super) async fn drain(mut self, deadline: Instant) -> BTreeMap<&'static str, u64> {
        // The porter may be gone, which is as good; from here on the bell rings for us.
        let _ = self.stop.send(());
        while self.porter.join_next().await.is_some() {}
        // A revision waits for what it corrects, which the queue still has to deliver.
        let rooms = self.writers.rooms.clone();
        self.writers.advance(true);
        while rooms.iter().any(|room| room.n_waiting() > 0)
            && tokio::time::Instant::now().into_std() < deadline
        {
            let _ =
                tokio::time::timeout_at(deadline.into(), self.writers.bell.rung.notified()).await;
            self.writers.advance(true);
        }
        let mut left: BTreeMap<&'static str, u64> = BTreeMap::new();
        for room in rooms.iter() {
            let n_waiting = room.n_waiting();
            if n_waiting > 0 {
                left.insert(room.name, n_waiting);
            }
            room.abandon();
            room.queue.close(deadline);
        }
        while let Some(ended) = self.deliveries.join_next().await {
            if let Ok((name, undelivered)) = ended {
                let n_items: u64 = undelivered.values().sum();
                if n_items > 0 {
                    *left.entry(name).or_default() += n_items;
                }
            }
        }
        left
    }
}

// === impl Ticket, impl Turn ===

impl Drop for Ticket {
    fn drop(&mut self) {
        self.bell.is_released.store(true, Ordering::Release);
        self.bell.rung.notify_one();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.bell
            .finished
            .lock()
            .push((self.writer_idx, self.trace_id));
        self.bell.rung.notify_one();
    }
}

// === the books ===

/// The books of a writer. What it queues was entered when it came, while it waited for its score
/// span.
#[derive(Debug)]
struct Ledgered(Books);

impl Accounting for Ledgered {
    fn queued(&self, _: Signal, _: u64) {}

    fn sent(&self, signal: Signal, n_items: u64) {
        self.0.sent(signal, n_items);
    }

    fn dropped(&self, signal: Signal, n_items: u64, reason: &'static str) {
        self.0.dropped(signal, n_items, reason);
    }
}

/// The destination's name in metrics.
fn label(writer: &Writer) -> &'static str {
    match writer {
        Writer::Phoenix(_) => "writer_phoenix",
        Writer::Mlflow(_) => "writer_mlflow",
        Writer::Langfuse(_) => "writer_langfuse",
        Writer::Datadog(_) => "writer_datadog",
    }
}
