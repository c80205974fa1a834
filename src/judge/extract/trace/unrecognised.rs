//! Finds traces that look like an agent's although no tool call or agent run was recognised.
//! Guesses from model calls and span names; does not affect verdicts.

use std::sync::Arc;

use otlp::span::{SpanId, TraceId};

use crate::assemble::Trace;

/// Parts of span names that frameworks give to calls and runs.
const LIKE_A_CALL: [&str; 4] = ["tool", "agent", "function_call", "functioncall"];

/// Maximum number of spans that are listed.
const MAX_SPANS: usize = 64;

/// A trace that looks like an agent's, but has no trajectory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrecognised {
    pub trace_id: TraceId,
    /// `service.name` of the first span that looks like an agent's.
    pub service: Arc<str>,
    /// The number of model calls among the spans.
    pub n_models: usize,
    /// The name of a span that looks like a tool call or an agent run.
    pub span_name: Option<Arc<str>>,
    /// The first spans that are not model calls, one of which may be a tool call.
    pub others: Vec<SpanId>,
}

/// Returns the evidence that a trace without a trajectory belongs to an agent, if there is any.
pub fn unrecognised(trace: &Trace) -> Option<Unrecognised> {
    let mut found: Option<Unrecognised> = None;
    let spans = &trace.spans;
    for span in spans.rows().iter().filter(|span| !span.is_record) {
        let name = spans.name(span);
        let is_like_a_call = looks_like_a_call(name);
        if !span.class.model && !is_like_a_call {
            continue;
        }
        let found = found.get_or_insert_with(|| Unrecognised {
            trace_id: trace.trace_id,
            service: spans.resource(span).service.clone(),
            n_models: 0,
            span_name: None,
            others: Vec::new(),
        });
        found.n_models += usize::from(span.class.model);
        if is_like_a_call && found.span_name.is_none() {
            found.span_name = Some(name.into());
        }
    }
    if let Some(found) = &mut found {
        let others = spans.rows().iter().filter(|span| !span.class.model);
        found.others = others.map(|span| span.span_id).take(MAX_SPANS).collect();
    }
    found
}

fn looks_like_a_call(name: &str) -> bool {
    let name = name.as_bytes();
    LIKE_A_CALL.iter().any(|part| {
        let part = part.as_bytes();
        name.windows(part.len())
            .any(|window| window.eq_ignore_ascii_case(part))
    })
}
