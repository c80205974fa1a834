//! The spans of one trace, one version of each, with counts of the spans that may be the end of the
//! trace.

use std::cmp::Ordering;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::SeedableRandomState;
use hashbrown::HashTable;
use otlp::span::{LentText, Resource, Span, SpanId, TraceId, TraceText};
use smallvec::SmallVec;

use super::resources::SharedResource;
use super::shape::TraceShape;
use super::timers::Quiet;
use super::version::{Arrival, Version};

/// Maximum number of ids for a linear search. Most traces have no more, and a hash table would add
/// a quarter to the cost of the buffer.
const MAX_SEARCHED: usize = 16;

/// The spans of one trace.
#[derive(Debug, Default)]
pub(super) struct TraceSpans {
    versions: Vec<Version>,
    /// The span id of each version.
    ids: Vec<SpanId>,
    /// Positions in `versions` by span id; empty up to [`MAX_SEARCHED`] ids.
    index: HashTable<u32>,
    /// Bytes of `versions`, `ids` and `index`.
    versions_size: usize,
    resources: SmallVec<[Arc<Resource>; 1]>,
    /// Numbers of spans without a parent: not ended, and ended.
    n_open_roots: u32,
    n_ended_roots: u32,
    /// Number of ended spans with a remote parent, tool calls excluded. They are top spans if the
    /// parent is not in this trace.
    n_ended_remote: u32,
    kept: TraceText,
    resources_size: usize,
}

/// The contents of a trace.
pub(super) struct TraceItems {
    /// Spans, and log records that report calls, sorted by start, then span id.
    pub(super) spans: Vec<Span>,
    /// Log records with messages of models, sorted in the same way.
    pub(super) records: Vec<Span>,
}

/// The result of [`TraceSpans::upsert`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upserted {
    /// The span or record is new, or wins over the known version.
    New,
    /// An equal or winning version was known: nothing has changed.
    Known,
    /// The text of the trace has no room for the attributes.
    NoRoom,
}

// === impl TraceSpans ===

impl TraceSpans {
    /// Stores a span or record unless an equal or winning version is known.
    pub(super) fn upsert(
        &mut self,
        arrival: &Arrival,
        resource: &SharedResource,
        hasher: &SeedableRandomState,
    ) -> Upserted {
        let known = self.find(arrival.id, hasher);
        if known.is_some_and(|at| !self.wins(at, arrival)) {
            return Upserted::Known;
        }
        let Some(kept) = self.kept.insert(&arrival.kept) else {
            return Upserted::NoRoom;
        };
        let version = Version {
            start_unix_nanos: arrival.start_unix_nanos,
            end_unix_nanos: arrival.end_unix_nanos,
            class: arrival.class,
            kept,
            parent_id: arrival.parent_id,
            resource_idx: self.resource_idx(resource),
            flags: arrival.flags,
            n_attributes: arrival.n_attributes,
            scope: arrival.scope,
            status: arrival.status,
            repeats_answers: arrival.repeats_answers,
            is_record: arrival.is_record,
        };
        if let Some(count) = self.count_of(&version) {
            *count += 1;
        }
        let Some(at) = known else {
            self.add(arrival.id, version, hasher);
            return Upserted::New;
        };
        let old = std::mem::replace(&mut self.versions[at], version);
        if let Some(count) = self.count_of(&old) {
            *count -= 1;
        }
        if self.kept.remove(old.kept, self.versions.len()) {
            let versions = self.versions.iter_mut();
            self.kept.rewrite(versions.map(|version| &mut version.kept));
        }
        Upserted::New
    }

    /// Returns true if [`Self::upsert`] would store this span.
    pub(super) fn is_new(&self, arrival: &Arrival, hasher: &SeedableRandomState) -> bool {
        self.find(arrival.id, hasher)
            .is_none_or(|at| self.wins(at, arrival))
    }

    /// Returns the kind of top span that may have ended. [`Self::shape`] gives the exact answer.
    pub(super) fn may_be_quiet(&self) -> Option<Quiet> {
        if self.n_open_roots > 0 {
            None
        } else if self.n_ended_roots > 0 {
            Some(Quiet::Local)
        } else {
            (self.n_ended_remote > 0).then_some(Quiet::Remote)
        }
    }

    /// Computes which spans are top spans or lack a parent; visits all spans.
    pub(super) fn shape(&self, hasher: &SeedableRandomState) -> TraceShape<'_> {
        TraceShape::new(&self.versions, |span_id| self.find(span_id, hasher))
    }

    /// The services that sent the trace, without duplicates.
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

    /// Returns true if any span started before this time.
    pub(super) fn start_before(&self, unix_nanos: u64) -> bool {
        let mut versions = self.versions.iter();
        versions.any(|version| version.start_unix_nanos < unix_nanos)
    }

    /// The service that sent the span at this position.
    pub(super) fn service(&self, at: usize) -> Arc<str> {
        let resource_idx = self.versions[at].resource_idx;
        Arc::clone(&self.resources[resource_idx as usize].service)
    }

    /// The spans and records, with copies of their attributes.
    pub(super) fn copy(&self, trace_id: TraceId) -> TraceItems {
        self.unpack(trace_id, &self.kept.copy())
    }

    /// Like [`Self::copy`], but lends the attributes: do not use the trace before
    /// [`Self::take_back`].
    pub(super) fn lend(&mut self, trace_id: TraceId) -> TraceItems {
        let lent = self.kept.lend();
        self.unpack(trace_id, &lent)
    }

    /// Takes back the lent attributes. Drop the spans first.
    pub(super) fn take_back(&mut self) {
        self.kept.take_back();
    }

    /// Number of spans and log records.
    pub(super) fn len(&self) -> usize {
        self.versions.len()
    }

    /// Bytes on the heap.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.versions_size + self.kept.size() + self.resources_size
    }

    /// Returns true if `arrival` wins over the version at position `at`. The order covers all
    /// stored fields, so the winner does not depend on the order of arrival. Equal versions differ
    /// only in their recognition notes, which change no result.
    fn wins(&self, at: usize, arrival: &Arrival) -> bool {
        let old = &self.versions[at];
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
                old.parent_id,
                old.flags,
                old.status,
                old.class.tool_call,
                old.class.agent_run,
                old.class.model,
                old.scope,
                old.repeats_answers,
            );
            let theirs = (
                arrival.parent_id,
                arrival.flags,
                arrival.status,
                arrival.class.tool_call,
                arrival.class.agent_run,
                arrival.class.model,
                arrival.scope,
                arrival.repeats_answers,
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

    fn add(&mut self, span_id: SpanId, version: Version, hasher: &SeedableRandomState) {
        let is_full = self.versions.len() == self.versions.capacity();
        if is_full {
            // Grow by a quarter instead of doubling: with many open traces, unused capacity would
            // be most of the memory.
            let n_more = match self.versions.len() {
                0 => 8,
                n_versions => (n_versions / 4).max(4),
            };
            self.versions.reserve_exact(n_more);
            self.ids.reserve_exact(n_more);
        }
        let position = self.versions.len() as u32;
        self.versions.push(version);
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
            self.versions_size = self.versions.capacity() * size_of::<Version>()
                + self.ids.capacity() * size_of::<SpanId>()
                + self.index.allocation_size();
        }
    }

    fn find(&self, span_id: SpanId, hasher: &SeedableRandomState) -> Option<usize> {
        if self.ids.len() <= MAX_SEARCHED {
            return self.ids.iter().position(|&id| id == span_id);
        }
        let is_it = |&at: &u32| self.ids[at as usize] == span_id;
        let at = self.index.find(hasher.hash_one(span_id), is_it);
        at.map(|&at| at as usize)
    }

    /// Returns the count that includes this version, if any.
    fn count_of(&mut self, version: &Version) -> Option<&mut u32> {
        match (version.parent_id, version.ended()) {
            _ if version.is_record => None,
            (None, false) => Some(&mut self.n_open_roots),
            (None, true) => Some(&mut self.n_ended_roots),
            (Some(_), ended) => {
                let may_be_top = ended && version.is_remote() && !version.class.tool_call;
                may_be_top.then_some(&mut self.n_ended_remote)
            }
        }
    }

    /// Returns the position of a resource, after adding a new resource. Equal resources of
    /// different requests are stored once.
    fn resource_idx(&mut self, SharedResource { resource, cost }: &SharedResource) -> u32 {
        if let Some(last) = self.resources.last()
            && Arc::ptr_eq(last, resource)
        {
            return (self.resources.len() - 1) as u32;
        }
        // The last 8 resources suffice for real senders, and bound the cost of hostile senders.
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

    fn unpack(&self, trace_id: TraceId, lent: &LentText) -> TraceItems {
        let mut spans = Vec::with_capacity(self.versions.len());
        let mut records = Vec::new();
        for (version, &span_id) in self.versions.iter().zip(&self.ids) {
            let has_messages = version.is_record && version.class.model;
            let items = if has_messages { &mut records } else { &mut spans };
            items.push(Span {
                trace_id,
                span_id,
                parent_id: version.parent_id,
                start_unix_nanos: version.start_unix_nanos,
                end_unix_nanos: version.end_unix_nanos,
                flags: version.flags.into(),
                n_attributes: version.n_attributes.into(),
                repeats_answers: version.repeats_answers,
                is_watched: false,
                status: version.status,
                class: version.class,
                scope: version.scope,
                is_record: version.is_record,
                resource: Arc::clone(&self.resources[version.resource_idx as usize]),
                kept: self.kept.read(lent, version.kept),
            });
        }
        for items in [&mut spans, &mut records] {
            items.sort_unstable_by_key(|item: &Span| (item.start_unix_nanos, item.span_id));
        }
        TraceItems { spans, records }
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
