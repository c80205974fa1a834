//! Alarms: judges open traces by the criteria with `alarm`, each as if it had been cut short where
//! it stands. A `fail` of a trace cut short is never wrong about the whole trace, so an alarm
//! implies that the final verdict is `fail`, unless a sender corrects a span or a reload changes
//! the criterion.

use std::sync::Arc;

use otlp::span::Now;

use super::judged::JudgementSink;
use super::reported::Reported;
use super::{CrossTraceAccess, CrossTraces, Pipeline, Rules, hand_on};
use crate::assemble::{ChangedTrace, Trace};
use crate::evaluate::{self, Criterion, Evaluation, JudgedBy, Stage, Verdict};
use crate::extract::{self, Trajectory};

impl<C: CrossTraceAccess> Pipeline<C> {
    /// Judges the open traces that have changed, and reports each criterion that is violated for
    /// good, once for each trace.
    pub(super) fn raise_alarms(&mut self, rules: &Rules, now: Now, sink: &mut impl JudgementSink) {
        let changed = self.buffer.take_changed();
        for trace_id in &changed {
            sink.beat();
            let is_raised = |criterion: &&Arc<Criterion>| {
                let memo = self.buffer.open_memo(trace_id);
                memo.is_some_and(|memo| memo.has_alarm(criterion))
            };
            let open = rules.alarms.iter().filter(|it| !is_raised(it));
            let open: Vec<Arc<Criterion>> = open.cloned().collect();
            match self.buffer.take_to_judge(trace_id, open.len()) {
                ChangedTrace::Judge(trace) => self.judge_open(rules, &open, &trace),
                ChangedTrace::Postponed => self.judged.n_postponed += 1,
                ChangedTrace::Gone => {}
            }
        }
        if !changed.is_empty() {
            self.judged.alarmed_unix_nanos = now.unix_nanos;
            hand_on(&mut self.judged, sink);
        }
    }

    fn judge_open(&mut self, rules: &Rules, criteria: &[Arc<Criterion>], trace: &Trace) {
        let Some(trajectory) = extract::trajectory(trace, &rules.recogniser) else {
            return;
        };
        let mut trajectory = Arc::new(trajectory);
        if CrossTraces::concern(&trajectory) {
            self.cross_traces
                .with(|them| them.complete(&mut trajectory));
        }
        let expectations = &*rules.expectations;
        let case = expectations.case_of(&trajectory);
        let (judged, buffer) = (&mut self.judged, &mut self.buffer);
        let n_before = judged.alarms.len();
        let mut take = |evaluation: Evaluation| {
            let JudgedBy::Criterion(criterion) = &evaluation.criterion else {
                return;
            };
            if criterion.alarm.is_none() || evaluation.verdict != Verdict::Fail {
                return;
            }
            buffer.change_open_memo(&trace.trace_id, |memo: &mut Reported| {
                memo.raise(criterion);
            });
            judged.add(at_call(evaluation));
        };
        evaluate::judge_run(
            criteria,
            expectations,
            case,
            &trajectory,
            &rules.explain,
            &mut take,
        );
        if self.marks_judged && self.judged.alarms.len() > n_before {
            self.mark_alarms(trace);
        }
    }

    /// Marks the alarms of an open trace, so that a restart does not raise them again.
    fn mark_alarms(&mut self, trace: &Trace) {
        let memo = self.buffer.open_memo(&trace.trace_id);
        let records = self.buffer.records_of(&trace.trace_id);
        if let Some((memo, records)) = memo.zip(records) {
            let marks = &mut self.judged.marks;
            marks.add(trace, memo, self.next_record, records);
        }
    }
}

/// Returns the alarm of a violation. Its subject is the first call to blame: the evaluated span of
/// an open trace may change.
fn at_call(evaluation: Evaluation) -> Evaluation {
    let trajectory = &evaluation.trajectory;
    let call = evaluation.offending().first();
    let call = call.and_then(|call| trajectory.tool_calls.get(*call));
    let mut alarm = match call.and_then(|call| Some((call, call.span_id?))) {
        None => evaluation,
        Some((call, span_id)) => {
            let mut moved = Trajectory::clone(trajectory);
            if let Some(subject) = &mut moved.subject {
                subject.span_id = span_id;
                subject.name = Arc::clone(&call.name);
                subject.start_unix_nanos = call.start_unix_nanos;
                subject.end_unix_nanos = call.end_unix_nanos;
            }
            evaluation.with_trajectory(Arc::new(moved))
        }
    };
    alarm.stage = Stage::Alarm;
    alarm
}
