//! Delivers scores to the backends' own score APIs.
//!
//! A score is sent only after its score span was delivered, because the backend must have the
//! trace, and only after every earlier score of its trace: otherwise the score that a revision
//! corrects could overwrite the revision.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use hyper::Method;
use judge::evaluate::Evaluation;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::backend_queue::{
    BackendQueue, BatchGuard, Batches, HeldRequest, WaitingAccounting, WaitingRequest,
    WaitingScores, Wakeup, are_done,
};
use super::lanes::{KeptLanes, encode_meta, lane_of};
use super::leaving::Leaving;
use super::queues::ScoreAccounting;
use super::writer;
use super::writer_score::WriterRequest;
use crate::config::{Bound, Config, Signal};
use crate::journal::{LogReader, Record, Stretch};
use crate::sync::Mutex;
use crate::telemetry::{Heartbeat, JournalUnread, Telemetry};
use crate::transport::queue::{
    ApiTarget, CompletionGuard, OutboundRequest, Queue, Route, WhenFull,
};
use crate::transport::{Client, Delivery, OnDisk, SentHeaders, TransportError, Undelivered};

/// All backends. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Backends {
    queues: Arc<[BackendQueue]>,
    /// The headers of each queue.
    headers: Arc<[SentHeaders]>,
    wakeup: Arc<Wakeup>,
    /// With a journal: the batches of score spans that may be undelivered, and one entry for all
    /// score spans from before the start.
    live: Option<Arc<Mutex<Vec<Weak<BatchGuard>>>>>,
}

/// The position of a queue, and the records that were read from its lane.
type QueueRead = (usize, LogReader, io::Result<Stretch>);

/// The tasks that deliver to the backends.
#[derive(Debug)]
pub(super) struct BackendTasks {
    backends: Backends,
    dispatcher: JoinSet<()>,
    stop: watch::Sender<()>,
    deliveries: JoinSet<(&'static str, Undelivered)>,
}

// === impl Backends ===

impl Backends {
    /// Starts the configured writers; returns `None` if there are none. `share` is the memory of
    /// each writer, in bytes. Requests that are read from the journal wait for `restored`, the
    /// guard of all score spans from before the start.
    pub(super) fn start(
        config: &Config,
        share: &Bound,
        journal: Option<&KeptLanes>,
        restored: &Arc<BatchGuard>,
        telemetry: &Arc<Telemetry>,
        rng: &mut fastrand::Rng,
    ) -> Result<Option<(Self, BackendTasks)>, TransportError> {
        let (mut queues, mut headers, mut deliveries) = (Vec::new(), Vec::new(), JoinSet::new());
        for (backend_idx, writer) in config.scores.writers.iter().enumerate() {
            let name = writer::queue_name(writer);
            let destination = config.writer_destination(backend_idx, writer);
            let client = Client::new(&destination, telemetry)?;
            headers.push(client.headers().clone());
            let accounting = ScoreAccounting::new(name, telemetry.clone());
            let accounting = Arc::new(WaitingAccounting(accounting));
            let mut queue = Queue::new(
                name,
                share.share(2),
                WhenFull::DropOldest,
                accounting.clone(),
                telemetry,
            );
            let mut waiting = WaitingScores::default();
            if let Some(KeptLanes { log, .. }) = journal {
                queue = queue.consuming(log);
                let lane = journal.map(|journal| journal.lane(name));
                waiting.on_disk = lane.map(|lane| OnDisk::of_lane(log.clone(), lane, None));
            }
            let delivery = Delivery::new(queue.clone(), client, telemetry.clone(), rng.fork());
            deliveries.spawn(async move { (name, delivery.run().await) });
            queues.push(BackendQueue {
                writer: writer.clone(),
                name,
                backend_idx,
                capacity: share.share(2),
                queue,
                accounting,
                waiting: Mutex::new(waiting),
                kept: journal.map(|journal| journal.log.clone()),
            });
        }
        if queues.is_empty() {
            return Ok(None);
        }
        let backends = Self {
            queues: queues.into(),
            headers: headers.into(),
            wakeup: restored.wakeup.clone(),
            live: journal.map(|_| Arc::new(Mutex::new(vec![Arc::downgrade(restored)]))),
        };
        if let Some(journal) = journal {
            backends.follow(journal);
        }
        let (stop, stopped) = watch::channel(());
        let heartbeat =
            telemetry.heartbeat("score writers", tokio::time::Instant::now().into_std());
        let mut dispatcher = JoinSet::new();
        dispatcher.spawn(
            backends
                .clone()
                .dispatch(stopped, heartbeat, telemetry.clone()),
        );
        let tasks = BackendTasks {
            backends: backends.clone(),
            dispatcher,
            stop,
            deliveries,
        };
        Ok(Some((backends, tasks)))
    }

    /// Uses the headers of `config` for all further requests. The list of writers must be unchanged
    /// since the start.
    pub(super) fn renew_headers(&self, config: &Config) -> Result<(), TransportError> {
        let writers = config.scores.writers.iter().enumerate();
        for ((backend_idx, writer), headers) in writers.zip(&*self.headers) {
            headers.replace(&config.writer_destination(backend_idx, writer))?;
        }
        Ok(())
    }

    /// Returns true if all queues are at most half full.
    pub(super) fn are_half_empty(&self) -> bool {
        self.queues.iter().all(BackendQueue::is_half_empty)
    }

    /// Returns the guard of a new batch of score spans.
    pub(super) fn batch_guard(&self) -> Arc<BatchGuard> {
        let guard = Arc::new(BatchGuard {
            wakeup: self.wakeup.clone(),
        });
        self.wait_for(&guard);
        guard
    }

    /// Adds a batch of score spans to the batches that journaled requests wait for. Has no effect
    /// without a journal.
    fn wait_for(&self, guard: &Arc<BatchGuard>) {
        if let Some(live) = &self.live {
            let mut live = live.lock();
            // Prune rarely: most batches are delivered soon.
            if live.len().is_power_of_two() {
                live.retain(|batch| batch.strong_count() > 0);
            }
            live.push(Arc::downgrade(guard));
        }
    }

    /// Enqueues the requests that are left in the journal, once the journal is open.
    fn follow(&self, journal: &KeptLanes) {
        for (idx, queue) in self.queues.iter().enumerate() {
            let lane = journal.lane(queue.name).number;
            let backends = self.clone();
            journal.log.when_open(Box::new(move |opened| {
                backends.queues[idx].opened(opened, opened.n_waiting(lane));
                backends.wakeup.notify.notify_one();
            }));
            let backends = self.clone();
            journal.log.when_lost(Box::new(move |lost| {
                let queue = &backends.queues[idx];
                queue.lose(lost, lane);
                queue.queue.lose(lost, lane);
            }));
        }
    }

    /// Enqueues a request, in the journal if there is one. `leaving` is dropped once the journal
    /// has the request, or without a journal once the request is done.
    fn hold(&self, idx: usize, mut waiting: WaitingRequest, leaving: Option<CompletionGuard>) {
        let queue = &self.queues[idx];
        let Some(log) = &queue.kept else {
            waiting.held.request.completion = leaving;
            return queue.hold(waiting);
        };
        let request = &waiting.held.request;
        if !queue.reserve(request) {
            return;
        }
        let meta = match &request.route {
            Route::Api { targets } => encode_meta(waiting.trace_id, targets),
            Route::Otlp { .. } => Bytes::new(),
        };
        let lane = lane_of(queue.name);
        let (body, written) = (request.body.clone(), log.unix_nanos());
        let record = Record::score(lane, request.n_items, written, meta, body);
        let backends = self.clone();
        log.append(
            record,
            Box::new(move |appended| {
                backends.queues[idx].written(appended, waiting, leaving);
                // The batch may have been delivered in the meantime.
                backends.wakeup.is_batch_done.store(true, Ordering::Release);
                backends.wakeup.notify.notify_one();
            }),
        );
    }

    /// Starts to read as many requests from the journal as fit into memory.
    fn read(&self, reading: &mut JoinSet<QueueRead>) {
        for (idx, queue) in self.queues.iter().enumerate() {
            if let Some(to_read) = queue.to_read() {
                reading.spawn_blocking(move || {
                    let (reader, read) = to_read.read();
                    (idx, reader, read)
                });
            }
        }
    }

    /// Enqueues the requests that were read.
    fn take_read(&self, (idx, reader, read): QueueRead, telemetry: &Telemetry) -> io::Result<()> {
        let queue = &self.queues[idx];
        queue.return_reader(reader);
        let stretch = read?;
        for (_, damage) in &stretch.damage {
            damage.emit(damage.file.clone(), telemetry);
        }
        // The score span of a journaled request is in a live batch, or was delivered.
        let batches = self.live.as_ref().map(|live| {
            let mut live = live.lock();
            live.retain(|batch| batch.strong_count() > 0);
            Batches::from(&live[..])
        });
        queue.take_read(stretch, &batches.unwrap_or_default());
        Ok(())
    }

    /// Enqueues evaluations, grouped by trace, each with the guard of the batch that contains its
    /// score span, if there is one. Never waits.
    pub(super) fn take(
        &self,
        evaluations: &[Evaluation],
        guards: &[Option<Weak<BatchGuard>>],
        now_unix_nanos: u64,
        leaving: Option<&Leaving>,
    ) {
        let (mut start, mut is_batch_done) = (0, false);
        for chunk in evaluations
            .chunk_by(|left, right| left.trajectory.trace_id == right.trajectory.trace_id)
        {
            let guards = guards.get(start..start + chunk.len()).unwrap_or_default();
            let mut batches: Vec<Weak<BatchGuard>> = guards.iter().flatten().cloned().collect();
            batches.dedup_by(|left, right| left.ptr_eq(right));
            let batches = Batches::from(batches);
            start += chunk.len();
            let evaluations: Vec<&Evaluation> = chunk.iter().collect();
            for (idx, queue) in self.queues.iter().enumerate() {
                for request in writer::requests(&queue.writer, &evaluations, now_unix_nanos) {
                    let leaving = leaving.map(Leaving::guard);
                    let waiting = WaitingRequest {
                        trace_id: chunk[0].trajectory.trace_id,
                        batches: Arc::clone(&batches),
                        held: HeldRequest {
                            request: outbound(request),
                            record: None,
                        },
                    };
                    self.hold(idx, waiting, leaving);
                }
            }
            // Check after enqueuing the requests: a batch that ends later wakes the dispatcher.
            is_batch_done |= are_done(&batches);
        }
        self.advance(is_batch_done);
    }

    /// Sends every request that is ready. Scans the requests that wait for score spans only if some
    /// may be ready: if `is_batch_done`, or if a guard reported a finished batch.
    fn advance(&self, is_batch_done: bool) {
        let is_batch_done =
            self.wakeup.is_batch_done.swap(false, Ordering::AcqRel) || is_batch_done;
        let finished = std::mem::take(&mut *self.wakeup.finished.lock());
        for queue in self.queues.iter() {
            let traces = finished
                .iter()
                .filter(|(backend_idx, _)| *backend_idx == queue.backend_idx)
                .map(|(_, trace_id)| *trace_id);
            queue.advance(traces, is_batch_done, &self.wakeup);
        }
    }

    /// Sends requests whenever some may have become ready.
    async fn dispatch(
        self,
        mut stopped: watch::Receiver<()>,
        heartbeat: Heartbeat,
        telemetry: Arc<Telemetry>,
    ) {
        let mut reading = JoinSet::new();
        // Do not poll before this time; set after a failed attempt.
        let mut unread_until = tokio::time::Instant::now();
        let (mut has_read, mut is_unread) = (false, false);
        loop {
            let now = tokio::time::Instant::now();
            heartbeat.beat(now.into_std());
            self.advance(std::mem::take(&mut has_read));
            if unread_until <= now {
                self.read(&mut reading);
            }
            tokio::select! {
                Some(Ok(read)) = reading.join_next() => {
                    let taken = self.take_read(read, &telemetry);
                    has_read = taken.is_ok();
                    if let Err(error) = taken {
                        unread_until = now + Heartbeat::INTERVAL;
                        if !std::mem::replace(&mut is_unread, true) {
                            let why = error.to_string();
                            JournalUnread { why }.emit();
                        }
                    } else {
                        is_unread = false;
                    }
                }
                () = self.wakeup.notify.notified() => {}
                () = tokio::time::sleep_until(now + Heartbeat::INTERVAL) => {}
                _ = stopped.changed() => return heartbeat.finish(),
            }
        }
    }
}

fn outbound(request: WriterRequest) -> OutboundRequest {
    let targets = request.targets.into_iter().map(|target| {
        let method = if target.method == "PATCH" { Method::PATCH } else { Method::POST };
        ApiTarget {
            method,
            path: target.path,
        }
    });
    // A score belongs to a trace, whatever signal the request has.
    OutboundRequest {
        route: Route::Api {
            targets: targets.collect(),
        },
        ..OutboundRequest::otlp(
            Signal::Traces,
            Bytes::from(request.body),
            request.n_evaluations as u64,
        )
    }
}

// === impl BackendTasks ===

impl BackendTasks {
    /// Waits for all score spans, delivers until `deadline`, and returns the number of undelivered
    /// scores by backend.
    pub(super) async fn drain(mut self, deadline: Instant) -> BTreeMap<&'static str, u64> {
        // Fails if the dispatcher has ended. From here on only this function waits for the wakeup.
        let _ = self.stop.send(());
        while self.dispatcher.join_next().await.is_some() {}
        // A revision waits for the score that it corrects, which is still queued.
        let queues = self.backends.queues.clone();
        self.backends.advance(true);
        while queues.iter().any(|queue| !queue.is_empty())
            && tokio::time::Instant::now().into_std() < deadline
        {
            let woken = self.backends.wakeup.notify.notified();
            let _ = tokio::time::timeout_at(deadline.into(), woken).await;
            self.backends.advance(true);
        }
        let mut left: BTreeMap<&'static str, u64> = BTreeMap::new();
        for queue in queues.iter() {
            let n_left = queue.abandon();
            if n_left > 0 {
                left.insert(queue.name, n_left);
            }
            queue.queue.close(deadline);
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
