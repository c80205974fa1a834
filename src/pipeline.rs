//! Pure. assemble → extract → evaluate as one machine, without a socket or a clock. READ THIS
//! FIRST.
//!
//! Spans, and calls that were reported as log records, go in by [`Pipeline::accept`], time goes in
//! by [`Pipeline::advance`], judgements come out. The shell's loop around it waits for a batch or
//! for [`Pipeline::next_deadline`] and hands the clock in; replay feeds it files and calls
//! [`Pipeline::end_of_input`]. The rules are passed in each time, never stored: a reload is the swap of one `Arc<Rules>`, and a trace
//! is judged by the rules in force when it closes.

mod reported;
mod results;

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{DefaultHashBuilder, HashSet};

use crate::assemble::{CloseReason, Closed, Inserted, Settings, Stats, Trace, TraceBuffer};
use crate::evaluate::{self, Criterion, Evaluation, Expectations, Explain, FromSpans};
use crate::extract::{self, Recogniser, Tools, Trajectory};
use crate::span::{Batch, KeySet, Now, TraceId};

use reported::Reported;
use results::LateResults;

/// What every trace is judged by: one immutable set, swapped as a whole.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The criteria, in file order.
    pub criteria: Vec<Arc<Criterion>>,
    /// How tool calls are recognised; it also says which attributes the scan must keep.
    pub recogniser: Recogniser,
    /// How much of values explanations show.
    pub explain: Explain,
    /// What is expected of single runs.
    pub expectations: Arc<Expectations>,
}

impl Rules {
    /// The rules of a configuration. `copy_attributes` are what scores copy from the evaluated
    /// span; they are kept as what selectors read is. Nothing is expected of single runs.
    pub fn new(
        criteria: Vec<Criterion>,
        tools: &Tools,
        explain: Explain,
        copy_attributes: &[String],
    ) -> Self {
        Self::following(None, criteria, tools, explain, copy_attributes)
    }

    /// The same in place of earlier rules: spans that were taken in under those can still be read.
    pub fn following(
        previous: Option<&Self>,
        criteria: Vec<Criterion>,
        tools: &Tools,
        explain: Explain,
        copy_attributes: &[String],
    ) -> Self {
        let previous = previous.map(|rules| &rules.recogniser);
        let selected = criteria.iter().flat_map(Criterion::selector_attributes);
        let copied = copy_attributes.iter().map(String::as_str);
        let recogniser = Recogniser::new(tools, selected.chain(copied), previous);
        Self {
            recogniser,
            explain,
            criteria: criteria.into_iter().map(Arc::new).collect(),
            expectations: Arc::default(),
        }
    }

    /// The same, with what is expected of single runs.
    pub fn expecting(self, expectations: Expectations) -> Self {
        let bringing = expectations.from_spans.bringing(expectations.max_size);
        Self {
            recogniser: self.recogniser.bringing(bringing),
            expectations: expectations.into(),
            ..self
        }
    }

    /// The same, judging nothing: trajectories are still found, and what runs say of themselves.
    pub fn without_judgement(&self) -> Self {
        Self {
            criteria: Vec::new(),
            expectations: Arc::default(),
            ..self.clone()
        }
    }

    /// Could a run be judged by these?
    pub fn may_judge(&self) -> bool {
        let Expectations {
            from_spans, cases, ..
        } = &*self.expectations;
        !self.criteria.is_empty() || !cases.is_empty() || *from_spans == FromSpans::Full
    }

    /// The same with other criteria and what their selectors read, expecting nothing of single
    /// runs.
    pub fn judging_by(&self, criteria: Vec<Arc<Criterion>>) -> Self {
        let recogniser = self.recogniser.reading(
            criteria
                .iter()
                .flat_map(|criterion| criterion.selector_attributes()),
        );
        Self {
            criteria,
            recogniser,
            explain: self.explain,
            expectations: Arc::default(),
        }
    }

    /// Which attributes the scan keeps.
    pub fn keys(&self) -> &Arc<KeySet> {
        self.recogniser.keys()
    }
}

/// For so many evaluations there is room from the beginning; most traces are judged by every
/// criterion.
const MAX_RESERVED: usize = 1_024;

/// assemble → extract → evaluate.
#[derive(Debug)]
pub struct Pipeline {
    buffer: TraceBuffer<Reported>,
    span_calls: SpanCalls,
    results: LateResults,
    /// What two judgements of a trace are compared with: hashes never leave the process.
    hasher: DefaultHashBuilder,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Intake {
    /// Spans taken into traces, known ones too.
    pub n_taken: usize,
    /// Spans that brought news to traces that had been judged before.
    pub n_late: usize,
    /// Spans that were not taken, since their trace is full or its facts are forgotten.
    pub n_too_late: usize,
    /// Log records that tell of a tool call, but neither of which prompt or session nor of which
    /// span.
    pub n_ungrouped: usize,
}

impl Intake {
    fn count(&mut self, inserted: Inserted) {
        match inserted {
            Inserted::Taken | Inserted::Known => self.n_taken += 1,
            Inserted::Late => self.n_late += 1,
            Inserted::TooLate => self.n_too_late += 1,
        }
    }
}

/// What came of the traces that were closed.
#[derive(Debug, Default)]
pub struct Judged {
    /// New judgements and changed ones; what late spans did not change is left out.
    pub evaluations: Vec<Evaluation>,
    /// What the agents did, criteria or not.
    pub trajectories: Vec<Arc<Trajectory>>,
    /// Why each trace was closed; a trace closed again after late spans is not counted again.
    pub reasons: Vec<CloseReason>,
    /// Traces with neither a tool call nor an agent run.
    pub n_no_trajectory: usize,
    /// Judgements that late spans did not change.
    pub n_unchanged: usize,
}

impl Pipeline {
    /// An empty one.
    pub fn new(mut settings: Settings, now: Now) -> Self {
        // Both remember what is over; most of it is traces.
        let results_size = settings.max_recent_size / 8;
        settings.max_recent_size -= results_size;
        let results = LateResults::new(
            results_size,
            settings.max_recent_traces,
            settings.recent_ttl,
        );
        let (span_calls, hasher) = (SpanCalls::default(), DefaultHashBuilder::default());
        Self {
            buffer: TraceBuffer::new(settings, now),
            span_calls,
            results,
            hasher,
        }
    }

    /// Take in the spans of one request.
    pub fn accept(&mut self, rules: &Rules, batch: Batch, now: Now) -> Intake {
        let mut intake = Intake::default();
        for mut span in batch.spans {
            let mark = extract::mark(&span, &rules.recogniser);
            extract::slim(&mut span, mark);
            intake.count(self.buffer.insert(span, mark, now));
        }
        // Calls that are told of in log records are held like spans, each prompt or session a trace
        // of its own; messages of models are held with their traces.
        for log_call in batch.log_calls {
            match extract::log_call(log_call) {
                Some(mut span) => {
                    let mark = extract::mark(&span, &rules.recogniser);
                    extract::slim(&mut span, mark);
                    intake.count(self.buffer.insert(span, mark, now));
                }
                None => intake.n_ungrouped += 1,
            }
        }
        intake
    }

    /// Spans of these traces were forwarded but not taken in: they are incomplete.
    pub fn miss(&mut self, trace_ids: &[TraceId], now: Now) {
        self.buffer.miss(trace_ids, now);
    }

    /// So many spans were not taken in that nobody knows whose: every open trace is incomplete.
    pub fn miss_all(&mut self, now: Now) {
        self.buffer.miss_all(now);
    }

    /// Traces whose root has ended settle sooner from now on.
    pub fn hurry(&mut self, settle: Duration) {
        self.buffer.hurry(settle);
    }

    /// When to call [`Self::advance`] next, if nothing arrives before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.buffer.next_deadline()
    }

    /// Judge every trace that is done.
    pub fn advance(&mut self, rules: &Rules, now: Now) -> Judged {
        let closed = self.buffer.close_due(now);
        self.judge(rules, closed, now, |_| ())
    }

    /// Judge every trace that is open: the sidecar stops.
    pub fn drain(&mut self, rules: &Rules, now: Now) -> Judged {
        self.judge_all(rules, CloseReason::Shutdown, now, |_| ())
    }

    /// Judge every trace that is open: the recording has ended. `look` is shown each trace as it
    /// was closed (`inspect --verbose` tells what became of its spans).
    pub fn end_of_input(&mut self, rules: &Rules, now: Now, look: impl FnMut(&Trace)) -> Judged {
        self.judge_all(rules, CloseReason::NoRoot, now, look)
    }

    fn judge_all(
        &mut self,
        rules: &Rules,
        otherwise: CloseReason,
        now: Now,
        mut look: impl FnMut(&Trace),
    ) -> Judged {
        let closed = self.buffer.close_all(otherwise, now);
        let mut judged = self.judge(rules, closed, now, &mut look);
        // The last traces can answer what earlier ones asked, which are then open again.
        let closed = self.buffer.close_all(otherwise, now);
        judged
            .evaluations
            .append(&mut self.judge(rules, closed, now, |_| ()).evaluations);
        judged
    }

    /// Open and remembered traces.
    pub fn stats(&self) -> Stats {
        let mut stats = self.buffer.stats();
        stats.recent_size += self.results.size();
        stats
    }

    fn judge(
        &mut self,
        rules: &Rules,
        closed: Vec<Closed<Reported>>,
        now: Now,
        mut look: impl FnMut(&Trace),
    ) -> Judged {
        let mut judged = Judged::default();
        let mut trajectories: Vec<Option<Trajectory>> = Vec::with_capacity(closed.len());
        for closed in &closed {
            look(&closed.trace);
            let trajectory = extract::trajectory(&closed.trace, &rules.recogniser);
            trajectory
                .iter()
                .for_each(|trajectory| self.span_calls.note(trajectory));
            for answer in extract::answers(&closed.trace, &rules.recogniser) {
                // It is as if a late span had come to the traces that asked.
                self.results
                    .answer(answer)
                    .iter()
                    .for_each(|asking| self.buffer.reopen(asking, now));
            }
            trajectories.push(trajectory);
        }
        // Grown from nothing with every batch, this list would be a sixteenth of what judging
        // costs.
        judged
            .evaluations
            .reserve((closed.len() * rules.criteria.len()).min(MAX_RESERVED));
        for (mut closed, trajectory) in closed.into_iter().zip(trajectories) {
            if closed.first {
                judged.reasons.push(closed.trace.reason);
            }
            match trajectory.and_then(|trajectory| self.span_calls.without_known(trajectory)) {
                Some(mut trajectory) => {
                    self.results.fill(&mut trajectory);
                    judged.add(
                        rules,
                        Arc::new(trajectory),
                        &mut closed.memo,
                        closed.first,
                        &self.hasher,
                    );
                }
                None => judged.n_no_trajectory += usize::from(closed.first),
            }
            self.buffer.remember(closed, now);
        }
        judged
    }
}

impl Judged {
    fn add(
        &mut self,
        rules: &Rules,
        trajectory: Arc<Trajectory>,
        reported: &mut Reported,
        first: bool,
        hasher: &DefaultHashBuilder,
    ) {
        let Rules {
            criteria,
            expectations,
            explain,
            ..
        } = rules;
        let mut evaluations = evaluate::judge_run(
            criteria,
            expectations,
            expectations.case_of(&trajectory),
            &trajectory,
            explain,
        );
        self.n_unchanged += reported.revise(&mut evaluations, criteria, &trajectory, hasher);
        self.evaluations.append(&mut evaluations);
        self.evaluations
            .extend(reported.withdraw(criteria, &trajectory, hasher));
        if first {
            self.trajectories.push(trajectory);
        }
    }
}

// === SpanCalls ===

/// Most call ids that are remembered, the latest ones: 1.5 MiB at the most.
const MAX_SPAN_CALLS: usize = 65_536;

/// The ids of calls that spans told of: an agent that also writes a log record about each call has
/// made it once. Spans come first, since their trace closes when its root has ended, but a prompt's
/// records only when they have been quiet for long.
#[derive(Debug, Default)]
struct SpanCalls {
    known: HashSet<u64>,
    oldest_first: VecDeque<u64>,
    hasher: DefaultHashBuilder,
}

impl SpanCalls {
    fn note(&mut self, trajectory: &Trajectory) {
        // What a model's messages ask for was not told of by a span of its own.
        if trajectory.subject.is_none() || trajectory.from_messages {
            return;
        }
        for id in trajectory
            .tool_calls
            .iter()
            .filter_map(|call| call.call_id.as_deref())
        {
            let id = self.hasher.hash_one(id);
            if self.known.insert(id) {
                self.oldest_first.push_back(id);
            }
        }
        while self.oldest_first.len() > MAX_SPAN_CALLS {
            self.oldest_first
                .pop_front()
                .map(|oldest| self.known.remove(&oldest));
        }
    }

    /// A trajectory made of log records, without the calls that spans told of; nothing if none is
    /// left.
    fn without_known(&self, mut trajectory: Trajectory) -> Option<Trajectory> {
        if trajectory.subject.is_none() {
            trajectory.tool_calls.retain(|call| {
                call.call_id
                    .as_deref()
                    .is_none_or(|id| !self.known.contains(&self.hasher.hash_one(id)))
            });
            return Some(trajectory).filter(|trajectory| !trajectory.tool_calls.is_empty());
        }
        Some(trajectory)
    }
}
