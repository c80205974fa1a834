//! The ids of calls that spans or log records reported, so that a call with a span and a log record
//! counts once. Spans are usually judged first, because their trace closes when its root has ended,
//! while the group of a prompt's log records closes only after `assemble.inactive`. If spans arrive
//! later, the group of records is judged again.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap};
use otlp::span::TraceId;

use crate::extract::Trajectory;

/// Maximum number of stored call ids: at most 1.8 MiB. The latest ids are stored.
const MAX_IDS: usize = 28_672;

#[derive(Debug, Default)]
pub(super) struct SpanCalls {
    reports: HashMap<u64, Reports>,
    oldest_first: VecDeque<u64>,
    /// Hashes ids; hashes never leave the process.
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Default)]
struct Reports {
    /// The hash of the trace whose span reported the call.
    span_trace: Option<u64>,
    /// True if spans of several traces reported the call. Then ids are reused, and the id proves
    /// nothing.
    is_contested: bool,
    /// The trace id of the latest group of log records that reported the call.
    group: Option<TraceId>,
}

impl SpanCalls {
    /// Records the calls of a trajectory. Returns the groups of log records to judge again: spans
    /// now report calls of the group, or have ceased to be evidence because several traces report
    /// them.
    pub(super) fn note(&mut self, trace_id: TraceId, trajectory: &Trajectory) -> Vec<TraceId> {
        let mut groups = Vec::new();
        // Calls from a model's messages have no spans.
        if trajectory.from_messages {
            return groups;
        }
        let is_group = trajectory.subject.is_none();
        let trace_hash = self.hasher.hash_one(trace_id);
        let calls = trajectory.tool_calls.iter();
        for id in calls.filter_map(|call| call.call_id.as_deref()) {
            let reports = self.reports_of(id);
            if is_group {
                reports.group = Some(trace_id);
                continue;
            }
            let is_news = match reports.span_trace {
                None => true,
                Some(known) => known != trace_hash && !reports.is_contested,
            };
            reports.is_contested |= is_news && reports.span_trace.is_some();
            reports.span_trace.get_or_insert(trace_hash);
            if let Some(group) = reports.group.filter(|_| is_news)
                && !groups.contains(&group)
            {
                groups.push(group);
            }
        }
        groups
    }

    /// Removes, from a trajectory of log records, the calls that spans of a single trace reported.
    pub(super) fn remove_known(&self, trajectory: &mut Arc<Trajectory>) {
        if trajectory.subject.is_none() {
            Arc::make_mut(trajectory).tool_calls.retain(|call| {
                let id = call.call_id.as_deref();
                let id = id.map(|id| self.hasher.hash_one(id));
                let reports = id.and_then(|id| self.reports.get(&id));
                reports.is_none_or(|reports| reports.span_trace.is_none() || reports.is_contested)
            });
        }
    }

    fn reports_of(&mut self, id: &str) -> &mut Reports {
        let id = self.hasher.hash_one(id);
        if self.oldest_first.len() == MAX_IDS
            && !self.reports.contains_key(&id)
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.reports.remove(&oldest);
        }
        self.reports.entry(id).or_insert_with(|| {
            self.oldest_first.push_back(id);
            Reports::default()
        })
    }
}
