//! The signals that send evaluations as separate items, in batches: score spans and events.

use std::sync::Arc;

use bytes::Bytes;
use judge::evaluate::{Evaluation, Explain};

use super::score_wire::ScoreBatch;
use super::{score_event, score_span};
use crate::config::{Bound, Scores, Shape};
use crate::journal::Ledger;
use crate::sync::Mutex;
use crate::transport::{OutboundRequest, Queue};

/// Size in bytes at which a batch is sent: the default limit of gRPC peers is 4 MiB.
const MAX_BATCH_SIZE: usize = 2 << 20;

pub(super) struct BatchedSignal {
    pub(super) shape: Shape,
    pub(super) scores: Arc<Scores>,
    /// Maximum bytes of a batch: a quarter of the queue, so that other batches fit.
    pub(super) quarter_of_queue: Bound,
    pub(super) queue: Queue,
    pub(super) open: Mutex<ScoreBatch>,
}

impl BatchedSignal {
    /// Adds evaluations to the open batch and sends every full batch. Returns true if the batch was
    /// empty and has scores now.
    pub(super) fn add(
        &self,
        evaluations: &[Evaluation],
        explain: &Explain,
        now_unix_nanos: u64,
        ledger: &Arc<Ledger>,
    ) -> bool {
        let mut open = self.open.lock();
        let was_empty = open.n_items() == 0;
        let max_size = MAX_BATCH_SIZE.min(self.quarter_of_queue.get());
        for evaluation in evaluations {
            match self.shape {
                Shape::Span => score_span::push(&mut open, evaluation, &self.scores, explain),
                Shape::Event => {
                    score_event::push(&mut open, evaluation, &self.scores, now_unix_nanos)
                }
                // Metrics are counted instead.
                Shape::Metrics => {}
            }
            if open.n_items() >= self.scores.batch.max_evaluations.max(1) || open.size() >= max_size
            {
                self.send(&mut open, ledger);
            }
        }
        was_empty && open.n_items() > 0
    }

    pub(super) fn flush(&self, ledger: &Arc<Ledger>) {
        let mut open = self.open.lock();
        if open.n_items() > 0 {
            self.send(&mut open, ledger);
        }
    }

    fn send(&self, open: &mut ScoreBatch, ledger: &Arc<Ledger>) {
        let n_items = open.n_items() as u64;
        let body = Bytes::from(open.take());
        let request = OutboundRequest::otlp(self.shape.signal(), body, n_items);
        self.queue.send(request, ledger.issue());
    }
}
