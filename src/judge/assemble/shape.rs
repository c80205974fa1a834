//! Derives from the parents of a trace's spans which spans are top spans, and whether a top span
//! has ended and no parent is missing. Computed from all spans at once, when a trace may be done.
//!
//! No function recurses, and no walk visits a span twice: a walk along a cycle of parents ends at
//! the first span that it marked. Every span of a cycle has a present parent, so it is neither a
//! top span nor an orphan: such a trace closes as inactive.

use std::time::Duration;

use otlp::span::SpanId;
use smallvec::SmallVec;

use super::timers::ticks;
use super::version::Version;

#[derive(Debug)]
pub(super) struct TraceShape<'v> {
    versions: &'v [Version],
    /// The index of each span's parent.
    parent: SmallVec<[Parent; 16]>,
    /// True for a span with an agent run or a model span among its descendants. Empty if no remote
    /// parent is missing, because it matters only then.
    has_agent_descendant: Vec<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parent {
    None,
    Missing,
    At(u32),
}

impl<'v> TraceShape<'v> {
    pub(super) fn new(versions: &'v [Version], find: impl Fn(SpanId) -> Option<usize>) -> Self {
        // Siblings often follow each other; the cache finds their parent once.
        let mut last = (None, Parent::None);
        let parent_of = |version: &Version| {
            if version.parent_id != last.0 {
                let parent = match version.parent_id.map(&find) {
                    None => Parent::None,
                    Some(None) => Parent::Missing,
                    Some(Some(at)) => Parent::At(at as u32),
                };
                last = (version.parent_id, parent);
            }
            last.1
        };
        let mut shape = Self {
            versions,
            parent: versions.iter().map(parent_of).collect(),
            has_agent_descendant: Vec::new(),
        };
        if shape
            .missing_parents()
            .any(|(_, version)| version.is_remote())
        {
            shape.has_agent_descendant.resize(versions.len(), false);
            for at in (0..versions.len()).filter(|&at| versions[at].is_agent_work()) {
                shape.mark_ancestors(at);
            }
        }
        shape
    }

    /// Returns true if a top span has ended, no top span is open, and no local parent is missing.
    pub(super) fn is_quiet(&self) -> bool {
        let mut tops = self.tops().peekable();
        tops.peek().is_some() && tops.all(Version::ended) && !self.has_orphans()
    }

    /// Returns true if a span names a local parent that has not arrived.
    pub(super) fn has_orphans(&self) -> bool {
        self.missing_parents()
            .any(|(_, version)| !version.is_remote())
    }

    /// Returns true if a top span started before the trace history and did not end at least `guard`
    /// before it.
    pub(super) fn reaches_back(&self, memory_unix_nanos: u64, guard: Duration) -> bool {
        let since = memory_unix_nanos.saturating_sub(ticks(guard));
        // A start of 0 means that the sender set none.
        self.tops().any(|top| {
            (1..memory_unix_nanos).contains(&top.start_unix_nanos)
                && (!top.ended() || top.end_unix_nanos > since)
        })
    }

    /// Returns a span whose parent was certainly in the same process and has not arrived. If
    /// senders do not mark parents as remote or local, a single missing parent may be an untraced
    /// caller; two cannot.
    pub(super) fn torn_span(&self) -> Option<usize> {
        let mut unmarked = None;
        let mut orphans = self
            .missing_parents()
            .filter(|(_, version)| !version.is_remote());
        let torn = orphans.find(|(_, version)| {
            let parent_id = version.parent_id;
            version.is_local() || *unmarked.get_or_insert(parent_id) != parent_id
        });
        torn.map(|(at, _)| at)
    }

    /// Returns the top spans: spans without a parent and, below a remote parent that is missing,
    /// agent runs and the spans above runs and model calls.
    fn tops(&self) -> impl Iterator<Item = &'v Version> {
        let is_above_work = |at: usize| self.has_agent_descendant.get(at) == Some(&true);
        let is_top = move |at: usize, version: &Version| match self.parent[at] {
            _ if version.is_record => false,
            Parent::None => true,
            Parent::At(_) => false,
            Parent::Missing => {
                version.is_remote()
                    && !version.class.tool_call
                    && (version.class.agent_run || is_above_work(at))
            }
        };
        let spans = self.versions.iter().enumerate();
        spans.filter_map(move |(at, version)| is_top(at, version).then_some(version))
    }

    /// Returns the spans that name a parent which has not arrived.
    fn missing_parents(&self) -> impl Iterator<Item = (usize, &'v Version)> {
        let spans = self.versions.iter().enumerate().zip(&self.parent);
        spans
            .filter(|((_, version), parent)| **parent == Parent::Missing && !version.is_record)
            .map(|(span, _)| span)
    }

    fn mark_ancestors(&mut self, below: usize) {
        let mut parent = self.parent[below];
        while let Parent::At(at) = parent
            && !std::mem::replace(&mut self.has_agent_descendant[at as usize], true)
        {
            parent = self.parent[at as usize];
        }
    }
}
