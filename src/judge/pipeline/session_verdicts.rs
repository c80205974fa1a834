//! Judges sessions by the criteria with `scope: session`: after each closed turn as if the session
//! had been cut short, and finally when no turn has closed for `assemble.session.inactive`, or when
//! the session is evicted, the input ends or the sidecar stops.

use std::sync::Arc;

use otlp::span::{Now, PeerId, TraceId};

use super::judged::JudgementSink;
use super::reported::{Marked, Reported};
use super::sessions::{DueSession, JudgedSessions, SessionStage};
use super::{CrossTraceAccess, MAX_SLICE, Pipeline, Rules, hand_on};
use crate::assemble::CloseReason;
use crate::evaluate::{self, JudgedBy, Stage, Verdict};
use crate::extract::Trajectory;

/// A closed trace and its sender. Without a trajectory the trace is not a turn of a session.
pub(super) type ClosedTurn = (TraceId, PeerId, Option<Arc<Trajectory>>);

impl<C: CrossTraceAccess> Pipeline<C> {
    /// Calls `work` with the sessions; returns `None` if other processes may receive some of their
    /// turns.
    pub(super) fn sessions<T>(&mut self, work: impl FnOnce(&mut JudgedSessions) -> T) -> Option<T> {
        self.cross_traces
            .with(|them| them.judged_sessions.as_mut().map(work))
    }

    pub(super) fn note_turns(
        &mut self,
        rules: &Rules,
        turns: Vec<ClosedTurn>,
        now: Now,
        sink: &mut impl JudgementSink,
    ) {
        self.judges_sessions = true;
        for (trace_id, peer, turn) in turns {
            let due = self.sessions(|them| match turn {
                Some(turn) => them.note(&turn, peer, now),
                None => them.remove(trace_id, now),
            });
            for due in due.into_iter().flatten() {
                self.judge_session(rules, due, now, sink);
            }
        }
    }

    /// Judges the sessions that are due. Without criteria for sessions, forgets all sessions and
    /// withdraws their alarms.
    pub(super) fn judge_due_sessions(
        &mut self,
        rules: &Rules,
        now: Now,
        sink: &mut impl JudgementSink,
    ) {
        if rules.judge_sessions() {
            self.judges_sessions = true;
            self.judge_ended(rules, None, now, sink);
        } else if self.judges_sessions {
            self.end_sessions(rules, CloseReason::Open, now, sink);
            self.sessions(|them| them.clear(now));
            self.judges_sessions = false;
            self.next_session = None;
        }
    }

    /// Judges all sessions that wait for verdicts, because the sidecar stops, the input has ended,
    /// or no criterion judges sessions any more.
    pub fn end_sessions(
        &mut self,
        rules: &Rules,
        end: CloseReason,
        now: Now,
        sink: &mut impl JudgementSink,
    ) {
        if self.judges_sessions || rules.judge_sessions() {
            self.judge_ended(rules, Some(end), now, sink);
        }
    }

    fn judge_ended(
        &mut self,
        rules: &Rules,
        end: Option<CloseReason>,
        now: Now,
        sink: &mut impl JudgementSink,
    ) {
        while let Some(due) = self.sessions(|them| them.take_due(end, now)).flatten() {
            self.judge_session(rules, due, now, sink);
        }
        self.next_session = self.sessions(|them| them.next_due()).flatten();
        hand_on(&mut self.judged, sink);
    }

    fn judge_session(
        &mut self,
        rules: &Rules,
        mut due: DueSession,
        now: Now,
        sink: &mut impl JudgementSink,
    ) {
        sink.beat();
        let Some(merged) = Trajectory::merge(&due.turns, due.completeness).map(Arc::new) else {
            return;
        };
        let criteria = &rules.of_sessions;
        let evaluations = match due.stage {
            SessionStage::Gone => Vec::new(),
            SessionStage::Open | SessionStage::Final => {
                evaluate::judge(criteria, &merged, &rules.explain)
            }
        };
        let Self {
            judged,
            hasher,
            marks_judged,
            ..
        } = self;
        if due.stage == SessionStage::Final {
            judged.sessions.push(due.completeness);
        }
        let n_alarms = judged.alarms.len();
        let is_final = due.stage != SessionStage::Open;
        let report = |reported: &mut Reported| {
            if is_final {
                let mut revising = reported.revise(criteria, &merged, hasher);
                for mut evaluation in evaluations {
                    if revising.record(&mut evaluation) {
                        judged.add(evaluation);
                    } else {
                        judged.n_unchanged += 1;
                    }
                }
                let withdrawn = revising.withdraw();
                withdrawn.for_each(|evaluation| judged.add(evaluation));
            } else {
                for mut evaluation in evaluations {
                    if let JudgedBy::Criterion(criterion) = &evaluation.criterion
                        && evaluation.verdict == Verdict::Fail
                        && reported.is_unknown(criterion)
                    {
                        reported.raise(criterion);
                        evaluation.stage = Stage::Alarm;
                        judged.add(evaluation);
                    }
                }
            }
            if *marks_judged
                && !reported.is_empty()
                && let Some(session_id) = merged.session_id()
            {
                // A session that was judged because of a shutdown continues after the restart.
                let is_final = is_final && due.completeness != CloseReason::Shutdown;
                // The mark of a session needs no records; the marks of its turns do.
                let marked = Marked::Session { is_final };
                judged.marks.add(session_id, marked, reported, 0, u64::MAX);
            }
        };
        match due.reported.take() {
            Some(mut reported) => report(&mut reported),
            None => {
                self.cross_traces.with(|them| {
                    if let Some(sessions) = &mut them.judged_sessions {
                        sessions.report(&due, report);
                    }
                });
            }
        }
        if self.judged.alarms.len() > n_alarms {
            self.judged.alarmed_unix_nanos = now.unix_nanos;
            hand_on(&mut self.judged, sink);
        } else if self.judged.size() >= MAX_SLICE {
            hand_on(&mut self.judged, sink);
        }
    }
}
