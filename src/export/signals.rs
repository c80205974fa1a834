//! The signals that send evaluations as separate items, in batches.

use std::sync::Arc;

use bytes::Bytes;
use judge::evaluate::{Evaluation, Explain};

use super::score_wire::ScoreBatch;
use super::{score_event, score_span};
use crate::config::{self, Bound, Shape};
use crate::journal::Ledger;
use crate::sync::Mutex;
use crate::transport::{OutboundRequest, Queue};

/// A function that appends an evaluation to a batch, at a time in Unix nanoseconds.
type Encode = Box<dyn Fn(&mut ScoreBatch, &Evaluation, &Explain, u64) + Send + Sync>;

/// Returns the encoder of a shape; `None` for metrics, which are counted instead.
pub(super) fn encoder(shape: Shape, scores: &config::Scores) -> Option<Encode> {
    match shape {
        Shape::Span => {
            let settings = span_settings(scores);
            Some(Box::new(move |batch, evaluation, explain, _| {
                score_span::push(batch, evaluation, &settings, explain)
            }))
        }
        Shape::Event => {
            let settings = score_event::Settings {
                copy_attributes: scores.copy_attributes.clone(),
                evaluator_attributes: scores.evaluator_attributes,
            };
            Some(Box::new(move |batch, evaluation, _, now_unix_nanos| {
                score_event::push(batch, evaluation, &settings, now_unix_nanos)
            }))
        }
        Shape::Metrics => None,
    }
}

/// Size in bytes at which a batch is sent: the default limit of gRPC peers is 4 MiB.
const MAX_BATCH_SIZE: usize = 2 << 20;

#[derive(Debug, Clone)]
pub(super) struct BatchLimits {
    pub(super) max_evaluations: usize,
    /// Maximum bytes of a batch: a quarter of the queue, so that other batches fit.
    pub(super) quarter_of_queue: Bound,
}

impl BatchLimits {
    fn max_size(&self) -> usize {
        MAX_BATCH_SIZE.min(self.quarter_of_queue.get())
    }
}

pub(super) struct BatchedSignal {
    pub(super) shape: Shape,
    pub(super) encode: Encode,
    pub(super) limits: BatchLimits,
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
        for evaluation in evaluations {
            (self.encode)(&mut open, evaluation, explain, now_unix_nanos);
            if open.n_items() >= self.limits.max_evaluations
                || open.size() >= self.limits.max_size()
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

// === configuration, translated ===

fn span_settings(scores: &config::Scores) -> score_span::Settings {
    score_span::Settings {
        copy_attributes: scores.copy_attributes.clone(),
        on_revision: scores.span.on_revision,
        status_on_fail: scores.span.status_on_fail,
        sample_pass: scores.span.sample_pass,
    }
}
