//! Pure. What other traces tell of calls. A loop that is written by hand sends each request as a
//! trace of its own, and what a call returned is only part in the next one; AutoGen tells arguments
//! too, in the traces of its runtime. Remembers by call id which traces asked and what was
//! answered, whichever comes first. Knows how much to remember; does not know how messages are
//! spelled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;

use crate::extract::{CallPart, CrossTraceResult, Payload, Trajectory};
use crate::span::{SpanId, TraceId};

/// Most answers and most asking traces of one id: more are of a sender that repeats its ids.
const MAX_OF_ONE_ID: usize = 64;

/// Clocks of JavaScript give a start in whole milliseconds, and an end that is finer: the next
/// request can seem to start before this one ended.
const TOLERANCE_NANOS: u64 = 1_000_000;

/// What was asked and answered, the ids seen first forgotten first.
#[derive(Debug)]
pub(super) struct LateResults {
    by_id: HashMap<Arc<str>, Known>,
    oldest_first: VecDeque<Arc<str>>,
    size: usize,
    max_size: usize,
    max_ids: usize,
    /// An answer that comes later than this belongs to another call of the same id.
    max_age: Duration,
}

/// By service, then by when they were part.
type Answers = BTreeMap<(Arc<str>, u64, SpanId), Payload>;

#[derive(Debug, Default)]
struct Known {
    results: Answers,
    args: Answers,
    asked_by: Vec<TraceId>,
}

impl LateResults {
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

    /// Bytes held.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Remember an answer. The traces that asked for it, to be judged again; none if it was known.
    pub(super) fn answer(&mut self, answer: CrossTraceResult) -> Vec<TraceId> {
        let CrossTraceResult {
            call_id,
            service,
            start_unix_nanos,
            span_id,
            part,
        } = answer;
        let known = self.known(&call_id);
        let (answers, part) = match part {
            CallPart::Args(args) => (&mut known.args, args),
            CallPart::Result(result) => (&mut known.results, result),
        };
        let size = size_of_answer(&service, &part);
        let key = (service, start_unix_nanos, span_id);
        if answers.contains_key(&key) || answers.len() == MAX_OF_ONE_ID {
            return Vec::new();
        }
        answers.insert(key, part);
        let asked_by = known.asked_by.clone();
        self.size += size;
        self.forget();
        asked_by
    }

    /// Gives the calls of a trajectory what was answered so far, and remembers that it asked.
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
            let known = self.known(id);
            let since = call.end_unix_nanos.saturating_sub(TOLERANCE_NANOS);
            let until = call.end_unix_nanos.saturating_add(max_age_nanos);
            let first = |answers: &Answers, since: u64| {
                let of_call = |(service, start, _): &(Arc<str>, u64, SpanId)| {
                    **service == *trajectory.service && (since..=until).contains(start)
                };
                answers
                    .iter()
                    .find(|(key, _)| of_call(key))
                    .map(|(_, part)| part.clone())
            };
            call.result = call.result.take().or_else(|| first(&known.results, since));
            // A call is asked for before it is made.
            let asked_since = call.start_unix_nanos.saturating_sub(max_age_nanos);
            call.args = call.args.take().or_else(|| first(&known.args, asked_since));
            if !known.asked_by.contains(&trajectory.trace_id)
                && known.asked_by.len() < MAX_OF_ONE_ID
            {
                known.asked_by.push(trajectory.trace_id);
                self.size += size_of::<TraceId>();
            }
        }
        self.forget();
    }

    fn known(&mut self, id: &str) -> &mut Known {
        let id: Arc<str> = id.into();
        if !self.by_id.contains_key(&id) {
            self.size += Self::size_of_id(&id);
            self.oldest_first.push_back(id.clone());
        }
        self.by_id.entry(id).or_default()
    }

    fn size_of_id(id: &str) -> usize {
        2 * size_of::<Arc<str>>() + id.len() + size_of::<Known>()
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

impl Known {
    fn size(&self) -> usize {
        let answers = self
            .results
            .iter()
            .chain(&self.args)
            .map(|((service, ..), result)| size_of_answer(service, result));
        answers.sum::<usize>() + self.asked_by.len() * size_of::<TraceId>()
    }
}

/// The text, and the same again as JSON.
fn size_of_answer(service: &str, result: &Payload) -> usize {
    size_of::<((Arc<str>, u64, SpanId), Payload)>() + service.len() + 2 * result.text.len()
}
