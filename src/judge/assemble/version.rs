//! A span or log record as it arrives, and as its trace stores it.

use std::sync::Arc;

use otlp::span::SpanClass;
use otlp::span::{KeptAttributes, KeptPlace, Resource, ScopeHash, Span, SpanId, Status};

/// An arriving span or log record.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) id: SpanId,
    pub(super) parent_id: Option<SpanId>,
    pub(super) start_unix_nanos: u64,
    pub(super) end_unix_nanos: u64,
    pub(super) flags: u16,
    pub(super) n_attributes: u16,
    pub(super) repeats_answers: Option<bool>,
    /// True for a span or record that can raise an alarm.
    pub(super) is_watched: bool,
    pub(super) status: Status,
    pub(super) scope: ScopeHash,
    pub(super) class: SpanClass,
    /// True for a log record, which is never a top span and never misses a parent.
    pub(super) is_record: bool,
    pub(super) resource: Arc<Resource>,
    pub(super) kept: KeptAttributes,
}

/// One packed version of a span or log record.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) start_unix_nanos: u64,
    pub(super) end_unix_nanos: u64,
    pub(super) class: SpanClass,
    /// Location of the kept attributes in `TraceSpans::kept`.
    pub(super) kept: KeptPlace,
    pub(super) parent_id: Option<SpanId>,
    /// Position in `TraceSpans::resources`.
    pub(super) resource_idx: u32,
    pub(super) flags: u16,
    pub(super) n_attributes: u16,
    pub(super) scope: ScopeHash,
    pub(super) status: Status,
    pub(super) repeats_answers: Option<bool>,
    pub(super) is_record: bool,
}

// === impl Arrival ===

impl Arrival {
    #[inline]
    pub(super) fn of_span(span: Span) -> Self {
        Self {
            id: span.span_id,
            parent_id: span.parent_id,
            start_unix_nanos: span.start_unix_nanos,
            end_unix_nanos: span.end_unix_nanos,
            // OpenTelemetry reserves the other bits.
            flags: span.flags as u16,
            n_attributes: span.n_attributes.try_into().unwrap_or(u16::MAX),
            repeats_answers: span.repeats_answers,
            is_watched: span.is_watched,
            status: span.status,
            scope: span.scope,
            class: span.class,
            is_record: span.is_record,
            resource: span.resource,
            kept: span.kept,
        }
    }
}

// === impl Version ===

impl Version {
    /// Returns true if the span has ended. A duration of zero alone does not make a span partial:
    /// JavaScript clocks have a resolution of milliseconds.
    pub(super) fn ended(&self) -> bool {
        self.end_unix_nanos != 0 && !self.class.partial
    }

    pub(super) fn is_remote(&self) -> bool {
        const REMOTE: u16 = (Span::HAS_IS_REMOTE | Span::IS_REMOTE) as u16;
        self.flags & REMOTE == REMOTE
    }

    /// Returns true if the sender marks the parent as part of the same process.
    pub(super) fn is_local(&self) -> bool {
        u32::from(self.flags) & Span::HAS_IS_REMOTE != 0 && !self.is_remote()
    }

    /// Returns true for an agent run or model span. A tool call does not prove an agent: a tool's
    /// server records tool calls too.
    pub(super) fn is_agent_work(&self) -> bool {
        self.class.agent_run || self.class.model
    }
}
