//! Derives from the parents of a trace's spans which spans are top spans, and whether a top span
//! has ended, no top span is open, and no local parent is missing. The shape is computed from all
//! spans when a trace may be done.
//!
//! No function recurses, and no walk visits a span twice: a walk along a cycle of parents ends at
//! the first span that it marked. Every span of a cycle has a present parent, so it is neither a
//! top span nor an orphan, and a trace that consists of cycles closes as inactive.

use std::time::Duration;

use otlp::span::{SpanId, SpanRow};
use smallvec::SmallVec;

use super::timers::ticks;

/// The parent links between the spans of a trace. Each method expects the spans from which the
/// shape was computed.
#[derive(Debug, Clone, Default)]
pub struct TraceShape {
    parent: SmallVec<[Parent; 16]>,
    /// True for a span with an agent run or a model span among its descendants. Empty unless a
    /// remote parent is missing: only then do top spans depend on their descendants.
    has_agent_descendant: Vec<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parent {
    None,
    Missing,
    At(u32),
}

impl TraceShape {
    pub(super) fn new(spans: &[SpanRow], find: impl Fn(SpanId) -> Option<usize>) -> Self {
        // Siblings often follow each other, so the last parent is cached.
        let mut last = (None, Parent::None);
        let parent_of = |span: &SpanRow| {
            if span.parent_id != last.0 {
                let parent = match span.parent_id.map(&find) {
                    None => Parent::None,
                    Some(None) => Parent::Missing,
                    Some(Some(at)) => Parent::At(at as u32),
                };
                last = (span.parent_id, parent);
            }
            last.1
        };
        let mut shape = Self {
            parent: spans.iter().map(parent_of).collect(),
            has_agent_descendant: Vec::new(),
        };
        if shape
            .missing_parents(spans)
            .any(|(_, span)| span.parent_is_remote())
        {
            shape.has_agent_descendant.resize(spans.len(), false);
            let is_work = |at: &usize| !spans[*at].is_record && spans[*at].class.is_agent_work();
            for at in (0..spans.len()).filter(is_work) {
                shape.mark_ancestors(at);
            }
        }
        shape
    }

    /// Returns the index of a span's parent, if it has arrived.
    pub fn parent(&self, at: usize) -> Option<usize> {
        match self.parent[at] {
            Parent::At(parent) => Some(parent as usize),
            Parent::None | Parent::Missing => None,
        }
    }

    /// Returns true if a top span has ended, no top span is open, and no local parent is missing.
    pub(super) fn is_quiet(&self, spans: &[SpanRow]) -> bool {
        let mut tops = self.tops(spans).peekable();
        tops.peek().is_some() && tops.all(SpanRow::ended) && !self.has_orphans(spans)
    }

    /// Returns true if a span names a parent that is not marked as remote and has not arrived.
    pub(super) fn has_orphans(&self, spans: &[SpanRow]) -> bool {
        self.missing_parents(spans)
            .any(|(_, span)| !span.parent_is_remote())
    }

    /// Returns true if a top span started before the trace history and did not end at least `guard`
    /// before it.
    pub(super) fn reaches_back(
        &self,
        spans: &[SpanRow],
        memory_unix_nanos: u64,
        guard: Duration,
    ) -> bool {
        let since = memory_unix_nanos.saturating_sub(ticks(guard));
        // A start of 0 means that the sender set none.
        self.tops(spans).any(|top| {
            (1..memory_unix_nanos).contains(&top.start_unix_nanos)
                && (!top.ended() || top.end_unix_nanos > since)
        })
    }

    /// Returns a span whose parent was certainly in the same process and has not arrived. If
    /// senders do not mark parents as remote or local, one missing parent may be an untraced
    /// caller, but two different ones cannot.
    pub(super) fn torn_span(&self, spans: &[SpanRow]) -> Option<usize> {
        let mut unmarked = None;
        let mut orphans = self
            .missing_parents(spans)
            .filter(|(_, span)| !span.parent_is_remote());
        let torn = orphans.find(|(_, span)| {
            let parent_id = span.parent_id;
            span.parent_is_local() || *unmarked.get_or_insert(parent_id) != parent_id
        });
        torn.map(|(at, _)| at)
    }

    /// Returns the top spans: spans without a parent and, below a remote parent that is missing,
    /// agent runs and the spans above runs and model calls, except tool calls.
    fn tops<'s>(&self, spans: &'s [SpanRow]) -> impl Iterator<Item = &'s SpanRow> {
        let is_above_work = |at: usize| self.has_agent_descendant.get(at) == Some(&true);
        let is_top = move |at: usize, span: &SpanRow| match self.parent[at] {
            _ if span.is_record => false,
            Parent::None => true,
            Parent::At(_) => false,
            Parent::Missing => {
                span.parent_is_remote()
                    && !span.class.tool_call
                    && (span.class.agent_run || is_above_work(at))
            }
        };
        let spans = spans.iter().enumerate();
        spans.filter_map(move |(at, span)| is_top(at, span).then_some(span))
    }

    fn missing_parents<'s>(
        &self,
        spans: &'s [SpanRow],
    ) -> impl Iterator<Item = (usize, &'s SpanRow)> {
        let spans = spans.iter().enumerate().zip(&self.parent);
        spans
            .filter(|((_, span), parent)| **parent == Parent::Missing && !span.is_record)
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
