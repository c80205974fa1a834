//! Pure. The spans of one trace by id, one version of each, and what can be told from them at any
//! moment: which spans are tops, whether one has ended, whether a parent is missing. Every count is
//! kept up to date span by span, so that an insert never looks at the whole trace again.
//!
//! A parent that has not come has a node all the same, so that its children can be counted there
//! and it can take its place in one step. Nothing here recurses, and no walk visits a node twice: a
//! cycle of parents is a walk that ends where it finds its own mark. Every span of a cycle has a
//! present parent, so none is a top and none is an orphan: such a trace closes as inactive.

use std::cmp::Ordering;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;

use super::Mark;
use super::resources::Common;
use super::timers::{Quiet, ticks};
use super::version::{Node, NodeIdx, Version};
use crate::span::{LentText, Resource, Span, SpanId, TraceArena, TraceId};

/// Among so many ids one is found by looking at all: most traces are no larger, and a table with
/// its hashes would add a quarter to what the buffer costs.
const A_FEW: usize = 16;

/// The spans of one trace.
#[derive(Debug, Default)]
pub(super) struct Spans {
    nodes: Vec<Node>,
    /// The span id of each node.
    ids: Vec<SpanId>,
    /// Positions in `nodes`, by span id, of a trace that has more than a few.
    index: HashTable<u32>,
    /// Bytes of these three.
    nodes_size: usize,
    resources: SmallVec<[Arc<Resource>; 1]>,
    n_spans: usize,
    /// Spans whose parent is absent and local.
    n_orphans: u32,
    /// Ended spans without a parent.
    n_tops_ended: u32,
    /// Ended top spans whose parent is absent and remote; too many while `stale`.
    n_remote_tops_ended: u32,
    /// A newer version took back what made a span's ancestors `beneath`: the marks must be made
    /// anew before they are relied on.
    stale: bool,
    kept: TraceArena,
    resources_size: usize,
}

/// What a span was to the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// The first version of a span, or one that wins over that which was known.
    New,
    /// Nothing that was not known.
    Known,
    /// There is no room for it.
    TooMuch,
}

// === impl Spans ===

impl Spans {
    /// Keep a span, unless an equal or winning version of it is there.
    pub(super) fn upsert(
        &mut self,
        span: Span,
        mark: Mark,
        common: &Common,
        hasher: &DefaultHashBuilder,
    ) -> News {
        let known = self.find(span.span_id, hasher);
        if known.is_some_and(|at| !self.wins(at, &span, mark)) {
            return News::Known;
        }
        let Some(kept) = self.kept.insert(span.kept) else {
            return News::TooMuch;
        };
        let at = known.unwrap_or_else(|| self.add(span.span_id, hasher));
        let parent = span.parent_id.map(|parent_id| self.node(parent_id, hasher));
        let resource_idx = self.resource(common);
        let mut version = Version {
            start_unix_nanos: span.start_unix_nanos,
            end_unix_nanos: span.end_unix_nanos,
            update: mark.update,
            kept,
            parent,
            resource_idx,
            flags: span.flags,
            n_attributes: span.n_attributes,
            status: span.status,
            tool_call: mark.tool_call,
            agent_run: mark.agent_run,
            model: mark.model,
            partial: mark.partial,
            record: mark.record,
            edition: mark.edition,
            beneath: self.get(at).beneath(),
        };
        let lifts = version.lifts();
        match self.get(at) {
            &Node::Awaited {
                n_orphans,
                n_remote_tops,
                ..
            } => {
                // Its children have a parent from now on.
                self.n_orphans -= n_orphans;
                self.n_remote_tops_ended -= n_remote_tops;
                self.n_spans += 1;
                *self.get_mut(at) = Node::Here(version);
            }
            Node::Here(old) => {
                let old_kept = old.kept;
                if old.lifts() && (old.parent != version.parent || !lifts) {
                    self.stale = true;
                }
                self.tally(at, |n| *n -= 1);
                if let Node::Here(old) = self.get_mut(at) {
                    std::mem::swap(old, &mut version);
                }
                if self.kept.remove(old_kept, self.nodes.len()) {
                    self.kept.rewrite(
                        self.nodes
                            .iter_mut()
                            .filter_map(Node::version_mut)
                            .map(|version| &mut version.kept),
                    );
                }
            }
        }
        self.tally(at, |n| *n += 1);
        if lifts {
            self.lift(parent);
        }
        News::New
    }

    /// Would this span change anything?
    pub(super) fn is_news(&self, span: &Span, mark: Mark, hasher: &DefaultHashBuilder) -> bool {
        self.find(span.span_id, hasher)
            .is_none_or(|at| self.wins(at, span, mark))
    }

    /// Has a top span ended while no local parent is missing, and of which kind is it?
    pub(super) fn quiet(&mut self) -> Option<Quiet> {
        if self.n_orphans > 0 {
            return None;
        }
        if self.n_tops_ended > 0 {
            return Some(Quiet::Local);
        }
        // Only here do the marks matter. That a version takes one back is so rare that a pass over
        // the whole trace may answer it.
        if self.n_remote_tops_ended > 0 && self.stale {
            self.recount();
        }
        (self.n_remote_tops_ended > 0).then_some(Quiet::Remote)
    }

    /// Does some span name a parent that never came and is not marked remote?
    pub(super) fn parent_missing(&self) -> bool {
        self.n_orphans > 0
    }

    /// Did a top span start before our memory of traces, and not end well before it?
    pub(super) fn reaches_back(&mut self, memory_unix_nanos: u64, guard: Duration) -> bool {
        if self.stale {
            self.recount();
        }
        let since = memory_unix_nanos.saturating_sub(ticks(guard));
        self.nodes.iter().filter_map(Node::version).any(|version| {
            // A start of 0 is none at all, and says nothing.
            self.is_top(version)
                && (1..memory_unix_nanos).contains(&version.start_unix_nanos)
                && (!version.ended() || version.end_unix_nanos > since)
        })
    }

    /// The spans by start, then id, then the log records likewise, with copies of their facts.
    pub(super) fn copy(&self, trace_id: TraceId) -> Vec<(Span, Mark)> {
        self.unpack(trace_id, &self.kept.copy())
    }

    /// The same with the facts themselves: until they are taken back, this trace is of no use.
    pub(super) fn lend(&mut self, trace_id: TraceId) -> Vec<(Span, Mark)> {
        let lent = self.kept.lend();
        self.unpack(trace_id, &lent)
    }

    /// Take back what was lent, once the spans are dropped.
    pub(super) fn take_back(&mut self) {
        self.kept.take_back();
    }

    /// How many spans there are.
    pub(super) fn len(&self) -> usize {
        self.n_spans
    }

    /// Bytes this holds on to beyond itself.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.nodes_size + self.kept.size() + self.resources_size
    }

    /// Does this version win over the one that is there? The order is total over all that is kept
    /// of a version, so that the winner is the same in whatever order they come, and equal versions
    /// cannot be told apart but by the edition they were recognised by, which changes no result.
    fn wins(&self, at: NodeIdx, span: &Span, mark: Mark) -> bool {
        let Node::Here(old) = self.get(at) else {
            return true;
        };
        let ours = (
            old.end_unix_nanos,
            old.update,
            old.n_attributes,
            !old.partial,
            old.start_unix_nanos,
        );
        let theirs = (
            span.end_unix_nanos,
            mark.update,
            span.n_attributes,
            !mark.partial,
            span.start_unix_nanos,
        );
        let kept = || {
            let ours = (
                self.span_id(old.parent),
                old.flags,
                old.status,
                old.tool_call,
                old.agent_run,
                old.model,
            );
            let theirs = (
                span.parent_id,
                span.flags,
                span.status,
                mark.tool_call,
                mark.agent_run,
                mark.model,
            );
            theirs
                .cmp(&ours)
                .then_with(|| self.kept.compare(&span.kept, old.kept))
        };
        let resource =
            || compare_resources(&span.resource, &self.resources[old.resource_idx as usize]);
        theirs
            .cmp(&ours)
            .then_with(kept)
            .then_with(resource)
            .is_gt()
    }

    /// The node of this id; a new one is awaited.
    fn node(&mut self, span_id: SpanId, hasher: &DefaultHashBuilder) -> NodeIdx {
        self.find(span_id, hasher)
            .unwrap_or_else(|| self.add(span_id, hasher))
    }

    fn add(&mut self, span_id: SpanId, hasher: &DefaultHashBuilder) -> NodeIdx {
        let is_full = self.nodes.len() == self.nodes.capacity();
        if is_full {
            // By a quarter, not by doubling: with many open traces the slack would be most of what
            // they hold.
            let n_more = (self.nodes.len() / 4).max(4);
            self.nodes.reserve_exact(n_more);
            self.ids.reserve_exact(n_more);
        }
        let position = self.nodes.len() as u32;
        self.nodes.push(Node::Awaited {
            n_orphans: 0,
            n_remote_tops: 0,
            beneath: false,
        });
        self.ids.push(span_id);
        let unindexed = match self.ids.len() {
            ..=A_FEW => 0..0,
            n_ids if self.index.is_empty() => 0..n_ids as u32,
            _ => position..position + 1,
        };
        let hash = |at: u32| hasher.hash_one(self.ids[at as usize]);
        for at in unindexed {
            self.index.insert_unique(hash(at), at, |&at| hash(at));
        }
        if is_full || self.ids.len() > A_FEW {
            let ids_size = self.ids.capacity() * size_of::<SpanId>();
            self.nodes_size =
                self.nodes.capacity() * size_of::<Node>() + ids_size + self.index.allocation_size();
        }
        NodeIdx::MIN.saturating_add(position)
    }

    fn find(&self, span_id: SpanId, hasher: &DefaultHashBuilder) -> Option<NodeIdx> {
        let position = if self.ids.len() <= A_FEW {
            self.ids.iter().position(|&id| id == span_id)? as u32
        } else {
            *self.index.find(hasher.hash_one(span_id), |&at| {
                self.ids[at as usize] == span_id
            })?
        };
        Some(NodeIdx::MIN.saturating_add(position))
    }

    fn get(&self, at: NodeIdx) -> &Node {
        &self.nodes[at.get() as usize - 1]
    }

    fn get_mut(&mut self, at: NodeIdx) -> &mut Node {
        &mut self.nodes[at.get() as usize - 1]
    }

    fn span_id(&self, at: Option<NodeIdx>) -> Option<SpanId> {
        at.map(|at| self.ids[at.get() as usize - 1])
    }

    /// Spans of one request share their resource, and those of other requests bring equal ones: one
    /// is kept of each.
    fn resource(&mut self, Common { resource, cost }: &Common) -> u32 {
        if let Some(last) = self.resources.last()
            && Arc::ptr_eq(last, resource)
        {
            return (self.resources.len() - 1) as u32;
        }
        // Looking at the last few is enough for every real sender, and bounds what a hostile one
        // can cost.
        let known = self
            .resources
            .iter()
            .enumerate()
            .rev()
            .take(8)
            .find(|(_, known)| Arc::ptr_eq(known, resource) || ***known == **resource);
        match known {
            Some((idx, _)) => idx as u32,
            None => {
                self.resources_size += cost;
                self.resources.push(Arc::clone(resource));
                (self.resources.len() - 1) as u32
            }
        }
    }

    fn is_top(&self, version: &Version) -> bool {
        match version.parent {
            _ if version.record => false,
            None => true,
            Some(parent) => {
                self.get(parent).version().is_none()
                    && version.is_remote()
                    && !version.tool_call
                    && version.beneath
            }
        }
    }

    /// Add what a span counts for, or take it away.
    fn tally(&mut self, at: NodeIdx, apply: fn(&mut u32)) {
        let Node::Here(version) = self.get(at) else {
            return;
        };
        if version.record {
            return;
        }
        let (ended, remote, top) = (version.ended(), version.is_remote(), self.is_top(version));
        let Some(parent) = version.parent else {
            if ended {
                apply(&mut self.n_tops_ended);
            }
            return;
        };
        let Node::Awaited {
            n_orphans,
            n_remote_tops,
            ..
        } = self.get_mut(parent)
        else {
            return;
        };
        if !remote {
            apply(n_orphans);
            apply(&mut self.n_orphans);
        } else if top && ended {
            apply(n_remote_tops);
            apply(&mut self.n_remote_tops_ended);
        }
    }

    /// Mark all ancestors as having something beneath them. Who is marked has marked ancestors:
    /// each node is visited once in its life.
    fn lift(&mut self, mut parent: Option<NodeIdx>) {
        while let Some(at) = parent
            && !self.get(at).beneath()
        {
            self.tally(at, |n| *n -= 1);
            *self.get_mut(at).beneath_mut() = true;
            self.tally(at, |n| *n += 1);
            parent = self.get(at).version().and_then(|version| version.parent);
        }
    }

    /// Make all marks and counts anew.
    fn recount(&mut self) {
        (
            self.n_orphans,
            self.n_tops_ended,
            self.n_remote_tops_ended,
            self.stale,
        ) = (0, 0, 0, false);
        for node in &mut self.nodes {
            *node.beneath_mut() = false;
            if let Node::Awaited {
                n_orphans,
                n_remote_tops,
                ..
            } = node
            {
                (*n_orphans, *n_remote_tops) = (0, 0);
            }
        }
        let n_nodes = self.nodes.len() as u32;
        for at in (1..=n_nodes).filter_map(NodeIdx::new) {
            self.tally(at, |n| *n += 1);
        }
        for at in (1..=n_nodes).filter_map(NodeIdx::new) {
            if let Some(version) = self
                .get(at)
                .version()
                .filter(|version| version.is_interesting())
            {
                self.lift(version.parent);
            }
        }
    }

    fn unpack(&self, trace_id: TraceId, lent: &LentText) -> Vec<(Span, Mark)> {
        let mut spans = Vec::with_capacity(self.n_spans);
        for (node, span_id) in self.nodes.iter().zip(&self.ids) {
            let Some(version) = node.version() else {
                continue;
            };
            let span = Span {
                trace_id,
                span_id: *span_id,
                parent_id: self.span_id(version.parent),
                start_unix_nanos: version.start_unix_nanos,
                end_unix_nanos: version.end_unix_nanos,
                flags: version.flags,
                n_attributes: version.n_attributes,
                status: version.status,
                resource: Arc::clone(&self.resources[version.resource_idx as usize]),
                kept: self.kept.read(lent, version.kept),
            };
            let Version {
                tool_call,
                agent_run,
                model,
                partial,
                update,
                record,
                edition,
                ..
            } = *version;
            spans.push((
                span,
                Mark {
                    tool_call,
                    agent_run,
                    model,
                    partial,
                    update,
                    record,
                    edition,
                },
            ));
        }
        spans.sort_unstable_by_key(|(span, mark)| {
            (mark.record, span.start_unix_nanos, span.span_id)
        });
        spans
    }
}

fn compare_resources(ours: &Arc<Resource>, theirs: &Arc<Resource>) -> Ordering {
    if Arc::ptr_eq(ours, theirs) {
        return Ordering::Equal;
    }
    let by_text = || {
        ours.service
            .cmp(&theirs.service)
            .then_with(|| ours.kept.cmp(&theirs.kept))
    };
    ours.encoded.cmp(&theirs.encoded).then_with(by_text)
}
