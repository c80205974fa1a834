//! The spans and log records of one trace, one version of each, with counts of the possible top
//! spans.

use std::cmp::Ordering;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::SeedableRandomState;
use hashbrown::HashTable;
use otlp::span::{IndexedAttributes, Resource, Span, SpanId, SpanRow, TraceText};
use smallvec::SmallVec;

use super::resources::SharedResource;
use super::shape::TraceShape;
use super::timers::Quiet;

/// Maximum number of spans for a linear search. Most traces have no more, and a hash table would
/// add a quarter to the cost of the buffer.
const MAX_SEARCHED: usize = 16;

#[derive(Debug, Clone, Default)]
pub struct TraceSpans {
    rows: Vec<SpanRow>,
    /// In a sorted trace, the number of rows before the log records with messages of models: spans,
    /// and log records that report calls.
    n_spans: usize,
    /// Positions in `rows` by span id; empty up to [`MAX_SEARCHED`] spans.
    index: HashTable<u32>,
    resources: SmallVec<[Arc<Resource>; 1]>,
    /// The number of spans without a parent that have not ended.
    n_open_roots: u32,
    n_ended_roots: u32,
    /// The number of ended spans with a remote parent, except tool calls. The spans can be top
    /// spans if their parents are not in this trace.
    n_ended_remote: u32,
    text: TraceText,
    resources_size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upserted {
    /// The span is new, or wins over the known version.
    New,
    /// An equal or winning version was known, so nothing has changed.
    Known,
    /// The attributes do not fit into the text of the trace.
    NoRoom,
}

impl TraceSpans {
    /// Returns a sorted trace of these spans, and its shape.
    #[cfg(test)]
    pub(crate) fn of(spans: impl Iterator<Item = Span>) -> (Self, TraceShape) {
        let hasher = SeedableRandomState::fixed();
        let mut trace = Self::default();
        for span in spans {
            let resource = SharedResource {
                resource: Arc::clone(&span.resource),
                cost: 0,
            };
            trace.upsert(&span, &resource, &hasher);
        }
        trace.sort(&hasher);
        let shape = trace.shape(&hasher);
        (trace, shape)
    }

    /// Returns the spans of a sorted trace and its log records that report calls, ordered by start,
    /// then by id.
    pub fn rows(&self) -> &[SpanRow] {
        &self.rows[..self.n_spans]
    }

    /// Returns true for a sorted trace of log records that report calls.
    pub fn is_made_of_records(&self) -> bool {
        !self.rows().is_empty() && self.rows().iter().all(|row| row.is_record)
    }

    /// Returns the log records with messages of models in a sorted trace, ordered by time, then by
    /// id.
    pub fn records(&self) -> &[SpanRow] {
        &self.rows[self.n_spans..]
    }

    pub(super) fn all_rows(&self) -> &[SpanRow] {
        &self.rows
    }

    pub fn attributes(&self, span: &SpanRow) -> IndexedAttributes<'_> {
        self.text.read(span.kept)
    }

    pub fn name(&self, span: &SpanRow) -> &str {
        self.text.name(span.kept)
    }

    pub fn resource(&self, span: &SpanRow) -> &Arc<Resource> {
        &self.resources[span.resource_idx as usize]
    }

    /// Stores a span unless an equal or winning version is known.
    pub(super) fn upsert(
        &mut self,
        arrival: &Span,
        resource: &SharedResource,
        hasher: &SeedableRandomState,
    ) -> Upserted {
        let known = self.find(arrival.span_id, hasher);
        if known.is_some_and(|at| !self.wins(at, arrival)) {
            return Upserted::Known;
        }
        let Some(kept) = self.text.insert(&arrival.kept) else {
            return Upserted::NoRoom;
        };
        let row = SpanRow {
            kept,
            resource_idx: self.resource_idx(resource),
            ..arrival.row
        };
        if let Some(count) = self.count_of(&row) {
            *count += 1;
        }
        let Some(at) = known else {
            self.add(row, hasher);
            return Upserted::New;
        };
        let old = std::mem::replace(&mut self.rows[at], row);
        if let Some(count) = self.count_of(&old) {
            *count -= 1;
        }
        if self.text.remove(old.kept, self.rows.len()) {
            let rows = self.rows.iter_mut();
            self.text.rewrite(rows.map(|row| &mut row.kept));
        }
        Upserted::New
    }

    pub(super) fn is_new(&self, arrival: &Span, hasher: &SeedableRandomState) -> bool {
        self.find(arrival.span_id, hasher)
            .is_none_or(|at| self.wins(at, arrival))
    }

    pub(super) fn sort(&mut self, hasher: &SeedableRandomState) {
        let has_messages = |row: &SpanRow| row.is_record && row.class.model;
        let key = |row: &SpanRow| (has_messages(row), row.start_unix_nanos, row.span_id);
        if !self.rows.is_sorted_by_key(key) {
            self.rows.sort_unstable_by_key(key);
            self.index.clear();
            self.index_new(hasher);
        }
        self.n_spans = self.rows.partition_point(|row| !has_messages(row));
    }

    pub(super) fn shrink(&mut self) {
        self.text.shrink();
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

    pub(super) fn is_quiet(&self, hasher: &SeedableRandomState) -> bool {
        self.shape(hasher).is_quiet(&self.rows)
    }

    pub(super) fn shape(&self, hasher: &SeedableRandomState) -> TraceShape {
        TraceShape::new(&self.rows, |span_id| self.find(span_id, hasher))
    }

    /// Returns the services that sent spans of the trace, without duplicates.
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

    /// Returns the service of a span whose parent certainly exists and has not arrived.
    pub(super) fn torn_service(&self, shape: &TraceShape) -> Option<Arc<str>> {
        let torn = &self.rows[shape.torn_span(&self.rows)?];
        Some(Arc::clone(&self.resource(torn).service))
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline]
    pub(super) fn size(&self) -> usize {
        self.rows.capacity() * size_of::<SpanRow>()
            + self.index.allocation_size()
            + self.text.size()
            + self.resources_size
    }

    /// Returns true if `arrival` wins over the version at position `at`. The order covers
    /// attributes and resources, so the winner does not depend on the order of arrival.
    fn wins(&self, at: usize, arrival: &Span) -> bool {
        let old = &self.rows[at];
        let by_rank = arrival.rank().cmp(&old.rank());
        by_rank
            .then_with(|| self.text.compare(&arrival.kept, old.kept))
            .then_with(|| compare_resources(&arrival.resource, self.resource(old)))
            .is_gt()
    }

    fn add(&mut self, row: SpanRow, hasher: &SeedableRandomState) {
        if self.rows.len() == self.rows.capacity() {
            // Grow by a quarter instead of doubling, because with many open traces, up to half of
            // the memory would be unused.
            let n_more = match self.rows.len() {
                0 => 8,
                n_rows => (n_rows / 4).max(4),
            };
            self.rows.reserve_exact(n_more);
        }
        self.rows.push(row);
        self.index_new(hasher);
    }

    fn index_new(&mut self, hasher: &SeedableRandomState) {
        if self.rows.len() <= MAX_SEARCHED {
            return;
        }
        let hash = |at: u32| hasher.hash_one(self.rows[at as usize].span_id);
        for at in self.index.len()..self.rows.len() {
            let at = at as u32;
            self.index.insert_unique(hash(at), at, |&at| hash(at));
        }
    }

    fn find(&self, span_id: SpanId, hasher: &SeedableRandomState) -> Option<usize> {
        if self.rows.len() <= MAX_SEARCHED {
            return self.rows.iter().position(|row| row.span_id == span_id);
        }
        let is_it = |&at: &u32| self.rows[at as usize].span_id == span_id;
        let at = self.index.find(hasher.hash_one(span_id), is_it);
        at.map(|&at| at as usize)
    }

    fn count_of(&mut self, row: &SpanRow) -> Option<&mut u32> {
        match (row.parent_id, row.ended()) {
            _ if row.is_record => None,
            (None, false) => Some(&mut self.n_open_roots),
            (None, true) => Some(&mut self.n_ended_roots),
            (Some(_), ended) => {
                let may_be_top = ended && row.parent_is_remote() && !row.class.tool_call;
                may_be_top.then_some(&mut self.n_ended_remote)
            }
        }
    }

    /// Returns the index of a resource, and adds a new one. Equal resources are usually stored
    /// once.
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
