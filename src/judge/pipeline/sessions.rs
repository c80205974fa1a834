//! Stores the closed turns of sessions for criteria with `scope: session`, and decides when a
//! session is judged and whether all of it was seen.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{DefaultHashBuilder, HashMap};
use otlp::span::{Now, PeerId, TraceId};

use super::reported::Reported;
use crate::assemble::accounts::ShareMeasure;
use crate::assemble::beginnings::Beginnings;
use crate::assemble::fifo_timers::{FifoTimers, Tick};
use crate::assemble::forgotten::ForgottenTraces;
use crate::assemble::shares::{BudgetShare, Shares, TraceSender};
use crate::assemble::slab::{Slab, Slot};
use crate::assemble::timers::ticks;
use crate::assemble::{CloseReason, Memo, SessionSettings};
use crate::extract::Trajectory;

/// Limits on the turns and the calls of one session. Further turns and calls are not judged.
const MAX_TURNS: usize = 1_000;
const MAX_CALLS: usize = 4_096;

/// Maximum bytes of the hashes of forgotten sessions, in addition to the memory of sessions. If a
/// session's hash does not fit, the history of the session's service starts anew.
const MAX_FORGOTTEN_SIZE: usize = 1 << 20;
const FORGOTTEN_FOR: Duration = Duration::from_secs(24 * 3_600);

/// Bytes of a session, and of a turn, in the indices and queues.
const ENTRY_SIZE: usize = 128;

/// The sessions with closed turns. If memory is short, the longest-silent session of the heaviest
/// peer is forgotten. `session_verdicts.rs` judges without holding the lock on this state.
#[derive(Debug)]
pub(super) struct JudgedSessions {
    /// Randomly keyed, so that no sender can choose names that collide.
    hasher: DefaultHashBuilder,
    index: HashMap<u64, Slot>,
    sessions: Slab<Session>,
    /// The session of each turn.
    turns: HashMap<TraceId, Slot>,
    shares: Shares,
    /// All sessions by their last turn, in a queue for each peer.
    by_peer: FifoTimers,
    waiting: FifoTimers,
    settings: SessionSettings,
    created: Instant,
    /// The start of the session history (Unix time).
    memory_unix_nanos: u64,
    /// Separate starts of the history, keyed by the hash of the service.
    beginnings: Beginnings<u64>,
    /// The latest start (Unix time) of a session that may lack turns or spans.
    missed_unix_nanos: u64,
    is_restored: bool,
    /// The sessions that were forgotten in the last day, and some of the day before, with rare
    /// false positives.
    forgotten: ForgottenTraces,
}

#[derive(Debug)]
struct Session {
    key: u64,
    service: u64,
    share: BudgetShare,
    turns: Vec<Arc<Trajectory>>,
    n_calls: usize,
    size: usize,
    /// The start of the history when the session's first turn was recorded (Unix time).
    history_unix_nanos: u64,
    was_forgotten: bool,
    /// True if a turn exceeded a limit.
    is_full: bool,
    /// The number of changes. A judgement of an earlier version is dropped.
    version: u64,
    is_final: bool,
    reported: Reported,
}

#[derive(Debug)]
pub(super) struct DueSession {
    key: u64,
    version: u64,
    /// The turns in order of start; at least one.
    pub(super) turns: Vec<Arc<Trajectory>>,
    /// `Silent` if the session has ended and all of it was seen; else the reason why not.
    pub(super) completeness: CloseReason,
    pub(super) stage: SessionStage,
    /// Set only for a session that was removed.
    pub(super) reported: Option<Reported>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionStage {
    /// Report the criteria that are permanently violated.
    Open,
    /// Report the verdicts.
    Final,
    /// Withdraw the reported results, because the last turn belongs to another session or is no
    /// turn any more.
    Gone,
}

impl JudgedSessions {
    /// Creates an empty history. If `is_guarded` is false, as in `replay`, no turn precedes the
    /// history.
    pub(super) fn new(settings: SessionSettings, is_guarded: bool, now: Now) -> Self {
        let begin = if is_guarded { now.unix_nanos } else { 0 };
        Self {
            hasher: DefaultHashBuilder::default(),
            index: HashMap::new(),
            sessions: Slab::new(),
            turns: HashMap::new(),
            shares: Shares::default(),
            by_peer: FifoTimers::new(1),
            waiting: FifoTimers::new(1),
            created: now.instant,
            memory_unix_nanos: begin,
            beginnings: Beginnings::default(),
            missed_unix_nanos: begin,
            is_restored: false,
            forgotten: ForgottenTraces::new(MAX_FORGOTTEN_SIZE, ticks(FORGOTTEN_FOR)),
            settings,
        }
    }

    /// Changes the memory limit, which the next turn enforces. A limit of 0 means that no criterion
    /// judged sessions, so that no turns were recorded.
    pub(super) fn resize(&mut self, max_size: usize, now: Now) {
        if self.settings.max_size == 0 && max_size > 0 {
            self.memory_unix_nanos = self.memory_unix_nanos.max(now.unix_nanos);
        }
        self.settings.max_size = max_size;
    }

    pub(super) fn size(&self) -> usize {
        self.shares.size()
    }

    pub(super) fn n_sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Records that any session may have lost spans.
    pub(super) fn miss(&mut self, now: Now) {
        self.memory_unix_nanos = self.memory_unix_nanos.max(now.unix_nanos);
        self.missed_unix_nanos = self.memory_unix_nanos;
    }

    /// Moves the start of the history back to this time. Only the first call has an effect. Call it
    /// before turns are restored, with a journal that has every span since this time.
    pub(super) fn restore_history(&mut self, since_unix_nanos: u64) {
        if !std::mem::replace(&mut self.is_restored, true) {
            self.memory_unix_nanos = self.memory_unix_nanos.min(since_unix_nanos);
            self.missed_unix_nanos = self.missed_unix_nanos.min(since_unix_nanos);
        }
    }

    /// Remembers that turns up to this moment could not be restored. A session that begins within
    /// `inactive` after this moment may have some of these turns.
    pub(super) fn miss_restored(&mut self, until_unix_nanos: u64) {
        let until = until_unix_nanos.saturating_add(ticks(self.settings.inactive));
        self.missed_unix_nanos = self.missed_unix_nanos.max(until);
    }

    /// Restores the reported results of sessions, after their turns. A session with final verdicts
    /// does not wait for verdicts again. If a session has two marks, the later one is used.
    pub(super) fn restore_reported(&mut self, marks: Vec<(TraceId, Reported, bool)>) {
        let marks = marks.into_iter();
        let mut marks: HashMap<_, _> = marks.map(|(id, memo, end)| (id, (memo, end))).collect();
        for session in self.sessions.values_mut() {
            let session_id = session.turns.first().and_then(|turn| turn.session_id());
            if let Some((reported, is_final)) = session_id.and_then(|id| marks.remove(&id)) {
                let before = session.size;
                session.size = before - session.reported.size() + reported.size();
                session.reported = reported;
                session.is_final = is_final;
                self.shares.resize(session.share, before, session.size);
                if is_final && let Some(slot) = self.index.get(&session.key) {
                    self.waiting.cancel(*slot);
                }
            }
        }
    }

    /// Records a closed turn, or a changed one. Returns the sessions to judge.
    pub(super) fn note(
        &mut self,
        turn: &Arc<Trajectory>,
        peer: PeerId,
        now: Now,
    ) -> Vec<DueSession> {
        let mut due = Vec::new();
        let Some(session) = &turn.session else {
            return self.remove(turn.trace_id, now);
        };
        let key = self.hasher.hash_one((&*turn.service, &**session));
        let known = self.turns.get(&turn.trace_id).copied();
        let is_other = |slot: &Slot| self.sessions.get(*slot).is_some_and(|it| it.key != key);
        if known.filter(is_other).is_some() {
            due = self.remove(turn.trace_id, now);
        }
        let slot = match self.index.get(&key) {
            Some(slot) => *slot,
            None => self.open(key, turn, peer, now),
        };
        let Some(session) = self.sessions.get_mut(slot) else {
            return due;
        };
        let before = session.size;
        session.take(turn.trace_id);
        let max_calls = MAX_CALLS - session.n_calls;
        session.is_full |= turn.tool_calls.len() > max_calls || session.turns.len() == MAX_TURNS;
        if session.turns.len() < MAX_TURNS {
            let turn = turn.with_first_calls(max_calls);
            let place = |it: &Trajectory| (it.start_unix_nanos(), it.trace_id);
            let at = session.turns.partition_point(|it| place(it) < place(&turn));
            session.n_calls += turn.tool_calls.len();
            session.size += turn.size(true) + ENTRY_SIZE;
            self.turns.insert(turn.trace_id, slot);
            session.turns.insert(at, turn);
        } else {
            self.turns.remove(&turn.trace_id);
        }
        self.shares.resize(session.share, before, session.size);
        due.extend(self.change(slot, now));
        self.evict(&mut due, now);
        due
    }

    /// Removes a trace that is no longer a turn. Returns the session to judge, if the trace was a
    /// turn.
    pub(super) fn remove(&mut self, trace_id: TraceId, now: Now) -> Vec<DueSession> {
        let Some(slot) = self.turns.remove(&trace_id) else {
            return Vec::new();
        };
        let Some(session) = self.sessions.get_mut(slot) else {
            return Vec::new();
        };
        let before = session.size;
        let taken = session.take(trace_id);
        self.shares.resize(session.share, before, session.size);
        if !session.turns.is_empty() {
            return self.change(slot, now).into_iter().collect();
        }
        let gone = self.close(slot).zip(taken).map(|(session, turn)| {
            let turns = vec![turn];
            let gone = session.due(CloseReason::Open, SessionStage::Gone);
            DueSession { turns, ..gone }.with_reported(session.reported)
        });
        gone.into_iter().collect()
    }

    /// Returns the next session to judge for its final verdicts: the session that has been silent
    /// longest, if it is due. If all sessions end, for the reason `end`, returns it even if it is
    /// not due.
    pub(super) fn take_due(&mut self, end: Option<CloseReason>, now: Now) -> Option<DueSession> {
        let (slot, since) = self.waiting.first(0)?;
        let is_silent = since.saturating_add(ticks(self.settings.inactive)) <= self.tick(now);
        if end.is_none() && !is_silent {
            return None;
        }
        self.waiting.cancel(slot);
        let session = self.sessions.get(slot)?;
        let completeness = self.completeness(session, end.unwrap_or(CloseReason::Silent));
        let session = self.sessions.get_mut(slot)?;
        session.is_final = true;
        Some(session.due(completeness, SessionStage::Final))
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let (_, since) = self.waiting.first(0)?;
        let at = since.checked_add(ticks(self.settings.inactive))?;
        self.created.checked_add(Duration::from_nanos(at))
    }

    /// Changes the reported results of a session, unless the session has changed since `due` was
    /// returned.
    pub(super) fn report(&mut self, due: &DueSession, report: impl FnOnce(&mut Reported)) {
        let slot = self.index.get(&due.key);
        let session = slot.and_then(|slot| self.sessions.get_mut(*slot));
        let Some(session) = session.filter(|session| session.version == due.version) else {
            return;
        };
        let before = session.size;
        session.size -= session.reported.size();
        report(&mut session.reported);
        session.size += session.reported.size();
        self.shares.resize(session.share, before, session.size);
    }

    /// Forgets all sessions, because no criterion judges sessions any more.
    pub(super) fn clear(&mut self, now: Now) {
        let is_guarded = self.memory_unix_nanos > 0;
        *self = Self::new(self.settings.clone(), is_guarded, now);
    }

    fn tick(&self, now: Now) -> Tick {
        ticks(now.instant.saturating_duration_since(self.created))
    }

    fn open(&mut self, key: u64, turn: &Trajectory, peer: PeerId, now: Now) -> Slot {
        let service = self.hasher.hash_one(&*turn.service);
        self.forgotten.expire(self.tick(now));
        let pause = ticks(self.settings.inactive);
        let is_recent = |begin: u64| begin.saturating_add(pause) > now.unix_nanos;
        let dropped = self.beginnings.expire(is_recent).unwrap_or_default();
        self.memory_unix_nanos = self.memory_unix_nanos.max(dropped);
        let of_service = self.beginnings.of(service).unwrap_or_default();
        let size = size_of::<Session>() + ENTRY_SIZE;
        let share = self.shares.open(TraceSender { peer, service: 0 }, size);
        self.by_peer.grow(share.peer() + 1);
        let slot = self.sessions.insert(Session {
            key,
            service,
            share,
            turns: Vec::new(),
            n_calls: 0,
            size,
            history_unix_nanos: self.memory_unix_nanos.max(of_service),
            was_forgotten: self.forgotten.contains(key),
            is_full: false,
            version: 0,
            is_final: false,
            reported: Reported::default(),
        });
        self.index.insert(key, slot);
        slot
    }

    /// Restarts the timers of a changed session. Returns the session to judge, if it has turns.
    fn change(&mut self, slot: Slot, now: Now) -> Option<DueSession> {
        let tick = self.tick(now);
        let session = self.sessions.get_mut(slot)?;
        session.version += 1;
        session.is_final = false;
        self.by_peer.start(session.share.peer(), slot, tick);
        self.waiting.start(0, slot, tick);
        let has_turns = !session.turns.is_empty();
        has_turns.then(|| session.due(CloseReason::Open, SessionStage::Open))
    }

    fn close(&mut self, slot: Slot) -> Option<Session> {
        self.by_peer.cancel(slot);
        self.waiting.cancel(slot);
        let session = self.sessions.remove(slot)?;
        self.index.remove(&session.key);
        self.shares.close(session.share, session.size);
        for turn in &session.turns {
            self.turns.remove(&turn.trace_id);
        }
        Some(session)
    }

    fn evict(&mut self, due: &mut Vec<DueSession>, now: Now) {
        while self.shares.size() > self.settings.max_size {
            let heaviest = self.shares.heaviest(ShareMeasure::Bytes);
            let Some((oldest, _)) = self.by_peer.first(heaviest.peer()) else {
                return;
            };
            let Some(session) = self.close(oldest) else {
                return;
            };
            let tick = self.tick(now);
            if !self.forgotten.insert(session.key, tick, tick) {
                let of_all = self.beginnings.begin(Some(session.service), now.unix_nanos);
                self.memory_unix_nanos = self.memory_unix_nanos.max(of_all.unwrap_or_default());
            }
            if !session.is_final && !session.turns.is_empty() {
                let evicted = session.due(CloseReason::Evicted, SessionStage::Final);
                due.push(evicted.with_reported(session.reported));
            }
        }
    }

    /// Returns the completeness of a session. Only [`CloseReason::Silent`] means that the whole
    /// session was seen.
    fn completeness(&self, session: &Session, end: CloseReason) -> CloseReason {
        let first = session.turns.first();
        let start = first.map_or(0, |turn| turn.start_unix_nanos());
        let begin = session.history_unix_nanos;
        let pause = ticks(self.settings.inactive);
        let is_first = begin == 0 || begin.saturating_add(pause) <= start;
        let continues = first.is_some_and(|turn| turn.continues_session == Some(true));
        let is_missed = self.missed_unix_nanos > 0 && start <= self.missed_unix_nanos;
        if end != CloseReason::Silent {
            end
        } else if !is_first || continues || session.was_forgotten {
            CloseReason::StartUnseen
        } else if is_missed || session.is_full || session.turns.iter().any(|it| it.cut_short) {
            CloseReason::Incomplete
        } else if !self.settings.is_whole {
            CloseReason::NotWhole
        } else {
            CloseReason::Silent
        }
    }
}

impl Session {
    fn take(&mut self, trace_id: TraceId) -> Option<Arc<Trajectory>> {
        let at = self.turns.iter().position(|it| it.trace_id == trace_id)?;
        let turn = self.turns.remove(at);
        self.n_calls -= turn.tool_calls.len();
        self.size -= turn.size(true) + ENTRY_SIZE;
        Some(turn)
    }

    fn due(&self, completeness: CloseReason, stage: SessionStage) -> DueSession {
        DueSession {
            key: self.key,
            version: self.version,
            turns: self.turns.clone(),
            completeness,
            stage,
            reported: None,
        }
    }
}

impl DueSession {
    fn with_reported(self, reported: Reported) -> Self {
        Self {
            reported: Some(reported),
            ..self
        }
    }
}

#[cfg(test)]
mod tests;
