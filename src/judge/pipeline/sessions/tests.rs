//! Tests the store of sessions by itself: memory, fairness, limits, and sessions that change.

use super::*;

fn settings(max_size: usize) -> SessionSettings {
    SessionSettings {
        inactive: Duration::from_secs(60),
        is_whole: true,
        max_size,
    }
}

fn start() -> Now {
    Now {
        instant: clock(),
        unix_nanos: 1_000_000_000_000_000_000,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests need some moment to count from"
)]
fn clock() -> Instant {
    Instant::now()
}

fn after(start: Now, millis: u64) -> Now {
    Now {
        instant: start.instant + Duration::from_millis(millis),
        unix_nanos: start.unix_nanos + millis * 1_000_000,
    }
}

/// Returns a turn without calls. `number` is the second half of its trace id.
fn turn(session: u64, number: u64, now: Now) -> Arc<Trajectory> {
    let trace_id = [session.to_be_bytes(), number.to_be_bytes()].concat();
    Arc::new(Trajectory {
        service: "shop".into(),
        session: Some(session.to_string().into()),
        n_spans: 1,
        latest_end_unix_nanos: now.unix_nanos,
        ..Trajectory::of_calls(TraceId::try_new(&trace_id).unwrap(), Vec::new())
    })
}

#[test]
fn a_million_sessions_stay_within_the_memory_and_each_is_judged_once() {
    const N_SESSIONS: u64 = 1_000_000;
    let (start, max_size) = (start(), 1 << 20);
    let mut sessions = JudgedSessions::new(settings(max_size), false, start);
    let mut n_final = 0;
    let is_final = |due: &&DueSession| due.stage == SessionStage::Final;
    for session in 1..=N_SESSIONS {
        let now = after(start, session);
        let peer = PeerId(session % 3);
        let due = sessions.note(&turn(session, 1, now), peer, now);
        n_final += due.iter().filter(is_final).count() as u64;
        assert!(sessions.size() <= max_size);
    }
    assert!(sessions.sessions.len() > 500);
    assert_eq!(sessions.sessions.len(), sessions.turns.len());
    assert!((1..=MAX_FORGOTTEN_SIZE).contains(&sessions.forgotten.size()));
    let end = after(start, N_SESSIONS);
    while let Some(due) = sessions.take_due(Some(CloseReason::Shutdown), end) {
        assert!(is_final(&&due));
        n_final += 1;
    }
    assert_eq!(n_final, N_SESSIONS);
}

#[test]
fn a_peer_with_many_sessions_evicts_its_own() {
    let start = start();
    let mut sessions = JudgedSessions::new(settings(1 << 20), false, start);
    sessions.note(&turn(1, 1, start), PeerId(1), start);
    for session in 2..10_000 {
        let now = after(start, session);
        for due in sessions.note(&turn(session, 1, now), PeerId(2), now) {
            let evicted = due.turns[0].session.as_deref();
            assert!(due.stage == SessionStage::Open || evicted != Some("1"));
        }
    }
}

#[test]
fn a_forgotten_session_is_known_to_have_begun_before() {
    let start = start();
    let mut sessions = JudgedSessions::new(settings(1), false, start);
    sessions.note(&turn(1, 1, start), PeerId(1), start);
    sessions.resize(1 << 20, start);
    let silent = |sessions: &mut JudgedSessions, millis: u64| {
        let due = sessions.take_due(None, after(start, millis));
        due.map(|due| due.completeness)
    };
    for (session, expected) in [(1, CloseReason::StartUnseen), (2, CloseReason::Silent)] {
        let now = after(start, session * 100_000);
        sessions.note(&turn(session, 2, now), PeerId(1), now);
        assert_eq!(silent(&mut sessions, session * 100_000 + 59_999), None);
        let at = session * 100_000 + 60_000;
        assert_eq!(silent(&mut sessions, at), Some(expected));
    }
}

#[test]
fn further_turns_of_a_long_session_leave_it_incomplete() {
    let start = start();
    let mut sessions = JudgedSessions::new(settings(usize::MAX), false, start);
    for number in 1..=MAX_TURNS as u64 + 1 {
        let due = sessions.note(&turn(1, number, start), PeerId(1), start);
        assert!(due[0].turns.len() <= MAX_TURNS);
    }
    let due = sessions.take_due(None, after(start, 60_000)).unwrap();
    assert_eq!(due.completeness, CloseReason::Incomplete);
}

#[test]
fn a_judgement_of_fewer_turns_is_dropped() {
    let start = start();
    let mut sessions = JudgedSessions::new(settings(usize::MAX), false, start);
    let early = sessions
        .note(&turn(1, 1, start), PeerId(1), start)
        .remove(0);
    let later = sessions
        .note(&turn(1, 2, start), PeerId(1), start)
        .remove(0);
    let mut n_reported = 0;
    sessions.report(&early, |_| n_reported += 1);
    assert_eq!(n_reported, 0);
    sessions.report(&later, |_| n_reported += 1);
    assert_eq!(n_reported, 1);
}

#[test]
fn a_trace_that_moves_to_another_session_leaves_the_first() {
    let start = start();
    let mut sessions = JudgedSessions::new(settings(usize::MAX), false, start);
    sessions.note(&turn(1, 1, start), PeerId(1), start);
    let mut moved = Trajectory::clone(&turn(1, 1, start));
    moved.session = Some("other".into());
    let due = sessions.note(&moved.into(), PeerId(1), start);
    let stages: Vec<SessionStage> = due.iter().map(|due| due.stage).collect();
    assert_eq!(stages, [SessionStage::Gone, SessionStage::Open]);
    assert_eq!(due[0].turns[0].session.as_deref(), Some("1"));
    assert_eq!(sessions.n_sessions(), 1);
}
