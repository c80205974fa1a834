//! A node of a trace's tree: a span as the buffer keeps it, or the id of a parent that has
//! not arrived. Knows what a span says of itself; knows nothing of other spans.

use std::num::NonZeroU32;
use std::sync::Arc;

use otlp::span::SpanClass;
use otlp::span::{
    ArenaPlace, KeptAttributes, LogRecord, Resource, ScopeHash, Span, SpanId, Status,
};

/// A span or log record that arrives.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) id: SpanId,
    pub(super) parent_id: Option<SpanId>,
    pub(super) start_unix_nanos: u64,
    pub(super) end_unix_nanos: u64,
    pub(super) flags: u32,
    pub(super) n_attributes: u32,
    pub(super) repeats_answers: Option<bool>,
    pub(super) status: Status,
    pub(super) scope: ScopeHash,
    pub(super) class: SpanClass,
    /// A log record is no top span and misses no parent.
    pub(super) is_record: bool,
    pub(super) resource: Arc<Resource>,
    pub(super) kept: KeptAttributes,
}

/// A place in the tree of a trace.
#[derive(Debug)]
pub(super) enum SpanNode {
    /// Named as a parent, not arrived itself.
    Awaited {
        /// Children that are orphans until it arrives.
        n_orphans: u32,
        /// Remote children that are top spans until it arrives.
        remote_tops: TopCounts,
        /// Is one of its descendants an agent run or a model span?
        has_agent_descendant: bool,
    },
    Arrived(Version),
}

/// One version of a span, packed.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) start_unix_nanos: u64,
    pub(super) end_unix_nanos: u64,
    pub(super) class: SpanClass,
    /// Where its kept attributes are among the trace's.
    pub(super) kept: ArenaPlace,
    /// Position in `SpanTree::nodes`.
    pub(super) parent: Option<NodeIdx>,
    /// Position in `SpanTree::resources`.
    pub(super) resource_idx: u32,
    pub(super) flags: u32,
    pub(super) n_attributes: u32,
    pub(super) scope: ScopeHash,
    pub(super) status: Status,
    pub(super) repeats_answers: Option<bool>,
    pub(super) is_record: bool,
    /// Is one of its descendants an agent run or a model span?
    pub(super) has_agent_descendant: bool,
}

/// Counts top spans.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct TopCounts {
    pub(super) n_ended: u32,
    pub(super) n_open: u32,
}

/// One more than a position in `SpanTree::nodes`, so that `Option` takes no space.
pub(super) type NodeIdx = NonZeroU32;

// === impl Arrival ===

impl Arrival {
    #[inline]
    pub(super) fn of_span(span: Span, class: SpanClass) -> Self {
        Self {
            id: span.span_id,
            parent_id: span.parent_id,
            start_unix_nanos: span.start_unix_nanos,
            end_unix_nanos: span.end_unix_nanos,
            flags: span.flags,
            n_attributes: span.n_attributes,
            repeats_answers: span.repeats_answers,
            status: span.status,
            scope: span.scope,
            class,
            is_record: false,
            resource: span.resource,
            kept: span.kept,
        }
    }

    pub(super) fn of_record(record: LogRecord) -> Self {
        Self {
            id: record.record_id,
            parent_id: record.span_id,
            start_unix_nanos: record.time_unix_nanos,
            end_unix_nanos: record.time_unix_nanos,
            flags: 0,
            n_attributes: 0,
            repeats_answers: None,
            status: Status::Unset,
            scope: ScopeHash::default(),
            class: SpanClass::default(),
            is_record: true,
            resource: record.resource,
            kept: record.kept,
        }
    }
}

// === impl SpanNode ===

impl SpanNode {
    pub(super) fn version(&self) -> Option<&Version> {
        match self {
            Self::Arrived(version) => Some(version),
            Self::Awaited { .. } => None,
        }
    }

    pub(super) fn version_mut(&mut self) -> Option<&mut Version> {
        match self {
            Self::Arrived(version) => Some(version),
            Self::Awaited { .. } => None,
        }
    }

    pub(super) fn has_agent_descendant(&self) -> bool {
        match *self {
            Self::Arrived(Version {
                has_agent_descendant,
                ..
            })
            | Self::Awaited {
                has_agent_descendant,
                ..
            } => has_agent_descendant,
        }
    }

    pub(super) fn has_agent_descendant_mut(&mut self) -> &mut bool {
        match self {
            Self::Arrived(Version {
                has_agent_descendant,
                ..
            })
            | Self::Awaited {
                has_agent_descendant,
                ..
            } => has_agent_descendant,
        }
    }
}

// === impl TopCounts ===

impl TopCounts {
    /// The count of top spans that have ended, or of those that have not.
    pub(super) fn of(&mut self, ended: bool) -> &mut u32 {
        if ended { &mut self.n_ended } else { &mut self.n_open }
    }
}

// === impl Version ===

impl Version {
    /// A length of zero alone does not make a span partial: JavaScript clocks have milliseconds.
    pub(super) fn ended(&self) -> bool {
        self.end_unix_nanos != 0 && !self.class.partial
    }

    pub(super) fn is_remote(&self) -> bool {
        const REMOTE: u32 = Span::HAS_IS_REMOTE | Span::IS_REMOTE;
        self.flags & REMOTE == REMOTE
    }

    /// Does its sender say that its parent was in the same process?
    pub(super) fn is_local(&self) -> bool {
        self.flags & Span::HAS_IS_REMOTE != 0 && !self.is_remote()
    }

    /// Is it an agent run or a model span? Tool calls alone do not show an agent: a tool's server
    /// makes them too.
    pub(super) fn is_agent_work(&self) -> bool {
        self.class.agent_run || self.class.model
    }

    /// Does it make its ancestors have an agent descendant?
    pub(super) fn marks_ancestors(&self) -> bool {
        self.is_agent_work() || self.has_agent_descendant
    }
}
