//! Data that one trace reports for another trace, behind one lock for all scoring threads, and the
//! progress of each thread.

use std::mem;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::{Duration, Instant};

use judge::assemble::Stats;
use judge::pipeline::{CrossTraceAccess, CrossTraces};
use otlp::span::Now;

use crate::sidecar::judgements::in_memory;
use crate::sidecar::now;
use crate::sync::Mutex;
use crate::telemetry::TracesInMemory;

/// Maximum time that a thread waits for other threads before it judges a trace. Data that they have
/// to add at the same time may complete the trace. Data that is added later revises the verdicts.
const PATIENCE: Duration = Duration::from_millis(20);

/// Replaces [`PATIENCE`] when the sidecar stops, because then no verdict is revised later. A thread
/// that takes longer is stuck, or judges a trace as large as a quarter of the memory of open
/// traces.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct SharedTraces {
    state: Mutex<State>,
    progress: Condvar,
}

#[derive(Debug)]
struct State {
    cross_traces: CrossTraces,
    threads: Vec<Progress>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Time at which the thread's next trace is due.
    next_due: Option<Instant>,
    /// True if the thread will add no more data: its queue is closed and its traces are judged, or
    /// the thread has stopped.
    is_done: bool,
    /// The thread's memory use after its last round.
    held: Stats,
}

/// The access of one thread to the shared data. When this value is dropped, even by a panic, other
/// threads stop waiting for the thread.
#[derive(Debug)]
pub(super) struct SharedAccess {
    shared: Arc<SharedTraces>,
    index: usize,
    pub(super) round: Round,
}

/// The pace of a round of judging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// The thread keeps up.
    KeepsUp,
    /// The thread is behind, and does not wait for other threads.
    IsBehind,
    /// The queue is closed.
    Last,
}

impl SharedTraces {
    pub(super) fn new(cross_traces: CrossTraces, n_threads: usize) -> Self {
        Self {
            state: Mutex::new(State {
                cross_traces,
                threads: vec![Progress::default(); n_threads],
            }),
            progress: Condvar::new(),
        }
    }

    pub(super) fn access(self: &Arc<Self>, index: usize) -> SharedAccess {
        SharedAccess {
            shared: Arc::clone(self),
            index,
            round: Round::KeepsUp,
        }
    }

    /// Records when the next trace of a thread is due.
    pub(super) fn end_round(&self, index: usize, next_due: Option<Instant>) {
        let thread = &mut self.state.lock().threads[index];
        if mem::replace(&mut thread.next_due, next_due) != next_due {
            self.progress.notify_all();
        }
    }

    /// Records the memory use of a thread. Returns that of all threads and of the shared data.
    pub(super) fn in_memory(&self, index: usize, held: Stats) -> TracesInMemory {
        let mut state = self.state.lock();
        state.threads[index].held = held;
        let all = in_memory(state.threads.iter().map(|thread| thread.held));
        let sessions = state.cross_traces.session_stats();
        TracesInMemory {
            recent_bytes: all.recent_bytes + state.cross_traces.size(),
            n_sessions: sessions.n_sessions,
            session_bytes: sessions.size,
            ..all
        }
    }

    /// Unblocks threads that wait for this thread.
    pub(super) fn leave(&self, index: usize) {
        self.state.lock().threads[index].is_done = true;
        self.progress.notify_all();
    }
}

impl SharedAccess {
    /// Waits for other threads. Returns false if another thread took longer than the patience.
    pub(super) fn others_keep_up(&self, time: Now) -> bool {
        let patience = match self.round {
            Round::KeepsUp => PATIENCE,
            Round::IsBehind => return true,
            Round::Last => LAST_PATIENCE,
        };
        let (index, is_last) = (self.index, self.round == Round::Last);
        let is_behind = |(other, thread): (usize, &Progress)| {
            let is_due = thread.next_due.is_some_and(|due| due <= time.instant);
            other != index && !thread.is_done && (is_last || is_due)
        };
        let until = now().instant + patience;
        let mut state = self.shared.state.lock();
        while state.threads.iter().enumerate().any(is_behind) {
            let left = until.saturating_duration_since(now().instant);
            let waited = self.shared.progress.wait_timeout(state, left);
            let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return false;
            }
            state = next;
        }
        true
    }
}

impl Drop for SharedAccess {
    fn drop(&mut self) {
        self.shared.in_memory(self.index, Stats::default());
        self.shared.leave(self.index);
    }
}

impl CrossTraceAccess for SharedAccess {
    fn with<T>(&mut self, work: impl FnOnce(&mut CrossTraces) -> T) -> T {
        work(&mut self.shared.state.lock().cross_traces)
    }

    fn noted(&mut self, next_due: Option<Instant>, now: Now) {
        let is_last = next_due.is_none_or(|due| due > now.instant);
        match self.round {
            Round::Last if is_last => self.shared.leave(self.index),
            _ => self.shared.end_round(self.index, next_due),
        }
    }

    fn wait_for_others(&mut self, time: Now) {
        self.others_keep_up(time);
    }
}
