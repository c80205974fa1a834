//! Callbacks that run when scores are journaled, delivered or dropped: for the marks of the
//! journal, or for a reader of a log.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use crate::journal::JudgedMarks;
use crate::sync::Mutex;
use crate::transport::CompletionGuard;

/// The code that waits until scores are journaled, delivered or dropped.
#[derive(Debug, Clone)]
pub enum Leaving {
    /// The writer of marks of judged traces.
    Marks(JudgedMarks),
    /// The callbacks of a reader of a log.
    Log(Deliveries),
}

impl Leaving {
    /// Returns a guard for scores; drop it when the scores are journaled, delivered or dropped.
    pub(super) fn guard(&self) -> CompletionGuard {
        match self {
            Self::Marks(marks) => CompletionGuard(marks.leaving()),
            Self::Log(deliveries) => CompletionGuard(deliveries.underway()),
        }
    }

    /// Returns true if a group is open, so that [`Self::turn`] is due.
    pub(super) fn is_waiting(&self) -> bool {
        match self {
            Self::Marks(marks) => marks.is_waiting(),
            Self::Log(deliveries) => deliveries.is_waiting(),
        }
    }

    /// Closes the open group of scores, all of which are enqueued. The next score opens another.
    pub(super) fn turn(&self) {
        match self {
            Self::Marks(marks) => marks.turn(),
            Self::Log(deliveries) => deliveries.turn(),
        }
    }

    /// Sets the deadline: scores that are dropped from `deadline` on do not count as delivered.
    pub(super) fn close(&self, deadline: Instant) {
        match self {
            Self::Marks(marks) => marks.close(deadline),
            // The readers of a log have already stopped.
            Self::Log(_) => {}
        }
    }
}

/// Calls back when all scores that were exported earlier have been delivered, or permanently
/// refused. Clones share the callbacks.
#[derive(Debug, Clone, Default)]
pub struct Deliveries {
    state: Arc<Mutex<State>>,
}

/// Code that locks this state must lock nothing else: a guard may be dropped under the lock of a
/// queue.
#[derive(Default)]
struct State {
    /// The open group, which collects scores and callbacks.
    open: Option<Arc<Underway>>,
    /// The number of the first group.
    first: u64,
    /// Groups that are not done, and finished groups behind them.
    groups: VecDeque<Group>,
}

#[derive(Default)]
struct Group {
    is_done: bool,
    then: Vec<Box<dyn FnOnce() + Send>>,
}

/// A guard of a group; every score of the group has a clone until the score is done.
struct Underway {
    group: u64,
    state: Arc<Mutex<State>>,
}

impl Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("first", &self.first)
            .field("n_groups", &self.groups.len())
            .finish_non_exhaustive()
    }
}

impl Deliveries {
    /// Calls `then` when all scores that were exported earlier are delivered. `then` must return at
    /// once and take no lock but its own.
    pub fn after(&self, then: impl FnOnce() + Send + 'static) {
        let open = self.underway();
        let mut state = self.state.lock();
        let index = open.group - state.first;
        if let Some(group) = state.groups.get_mut(index as usize) {
            group.then.push(Box::new(then));
        }
    }

    fn underway(&self) -> Arc<Underway> {
        let mut state = self.state.lock();
        if let Some(open) = &state.open {
            return Arc::clone(open);
        }
        let open = Arc::new(Underway {
            group: state.first + state.groups.len() as u64,
            state: Arc::clone(&self.state),
        });
        state.groups.push_back(Group::default());
        state.open = Some(Arc::clone(&open));
        open
    }

    fn is_waiting(&self) -> bool {
        self.state.lock().open.is_some()
    }

    fn turn(&self) {
        // Take the guard under the lock, and drop it after the lock is released.
        let open = self.state.lock().open.take();
        drop(open);
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let mut done = Vec::new();
        let mut state = self.state.lock();
        let index = self.group - state.first;
        if let Some(group) = state.groups.get_mut(index as usize) {
            group.is_done = true;
        }
        while state.groups.front().is_some_and(|group| group.is_done) {
            let group = state.groups.pop_front();
            state.first += 1;
            done.extend(
                group
                    .into_iter()
                    .flat_map(|mut group| mem::take(&mut group.then)),
            );
        }
        drop(state);
        for then in done {
            then();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn whoever_asks_is_told_once_all_earlier_scores_have_left() {
        let deliveries = Deliveries::default();
        let leaving = Leaving::Log(deliveries.clone());
        let (told, tells) = sync_channel(8);
        let ask = |number: u32| {
            let told = told.clone();
            deliveries.after(move || told.send(number).unwrap());
        };
        let (early, beside) = (leaving.guard(), leaving.guard());
        ask(1);
        assert!(leaving.is_waiting());
        leaving.turn();
        assert!(!leaving.is_waiting());
        let late = leaving.guard();
        ask(2);
        leaving.turn();
        drop(late);
        drop(early);
        assert_eq!(tells.try_iter().count(), 0, "others are underway");
        drop(beside);
        assert_eq!(tells.try_iter().collect::<Vec<_>>(), [1, 2]);
        ask(3);
        assert_eq!(tells.try_iter().count(), 0, "scores may still come");
        leaving.turn();
        assert_eq!(tells.try_iter().collect::<Vec<_>>(), [3]);
    }
}
