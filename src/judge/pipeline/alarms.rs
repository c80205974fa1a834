//! Judges open traces by the criteria with `alarm`, as if each trace had been cut short at this
//! point. A `fail` of a cut trace also holds for the whole trace, so an alarm implies that the
//! final verdict is `fail`; docs/design.md#alarms names the exceptions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otlp::span::Now;

use super::judged::JudgementSink;
use super::reported::{Marked, Reported};
use super::{CrossTraceAccess, CrossTraces, Pipeline, Rules, hand_on};
use crate::assemble::{ChangedTrace, OpenCopy, Trace};
use crate::evaluate::{self, Criterion, Evaluation, JudgedBy, Stage, Verdict};
use crate::extract;

/// Interval at which postponed traces are judged.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// A retry judges no further trace once its judgements have cost this many KiB.
const MAX_RETRIED: u32 = 8 << 10;

#[derive(Debug, Default)]
pub(super) struct PostponedAlarms {
    /// The criteria with alarms by which calls were last watched, to notice a change of the rules.
    criteria: Arc<[Arc<Criterion>]>,
    waiting: VecDeque<ChangedTrace>,
    pub(super) retry_at: Option<Instant>,
}

impl<C: CrossTraceAccess> Pipeline<C> {
    /// After a change of the rules, watches all open traces, because a call that no earlier
    /// criterion watched may violate a new one.
    pub(super) fn watch_by(&mut self, rules: &Rules, now: Now) {
        let postponed = &mut self.postponed;
        if !Arc::ptr_eq(&postponed.criteria, &rules.alarms) {
            postponed.criteria = Arc::clone(&rules.alarms);
            postponed.waiting.extend(self.buffer.watch_open(now));
            postponed.retry_at = Some(now.instant);
        }
    }

    /// Judges the open traces that have changed, unless they must wait, and reports each
    /// permanently violated criterion once for each trace.
    pub(super) fn raise_alarms(&mut self, rules: &Rules, now: Now, sink: &mut impl JudgementSink) {
        for changed in self.buffer.take_changed() {
            if self.judge_changed(rules, changed, false, sink).is_none() {
                self.judged.n_postponed += 1;
                self.postponed.waiting.push_back(changed);
                let retry_at = self.postponed.retry_at;
                self.postponed.retry_at = retry_at.or(Some(now.instant + RETRY_EVERY));
            }
        }
        if self.judged.n_postponed > 0 {
            hand_on(&mut self.judged, sink);
        }
    }

    pub(super) fn retry_alarms(&mut self, rules: &Rules, now: Now, sink: &mut impl JudgementSink) {
        self.watch_by(rules, now);
        if self.postponed.retry_at.is_none_or(|at| at > now.instant) {
            return;
        }
        let mut n_judged = 0;
        while n_judged < MAX_RETRIED
            && let Some(changed) = self.postponed.waiting.pop_front()
        {
            n_judged += self.judge_changed(rules, changed, true, sink).unwrap_or(0);
        }
        let is_empty = self.postponed.waiting.is_empty();
        self.postponed.retry_at = (!is_empty).then(|| now.instant + RETRY_EVERY);
    }

    /// Judges an open trace, and returns the cost in KiB, 0 without a judgement; `None` if the
    /// trace must wait.
    fn judge_changed(
        &mut self,
        rules: &Rules,
        changed: ChangedTrace,
        is_due: bool,
        sink: &mut impl JudgementSink,
    ) -> Option<u32> {
        sink.beat();
        let trace_id = &changed.trace_id;
        let memo = self.buffer.unreported_memo(trace_id);
        let criteria = memo.map_or_else(Vec::new, |memo| {
            let open = rules.alarms.iter().filter(|it| !memo.has_alarm(it));
            open.cloned().collect()
        });
        match self.buffer.copy_open(trace_id, criteria.len(), is_due) {
            OpenCopy::Judge(trace, size) => {
                self.judge_open(rules, &criteria, &trace, sink);
                if !self.judged.alarms.is_empty() {
                    self.judged.alarmed_unix_nanos = changed.unix_nanos;
                    hand_on(&mut self.judged, sink);
                }
                Some(size)
            }
            OpenCopy::Postponed => None,
            OpenCopy::Gone => Some(0),
        }
    }

    fn judge_open(
        &mut self,
        rules: &Rules,
        criteria: &[Arc<Criterion>],
        trace: &Trace,
        sink: &mut impl JudgementSink,
    ) {
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
        let mut take = |mut evaluation: Evaluation| {
            sink.beat();
            let JudgedBy::Criterion(criterion) = &evaluation.criterion else {
                return;
            };
            if criterion.alarm.is_none() || evaluation.verdict != Verdict::Fail {
                return;
            }
            buffer.change_open_memo(&trace.trace_id, |memo: &mut Reported| {
                memo.raise(criterion);
            });
            evaluation.stage = Stage::Alarm;
            judged.add(evaluation);
        };
        evaluate::judge_run(
            criteria,
            expectations,
            case,
            &trajectory,
            &rules.explain,
            &mut take,
        );
        // A restart must not raise the alarms again.
        let memo = self.buffer.unreported_memo(&trace.trace_id);
        let first_record = self.buffer.first_record_of(&trace.trace_id);
        if let Some((memo, first_record)) = memo.zip(first_record)
            && self.marks_judged
            && !self.judged.alarms.is_empty()
        {
            let (id, marked) = (trace.trace_id, Marked::Trace(trace.reason));
            let marks = &mut self.judged.marks;
            marks.add(id, marked, memo, self.next_record, first_record);
        }
    }
}
