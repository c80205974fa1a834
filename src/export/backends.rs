//! Delivers scores to the backends' own score APIs. Must not know what a request says.
//!
//! A score is sent only after its score span was delivered, since the backend has to know the
//! trace, and only after every earlier score of its trace was sent, or a revision would be
//! overwritten by the score that it corrects.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use hyper::Method;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::backend_queue::{
    BackendQueue, BatchGuard, WaitingAccounting, WaitingRequest, Wakeup, are_done,
};
use super::queues::ScoreAccounting;
use super::writer;
use super::writer_score::WriterRequest;
use crate::config::{Bound, Config, Signal};
use crate::evaluate::Evaluation;
use crate::journal::JudgedMarks;
use crate::sync::Mutex;
use crate::telemetry::{Heartbeat, Telemetry};
use crate::transport::queue::{
    ApiTarget, CompletionGuard, OutboundRequest, Queue, Route, WhenFull,
};
use crate::transport::{Client, Delivery, SentHeaders, TransportError, Undelivered};

/// All backends. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Backends {
    queues: Arc<[BackendQueue]>,
    /// Of each queue.
    headers: Arc<[SentHeaders]>,
    wakeup: Arc<Wakeup>,
}

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
    /// Starts the configured writers; `None` if there are none. `share` is the memory of each, in
    /// bytes.
    pub(super) fn start(
        config: &Config,
        share: &Bound,
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
            let queue = Queue::new(
                name,
                share.share(2),
                WhenFull::DropOldest,
                accounting.clone(),
                telemetry,
            );
            let delivery = Delivery::new(queue.clone(), client, telemetry.clone(), rng.fork());
            deliveries.spawn(async move { (name, delivery.run().await) });
            queues.push(BackendQueue {
                writer: writer.clone(),
                name,
                backend_idx,
                capacity: share.share(2),
                queue,
                accounting,
                waiting: Mutex::default(),
            });
        }
        if queues.is_empty() {
            return Ok(None);
        }
        let backends = Self {
            queues: queues.into(),
            headers: headers.into(),
            wakeup: Arc::default(),
        };
        let (stop, stopped) = watch::channel(());
        let heartbeat =
            telemetry.heartbeat("score writers", tokio::time::Instant::now().into_std());
        let mut dispatcher = JoinSet::new();
        dispatcher.spawn(backends.clone().dispatch(stopped, heartbeat));
        let tasks = BackendTasks {
            backends: backends.clone(),
            dispatcher,
            stop,
            deliveries,
        };
        Ok(Some((backends, tasks)))
    }

    /// Sends the headers of these writers from now on; they are those of the start.
    pub(super) fn renew_headers(&self, config: &Config) -> Result<(), TransportError> {
        let writers = config.scores.writers.iter().enumerate();
        for ((backend_idx, writer), headers) in writers.zip(&*self.headers) {
            headers.replace(&config.writer_destination(backend_idx, writer))?;
        }
        Ok(())
    }

    /// A guard for a new batch of score spans.
    pub(super) fn batch_guard(&self) -> Arc<BatchGuard> {
        Arc::new(BatchGuard {
            wakeup: self.wakeup.clone(),
        })
    }

    /// Takes evaluations, grouped by trace, each with the guard of the batch that contains its
    /// score span, if there is one. Never waits.
    pub(super) fn take(
        &self,
        evaluations: &[Evaluation],
        guards: &[Option<Weak<BatchGuard>>],
        now_unix_nanos: u64,
        marks: Option<&JudgedMarks>,
    ) {
        let (mut start, mut is_batch_done) = (0, false);
        for chunk in evaluations
            .chunk_by(|left, right| left.trajectory.trace_id == right.trajectory.trace_id)
        {
            let guards = guards.get(start..start + chunk.len()).unwrap_or_default();
            let mut batches: Vec<Weak<BatchGuard>> = guards.iter().flatten().cloned().collect();
            batches.dedup_by(|left, right| left.ptr_eq(right));
            start += chunk.len();
            let evaluations: Vec<&Evaluation> = chunk.iter().collect();
            for queue in self.queues.iter() {
                for request in writer::requests(&queue.writer, &evaluations, now_unix_nanos) {
                    let leaving = marks.map(|marks| CompletionGuard(marks.leaving()));
                    queue.hold(WaitingRequest {
                        trace_id: chunk[0].trajectory.trace_id,
                        batches: batches.clone(),
                        request: OutboundRequest {
                            completion: leaving,
                            ..outbound(request)
                        },
                    });
                }
            }
            // Checked after the requests wait: a batch that ends later wakes the dispatcher.
            is_batch_done |= are_done(&batches);
        }
        self.advance(is_batch_done);
    }

    /// Queues every request that is ready. Looks through the requests that wait for score spans
    /// only if some may be ready: `is_batch_done`, or a guard says so.
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

    /// Queues requests whenever some may have become ready.
    async fn dispatch(self, mut stopped: watch::Receiver<()>, heartbeat: Heartbeat) {
        loop {
            let now = tokio::time::Instant::now();
            heartbeat.beat(now.into_std());
            self.advance(false);
            tokio::select! {
                () = self.wakeup.notify.notified() => {}
                () = tokio::time::sleep_until(now + Heartbeat::INTERVAL) => {}
                _ = stopped.changed() => return heartbeat.finish(),
            }
        }
    }
}

fn outbound(request: WriterRequest) -> OutboundRequest {
    let targets = request.targets.into_iter().map(|target| {
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
    // A score belongs to a trace, whatever request carries it.
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
    /// Delivers until `deadline`, waiting for all score spans first; returns how many scores were
    /// left for each backend.
    pub(super) async fn drain(mut self, deadline: Instant) -> BTreeMap<&'static str, u64> {
        // The dispatcher may have ended already; from here on the wakeup is for us.
        let _ = self.stop.send(());
        while self.dispatcher.join_next().await.is_some() {}
        // A revision waits for the score that it corrects, which is still in the queue.
        let queues = self.backends.queues.clone();
        self.backends.advance(true);
        while queues.iter().any(|queue| queue.n_waiting() > 0)
            && tokio::time::Instant::now().into_std() < deadline
        {
            let woken = self.backends.wakeup.notify.notified();
            let _ = tokio::time::timeout_at(deadline.into(), woken).await;
            self.backends.advance(true);
        }
        let mut left: BTreeMap<&'static str, u64> = BTreeMap::new();
        for queue in queues.iter() {
            let n_waiting = queue.n_waiting();
            if n_waiting > 0 {
                left.insert(queue.name, n_waiting);
            }
            queue.abandon();
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
