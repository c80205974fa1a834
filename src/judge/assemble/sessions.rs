//! Stores the turns of each session, each a separate trace, and the tools that they called, so that
//! a turn does not fail for a call that an earlier turn made.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashMap};
use otlp::span::{Now, PeerId, TraceId};

use super::accounts::ShareMeasure;
use super::beginnings::Beginnings;
use super::fifo_timers::FifoTimers;
use super::shares::{BudgetShare, Shares, TraceSender};
use super::slab::{Slab, Slot};
use super::timers::ticks;

const MAX_SESSIONS: usize = 65_536;
/// Maximum number of turns of a session that are stored separately: the first and the latest.
const MAX_TURNS: usize = 64;
const MAX_NAMES: usize = u64::BITS as usize;
/// Maximum number of later turns that a changed turn causes to be judged again.
const MAX_REVISED: usize = 8;
const MAX_NAME_SIZE: usize = 128;

const ENTRY_SIZE: usize = 64;
/// Bytes that the allocator and the reference counts add to a shared name.
const NAME_SIZE: usize = 32;

/// A turn whose messages do not show whether it is the first counts as the first if no earlier turn
/// is known and nothing was forgotten for this long.
const PAUSE: Duration = Duration::from_secs(30 * 60);

/// The sessions with recent turns. Beyond a limit, the longest-idle session of the heaviest peer is
/// forgotten, and the history of the session's service starts anew. Turns of a session may arrive
/// from several peers, because pods share a service.
#[derive(Debug)]
pub struct Sessions {
    /// Randomly keyed, so that no sender can choose names that collide. Output order does not
    /// depend on it.
    hasher: DefaultHashBuilder,
    index: HashMap<u64, Slot>,
    sessions: Slab<Session>,
    shares: Shares,
    order: FifoTimers,
    max_size: usize,
    /// The start of the session history (Unix time).
    memory_unix_nanos: u64,
    /// Separate starts of the history, keyed by the hash of the service.
    beginnings: Beginnings<u64>,
    /// The latest start (Unix time) of a session that may lack turns or spans.
    missed_unix_nanos: u64,
}

#[derive(Debug, Default)]
struct Session {
    key: u64,
    service: u64,
    share: BudgetShare,
    /// The turns, ordered by start. Beyond the limit, the oldest turns after the first are merged
    /// into the first.
    turns: Vec<KnownTurn>,
    n_merged: usize,
    /// The names that merged turns called, one bit for each name.
    merged_names: u64,
    /// True if calls of a merged turn may be missing.
    is_torn: bool,
    /// The tools that the turns called, or seemed to call before all their spans had arrived.
    names: Vec<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KnownTurn {
    start_unix_nanos: u64,
    trace_id: TraceId,
    /// True if no turn preceded this one, according to the turn's messages, or else to the history
    /// at the time when the turn was first recorded.
    is_first: bool,
    reaches_back: bool,
    /// True if all calls of the turn are known.
    is_whole: bool,
    names: u64,
}

#[derive(Debug)]
pub struct Turn<'a> {
    pub service: &'a str,
    pub session: &'a str,
    pub trace_id: TraceId,
    pub start_unix_nanos: u64,
    /// True if the first model request repeated answers of earlier turns; `None` if unknown.
    pub continues: Option<bool>,
    pub is_whole: bool,
    pub peer: PeerId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierTurns {
    /// The number of known turns; there may have been more.
    pub n_turns: usize,
    pub names: Vec<Arc<str>>,
    pub seen: TurnsSeen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnsSeen {
    /// All turns were seen completely.
    All,
    /// Not all turns were seen completely.
    NotAll,
    /// No turn was seen, but there may have been some.
    Unknown,
}

impl Sessions {
    /// Creates an empty history. If `is_guarded` is false, as in `replay`, no turn precedes the
    /// history.
    pub(crate) fn new(max_size: usize, is_guarded: bool, now: Now) -> Self {
        let begin = if is_guarded { now.unix_nanos } else { 0 };
        Self {
            hasher: DefaultHashBuilder::default(),
            index: HashMap::new(),
            sessions: Slab::new(),
            shares: Shares::default(),
            order: FifoTimers::new(1),
            max_size,
            memory_unix_nanos: begin,
            beginnings: Beginnings::default(),
            missed_unix_nanos: begin,
        }
    }

    pub(crate) fn resize(&mut self, max_size: usize) {
        self.max_size = max_size;
        self.forget();
    }

    pub(crate) fn size(&self) -> usize {
        self.shares.size()
    }

    /// Records that any session may have lost spans.
    pub(crate) fn miss(&mut self, now: Now) {
        self.memory_unix_nanos = self.memory_unix_nanos.max(now.unix_nanos);
        self.missed_unix_nanos = self.memory_unix_nanos;
    }

    /// Records a turn, and returns the next later turns whose verdicts may change, at most
    /// `MAX_REVISED`.
    pub(crate) fn note<'n>(
        &mut self,
        turn: &Turn<'_>,
        names: impl Iterator<Item = &'n Arc<str>>,
        now: Now,
    ) -> Vec<TraceId> {
        let key = self.key(turn);
        let service = self.hasher.hash_one(turn.service);
        let is_recent = |begin: u64| begin.saturating_add(ticks(PAUSE)) > now.unix_nanos;
        let dropped = self.beginnings.expire(is_recent);
        self.memory_unix_nanos = self.memory_unix_nanos.max(dropped.unwrap_or_default());
        let of_service = self.beginnings.of(service).unwrap_or_default();
        let begin = self.memory_unix_nanos.max(of_service);
        let reaches_back =
            begin == 0 || begin.saturating_add(ticks(PAUSE)) <= turn.start_unix_nanos;
        let slot = *self.index.entry(key).or_insert_with(|| {
            let sender = TraceSender {
                peer: turn.peer,
                service: 0,
            };
            let share = self.shares.open(sender, 0);
            self.order.grow(share.peer() + 1);
            self.sessions.insert(Session {
                key,
                service,
                share,
                ..Session::default()
            })
        });
        let Some(session) = self.sessions.get_mut(slot) else {
            return Vec::new();
        };
        let size = if session.turns.is_empty() { 0 } else { session.size() };
        let is_changed = session.note(turn, names, reaches_back);
        self.shares.resize(session.share, size, session.size());
        self.order.start(session.share.peer(), slot, now.unix_nanos);
        let is_later = |known: &&KnownTurn| known.start_unix_nanos > turn.start_unix_nanos;
        let later = session.turns.iter().filter(|_| is_changed).filter(is_later);
        let later = later
            .map(|known| known.trace_id)
            .take(MAX_REVISED)
            .collect();
        self.forget();
        later
    }

    /// Returns the known turns before a recorded turn; `None` if there were certainly none.
    pub(crate) fn earlier(&self, turn: &Turn<'_>) -> Option<EarlierTurns> {
        let slot = self.index.get(&self.key(turn));
        let session = slot.and_then(|slot| self.sessions.get(*slot));
        let (turns, names) = session.map_or((&[][..], &[][..]), |it| (&it.turns, &it.names));
        let is_earlier = |start: u64| start < turn.start_unix_nanos;
        let n_earlier = turns.partition_point(|known| is_earlier(known.start_unix_nanos));
        let (earlier, rest) = turns.split_at(n_earlier);
        let seen = match earlier.first() {
            None if rest
                .iter()
                .any(|it| it.trace_id == turn.trace_id && it.is_first) =>
            {
                return None;
            }
            None if turn.continues == Some(true) => TurnsSeen::NotAll,
            None => TurnsSeen::Unknown,
            Some(first) => {
                let is_missed = first.start_unix_nanos <= self.missed_unix_nanos;
                let is_whole = first.is_first && earlier.iter().all(|it| it.is_whole);
                if is_whole && !is_missed && session.is_some_and(|it| !it.is_torn) {
                    TurnsSeen::All
                } else {
                    TurnsSeen::NotAll
                }
            }
        };
        let merged = session.filter(|_| n_earlier > 0);
        let (n_merged, merged_names) = merged.map_or((0, 0), |it| (it.n_merged, it.merged_names));
        let called = earlier
            .iter()
            .fold(merged_names, |names, it| names | it.names);
        let names = names.iter().enumerate();
        let names = names.filter(|(at, _)| called >> at & 1 == 1);
        let mut names: Vec<Arc<str>> = names.map(|(_, name)| name.clone()).collect();
        names.sort_unstable();
        Some(EarlierTurns {
            n_turns: n_earlier + n_merged,
            names,
            seen,
        })
    }

    fn key(&self, turn: &Turn<'_>) -> u64 {
        self.hasher.hash_one((turn.service, turn.session))
    }

    fn forget(&mut self) {
        while self.sessions.len() > MAX_SESSIONS || self.shares.size() > self.max_size {
            let measure = if self.sessions.len() > MAX_SESSIONS {
                ShareMeasure::Things
            } else {
                ShareMeasure::Bytes
            };
            let heaviest = self.shares.heaviest(measure);
            let Some((oldest, noted)) = self.order.first(heaviest.peer()) else {
                return;
            };
            self.order.cancel(oldest);
            let Some(session) = self.sessions.remove(oldest) else {
                continue;
            };
            self.index.remove(&session.key);
            self.shares.close(session.share, session.size());
            let of_all = self.beginnings.begin(Some(session.service), noted);
            self.memory_unix_nanos = self.memory_unix_nanos.max(of_all.unwrap_or_default());
        }
    }
}

impl Session {
    /// Returns true if the turn changed the session.
    fn note<'n>(
        &mut self,
        turn: &Turn<'_>,
        names: impl Iterator<Item = &'n Arc<str>>,
        reaches_back: bool,
    ) -> bool {
        let known = self
            .turns
            .iter()
            .position(|it| it.trace_id == turn.trace_id);
        let known = known.map(|at| self.turns.remove(at));
        let reaches_back = known.map_or(reaches_back, |known| known.reaches_back);
        let mut new = KnownTurn {
            start_unix_nanos: turn.start_unix_nanos,
            trace_id: turn.trace_id,
            is_first: match turn.continues {
                Some(continues) => !continues,
                None => reaches_back,
            },
            reaches_back,
            is_whole: turn.is_whole,
            names: 0,
        };
        for name in names {
            let known = self.names.iter().position(|known| known == name);
            let has_room = self.names.len() < MAX_NAMES && name.len() <= MAX_NAME_SIZE;
            match known {
                Some(at) => new.names |= 1 << at,
                None if has_room => {
                    new.names |= 1 << self.names.len();
                    self.names.push(name.clone());
                }
                None => new.is_whole = false,
            }
        }
        let is_before = |it: &KnownTurn| it.start_unix_nanos <= new.start_unix_nanos;
        let at = self.turns.partition_point(is_before);
        self.turns.insert(at, new);
        if self.turns.len() > MAX_TURNS {
            let merged = self.turns.remove(1);
            self.merged_names |= merged.names;
            self.is_torn |= !merged.is_whole;
            self.n_merged += 1;
        }
        known != Some(new)
    }

    fn size(&self) -> usize {
        let names = self.names.iter();
        let names = names.map(|it| size_of_val(it) + NAME_SIZE + it.len());
        let turns = size_of_val(&*self.turns);
        size_of::<Self>() + ENTRY_SIZE + turns + names.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const BEGIN: u64 = 1_000_000_000_000_000;

    #[expect(clippy::disallowed_methods, reason = "a test needs any instant")]
    fn now(seconds: u64) -> Now {
        Now {
            instant: Instant::now(),
            unix_nanos: BEGIN + seconds * 1_000_000_000,
        }
    }

    fn turn(session: &str, seconds: u64, peer: u64) -> Turn<'_> {
        turn_of("shop", session, seconds, peer)
    }

    fn turn_of<'t>(service: &'t str, session: &'t str, seconds: u64, peer: u64) -> Turn<'t> {
        Turn {
            service,
            session,
            trace_id: TraceId::try_new(&u128::from(seconds + 1).to_be_bytes()).unwrap(),
            start_unix_nanos: now(seconds).unix_nanos,
            continues: None,
            is_whole: true,
            peer: PeerId(peer),
        }
    }

    fn note(sessions: &mut Sessions, turn: &Turn<'_>, names: &[&str], seconds: u64) -> usize {
        let names: Vec<Arc<str>> = names.iter().map(|name| (*name).into()).collect();
        sessions.note(turn, names.iter(), now(seconds)).len()
    }

    fn seen(sessions: &Sessions, turn: &Turn<'_>) -> Option<TurnsSeen> {
        sessions.earlier(turn).map(|earlier| earlier.seen)
    }

    /// Returns the sessions after one peer flooded a service, including a session of another peer.
    fn flooded(service: &str) -> Sessions {
        let mut sessions = Sessions::new(1 << 14, true, now(0));
        let first = turn("chat", 4_000, 1);
        note(&mut sessions, &first, &["authenticate"], 4_000);
        for at in 4_001..5_000 {
            let session = format!("flood {at}");
            note(
                &mut sessions,
                &turn_of(service, &session, at, 2),
                &["look"],
                at,
            );
            assert!(sessions.size() <= 1 << 14);
        }
        sessions
    }

    #[test]
    fn a_flood_takes_no_other_peers_sessions_and_makes_only_its_service_doubtful() {
        let mut sessions = flooded("flood");
        let earlier = sessions.earlier(&turn("chat", 5_000, 1)).unwrap();
        assert_eq!(
            (earlier.seen, &*earlier.names[0]),
            (TurnsSeen::All, "authenticate")
        );
        for (service, session, at, expected) in [
            ("flood", "new", 5_000, Some(TurnsSeen::Unknown)),
            ("shop", "new", 5_001, None),
            // Nothing was forgotten in the previous half hour.
            ("flood", "newer", 9_000, None),
        ] {
            let new = turn_of(service, session, at, 2);
            note(&mut sessions, &new, &[], at);
            assert_eq!(seen(&sessions, &new), expected, "{service}");
        }
    }

    #[test]
    fn a_forgotten_session_that_another_pod_continues_is_not_taken_for_new() {
        let mut sessions = flooded("shop");
        let next = turn("flood 4001", 5_000, 3);
        note(&mut sessions, &next, &["look"], 5_000);
        assert_eq!(seen(&sessions, &next), Some(TurnsSeen::Unknown));
    }

    #[test]
    fn where_too_many_services_forget_each_is_doubtful() {
        let mut sessions = Sessions::new(1 << 14, true, now(0));
        for at in 4_000..4_500 {
            let service = format!("service {}", at % 100);
            let session = format!("chat {at}");
            note(&mut sessions, &turn_of(&service, &session, at, 2), &[], at);
        }
        let new = turn("new", 5_000, 3);
        note(&mut sessions, &new, &[], 5_000);
        assert_eq!(seen(&sessions, &new), Some(TurnsSeen::Unknown));
        // Dropped starts still apply to turns that began before them.
        let old = turn("old", 5_500, 3);
        note(&mut sessions, &old, &[], 9_000);
        assert_eq!(seen(&sessions, &old), Some(TurnsSeen::Unknown));
    }

    #[test]
    fn a_session_beyond_its_bounds_is_not_seen_whole() {
        let mut sessions = Sessions::new(1 << 20, true, now(0));
        let last = turn("chat", 9_000, 1);
        for at in 4_000..4_100 {
            note(&mut sessions, &turn("chat", at, 1), &["look"], at);
        }
        let earlier = sessions.earlier(&last).unwrap();
        assert_eq!((earlier.n_turns, earlier.seen), (100, TurnsSeen::All));
        // The first turn represents the merged turns, and may be recorded again.
        note(&mut sessions, &turn("chat", 4_000, 1), &[], 4_100);
        assert_eq!(sessions.earlier(&last).unwrap().names.len(), 1);
        let names: Vec<String> = (0..65).map(|n| format!("tool {n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        note(&mut sessions, &turn("chat", 4_100, 1), &names, 4_100);
        assert_eq!(sessions.earlier(&last).unwrap().names.len(), MAX_NAMES);
        assert_eq!(seen(&sessions, &last), Some(TurnsSeen::NotAll));
    }

    #[test]
    fn only_news_changes_later_turns() {
        let mut sessions = Sessions::new(1 << 20, true, now(0));
        note(&mut sessions, &turn("chat", 4_010, 1), &["look"], 4_010);
        let first = turn("chat", 4_000, 1);
        assert_eq!(note(&mut sessions, &first, &["look"], 4_020), 1);
        assert_eq!(note(&mut sessions, &first, &["look"], 4_030), 0);
        assert_eq!(note(&mut sessions, &first, &["look", "find"], 4_040), 1);
    }
}
