//! The data that crosses traces, behind one lock for all scoring threads, and the progress of each
//! thread.

use std::sync::{Arc, Condvar, PoisonError};
use std::time::{Duration, Instant};

use judge::pipeline::{CrossTraceAccess, CrossTraces};
use otlp::span::Now;

use crate::sidecar::now;
use crate::sync::Mutex;

/// Time that a thread waits for the others to note what is due at the same moment, before it judges
/// a trace that they may complete. What they note later revises its verdicts.
const PATIENCE: Duration = Duration::from_millis(20);

/// That wait when the sidecar stops: nothing is revised afterwards. A thread that is not done
/// by then judges a trace as large as a quarter of the memory of open traces, or is stuck.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// The data that crosses traces, for all threads.
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

/// The progress of a thread.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Time at which its next trace is due.
    next_due: Option<Instant>,
    /// True once the queue has ended and all of its traces were noted, or the thread will note
    /// none.
    is_done: bool,
}

/// The access of one thread.
#[derive(Debug)]
pub(super) struct SharedAccess {
    shared: Arc<SharedTraces>,
    index: usize,
    /// Set for each round.
    pub(super) round: Round,
}

/// The kind of judging that a thread does in this round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// The thread keeps up.
    KeepsUp,
    /// Has fallen behind, and does not wait for other threads.
    IsBehind,
    /// The queue has ended.
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

    /// The access of the thread with this place.
    pub(super) fn access(self: &Arc<Self>, index: usize) -> SharedAccess {
        SharedAccess {
            shared: Arc::clone(self),
            index,
            round: Round::KeepsUp,
        }
    }

    /// Notes when the next trace of a thread is due. Returns the bytes of what crosses traces.
    pub(super) fn end_round(&self, index: usize, next_due: Option<Instant>) -> usize {
        let mut state = self.state.lock();
        let is_news = state.threads[index].next_due != next_due;
        state.threads[index].next_due = next_due;
        let size = state.cross_traces.size();
        drop(state);
        if is_news {
            self.progress.notify_all();
        }
        size
    }

    /// Lets the others stop waiting for this thread.
    pub(super) fn leave(&self, index: usize) {
        self.state.lock().threads[index].is_done = true;
        self.progress.notify_all();
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
            _ => {
                self.shared.end_round(self.index, next_due);
            }
        }
    }

    fn wait_for_others(&mut self, time: Now) {
        let patience = match self.round {
            Round::KeepsUp => PATIENCE,
            Round::IsBehind => return,
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
            if left.is_zero() {
                return;
            }
            let progress = &self.shared.progress;
            let waited = progress.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
