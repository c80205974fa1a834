//! Pure. assemble → extract → evaluate as one machine, without a socket or a clock. READ THIS FIRST.
//!
//! Spans go in by [`Pipeline::accept`], time goes in by [`Pipeline::advance`], judgements come out. The shell's loop around it
//! waits for a batch or for [`Pipeline::next_deadline`] and hands the clock in; replay feeds it files and calls
//! [`Pipeline::drain`]. The rules are passed in each time, never stored: a reload is the swap of one `Arc<Rules>`, and a trace
//! is judged by the rules in force when it closes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::assemble::{CloseReason, Closed, Inserted, Memo, Settings, Stats, Trace, TraceBuffer};
use crate::evaluate::{self, Criterion, Evaluation, Explain, Previous, Scope};
use crate::extract::{self, Recogniser, Tools, Trajectory};
use crate::span::{Batch, KeySet, Now, SpanId, TraceId};

/// What every trace is judged by: one immutable set, swapped as a whole.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The criteria, in file order.
    pub criteria: Vec<Arc<Criterion>>,
    /// How tool calls are recognised; it also says which attributes the scan must keep.
    pub recogniser: Recogniser,
    /// How much of values explanations show.
    pub explain: Explain,
}

impl Rules {
    /// The rules of a configuration. `copy_attributes` are what scores copy from the evaluated span; they are kept as what selectors read
    /// is, and so is the id of the case that a run belongs to.
    pub fn new(criteria: Vec<Criterion>, tools: &Tools, explain: Explain, copy_attributes: &[String]) -> Self {
        let selected = criteria.iter().flat_map(Criterion::selector_attributes);
        let copied = copy_attributes.iter().map(String::as_str);
        let recogniser = Recogniser::new(tools, selected.chain(copied).chain([evaluate::CASE_ID]), None);
        Self { recogniser, explain, criteria: criteria.into_iter().map(Arc::new).collect() }
    }

    /// Which attributes the scan keeps.
    pub fn keys(&self) -> &Arc<KeySet> {
        self.recogniser.keys()
    }
}

/// assemble → extract → evaluate.
#[derive(Debug)]
pub struct Pipeline {
    buffer: TraceBuffer<Reported>,
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
    pub fn new(settings: Settings, now: Now) -> Self {
        Self { buffer: TraceBuffer::new(settings, now) }
    }

    /// Take in the spans of one request.
    pub fn accept(&mut self, rules: &Rules, batch: Batch, now: Now) -> Intake {
        let mut intake = Intake::default();
        for mut span in batch.spans {
            let mark = extract::mark(&span, &rules.recogniser);
            extract::slim(&mut span, mark);
            match self.buffer.insert(span, mark, now) {
                Inserted::Taken | Inserted::Known => intake.n_taken += 1,
                Inserted::Late => intake.n_late += 1,
                Inserted::TooLate => intake.n_too_late += 1,
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
        let closed = self.buffer.close_all(CloseReason::Shutdown, now);
        self.judge(rules, closed, now, |_| ())
    }

    /// Judge every trace that is open: the recording has ended. `look` is shown each trace as it was closed (`inspect --verbose` tells what
    /// became of its spans).
    pub fn end_of_input(&mut self, rules: &Rules, now: Now, look: impl FnMut(&Trace)) -> Judged {
        let closed = self.buffer.close_all(CloseReason::NoRoot, now);
        self.judge(rules, closed, now, look)
    }

    /// Open and remembered traces.
    pub fn stats(&self) -> Stats {
        self.buffer.stats()
    }

    fn judge(&mut self, rules: &Rules, closed: Vec<Closed<Reported>>, now: Now, mut look: impl FnMut(&Trace)) -> Judged {
        let mut judged = Judged::default();
        for mut closed in closed {
            look(&closed.trace);
            if closed.first {
                judged.reasons.push(closed.trace.reason);
            }
            match extract::trajectory(&closed.trace, &rules.recogniser) {
                Some(trajectory) => judged.add(rules, Arc::new(trajectory), &mut closed.memo, closed.first),
                None => judged.n_no_trajectory += usize::from(closed.first),
            }
            self.buffer.remember(closed, now);
        }
        judged
    }
}

impl Judged {
    fn add(&mut self, rules: &Rules, trajectory: Arc<Trajectory>, reported: &mut Reported, first: bool) {
        for evaluation in evaluate::judge(&rules.criteria, &trajectory, &rules.explain) {
            match reported.revise(evaluation) {
                Some(evaluation) => self.evaluations.push(evaluation),
                None => self.n_unchanged += 1,
            }
        }
        self.evaluations.extend(reported.withdraw(&rules.criteria, &trajectory));
        if first {
            self.trajectories.push(trajectory);
        }
    }
}

// === Reported ===

/// What was reported of one trace, remembered with it so that late spans report only what they change.
#[derive(Debug, Default, Clone)]
struct Reported(Vec<ReportedEvaluation>);

#[derive(Debug, Clone)]
struct ReportedEvaluation {
    criterion: Arc<Criterion>,
    /// The agent run of `scope: agent`. A whole trace is judged once, whichever span turns out to be its topmost.
    agent_run: Option<SpanId>,
    fingerprint: u64,
    previous: Previous,
    /// Does it stand? Asked anew each time the trace is judged: what does not apply any more is withdrawn.
    stands: Stands,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Confirmed,
    Unconfirmed,
    Withdrawn,
}

impl Reported {
    /// The evaluation with its revision, or nothing if it was reported as it stands.
    fn revise(&mut self, mut evaluation: Evaluation) -> Option<Evaluation> {
        let subject = evaluation.trajectory.subject.as_ref().map(|subject| subject.span_id);
        let agent_run = if evaluation.criterion.scope == Scope::Agent { subject } else { None };
        let fingerprint = fingerprint(&evaluation);
        let mut known = self.0.iter_mut().find(|known| known.agent_run == agent_run && known.criterion.name == evaluation.criterion.name);
        if let Some(known) = &mut known {
            known.stands = Stands::Confirmed;
        }
        match known {
            Some(known) if known.fingerprint == fingerprint => None,
            Some(known) => {
                evaluation.revision = known.previous.revision + 1;
                evaluation.previous = Some(known.previous);
                known.fingerprint = fingerprint;
                known.previous = Previous { subject, verdict: evaluation.verdict, revision: evaluation.revision };
                Some(evaluation)
            }
            None => {
                self.0.push(ReportedEvaluation {
                    criterion: Arc::clone(&evaluation.criterion),
                    agent_run,
                    fingerprint,
                    previous: Previous { subject, verdict: evaluation.verdict, revision: 0 },
                    stands: Stands::Confirmed,
                });
                Some(evaluation)
            }
        }
    }

    /// Revisions that take back what was reported before and was not judged this time. A criterion that is no longer registered stays quiet:
    /// what it said was right when it said it.
    fn withdraw(&mut self, criteria: &[Arc<Criterion>], trajectory: &Arc<Trajectory>) -> Vec<Evaluation> {
        let mut withdrawn = Vec::new();
        for known in &mut self.0 {
            match known.stands {
                Stands::Withdrawn => {}
                Stands::Confirmed => known.stands = Stands::Unconfirmed,
                Stands::Unconfirmed => {
                    let Some(criterion) = criteria.iter().find(|criterion| criterion.name == known.criterion.name) else { continue };
                    let mut evaluation = evaluate::withdraw(criterion, trajectory, known.agent_run);
                    evaluation.revision = known.previous.revision + 1;
                    evaluation.previous = Some(known.previous);
                    let subject = evaluation.trajectory.subject.as_ref().map(|subject| subject.span_id);
                    known.previous = Previous { subject, verdict: evaluation.verdict, revision: evaluation.revision };
                    known.fingerprint = fingerprint(&evaluation);
                    known.stands = Stands::Withdrawn;
                    withdrawn.push(evaluation);
                }
            }
        }
        withdrawn
    }
}

impl Memo for Reported {
    fn size(&self) -> usize {
        self.0.capacity() * size_of::<ReportedEvaluation>()
    }
}

/// Two evaluations with the same fingerprint look the same to whoever reads them. Never leaves the process.
fn fingerprint(evaluation: &Evaluation) -> u64 {
    let Evaluation { trajectory, value, verdict, explanation, error, details, .. } = evaluation;
    let mut hasher = DefaultHasher::new();
    (value.map(f64::to_bits), verdict, explanation, details.to_string()).hash(&mut hasher);
    error.as_ref().map(|error| (error.kind, &error.message)).hash(&mut hasher);
    (trajectory.completeness, trajectory.subject.as_ref().map(|subject| subject.span_id)).hash(&mut hasher);
    for call in &trajectory.tool_calls {
        (&call.name, call.error).hash(&mut hasher);
    }
    hasher.finish()
}
