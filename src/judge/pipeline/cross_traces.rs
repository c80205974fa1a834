//! State that several traces share: calls reported by spans and log records, parts of calls in
//! other traces, the turns of sessions, services with model spans, and services whose traces arrive
//! torn (split between replicas). The pipelines of all partitions share it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use otlp::span::{Now, PeerId, TraceId};

use super::cross_trace_results::CrossTraceResults;
use super::model_services::ModelServices;
use super::sessions::JudgedSessions;
use super::span_calls::SpanCalls;
use crate::assemble::{
    Closed, Memo, Partition, Sessions, Settings, TornServices, TornTraces, Turn,
};
use crate::extract::{CrossTraceResult, Trajectory};

/// Gives one pipeline access to the state that traces share.
pub trait CrossTraceAccess {
    /// Reads or changes the state. Other pipelines wait, so `work` must be short.
    fn with<T>(&mut self, work: impl FnOnce(&mut CrossTraces) -> T) -> T;

    /// Announces that this pipeline has recorded its traces that were due by `now`. `next_due` is
    /// its next deadline. A `next_due` up to `now` means that further traces are due.
    fn noted(&mut self, next_due: Option<Instant>, now: Now);

    /// Waits until the other pipelines have recorded their traces that are due by `now`. May time
    /// out; a trace that is recorded later reopens the traces that it changes.
    fn wait_for_others(&mut self, now: Now);
}

/// A single pipeline judges all traces, so nothing is shared.
impl CrossTraceAccess for CrossTraces {
    fn with<T>(&mut self, work: impl FnOnce(&mut CrossTraces) -> T) -> T {
        work(self)
    }

    fn noted(&mut self, _: Option<Instant>, _: Now) {}

    fn wait_for_others(&mut self, _: Now) {}
}

#[derive(Debug)]
pub struct CrossTraces {
    span_calls: SpanCalls,
    results: CrossTraceResults,
    /// `None` if turns of a session may be in other processes.
    sessions: Option<Sessions>,
    /// `None` if model spans of a trace may be in other processes.
    models: Option<ModelServices>,
    /// The sessions for criteria with `scope: session`; `None` if turns may be in other processes.
    pub(super) judged_sessions: Option<JudgedSessions>,
    torn: TornServices,
    /// Traces to judge again that belong to another partition than the trace that changed them.
    /// Only recorded traces are added, so the set is bounded.
    changed: BTreeSet<TraceId>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionStats {
    pub n_sessions: usize,
    pub size: usize,
}

/// The data extracted from a closed trace, for its own judgement and for other traces.
#[derive(Debug)]
pub(super) struct Extracted {
    pub(super) trace_id: TraceId,
    pub(super) peer: PeerId,
    /// `None` for a trace with nothing to judge.
    pub(super) trajectory: Option<Arc<Trajectory>>,
    /// Parts of calls that other traces may lack.
    pub(super) results: Vec<CrossTraceResult>,
}

impl CrossTraces {
    pub fn new(settings: &Settings, now: Now) -> Self {
        let size_limit = Self::size_limit(settings) / 2;
        let is_guarded = settings.restart_guard.is_some();
        Self {
            span_calls: SpanCalls::default(),
            sessions: (!settings.has_peers).then(|| Sessions::new(size_limit, is_guarded, now)),
            judged_sessions: (!settings.has_peers)
                .then(|| JudgedSessions::new(settings.session.clone(), is_guarded, now)),
            results: CrossTraceResults::new(
                size_limit,
                settings.max_recent_traces,
                settings.recent_ttl,
            ),
            models: (!settings.has_peers).then(ModelServices::default),
            torn: TornServices::default(),
            changed: BTreeSet::new(),
        }
    }

    /// Bytes that this state may use of the budget for closed traces.
    pub(super) fn size_limit(settings: &Settings) -> usize {
        Self::share(settings.max_recent_size)
    }

    pub(super) fn share(max_recent_size: usize) -> usize {
        max_recent_size / 8
    }

    pub(super) fn resize(&mut self, max_size: usize, max_sessions_size: usize, now: Now) {
        self.results.resize(max_size / 2);
        if let Some(judged) = &mut self.judged_sessions {
            judged.resize(max_sessions_size, now);
        }
        if let Some(sessions) = &mut self.sessions {
            sessions.resize(max_size / 2);
        }
    }

    /// Returns the bytes of the parts of calls, and of the turns of sessions.
    pub fn size(&self) -> usize {
        let judged = self.judged_sessions.as_ref();
        let judged = judged.map_or(0, JudgedSessions::size);
        self.results.size() + self.sessions.as_ref().map_or(0, Sessions::size) + judged
    }

    pub fn session_stats(&self) -> SessionStats {
        let judged = self.judged_sessions.as_ref();
        judged.map_or_else(SessionStats::default, |judged| SessionStats {
            n_sessions: judged.n_sessions(),
            size: judged.size(),
        })
    }

    /// Drops the histories of sessions and services for good, because other processes may judge
    /// some of their traces.
    pub(super) fn without_history(&mut self) {
        (self.sessions, self.models) = (None, None);
        self.judged_sessions = None;
    }

    pub(super) fn miss(&mut self, now: Now) {
        if let Some(sessions) = &mut self.sessions {
            sessions.miss(now);
        }
        if let Some(judged) = &mut self.judged_sessions {
            judged.miss(now);
        }
    }

    /// Counts the closed traces for their services, and withholds full verdicts for services whose
    /// traces arrive torn.
    pub(super) fn check_torn<M: Memo>(&mut self, closed: &mut [Closed<M>]) {
        for closed in closed {
            closed.check_torn(&mut self.torn);
        }
    }

    pub(super) fn take_torn(&mut self) -> TornTraces {
        self.torn.take()
    }

    /// Records the closed traces of a partition. Returns the traces of this partition to judge
    /// again; traces of other partitions wait for [`Self::take_changed`].
    pub(super) fn note(
        &mut self,
        extracted: &mut [Extracted],
        partition: Partition,
        now: Now,
    ) -> Vec<TraceId> {
        let mut changed = Vec::new();
        for Extracted {
            trace_id,
            peer,
            trajectory,
            results,
        } in extracted
        {
            if let Some(trajectory) = trajectory {
                if let Some(models) = &mut self.models {
                    models.note(trajectory);
                }
                if let (Some(sessions), Some(turn)) = (&mut self.sessions, turn(trajectory, *peer))
                {
                    let names = trajectory.tool_calls.iter().map(|call| &call.name);
                    changed.extend(sessions.note(&turn, names, now));
                }
                changed.extend(self.span_calls.note(*trace_id, trajectory));
                changed.extend(self.results.ask(trajectory));
            }
            let results = results.drain(..);
            changed.extend(results.filter_map(|result| self.results.add(result)));
        }
        changed.retain(|trace_id| {
            let is_own = partition.holds(*trace_id);
            if !is_own {
                self.changed.insert(*trace_id);
            }
            is_own
        });
        changed
    }

    /// Returns the traces of this partition that traces of other partitions have changed.
    pub(super) fn take_changed(&mut self, partition: Partition) -> Vec<TraceId> {
        let taken = self.changed.iter().filter(|it| partition.holds(**it));
        let taken: Vec<TraceId> = taken.copied().collect();
        for trace_id in &taken {
            self.changed.remove(trace_id);
        }
        taken
    }

    /// Returns true if other traces can change this trajectory: they may contain arguments and
    /// results of its calls, or, if it was made from log records, spans of the same calls.
    pub(super) fn concern(trajectory: &Trajectory) -> bool {
        trajectory.completed_elsewhere || trajectory.subject.is_none()
    }

    pub(super) fn add_earlier_turns(&self, trajectory: &mut Arc<Trajectory>, peer: PeerId) {
        let turn = turn(trajectory, peer);
        let earlier = self.sessions.as_ref().zip(turn);
        let earlier = earlier.and_then(|(sessions, turn)| sessions.earlier(&turn));
        if let Some(earlier) = earlier {
            Arc::make_mut(trajectory).earlier_turns = Some(Arc::new(earlier));
        }
    }

    /// Marks a trajectory without model spans if other traces of its service have model spans.
    pub(super) fn add_models_of_service(&self, trajectory: &mut Arc<Trajectory>) {
        let models = self.models.as_ref().filter(|_| trajectory.shows_no_model());
        if models.is_some_and(|models| models.contains(&trajectory.service)) {
            Arc::make_mut(trajectory).model_use.others_have_models = true;
        }
    }

    /// Removes from a group of log records the calls that spans also report, and adds the parts of
    /// calls that other traces contain.
    pub(super) fn complete(&self, trajectory: &mut Arc<Trajectory>) {
        self.span_calls.remove_known(trajectory);
        self.results.fill(trajectory);
    }
}

/// Returns the trajectory as a turn of its session; `None` without a session, and for log records
/// without calls.
fn turn(trajectory: &Trajectory, peer: PeerId) -> Option<Turn<'_>> {
    if trajectory.subject.is_none() && trajectory.tool_calls.is_empty() {
        return None;
    }
    Some(Turn {
        service: &trajectory.service,
        session: trajectory.session.as_deref()?,
        trace_id: trajectory.trace_id,
        start_unix_nanos: trajectory.start_unix_nanos(),
        continues: trajectory.continues_session,
        is_whole: !trajectory.cut_short,
        peer,
    })
}
