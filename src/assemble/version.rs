//! Pure. One span as a trace keeps it: packed, or only awaited as somebody's parent. Knows what a
//! span says of itself; knows nothing of the others.

use std::num::NonZeroU32;

use crate::span::{ArenaPlace, Span, Status};

/// A place in the tree of a trace.
#[derive(Debug)]
pub(super) enum Node {
    /// Named as a parent, not seen itself.
    Awaited {
        /// Children that are orphans until it comes.
        n_orphans: u32,
        /// Remote children that are ended tops until it comes.
        n_remote_tops: u32,
        /// Is an agent run, a model span or a tool call beneath it?
        beneath: bool,
    },
    Here(Version),
}

/// One version of a span, packed.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) start_unix_nanos: u64,
    pub(super) end_unix_nanos: u64,
    pub(super) update: u64,
    /// Where its facts are among the trace's.
    pub(super) kept: ArenaPlace,
    /// Position in `nodes`.
    pub(super) parent: Option<NodeIdx>,
    /// Position in `resources`.
    pub(super) resource_idx: u32,
    pub(super) flags: u32,
    pub(super) n_attributes: u32,
    pub(super) status: Status,
    pub(super) tool_call: bool,
    pub(super) agent_run: bool,
    pub(super) model: bool,
    pub(super) partial: bool,
    /// A log record, which is no top and misses no parent.
    pub(super) record: bool,
    pub(super) edition: u8,
    /// Is an agent run, a model span or a tool call beneath it?
    pub(super) beneath: bool,
}

/// A position in `nodes`, one more than that, so that `Option` costs nothing.
pub(super) type NodeIdx = NonZeroU32;

// === impl Node ===

impl Node {
    pub(super) fn version(&self) -> Option<&Version> {
        match self {
            Self::Here(version) => Some(version),
            Self::Awaited { .. } => None,
        }
    }

    pub(super) fn version_mut(&mut self) -> Option<&mut Version> {
        match self {
            Self::Here(version) => Some(version),
            Self::Awaited { .. } => None,
        }
    }

    pub(super) fn beneath(&self) -> bool {
        match *self {
            Self::Here(Version { beneath, .. }) | Self::Awaited { beneath, .. } => beneath,
        }
    }

    pub(super) fn beneath_mut(&mut self) -> &mut bool {
        match self {
            Self::Here(Version { beneath, .. }) | Self::Awaited { beneath, .. } => beneath,
        }
    }
}

// === impl Version ===

impl Version {
    /// Zero length alone is not partial: JavaScript clocks are milliseconds.
    pub(super) fn ended(&self) -> bool {
        self.end_unix_nanos != 0 && !self.partial
    }

    pub(super) fn is_remote(&self) -> bool {
        const REMOTE: u32 = Span::HAS_IS_REMOTE | Span::IS_REMOTE;
        self.flags & REMOTE == REMOTE
    }

    pub(super) fn is_interesting(&self) -> bool {
        self.tool_call || self.agent_run || self.model
    }

    pub(super) fn lifts(&self) -> bool {
        self.is_interesting() || self.beneath
    }
}
