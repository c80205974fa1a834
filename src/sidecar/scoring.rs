//! The scoring queue and its threads. Batches are divided among the threads by trace id. Each
//! thread has a queue, and all queues share a limit in bytes. Judging has separate threads, because
//! judging a huge trace may take long, and telemetry must not wait for it.

mod shared;
mod shared_traces;

mod worker;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

use arc_swap::ArcSwap;
use judge::assemble::{Partition, Settings};
use judge::pipeline::{self, CrossTraces, Pipeline, Rules};
use otlp::span::{Batch, Now, PeerId, TraceId};

use super::judgements::{Judge, JudgeSink};
use super::now;
use super::rebuild::JournaledTraces;
use crate::fair::{Charge, FairBudget};
use crate::sync::Mutex;
use crate::telemetry::{SpansUnscored, SpansWithoutIds, Telemetry, Throttled};

use shared::{Arrived, OfThread, QueuedSpans, ScoringState};
use shared_traces::SharedTraces;

pub(super) use shared::ScoringBounds;
pub(super) use worker::Worker;

/// Maximum number of batches with spans in memory, in the queue of one thread.
const MAX_BATCHES: usize = 4096;

/// Maximum number of requests that wait in the journal to be scored. Their queue entries use 4 MiB.
const MAX_UNREAD: usize = 32_768;

/// The handle with which receivers enqueue batches. Never waits.
#[derive(Clone)]
pub(super) struct ScoringQueue {
    senders: Arc<[SyncSender<Box<Arrived>>]>,
    shared: Arc<ScoringState>,
}

impl ScoringQueue {
    /// Prepares a thread for each judge. When the last handle is dropped, the threads run their
    /// last round and stop.
    pub(super) fn prepare(
        settings: Settings,
        bounds: ScoringBounds,
        rules: Arc<ArcSwap<Rules>>,
        telemetry: Arc<Telemetry>,
        judges: Vec<Judge>,
        kept: Option<JournaledTraces>,
    ) -> (Self, Vec<Worker>) {
        let n_threads = judges.len();
        let max_unread = kept.as_ref().map(|kept| kept.max_unread);
        let max_queued = MAX_BATCHES + max_unread.map_or(0, |_| MAX_UNREAD);
        let kept = kept.map(|kept| kept.divide(n_threads));
        let mut kept = kept.into_iter().flatten();
        // Remember traces from now on, before a port is open, and not when the threads first run.
        // Otherwise a trace that begins in between would not count as complete.
        let started = now();
        let traces = SharedTraces::new(CrossTraces::new(&settings, started), n_threads);
        let shared = Arc::new(ScoringState {
            rules,
            telemetry,
            waiting: FairBudget::new(bounds.queue.clone()),
            unread: max_unread.map(FairBudget::new),
            bounds,
            draining: AtomicBool::new(false),
            offered_below: AtomicU64::new(0),
            traces: Arc::new(traces),
            threads: (0..n_threads)
                .map(|_| Mutex::<OfThread>::default())
                .collect(),
        });
        let sender_key = RandomState::new().hash_one(());
        let (mut senders, mut workers) = (Vec::new(), Vec::new());
        for (partition, judge) in Partition::all(n_threads).zip(judges) {
            let index = partition.index();
            let (sender, inbox) = sync_channel(max_queued);
            let settings = Settings {
                partition,
                sender_key,
                ..settings.clone()
            };
            let access = shared.traces.access(index);
            // A single thread has no number.
            let name = match n_threads {
                1 => "scoring".to_owned(),
                _ => format!("scoring-{}", index + 1),
            };
            senders.push(sender);
            let sink = JudgeSink::new(judge, &shared.rules, &shared.telemetry, &name);
            workers.push(Worker {
                name,
                shared: Arc::clone(&shared),
                index,
                inbox,
                pipeline: Pipeline::of_partition(settings, access, started),
                kept: kept.next(),
                sink,
                time: started,
                is_draining: false,
                keeps_up: true,
                sizes: None,
                unread: Throttled::default(),
            });
        }
        let senders = senders.into();
        (Self { senders, shared }, workers)
    }

    /// Enqueues a batch for scoring. If the queue's memory is full, enqueues only the number of the
    /// journal record of `n_bytes`. Without a record, or if too many requests wait in the journal,
    /// counts the batch as unscored and marks its traces. The caller offers records in the order of
    /// their numbers.
    pub(super) fn offer(&self, batch: Batch, n_bytes: usize, record: Option<u64>) {
        self.enqueue_or_mark(batch, n_bytes, record);
        if let Some(record) = record {
            let offered_below = &self.shared.offered_below;
            offered_below.store(record + 1, Ordering::Release);
        }
    }

    fn enqueue_or_mark(&self, batch: Batch, n_bytes: usize, record: Option<u64>) {
        let shared = &*self.shared;
        let n_spans = batch.n_without_ids;
        if n_spans > 0 {
            SpansWithoutIds { n_spans }.emit(&shared.telemetry);
        }
        if batch.spans.is_empty() {
            return;
        }
        let in_memory = charge(&shared.waiting, batch.peer, batch.size(), MAX_BATCHES);
        let is_in_memory = in_memory.is_some();
        let in_journal = || {
            let unread = shared.unread.as_ref().filter(|_| record.is_some())?;
            charge(unread, batch.peer, n_bytes, MAX_UNREAD)
        };
        let Some(charge) = in_memory.or_else(in_journal) else {
            return self.mark_unscored(batch);
        };
        let (at, peer, charge) = (now(), batch.peer, Arc::new(charge));
        let send = |index: usize, batch: Batch| {
            let spans = if is_in_memory {
                QueuedSpans::InMemory(batch)
            } else {
                let n_spans = batch.spans.len();
                QueuedSpans::InJournal { peer, n_spans }
            };
            let arrived = Box::new(Arrived {
                at,
                charge: Arc::clone(&charge),
                record,
                spans,
            });
            if let Err(TrySendError::Full(arrived) | TrySendError::Disconnected(arrived)) =
                self.senders[index].try_send(arrived)
            {
                match arrived.spans {
                    QueuedSpans::InMemory(batch) => self.mark_unscored(batch),
                    QueuedSpans::InJournal { n_spans, .. } => {
                        SpansUnscored { n_spans }.emit(&shared.telemetry);
                    }
                }
            }
        };
        match self.senders.len() {
            1 => send(0, batch),
            n_threads => {
                for (index, part) in pipeline::split(batch, n_threads) {
                    send(index, part);
                }
            }
        }
    }

    /// Reports that replicas changed at some time after `since`.
    pub(super) fn peers_changed(&self, since: Now, noticed: Now) {
        for thread in &self.shared.threads {
            let changed = &mut thread.lock().peers_changed;
            // The period begins with the first change that the thread has not read, and ends with
            // the last one.
            changed.get_or_insert((since, noticed)).1 = noticed;
        }
    }

    /// Closes traces sooner from now on (`spanscore drain`).
    pub(super) fn begin_drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    fn mark_unscored(&self, batch: Batch) {
        let n_spans = batch.spans.len();
        SpansUnscored { n_spans }.emit(&self.shared.telemetry);
        let spans = batch.spans.iter();
        let mut trace_ids: Vec<TraceId> = spans.map(|span| span.trace_id).collect();
        trace_ids.dedup();
        let n_threads = self.shared.threads.len();
        for (index, thread) in self.shared.threads.iter().enumerate() {
            let mut thread = thread.lock();
            let own = trace_ids
                .iter()
                .filter(|trace_id| Partition::index_of(**trace_id, n_threads) == index);
            own.for_each(|trace_id| thread.mark_unscored(*trace_id));
        }
    }
}

/// Charges a request to its sender. A small request is charged `1 / max_requests` of the budget, so
/// that no peer can fill the queue with small requests.
fn charge(
    budget: &Arc<FairBudget>,
    peer: PeerId,
    n_bytes: usize,
    max_requests: usize,
) -> Option<Charge> {
    budget.charge(peer, n_bytes.max(budget.max() / max_requests))
}

#[cfg(test)]
mod tests;
