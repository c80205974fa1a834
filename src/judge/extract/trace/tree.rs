//! The tree of a trace's spans: parents, depths, and starts corrected for different clocks.
//! Building the tree takes near-linear time for all parent ids, even for cycles, a span that is its
//! own parent, and thousands of levels.

use hashbrown::HashMap;

use crate::assemble::{Trace, TraceSpans};
use crate::extract::spans::SpanIdx;

/// All vectors except `parents_first` are indexed by span.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) parent: Vec<Option<SpanIdx>>,
    /// All spans, each after its parent.
    pub(crate) parents_first: Vec<SpanIdx>,
    pub(crate) depth: Vec<u32>,
    /// The start in Unix nanoseconds by which spans are ordered.
    pub(crate) start: Vec<u64>,
    /// The end, never before the start.
    pub(crate) end: Vec<u64>,
    /// True if a span of another resource started before its parent, and was shifted.
    pub(crate) clock_adjusted: bool,
}

impl Tree {
    /// Builds the tree. Cuts each cycle of parents above its earliest span, so that the result does
    /// not depend on the order of arrival.
    pub(crate) fn new(trace: &Trace) -> Self {
        let spans = trace.spans.rows();
        let parent_of = |span_idx: SpanIdx| {
            let parent = trace.shape.parent(span_idx);
            parent.filter(|&parent| parent != span_idx && parent < spans.len())
        };
        let mut parent: Vec<Option<SpanIdx>> = (0..spans.len()).map(parent_of).collect();
        let mut parents_first = self::parents_first(&parent);
        // A walk from the roots reaches neither a cycle nor the spans below it.
        if parents_first.len() < spans.len() {
            cut_cycles(&mut parent, |span_idx| {
                (spans[span_idx].start_unix_nanos, spans[span_idx].span_id)
            });
            parents_first = self::parents_first(&parent);
        }
        let mut tree = Self {
            parent,
            parents_first,
            depth: vec![0; spans.len()],
            ..Self::default()
        };
        tree.set_times(&trace.spans);
        tree
    }

    /// Returns the spans above this span, nearest first.
    pub(crate) fn ancestors(&self, span_idx: SpanIdx) -> impl Iterator<Item = SpanIdx> {
        std::iter::successors(self.parent[span_idx], |&above| self.parent[above])
    }

    /// Returns the topmost span above this span, or the span itself.
    pub(crate) fn topmost(&self, span_idx: SpanIdx) -> SpanIdx {
        self.ancestors(span_idx).last().unwrap_or(span_idx)
    }

    pub(crate) fn tops(&self) -> impl Iterator<Item = SpanIdx> {
        (0..self.parent.len()).filter(|&span_idx| self.parent[span_idx].is_none())
    }

    fn set_times(&mut self, trace: &TraceSpans) {
        let spans = trace.rows();
        let resources = resource_ids(trace);
        // Empty if all spans are of one resource.
        let mut shift = vec![0_u64; resources.len()];
        self.start = spans.iter().map(|span| span.start_unix_nanos).collect();
        for &span_idx in &self.parents_first {
            let Some(parent) = self.parent[span_idx] else {
                continue;
            };
            self.depth[span_idx] = self.depth[parent] + 1;
            let start = spans[span_idx].start_unix_nanos;
            if start == 0 {
                self.start[span_idx] = self.start[parent];
                continue;
            }
            if shift.is_empty() {
                continue;
            }
            // A subtree is shifted together, up to the next resource, which may have another clock.
            shift[span_idx] = if resources[span_idx] == resources[parent] {
                shift[parent]
            } else {
                self.start[parent].saturating_sub(start)
            };
            self.start[span_idx] = start.saturating_add(shift[span_idx]);
            self.clock_adjusted |= shift[span_idx] > 0;
        }
        self.end = (spans.iter().enumerate())
            .map(|(span_idx, span)| {
                let shift = shift.get(span_idx).copied().unwrap_or_default();
                span.end_unix_nanos
                    .saturating_add(shift)
                    .max(self.start[span_idx])
            })
            .collect();
    }
}

/// Breaks every cycle by removing the parent of the span with the lowest `rank` in the cycle.
fn cut_cycles<K: Ord>(parent: &mut [Option<SpanIdx>], rank: impl Fn(SpanIdx) -> K) {
    let mut seen_in = vec![usize::MAX; parent.len()];
    for walk in 0..parent.len() {
        let mut at = walk;
        while seen_in[at] == usize::MAX {
            seen_in[at] = walk;
            match parent[at] {
                Some(above) => at = above,
                None => break,
            }
        }
        if seen_in[at] != walk || parent[at].is_none() {
            continue;
        }
        // The walk returned to its own path, so `at` is on a cycle.
        let cycle = std::iter::successors(Some(at), |&on| parent[on].filter(|&above| above != at));
        if let Some(first) = cycle.min_by_key(|&on| rank(on)) {
            parent[first] = None;
        }
    }
}

/// Returns the spans, each after its parent, without spans on a cycle or below it.
fn parents_first(parent: &[Option<SpanIdx>]) -> Vec<SpanIdx> {
    // Spans are sorted by start; in a flat trace this order is already right.
    let mut parents = (0..).zip(parent);
    if parent.is_sorted() && parents.all(|(span_idx, above)| *above < Some(span_idx)) {
        return (0..parent.len()).collect();
    }

    #[derive(Clone)]
    struct Links {
        first_child: usize,
        next_sibling: usize,
    }
    let mut links = vec![
        Links {
            first_child: usize::MAX,
            next_sibling: usize::MAX
        };
        parent.len()
    ];
    for span_idx in (0..parent.len()).rev() {
        if let Some(above) = parent[span_idx] {
            links[span_idx].next_sibling = links[above].first_child;
            links[above].first_child = span_idx;
        }
    }
    let mut order = Vec::with_capacity(parent.len());
    order.extend((0..parent.len()).filter(|&span_idx| parent[span_idx].is_none()));
    let mut done = 0;
    while let Some(&span_idx) = order.get(done) {
        let mut child = links[span_idx].first_child;
        while child != usize::MAX {
            order.push(child);
            child = links[child].next_sibling;
        }
        done += 1;
    }
    order
}

/// Returns for each span the number of its resource; empty if all spans share one resource.
fn resource_ids(trace: &TraceSpans) -> Vec<usize> {
    let spans = trace.rows();
    if spans.is_sorted_by(|a, b| a.resource_idx == b.resource_idx) {
        return Vec::new();
    }
    // Hash each resource once, not for each span, because a resource can be large.
    let mut by_idx: HashMap<u32, usize> = HashMap::new();
    let mut by_bytes: HashMap<&[u8], usize> = HashMap::new();
    (spans.iter())
        .map(|span| {
            *by_idx.entry(span.resource_idx).or_insert_with(|| {
                let next = by_bytes.len();
                *by_bytes
                    .entry(&trace.resource(span).encoded)
                    .or_insert(next)
            })
        })
        .collect()
}
