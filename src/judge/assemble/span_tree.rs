//! The spans of one trace by id, one version of each, and the counts that say at any moment
//! whether a top span has ended and whether a parent is missing. Each count is kept up to date span
//! by span, so an insert never looks at the whole trace again. Knows nothing of timers and limits.
//!
//! A parent that has not arrived has a node all the same: its children are counted there, and it
//! takes its place in one step. Nothing here recurses, and no walk visits a node twice: a walk
//! along a cycle of parents ends at the first node that it marked. Every span of a cycle has a
//! present parent, so none is a top span and none an orphan: such a trace closes as inactive.

use std::cmp::Ordering;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashTable};
use otlp::span::SpanClass;
use otlp::span::{LentText, LogRecord, Resource, Span, SpanId, TraceArena, TraceId};
use smallvec::SmallVec;

use super::node::{Arrival, NodeIdx, SpanNode, TopCounts, Version};
use super::resources::SharedResource;
use super::timers::{Quiet, ticks};

/// Up to this many ids are searched one by one: most traces have no more, and a hash table would
/// add a quarter to the cost of the buffer.
const MAX_SEARCHED: usize = 16;

/// The spans of one trace.
#[derive(Debug, Default)]
pub(super) struct SpanTree {
    nodes: Vec<SpanNode>,
    /// The span id of each node.
    ids: Vec<SpanId>,
    /// Positions in `nodes` by span id, once there are more than a search is for.
    index: HashTable<u32>,
    /// Bytes of `nodes`, `ids` and `index`.
    nodes_size: usize,
    resources: SmallVec<[Arc<Resource>; 1]>,
    n_spans: usize,
    /// Spans whose parent is absent and local.
    n_orphans: u32,
    /// Spans without a parent.
    local_tops: TopCounts,
    /// Top spans whose parent is absent and remote; too many while `stale`.
    remote_tops: TopCounts,
    /// A newer version took back a reason for `has_agent_descendant`: these marks must be made anew
    /// before they are relied on.
    stale: bool,
    kept: TraceArena,
    resources_size: usize,
}

/// The contents of a tree.
pub(super) struct TreeItems {
    /// By start, then span id.
    pub(super) spans: Vec<(Span, SpanClass)>,
    /// By time, then record id.
    pub(super) records: Vec<LogRecord>,
}

/// The outcome of a span or record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upserted {
    /// It is new, or wins over the version that was known.
    New,
    /// An equal or winning version was known: nothing has changed.
    Known,
    /// There is no room for its attributes.
    NoRoom,
}

// === impl SpanTree ===

impl SpanTree {
    /// Keeps a span or record, unless an equal or winning version of it is known.
    pub(super) fn upsert(
        &mut self,
        arrival: &Arrival,
        resource: &SharedResource,
        hasher: &DefaultHashBuilder,
    ) -> Upserted {
        let known = self.find(arrival.id, hasher);
        if known.is_some_and(|at| !self.wins(at, arrival)) {
            return Upserted::Known;
        }
        let Some(kept) = self.kept.insert(&arrival.kept) else {
            return Upserted::NoRoom;
        };
        let at = known.unwrap_or_else(|| self.add(arrival.id, hasher));
        let parent = arrival
            .parent_id
            .map(|parent_id| self.node(parent_id, hasher));
        let resource_idx = self.resource_idx(resource);
        let mut version = Version {
            start_unix_nanos: arrival.start_unix_nanos,
            end_unix_nanos: arrival.end_unix_nanos,
            class: arrival.class,
            kept,
            parent,
            resource_idx,
            flags: arrival.flags,
            n_attributes: arrival.n_attributes,
            scope: arrival.scope,
            status: arrival.status,
            repeats_answers: arrival.repeats_answers,
            is_record: arrival.is_record,
            has_agent_descendant: self.get(at).has_agent_descendant(),
        };
        let marks_ancestors = version.marks_ancestors();
        match self.get(at) {
            &SpanNode::Awaited {
                n_orphans,
                remote_tops,
                ..
            } => {
                // Its children are no orphans any more.
                self.n_orphans -= n_orphans;
                self.remote_tops.n_ended -= remote_tops.n_ended;
                self.remote_tops.n_open -= remote_tops.n_open;
                self.n_spans += 1;
                *self.get_mut(at) = SpanNode::Arrived(version);
            }
            SpanNode::Arrived(old) => {
                let old_kept = old.kept;
                if old.marks_ancestors() && (old.parent != version.parent || !marks_ancestors) {
                    self.stale = true;
                }
                self.tally(at, |n| *n -= 1);
                if let SpanNode::Arrived(old) = self.get_mut(at) {
                    std::mem::swap(old, &mut version);
                }
                if self.kept.remove(old_kept, self.nodes.len()) {
                    self.kept.rewrite(
                        self.nodes
                            .iter_mut()
                            .filter_map(SpanNode::version_mut)
                            .map(|version| &mut version.kept),
                    );
                }
            }
        }
        self.tally(at, |n| *n += 1);
        if marks_ancestors {
            self.mark_ancestors(parent);
        }
        Upserted::New
    }

    /// Would [`Self::upsert`] keep this span?
    pub(super) fn is_new(&self, arrival: &Arrival, hasher: &DefaultHashBuilder) -> bool {
        self.find(arrival.id, hasher)
            .is_none_or(|at| self.wins(at, arrival))
    }

    /// The kind of top span that has ended, if one has, no other is still open, and no local parent
    /// is missing.
    pub(super) fn quiet(&mut self) -> Option<Quiet> {
        if self.n_orphans > 0 || self.local_tops.n_open > 0 {
            return None;
        }
        // Only for remote tops do the marks of agent descendants matter. A version that takes one
        // back is so rare that a pass over the whole trace may answer it.
        if self.stale && self.remote_tops.n_ended + self.remote_tops.n_open > 0 {
            self.recount();
        }
        match (self.local_tops.n_ended, self.remote_tops) {
            (_, TopCounts { n_open: 1.., .. }) => None,
            (1.., _) => Some(Quiet::Local),
            (0, TopCounts { n_ended: 1.., .. }) => Some(Quiet::Remote),
            (0, TopCounts { n_ended: 0, .. }) => None,
        }
    }

    /// Does a span name a local parent that has not arrived?
    pub(super) fn parent_missing(&self) -> bool {
        self.n_orphans > 0
    }

    /// The services that sent it, each once.
    pub(super) fn services(&self) -> impl Iterator<Item = &str> {
        let resources = self.resources.iter().enumerate();
        resources
            .filter(|(idx, resource)| {
                let earlier = &self.resources[..*idx];
                earlier
                    .iter()
                    .all(|other| other.service != resource.service)
            })
            .map(|(_, resource)| &*resource.service)
    }

    /// The service of a span whose parent was certainly in the same process and has not arrived.
    /// Where senders do not mark parents as remote or local, a single missing parent may be a
    /// caller that is not traced here; two are not.
    pub(super) fn torn_service(&self) -> Option<&str> {
        let mut unmarked = None;
        for version in self.nodes.iter().filter_map(SpanNode::version) {
            let Some(parent) = version.parent.filter(|_| !version.is_record) else {
                continue;
            };
            if self.get(parent).version().is_some() || version.is_remote() {
                continue;
            }
            if version.is_local() || *unmarked.get_or_insert(parent) != parent {
                return Some(&self.resources[version.resource_idx as usize].service);
            }
        }
        None
    }

    /// Did a top span start before our memory of traces, and not end at least `guard` before it?
    pub(super) fn reaches_back(&mut self, memory_unix_nanos: u64, guard: Duration) -> bool {
        if self.stale {
            self.recount();
        }
        let since = memory_unix_nanos.saturating_sub(ticks(guard));
        self.nodes
            .iter()
            .filter_map(SpanNode::version)
            .any(|version| {
                // A start of 0 means that the sender gave none.
                self.is_top(version)
                    && (1..memory_unix_nanos).contains(&version.start_unix_nanos)
                    && (!version.ended() || version.end_unix_nanos > since)
            })
    }

    /// The spans and records, with copies of their attributes.
    pub(super) fn copy(&self, trace_id: TraceId) -> TreeItems {
        self.unpack(trace_id, &self.kept.copy())
    }

    /// Like [`Self::copy`], but lends the attributes: the tree cannot be used before
    /// [`Self::take_back`].
    pub(super) fn lend(&mut self, trace_id: TraceId) -> TreeItems {
        let lent = self.kept.lend();
        self.unpack(trace_id, &lent)
    }

    /// Takes back the lent attributes, once the spans are dropped.
    pub(super) fn take_back(&mut self) {
        self.kept.take_back();
    }

    /// Number of spans and log records.
    pub(super) fn len(&self) -> usize {
        self.n_spans
    }

    /// Bytes on the heap.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.nodes_size + self.kept.size() + self.resources_size
    }

    /// Does this version win over the known one? The order is total over everything that is kept of
    /// a version, so the winner does not depend on the order of arrival. Equal versions differ only
    /// in the note of their recognition, which changes no result.
    fn wins(&self, at: NodeIdx, arrival: &Arrival) -> bool {
        let SpanNode::Arrived(old) = self.get(at) else {
            return true;
        };
        let ours = (
            old.end_unix_nanos,
            old.class.update,
            old.n_attributes,
            !old.class.partial,
            old.start_unix_nanos,
        );
        let theirs = (
            arrival.end_unix_nanos,
            arrival.class.update,
            arrival.n_attributes,
            !arrival.class.partial,
            arrival.start_unix_nanos,
        );
        let kept = || {
            let ours = (
                self.span_id(old.parent),
                old.flags,
                old.status,
                old.class.tool_call,
                old.class.agent_run,
                old.class.model,
                old.scope,
            );
            let theirs = (
                arrival.parent_id,
                arrival.flags,
                arrival.status,
                arrival.class.tool_call,
                arrival.class.agent_run,
                arrival.class.model,
                arrival.scope,
            );
            theirs
                .cmp(&ours)
                .then_with(|| self.kept.compare(&arrival.kept, old.kept))
        };
        let resource = || {
            compare_resources(
                &arrival.resource,
                &self.resources[old.resource_idx as usize],
            )
        };
        theirs
            .cmp(&ours)
            .then_with(kept)
            .then_with(resource)
            .is_gt()
    }

    /// The node with this id, added as awaited if it is new.
    fn node(&mut self, span_id: SpanId, hasher: &DefaultHashBuilder) -> NodeIdx {
        self.find(span_id, hasher)
            .unwrap_or_else(|| self.add(span_id, hasher))
    }

    fn add(&mut self, span_id: SpanId, hasher: &DefaultHashBuilder) -> NodeIdx {
        let is_full = self.nodes.len() == self.nodes.capacity();
        if is_full {
            // By a quarter, not by doubling: with many open traces, unused capacity would be most
            // of the memory.
            let n_more = match self.nodes.len() {
                0 => 8,
                n_nodes => (n_nodes / 4).max(4),
            };
            self.nodes.reserve_exact(n_more);
            self.ids.reserve_exact(n_more);
        }
        let position = self.nodes.len() as u32;
        self.nodes.push(SpanNode::Awaited {
            n_orphans: 0,
            remote_tops: TopCounts::default(),
            has_agent_descendant: false,
        });
        self.ids.push(span_id);
        let unindexed = match self.ids.len() {
            ..=MAX_SEARCHED => 0..0,
            n_ids if self.index.is_empty() => 0..n_ids as u32,
            _ => position..position + 1,
        };
        let hash = |at: u32| hasher.hash_one(self.ids[at as usize]);
        for at in unindexed {
            self.index.insert_unique(hash(at), at, |&at| hash(at));
        }
        if is_full || self.ids.len() > MAX_SEARCHED {
            let ids_size = self.ids.capacity() * size_of::<SpanId>();
            self.nodes_size = self.nodes.capacity() * size_of::<SpanNode>()
                + ids_size
                + self.index.allocation_size();
        }
        NodeIdx::MIN.saturating_add(position)
    }

    fn find(&self, span_id: SpanId, hasher: &DefaultHashBuilder) -> Option<NodeIdx> {
        let position = if self.ids.len() <= MAX_SEARCHED {
            self.ids.iter().position(|&id| id == span_id)? as u32
        } else {
            *self.index.find(hasher.hash_one(span_id), |&at| {
                self.ids[at as usize] == span_id
            })?
        };
        Some(NodeIdx::MIN.saturating_add(position))
    }

    fn get(&self, at: NodeIdx) -> &SpanNode {
        &self.nodes[at.get() as usize - 1]
    }

    fn get_mut(&mut self, at: NodeIdx) -> &mut SpanNode {
        &mut self.nodes[at.get() as usize - 1]
    }

    fn span_id(&self, at: Option<NodeIdx>) -> Option<SpanId> {
        at.map(|at| self.ids[at.get() as usize - 1])
    }

    /// Position of a resource, added if it is new. Spans of one request share their resource; other
    /// requests have equal ones, of which one is kept.
    fn resource_idx(&mut self, SharedResource { resource, cost }: &SharedResource) -> u32 {
        if let Some(last) = self.resources.last()
            && Arc::ptr_eq(last, resource)
        {
            return (self.resources.len() - 1) as u32;
        }
        // Looking at the last few is enough for every real sender, and bounds the cost of a hostile
        // one.
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
            _ if version.is_record => false,
            None => true,
            Some(parent) => {
                self.get(parent).version().is_none()
                    && version.is_remote()
                    && !version.class.tool_call
                    && (version.class.agent_run || version.has_agent_descendant)
            }
        }
    }

    /// Adds a span to the counts, or takes it out of them.
    fn tally(&mut self, at: NodeIdx, apply: fn(&mut u32)) {
        let SpanNode::Arrived(version) = self.get(at) else {
            return;
        };
        if version.is_record {
            return;
        }
        let (ended, remote, top) = (version.ended(), version.is_remote(), self.is_top(version));
        let Some(parent) = version.parent else {
            apply(self.local_tops.of(ended));
            return;
        };
        let SpanNode::Awaited {
            n_orphans,
            remote_tops,
            ..
        } = self.get_mut(parent)
        else {
            return;
        };
        if !remote {
            apply(n_orphans);
            apply(&mut self.n_orphans);
        } else if top {
            apply(remote_tops.of(ended));
            apply(self.remote_tops.of(ended));
        }
    }

    /// Marks all ancestors as having an agent descendant. The ancestors of a marked node are
    /// marked: each node is visited once in its life.
    fn mark_ancestors(&mut self, mut parent: Option<NodeIdx>) {
        while let Some(at) = parent
            && !self.get(at).has_agent_descendant()
        {
            self.tally(at, |n| *n -= 1);
            *self.get_mut(at).has_agent_descendant_mut() = true;
            self.tally(at, |n| *n += 1);
            parent = self.get(at).version().and_then(|version| version.parent);
        }
    }

    /// Makes all marks and counts anew.
    fn recount(&mut self) {
        self.n_orphans = 0;
        self.local_tops = TopCounts::default();
        self.remote_tops = TopCounts::default();
        self.stale = false;
        for node in &mut self.nodes {
            *node.has_agent_descendant_mut() = false;
            if let SpanNode::Awaited {
                n_orphans,
                remote_tops,
                ..
            } = node
            {
                (*n_orphans, *remote_tops) = (0, TopCounts::default());
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
                .filter(|version| version.is_agent_work())
            {
                self.mark_ancestors(version.parent);
            }
        }
    }

    fn unpack(&self, trace_id: TraceId, lent: &LentText) -> TreeItems {
        let mut spans = Vec::with_capacity(self.n_spans);
        let mut records = Vec::new();
        for (node, &span_id) in self.nodes.iter().zip(&self.ids) {
            let Some(version) = node.version() else {
                continue;
            };
            let parent_id = self.span_id(version.parent);
            let resource = Arc::clone(&self.resources[version.resource_idx as usize]);
            let kept = self.kept.read(lent, version.kept);
            if version.is_record {
                records.push(LogRecord {
                    record_id: span_id,
                    time_unix_nanos: version.end_unix_nanos,
                    span_id: parent_id,
                    resource,
                    kept,
                });
                continue;
            }
            let span = Span {
                trace_id,
                span_id,
                parent_id,
                start_unix_nanos: version.start_unix_nanos,
                end_unix_nanos: version.end_unix_nanos,
                flags: version.flags,
                n_attributes: version.n_attributes,
                repeats_answers: version.repeats_answers,
                status: version.status,
                scope: version.scope,
                resource,
                kept,
            };
            spans.push((span, version.class));
        }
        spans.sort_unstable_by_key(|(span, _)| (span.start_unix_nanos, span.span_id));
        records.sort_unstable_by_key(|record| (record.time_unix_nanos, record.record_id));
        TreeItems { spans, records }
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
