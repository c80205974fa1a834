//! Pure. Assembles spans into traces, extracts what the agents did and judges it: the whole machine
//! without a socket or a clock. READ THIS FIRST.
//!
//! [`Pipeline::accept`] takes spans and log records, [`Pipeline::advance`] takes the time and
//! returns judgements. The shell's loop waits for a batch or for [`Pipeline::next_deadline`], and
//! reads the clock; replay feeds files and calls [`Pipeline::end_of_input`]. The rules are an
//! argument of each call and never stored: a reload swaps one `Arc<Rules>`, and a trace is judged
//! by the rules in force when it closes.

mod cross_trace_results;
mod judged;
mod reported;
mod span_calls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::DefaultHashBuilder;

use crate::assemble::{
    CloseReason, Closed, Inserted, Settings, Stats, TornTraces, Trace, TraceBuffer, TraceIdFilter,
};
use crate::evaluate::{self, Criterion, Expectations, Explain, FromSpans};
use crate::extract::{self, PlacedRecord, Recogniser, Tools, Trajectory};
use crate::span::{Batch, KeptAttributesBuilder, KeySet, Now, TraceId};

use cross_trace_results::CrossTraceResults;
use reported::Reported;
use span_calls::SpanCalls;

pub use judged::{Judged, JudgementSink};

/// The rules by which every trace is judged: one immutable set, swapped as a whole.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The criteria, in file order.
    pub criteria: Vec<Arc<Criterion>>,
    /// Recognises tool calls, and lists the attributes that the scan must keep.
    pub recogniser: Recogniser,
    /// How much of a value an explanation shows.
    pub explain: Explain,
    /// Expectations of single runs.
    pub expectations: Arc<Expectations>,
}

impl Rules {
    /// The rules of a configuration, without expectations of single runs. Scores copy the
    /// `copy_attributes` of the evaluated span, which are kept like those that selectors read.
    pub fn new(
        criteria: Vec<Criterion>,
        tools: &Tools,
        explain: Explain,
        copy_attributes: &[String],
    ) -> Self {
        Self::following(None, criteria, tools, explain, copy_attributes)
    }

    /// Like [`Self::new`], for rules that replace earlier ones: spans that were taken in under the
    /// earlier rules can still be read.
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

    /// Adds expectations of single runs.
    pub fn expecting(self, expectations: Expectations) -> Self {
        let bringing = expectations.from_spans.bringing(expectations.max_size);
        Self {
            recogniser: self.recogniser.with_span_expectations(bringing),
            expectations: expectations.into(),
            ..self
        }
    }

    /// A copy without criteria and expectations: trajectories are still extracted, with what runs
    /// say of themselves.
    pub fn without_judgement(&self) -> Self {
        Self {
            criteria: Vec::new(),
            expectations: Arc::default(),
            ..self.clone()
        }
    }

    /// Can these rules judge any run?
    pub fn may_judge(&self) -> bool {
        let Expectations {
            from_spans, cases, ..
        } = &*self.expectations;
        !self.criteria.is_empty() || !cases.is_empty() || *from_spans == FromSpans::Full
    }

    /// A copy with other criteria and the attributes that their selectors read, without
    /// expectations of single runs.
    pub fn judging_by(&self, criteria: Vec<Arc<Criterion>>) -> Self {
        let recogniser = self.recogniser.also_reading(
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

    /// The attributes that the scan must keep.
    pub fn keys(&self) -> &Arc<KeySet> {
        self.recogniser.keys()
    }
}

/// Bytes of closed traces that are judged together, and of evaluations that are handed on together:
/// what is due at once may be as much as a sender likes, and what is held for it must not be.
const MAX_SLICE: usize = 256 << 10;

/// Spans taken in between two beats.
const SPANS_PER_BEAT: usize = 1_024;

/// Assembly, extraction and judgement as one machine.
#[derive(Debug)]
pub struct Pipeline {
    buffer: TraceBuffer<Reported>,
    span_calls: SpanCalls,
    results: CrossTraceResults,
    /// Hashes judgements, to compare two of one trace. Hashes never leave the process.
    hasher: DefaultHashBuilder,
    /// Results that are not handed on yet; empty between two calls.
    judged: Judged,
}

/// The outcome of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Intake {
    /// Spans taken into traces, known ones included.
    pub n_taken: usize,
    /// New spans of traces that had been judged before.
    pub n_late: usize,
    /// Spans that were not taken: their trace is full, or its other spans are forgotten.
    pub n_too_late: usize,
    /// Those of them whose trace was forgotten because the memory of closed traces was full.
    pub n_forgotten: usize,
    /// Log records of tool calls that name no prompt, no session and no span.
    pub n_ungrouped: usize,
}

impl Intake {
    fn count(&mut self, inserted: Inserted) {
        match inserted {
            Inserted::Taken | Inserted::Known => self.n_taken += 1,
            Inserted::Late => self.n_late += 1,
            Inserted::TooLate => self.n_too_late += 1,
            Inserted::Forgotten => {
                self.n_too_late += 1;
                self.n_forgotten += 1;
            }
        }
    }
}

impl Pipeline {
    /// An empty pipeline.
    pub fn new(mut settings: Settings, now: Now) -> Self {
        // Closed traces and results of other traces share one budget; most of it is for traces.
        let results_size = settings.max_recent_size / 8;
        settings.max_recent_size -= results_size;
        let results = CrossTraceResults::new(
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
            judged: Judged::default(),
        }
    }

    /// Takes in the spans and log records of one request. Traces that a limit closes wait for
    /// [`Self::advance`].
    pub fn accept(&mut self, rules: &Rules, batch: Batch, now: Now) -> Intake {
        self.take_in(rules, batch, now, |_, _| ())
    }

    /// Like [`Self::accept`], but traces that a limit closes are judged as soon as there is a slice
    /// of them.
    pub fn accept_into(
        &mut self,
        rules: &Rules,
        batch: Batch,
        now: Now,
        sink: &mut impl JudgementSink,
    ) -> Intake {
        self.take_in(rules, batch, now, |pipeline, n_items| {
            if n_items % SPANS_PER_BEAT == 0 {
                sink.beat();
            }
            while pipeline.buffer.closing_size() > MAX_SLICE {
                let closed = pipeline.buffer.close_limited(now, MAX_SLICE);
                pipeline.judge(rules, closed, now, |_| (), sink);
            }
        })
    }

    fn take_in(
        &mut self,
        rules: &Rules,
        batch: Batch,
        now: Now,
        mut after_item: impl FnMut(&mut Self, usize),
    ) -> Intake {
        let mut intake = Intake::default();
        let mut builder = KeptAttributesBuilder::default();
        let max_value_size = rules.recogniser.tools.max_value_size;
        let mut n_items = 0;
        for mut span in batch.spans {
            let mut class = extract::classify(&span, &rules.recogniser);
            if extract::is_own_score(&span, class) {
                continue;
            }
            extract::prune(&mut span, class, max_value_size, &mut builder);
            // After a reload, batches that were scanned before it are still on their way.
            class.recognition = class.recognition.scanned_for(batch.keys_version);
            intake.count(self.buffer.insert(span, class, now));
            n_items += 1;
            after_item(self, n_items);
        }
        for record in batch.log_records {
            match extract::place(record) {
                Some(PlacedRecord { trace_id, record }) => {
                    intake.count(self.buffer.insert_record(trace_id, record, now));
                }
                None => intake.n_ungrouped += 1,
            }
            n_items += 1;
            after_item(self, n_items);
        }
        intake
    }

    /// Marks traces as incomplete: spans of them were forwarded, but not taken in.
    pub fn mark_unscored(&mut self, trace_ids: &[TraceId], now: Now) {
        self.buffer.mark_unscored(trace_ids, now);
    }

    /// Like [`Self::mark_unscored`], for more traces than can be listed.
    pub fn mark_many_unscored(&mut self, trace_ids: TraceIdFilter, now: Now) {
        self.buffer.mark_many_unscored(trace_ids, now);
    }

    /// Begins the memory of traces anew: replicas came or went after `since`.
    pub fn begin_memory(&mut self, since: Now, now: Now) {
        self.buffer.begin_memory(since, now);
    }

    /// What was seen since the last call of traces that reach several replicas.
    pub fn take_torn(&mut self) -> TornTraces {
        self.buffer.take_torn()
    }

    /// Shortens the settle times from now on: the sidecar is about to stop.
    pub fn shorten_settle(&mut self, settle: Duration) {
        self.buffer.shorten_settle(settle);
    }

    /// When to call [`Self::advance`] next, if no batch arrives before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.buffer.next_deadline()
    }

    /// Judges every trace that is done.
    pub fn advance(&mut self, rules: &Rules, now: Now) -> Judged {
        let mut judged = Judged::default();
        self.advance_into(rules, now, &mut judged);
        judged
    }

    /// Like [`Self::advance`], but hands the results on in slices; the last one may be empty.
    pub fn advance_into(&mut self, rules: &Rules, now: Now, sink: &mut impl JudgementSink) {
        self.judge_due(rules, now, MAX_SLICE, |_| (), sink);
    }

    /// Judges every open trace: the sidecar stops.
    pub fn drain(&mut self, rules: &Rules, now: Now) -> Judged {
        let mut judged = Judged::default();
        self.drain_into(rules, now, &mut judged);
        judged
    }

    /// Like [`Self::drain`], but hands the results on in slices; the last one may be empty.
    pub fn drain_into(&mut self, rules: &Rules, now: Now, sink: &mut impl JudgementSink) {
        self.judge_all(rules, CloseReason::Shutdown, now, MAX_SLICE, |_| (), sink);
    }

    /// Judges every open trace: the recording has ended. `look` sees each trace as it was closed
    /// (`inspect --verbose` reports on its spans). All traces are judged together, so that none is
    /// judged twice because another one completes its calls.
    pub fn end_of_input(&mut self, rules: &Rules, now: Now, look: impl FnMut(&Trace)) -> Judged {
        let mut judged = Judged::default();
        let (reason, all) = (CloseReason::NoRoot, usize::MAX);
        self.judge_all(rules, reason, now, all, look, &mut judged);
        judged
    }

    fn judge_all(
        &mut self,
        rules: &Rules,
        otherwise: CloseReason,
        now: Now,
        max_slice: usize,
        look: impl FnMut(&Trace),
        sink: &mut impl JudgementSink,
    ) {
        self.buffer.make_all_due(otherwise, now);
        self.judge_due(rules, now, max_slice, look, sink);
        // The last traces can complete calls of earlier ones, which are then open again.
        self.buffer.make_all_due(otherwise, now);
        self.judge_due(rules, now, max_slice, |_| (), sink);
    }

    /// Statistics of open and remembered traces.
    pub fn stats(&self) -> Stats {
        let mut stats = self.buffer.stats();
        stats.recent_size += self.results.size();
        stats
    }

    fn judge_due(
        &mut self,
        rules: &Rules,
        now: Now,
        max_slice: usize,
        mut look: impl FnMut(&Trace),
        sink: &mut impl JudgementSink,
    ) {
        let mut closed = self.buffer.close_due(now, max_slice);
        loop {
            self.judge(rules, closed, now, &mut look, sink);
            closed = self.buffer.close_due(now, max_slice);
            if closed.is_empty() {
                return;
            }
        }
    }

    /// Judges closed traces, and hands on all of their results.
    fn judge(
        &mut self,
        rules: &Rules,
        closed: Vec<Closed<Reported>>,
        now: Now,
        mut look: impl FnMut(&Trace),
        sink: &mut impl JudgementSink,
    ) {
        let mut trajectories: Vec<Option<Trajectory>> = Vec::with_capacity(closed.len());
        for closed in &closed {
            sink.beat();
            look(&closed.trace);
            let trajectory = extract::trajectory(&closed.trace, &rules.recogniser);
            if let Some(trajectory) = &trajectory {
                let groups = self.span_calls.note(closed.trace.trace_id, trajectory);
                let contested = self.results.ask(trajectory);
                for changed in groups.iter().chain(&contested) {
                    self.buffer.reopen(changed, now);
                }
            }
            for result in extract::cross_trace_results(&closed.trace, &rules.recogniser) {
                // A result has the effect of a late span on the trace that lacks it.
                if let Some(waiting) = self.results.add(result) {
                    self.buffer.reopen(&waiting, now);
                }
            }
            trajectories.push(trajectory);
        }
        for (mut closed, trajectory) in closed.into_iter().zip(trajectories) {
            if closed.first {
                self.judged.reasons.push(closed.trace.reason);
            }
            match trajectory.map(|trajectory| self.span_calls.without_known(trajectory)) {
                // Spans report all calls of this group of records.
                Some(trajectory)
                    if trajectory.subject.is_none() && trajectory.tool_calls.is_empty() =>
                {
                    if closed.first {
                        self.judged.n_no_trajectory += 1;
                    }
                    let (trajectory, memo) = (Arc::new(trajectory), &mut closed.memo);
                    let revising = memo.revise(&rules.criteria, &trajectory, &self.hasher);
                    for evaluation in revising.withdraw() {
                        self.judged.add(evaluation);
                    }
                }
                Some(mut trajectory) => {
                    self.results.fill(&mut trajectory);
                    let trajectory = Arc::new(trajectory);
                    if closed.first {
                        self.judged.trajectories.push(Arc::clone(&trajectory));
                    }
                    self.judge_one(rules, &trajectory, &mut closed.memo, sink);
                }
                None if closed.first => {
                    self.judged.n_no_trajectory += 1;
                    if self.judged.unrecognised.is_none() {
                        self.judged.unrecognised = extract::unrecognised(&closed.trace);
                    }
                }
                None => {}
            }
            self.buffer.remember(closed, now);
        }
        hand_on(&mut self.judged, sink);
    }

    fn judge_one(
        &mut self,
        rules: &Rules,
        trajectory: &Arc<Trajectory>,
        reported: &mut Reported,
        sink: &mut impl JudgementSink,
    ) {
        let Rules {
            criteria,
            expectations,
            explain,
            ..
        } = rules;
        let Self { judged, hasher, .. } = self;
        let mut revising = reported.revise(criteria, trajectory, hasher);
        let case = expectations.case_of(trajectory);
        evaluate::judge_run(
            criteria,
            expectations,
            case,
            trajectory,
            explain,
            &mut |mut evaluation| {
                sink.beat();
                if revising.record(&mut evaluation) {
                    judged.add(evaluation);
                } else {
                    judged.n_unchanged += 1;
                }
                if judged.size() >= MAX_SLICE {
                    hand_on(judged, sink);
                }
            },
        );
        for evaluation in revising.withdraw() {
            judged.add(evaluation);
            if judged.size() >= MAX_SLICE {
                hand_on(judged, sink);
            }
        }
    }
}

fn hand_on(judged: &mut Judged, sink: &mut impl JudgementSink) {
    sink.take(judged);
    judged.clear();
}
