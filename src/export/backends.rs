//! Sends scores to the backends' own score APIs, in requests about one trace each.

use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use judge::evaluate::Evaluation;
use otlp::span::TraceId;

use super::writer;
use super::writer_score::WriterRequest;
use crate::config::{Signal, Writer};
use crate::journal::Ledger;
use crate::transport::{ApiTarget, OutboundRequest, Queue, Route};

#[derive(Debug)]
pub(super) struct Backend {
    pub(super) writer: Writer,
    pub(super) queue: Queue,
}

impl Backend {
    /// Enqueues evaluations, grouped by trace. Never waits.
    pub(super) fn send(
        &self,
        evaluations: &[Evaluation],
        now_unix_nanos: u64,
        ledger: &Arc<Ledger>,
    ) {
        let of_traces = evaluations
            .chunk_by(|left, right| left.trajectory.trace_id == right.trajectory.trace_id);
        for of_trace in of_traces {
            let trace_id = of_trace[0].trajectory.trace_id;
            let of_trace: Vec<&Evaluation> = of_trace.iter().collect();
            for request in writer::requests(&self.writer, &of_trace, now_unix_nanos) {
                self.queue.send(outbound(trace_id, request), ledger.issue());
            }
        }
    }
}

fn outbound(trace_id: TraceId, request: WriterRequest) -> OutboundRequest {
    let targets = request.targets.into_iter().map(|target| ApiTarget {
        method: if target.method == "PATCH" { Method::PATCH } else { Method::POST },
        path: target.path,
    });
    let (targets, n_items) = (targets.collect(), request.n_evaluations as u64);
    // A request to an API has no OTLP signal. It gets the signal of traces, because a score belongs
    // to a trace.
    OutboundRequest {
        route: Route::Api { trace_id, targets },
        ..OutboundRequest::otlp(Signal::Traces, Bytes::from(request.body), n_items)
    }
}
