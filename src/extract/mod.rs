//! Pure. A closed trace in, its trajectory out. Knows how tool calls are spelled; does not know what is expected of them.

mod tool_call;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::assemble::CloseReason;
use crate::span::{Resource, SpanId, TraceId};

pub use tool_call::{Payload, ToolCall};

/// What one agent did in one trace: its tool calls in the order they were made.
#[derive(Debug, Clone)]
pub struct Trajectory {
    /// The trace it was taken from.
    pub trace_id: TraceId,
    /// The evaluated span; score spans become its children. `None` for trajectories made of log records.
    pub subject: Option<Subject>,
    /// `service.name` of the evaluated span's resource.
    pub service: Arc<str>,
    /// Name of the topmost span above the evaluated one.
    pub root: Arc<str>,
    /// Name of the agent of the evaluated span.
    pub agent: Option<Arc<str>>,
    /// Session or conversation id.
    pub session: Option<Arc<str>>,
    /// Why the trace was closed.
    pub completeness: CloseReason,
    /// Was the trace cut short? Then only a verdict that no further call could change is given (DESIGN 4).
    pub cut_short: bool,
    /// Taken from model messages alone: cut short, such a trajectory is never certain, since the first tool span replaces it.
    pub from_messages: bool,
    /// A span of another resource started before its parent, and was ordered as if shifted.
    pub clock_adjusted: bool,
    /// How many spans the trace has.
    pub n_spans: usize,
    /// Latest end of any span, Unix nanoseconds.
    pub latest_end_unix_nanos: u64,
    /// The calls, in order.
    pub tool_calls: Vec<ToolCall>,
    /// The agent runs, by start; `ToolCall::agent_run` points into it.
    pub agent_runs: Vec<AgentRun>,
    /// Agent runs and graph nodes in start order, immediate repeats folded (`execution_order` with `over: nodes`).
    pub node_visits: Vec<Arc<str>>,
    /// Position of the trace by first arrival.
    pub arrival: u64,
}

/// The evaluated span, as far as scores need it.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Its id.
    pub span_id: SpanId,
    /// Its name.
    pub name: Arc<str>,
    /// Its start, Unix nanoseconds.
    pub start_unix_nanos: u64,
    /// Its end, Unix nanoseconds; 0 where it has none.
    pub end_unix_nanos: u64,
    /// Its OTLP span flags.
    pub flags: u32,
    /// Its W3C trace state.
    pub trace_state: Arc<str>,
    /// Its resource.
    pub resource: Arc<Resource>,
    /// Its kept attributes by key, as the text that selectors compare and scores copy (numbers and booleans as their JSON text); looked up
    /// with `Subject::attribute`, which falls back to the resource's.
    pub attributes: Vec<(Arc<str>, Arc<str>)>,
}

/// One agent run of a trace.
#[derive(Debug, Clone)]
pub struct AgentRun {
    /// The agent's name.
    pub name: Arc<str>,
    /// Its span, as far as scores need it.
    pub subject: Subject,
    /// The run that contains it, a position in `Trajectory::agent_runs`.
    pub parent: Option<usize>,
    /// Has its span ended?
    pub ended: bool,
    /// Its own session, where it differs.
    pub session: Option<Arc<str>>,
}

/// `tools`: how tool calls are recognised.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tools {
    /// Attributes that name a tool, after the built-in conventions.
    pub name_attributes: Vec<String>,
    /// Names that are no calls. This list is the list.
    pub ignore: Vec<String>,
    /// Longest arguments or result kept of one call, in bytes; more is cut and marked.
    pub max_value_size: usize,
    /// Longest output messages kept of one model span that holds tool calls, in bytes.
    pub max_messages_size: usize,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            name_attributes: vec!["tool.name".to_owned()],
            ignore: ["final_answer", "finish", "(merged tools)"].map(str::to_owned).to_vec(),
            max_value_size: 16 << 10,
            max_messages_size: 64 << 10,
        }
    }
}

impl Subject {
    /// The value of one of the span's kept attributes, else of its resource's.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| **key == *name).map(|(_, value)| &**value)
    }
}
