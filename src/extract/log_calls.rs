//! Pure. Coding agents that tell of their tool calls in log records only: Claude Code
//! (`claude_code.tool_result`), Codex (`codex.tool_result`) and Gemini CLI
//! (`gemini_cli.tool_call`). A record in, a span of a trace of its own kind out, so that the same
//! machine holds it, judges it and forgets it: the trace is the prompt that the call was made for,
//! else the session. What comes of such a trace is a trajectory without an evaluated span. Does not
//! know how records are encoded.

use hashbrown::{HashMap, HashSet};
use sha2::{Digest, Sha256};

use super::convention::{
    Call, Convention, View, first_raw, first_text, is, is_always_call, no_agent_run, no_model,
};
use super::keys;
use super::log_messages;
use super::recognise::attribute_text;
use super::tool_call::Doubt;
use super::trajectory::{Doubts, SESSIONS, Trajectory};
use crate::assemble::{CloseReason, Trace};
use crate::span::{KeyId, LogCall, Span, SpanId, Status, TraceId, Value};

pub(super) const LOG_CALLS: Convention = Convention {
    name: "log_calls",
    marks: keys::bit(keys::LOG_TRACE_ID),
    is_call: is_always_call,
    call,
    agent_run: no_agent_run,
    is_model: no_model,
};

/// Event names of the records that report a call. What precedes one (`tool_decision`) is none.
pub(super) const EVENTS: &[&str] = &[
    "claude_code.tool_result",
    "tool_result",
    "codex.tool_result",
    "gemini_cli.tool_call",
];

const PROMPTS: &[KeyId] = &[keys::PROMPT_ID, keys::PROMPT_ID_FLAT];
const ARGS: &[KeyId] = &[
    keys::CLAUDE_ARGS,
    keys::CLAUDE_INPUT,
    keys::CODEX_ARGS,
    keys::GEMINI_ARGS,
];

fn call<'a>(record: &View<'a>) -> Call<'a> {
    Call {
        name: first_text(record, &[keys::FUNCTION_NAME, keys::GEMINI_NAME]),
        call_id: first_text(record, &[keys::TOOL_USE_ID, keys::CODEX_CALL_ID]),
        args: first_raw(record, ARGS),
        result: first_raw(record, &[keys::VOLTAGENT_OUTPUT]),
        failed: has_failed(record),
        ..Call::default()
    }
}

/// Does it say so itself?
pub(super) fn has_failed(record: &View<'_>) -> bool {
    is(record, keys::SUCCESS, "false") || record.get(keys::SUCCESS) == Some(Value::Bool(false))
}

/// A record as a span of its group's trace, or, if it holds messages of a model, as it is held with
/// the trace that it names. `None` where it names neither a prompt nor a session, or no span:
/// nobody knows which calls it belongs to.
pub fn log_call(record: LogCall) -> Option<Span> {
    if log_messages::is_messages(&record) {
        return log_messages::held(record);
    }
    let time_unix_nanos = record.time_unix_nanos;
    let mut span = as_span(record, group(b"")?.0, None);
    let view = View::new(&span);
    let id = first_text(&view, PROMPTS).or_else(|| first_text(&view, SESSIONS))?;
    let (trace_id, parent_id) = group(id.as_bytes())?;
    let duration_ms: f64 = view
        .get(keys::DURATION_MS)
        .and_then(attribute_text)
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    // Saturates: a negative or senseless duration is none.
    let start_unix_nanos = time_unix_nanos.saturating_sub((duration_ms * 1e6) as u64);
    let status = if has_failed(&view) {
        Status::Error
    } else {
        Status::Unset
    };
    // Nobody tells the last call of a prompt from the others: a parent that never comes keeps the
    // trace open until it is inactive.
    (
        span.trace_id,
        span.parent_id,
        span.start_unix_nanos,
        span.status,
    ) = (trace_id, Some(parent_id), start_unix_nanos, status);
    Some(span)
}

/// A record in the form of a span: its own id, and its time as start and end.
pub(super) fn as_span(record: LogCall, trace_id: TraceId, parent_id: Option<SpanId>) -> Span {
    let LogCall {
        record_id,
        time_unix_nanos,
        resource,
        kept,
        ..
    } = record;
    Span {
        trace_id,
        span_id: record_id,
        parent_id,
        start_unix_nanos: time_unix_nanos,
        end_unix_nanos: time_unix_nanos,
        flags: 0,
        n_attributes: 0,
        status: Status::Unset,
        resource,
        kept,
    }
}

/// The trace that stands for a group, and the parent that no span of it has.
fn group(id: &[u8]) -> Option<(TraceId, SpanId)> {
    let digest = Sha256::digest(id);
    Some((
        TraceId::try_new(&digest[..16])?,
        SpanId::try_new(&digest[16..24])?,
    ))
}

/// Was the trace made of log records?
pub(super) fn is_made_of_logs(trace: &Trace) -> bool {
    trace
        .spans
        .first()
        .is_some_and(|(span, _)| span.get(keys::LOG_TRACE_ID).is_some())
}

/// What is different in a trajectory that was made of log records.
pub(super) fn finish(trajectory: &mut Trajectory, trace: &Trace) {
    let mut records: Vec<&Span> = trace.spans.iter().map(|(span, _)| span).collect();
    let sequence = |span: &Span| {
        span.get(keys::SEQUENCE)
            .and_then(attribute_text)
            .and_then(|text| text.parse::<u64>().ok())
    };
    let by_sequence = records.iter().all(|span| sequence(span).is_some());
    records.sort_by_key(|span| {
        (
            sequence(span).filter(|_| by_sequence),
            span.start_unix_nanos,
            span.end_unix_nanos,
            span.span_id,
        )
    });
    let places: HashMap<SpanId, usize> = records
        .iter()
        .enumerate()
        .map(|(place, span)| (span.span_id, place))
        .collect();
    trajectory
        .tool_calls
        .sort_by_key(|call| call.span_id.and_then(|span_id| places.get(&span_id)));
    let mut seen = HashSet::new();
    trajectory.tool_calls.retain(|call| {
        call.call_id
            .as_ref()
            .is_none_or(|id| seen.insert(id.clone()))
    });
    // A record is written when the call is over.
    trajectory
        .tool_calls
        .iter_mut()
        .for_each(|call| (call.span_id, call.partial) = (None, false));
    let own_trace = |span: &&Span| match span.get(keys::LOG_TRACE_ID) {
        Some(Value::Bytes(id)) => TraceId::try_new(&id.to_vec()),
        _ => None,
    };
    trajectory.trace_id = records.iter().find_map(own_trace).unwrap_or(trace.trace_id);
    trajectory.subject = None;
    // Its parent is missing by design.
    trajectory.cut_short = !matches!(trace.reason, CloseReason::Inactive | CloseReason::NoRoot);
    // A call may yet turn out to be told of by a span too, and the order is that of the records'
    // numbers only if all of them have one.
    trajectory.doubts = Doubts {
        subject: trajectory.cut_short,
        root: trajectory.cut_short,
        ..Doubts::default()
    };
    for (call, line) in trajectory.tool_calls.iter_mut().zip(0..) {
        call.doubt = if trajectory.cut_short {
            Doubt {
                may_go: call.call_id.is_some(),
                line,
                ..Doubt::default()
            }
        } else {
            Doubt::default()
        };
    }
}
