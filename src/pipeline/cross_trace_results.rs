//! Pure. Completes calls from other traces. A hand-written loop sends each request as a trace of
//! its own, and the next one repeats what a call returned; some runtimes record arguments and
//! results in traces of their own. Remembers parts of calls, and the traces that lack them, by call
//! id, whichever arrives first. Knows how much to remember; does not know how messages are spelled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;

use crate::extract::{CallPart, CrossTraceResult, Payload, Trajectory};
use crate::span::{SpanId, TraceId};

/// Most parts, and most traces that lack them, of one call id: a sender with more repeats its ids.
const MAX_OF_ONE_ID: usize = 64;

/// JavaScript clocks give a start in whole milliseconds and a finer end: the next request can seem
/// to start before this one ended.
const TOLERANCE_NANOS: u64 = 1_000_000;

/// Parts of calls, and the traces that lack them. The oldest call ids are forgotten first.
#[derive(Debug)]
pub(super) struct CrossTraceResults {
    by_id: HashMap<Arc<str>, CallParts>,
    oldest_first: VecDeque<Arc<str>>,
    size: usize,
    max_size: usize,
    max_ids: usize,
    /// A part that is recorded later than this belongs to another call with this id.
    max_age: Duration,
}

type Parts = BTreeMap<PartKey, Payload>;

/// Where and when a part was recorded.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PartKey {
    service: Arc<str>,
    start_unix_nanos: u64,
    span_id: SpanId,
}

/// The parts of the calls with one id.
#[derive(Debug, Default)]
struct CallParts {
    results: Parts,
    args: Parts,
    /// The traces that lack a part.
    waiting: Vec<TraceId>,
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

    /// Bytes of all parts.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Remembers a part of a call. Returns the traces that lack it, to be judged again; none if it
    /// was known.
    pub(super) fn add(&mut self, result: CrossTraceResult) -> Vec<TraceId> {
        let CrossTraceResult {
            call_id,
            service,
            start_unix_nanos,
            span_id,
            part,
        } = result;
        let known = self.parts_of(&call_id);
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
            return Vec::new();
        }
        parts.insert(key, payload);
        let waiting = known.waiting.clone();
        self.size += size;
        self.forget();
        waiting
    }

    /// Completes the calls of a trajectory with the known parts, and remembers that it lacks
    /// others.
    pub(super) fn fill(&mut self, trajectory: &mut Trajectory) {
        if !trajectory.completed_elsewhere {
            return;
        }
        let max_age_nanos = u64::try_from(self.max_age.as_nanos()).unwrap_or(u64::MAX);
        for call in trajectory
            .tool_calls
            .iter_mut()
            .filter(|call| call.result.is_none() || call.args.is_none())
        {
            let Some(id) = &call.call_id else { continue };
            let known = self.parts_of(id);
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
            // A call is asked for before it is made.
            let asked_since = call.start_unix_nanos.saturating_sub(max_age_nanos);
            call.args = call.args.take().or_else(|| first(&known.args, asked_since));
            if !known.waiting.contains(&trajectory.trace_id) && known.waiting.len() < MAX_OF_ONE_ID
            {
                known.waiting.push(trajectory.trace_id);
                self.size += size_of::<TraceId>();
            }
        }
        self.forget();
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
            let Some(known) = self.by_id.remove(&oldest) else {
                continue;
            };
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
        sizes.sum::<usize>() + self.waiting.len() * size_of::<TraceId>()
    }
}

/// The payload counts twice: as text and as JSON.
fn size_of_part(service: &str, result: &Payload) -> usize {
    size_of::<(PartKey, Payload)>() + service.len() + 2 * result.text.len()
}
