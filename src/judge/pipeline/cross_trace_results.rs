//! Adds to calls the arguments and results that other traces contain. A hand-written agent loop
//! sends each request as a separate trace, and the next request repeats a call's result; some
//! runtimes record arguments and results in separate traces. Stores parts of calls (arguments or
//! results), and the traces that lack parts, both keyed by call id. Either may arrive first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use otlp::span::{SpanId, TraceId};

use crate::extract::{CallPart, CrossTraceResult, Payload, Trajectory};

/// Maximum number of arguments, of results, and of services with a call, for one call id. Only a
/// sender that reuses its ids exceeds this number.
const MAX_OF_ONE_ID: usize = 64;

/// JavaScript clocks give the start in whole milliseconds and the end more precisely, so the next
/// request can seem to start before the call ended.
const TOLERANCE_NANOS: u64 = 1_000_000;

/// Parts of calls, and the traces that lack parts. The oldest call ids are forgotten first, but an
/// id that was used again is remembered longer.
#[derive(Debug)]
pub(super) struct CrossTraceResults {
    by_id: HashMap<Arc<str>, CallParts>,
    oldest_first: VecDeque<Arc<str>>,
    size: usize,
    max_size: usize,
    max_ids: usize,
    /// Maximum time between a call and the recording of its arguments or result. A part that was
    /// recorded outside this period belongs to another call with this id.
    max_age: Duration,
}

type Parts = BTreeMap<PartKey, Payload>;

/// The origin of a part: the service, time and span that recorded it. The order of the fields sorts
/// the parts of a service by time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PartKey {
    service: Arc<str>,
    start_unix_nanos: u64,
    span_id: SpanId,
}

#[derive(Debug, Default)]
struct CallParts {
    results: Parts,
    args: Parts,
    /// One entry for each service that has a call with this id.
    calling_traces: Vec<CallingTrace>,
    /// True if the id was used again, and is remembered for longer.
    used_again: bool,
}

/// A service, and its trace that has a call with this id. If the service has several such traces,
/// this is one of them, and `is_contested` is true.
#[derive(Debug)]
struct CallingTrace {
    service: Arc<str>,
    trace_id: TraceId,
    /// True if several traces of the service, or several calls of the trace, have the call id, so
    /// that arguments or a result with this id may belong to any of them.
    is_contested: bool,
}

impl CrossTraceResults {
    pub(super) fn new(max_size: usize, max_ids: usize, max_age: Duration) -> Self {
        Self {
            by_id: HashMap::new(),
            oldest_first: VecDeque::new(),
            size: 0,
            max_size,
            max_ids,
            max_age,
        }
    }

    pub(super) fn resize(&mut self, max_size: usize) {
        self.max_size = max_size;
        self.forget();
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Stores the calls of a trajectory that other traces may complete. Returns the traces to judge
    /// again: each was the only trace of its service with a call id that this trajectory has, too.
    pub(super) fn ask(&mut self, trajectory: &Trajectory) -> Vec<TraceId> {
        let mut to_judge_again = Vec::new();
        if !trajectory.completed_elsewhere {
            return to_judge_again;
        }
        let mut seen: HashSet<&str> = HashSet::new();
        for id in trajectory
            .tool_calls
            .iter()
            .filter_map(|call| call.call_id.as_deref())
        {
            let is_repeated = !seen.insert(id);
            let known = self.parts_of(id);
            let mut calling_traces = known.calling_traces.iter_mut();
            if let Some(calling) =
                calling_traces.find(|calling| calling.service == trajectory.service)
            {
                let is_other = calling.trace_id != trajectory.trace_id;
                known.used_again |= is_other || is_repeated;
                if (is_other || is_repeated) && !calling.is_contested {
                    calling.is_contested = true;
                    to_judge_again.extend(is_other.then_some(calling.trace_id));
                }
            } else if known.calling_traces.len() < MAX_OF_ONE_ID {
                known.calling_traces.push(CallingTrace {
                    service: trajectory.service.clone(),
                    trace_id: trajectory.trace_id,
                    is_contested: false,
                });
                self.size += size_of_calling_trace(&trajectory.service);
            }
        }
        self.forget();
        to_judge_again
    }

    /// Stores a part of a call. Returns the trace of the same service that has the call, to judge
    /// again; `None` if no trace or several traces have it, if the part was known, or if the id has
    /// too many parts.
    pub(super) fn add(&mut self, result: CrossTraceResult) -> Option<TraceId> {
        let CrossTraceResult {
            call_id,
            service,
            start_unix_nanos,
            span_id,
            part,
        } = result;
        let known = self.parts_of(&call_id);
        let mut calling_traces = known.calling_traces.iter();
        let calling = calling_traces.find(|calling| calling.service == service);
        let asked_by =
            calling.and_then(|calling| (!calling.is_contested).then_some(calling.trace_id));
        let (parts, payload) = match part {
            CallPart::Args(args) => (&mut known.args, args),
            CallPart::Result(result) => (&mut known.results, result),
        };
        let size = size_of_part(&service, &payload);
        let key = PartKey {
            service,
            start_unix_nanos,
            span_id,
        };
        if parts.contains_key(&key) || parts.len() == MAX_OF_ONE_ID {
            return None;
        }
        parts.insert(key, payload);
        self.size += size;
        self.forget();
        asked_by
    }

    /// Completes the calls of a trajectory whose ids [`Self::ask`] has stored, except contested
    /// ones.
    pub(super) fn fill(&self, trajectory: &mut Arc<Trajectory>) {
        if !trajectory.completed_elsewhere {
            return;
        }
        let trajectory = Arc::make_mut(trajectory);
        let max_age_nanos = u64::try_from(self.max_age.as_nanos()).unwrap_or(u64::MAX);
        for call in trajectory
            .tool_calls
            .iter_mut()
            .filter(|call| call.result.is_none() || call.args.is_none())
        {
            let id = call.call_id.as_deref();
            let Some(known) = id.and_then(|id| self.by_id.get(id)) else {
                continue;
            };
            let mut calling_traces = known.calling_traces.iter();
            let is_evidence = calling_traces.any(|calling| {
                calling.trace_id == trajectory.trace_id
                    && calling.service == trajectory.service
                    && !calling.is_contested
            });
            if !is_evidence {
                continue;
            }
            let since = call.end_unix_nanos.saturating_sub(TOLERANCE_NANOS);
            let until = call.end_unix_nanos.saturating_add(max_age_nanos);
            let first = |parts: &Parts, since: u64| {
                let is_of_call = |key: &PartKey| {
                    *key.service == *trajectory.service
                        && (since..=until).contains(&key.start_unix_nanos)
                };
                let mut parts = parts.iter();
                let part = parts.find(|(key, _)| is_of_call(key));
                part.map(|(_, payload)| payload.clone())
            };
            call.result = call.result.take().or_else(|| first(&known.results, since));
            // A model requests a call before the call is made.
            let asked_since = call.start_unix_nanos.saturating_sub(max_age_nanos);
            call.args = call.args.take().or_else(|| first(&known.args, asked_since));
        }
    }

    fn parts_of(&mut self, id: &str) -> &mut CallParts {
        let id: Arc<str> = id.into();
        if !self.by_id.contains_key(&id) {
            self.size += Self::size_of_id(&id);
            self.oldest_first.push_back(id.clone());
        }
        self.by_id.entry(id).or_default()
    }

    fn size_of_id(id: &str) -> usize {
        2 * size_of::<Arc<str>>() + id.len() + size_of::<CallParts>()
    }

    fn forget(&mut self) {
        while (self.size > self.max_size || self.by_id.len() > self.max_ids)
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            let Some(mut known) = self.by_id.remove(&oldest) else {
                continue;
            };
            if std::mem::take(&mut known.used_again) {
                self.by_id.insert(oldest.clone(), known);
                self.oldest_first.push_back(oldest);
                continue;
            }
            self.size -= Self::size_of_id(&oldest) + known.size();
        }
    }
}

impl CallParts {
    fn size(&self) -> usize {
        let sizes = self
            .results
            .iter()
            .chain(&self.args)
            .map(|(key, payload)| size_of_part(&key.service, payload));
        let calling_traces = self.calling_traces.iter();
        let calling_traces = calling_traces.map(|calling| size_of_calling_trace(&calling.service));
        sizes.sum::<usize>() + calling_traces.sum::<usize>()
    }
}

/// Returns the bytes of a part; the payload counts twice, as text and as JSON.
fn size_of_part(service: &str, result: &Payload) -> usize {
    size_of::<(PartKey, Payload)>() + service.len() + 2 * result.text.len()
}

fn size_of_calling_trace(service: &str) -> usize {
    size_of::<CallingTrace>() + service.len()
}
