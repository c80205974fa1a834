//! Gathers the marks of judged traces until their scores are kept or delivered, and appends them to
//! the log. A trace whose mark is missing is judged again after a restart, so its scores are not
//! lost. A mark must be durable before the records of its trace are removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::keeper::JournalLog;
use super::store::Record;
use crate::sync::Mutex;

/// Marks of judged traces. Clones share them.
#[derive(Debug, Clone)]
pub struct JudgedMarks {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    log: JournalLog,
    state: Mutex<State>,
}

/// A leaf among locks: scores are done while a queue holds its own.
#[derive(Debug, Default)]
struct State {
    /// Gathers marks and scores.
    open: Option<Arc<ScoresLeaving>>,
    /// For each group whose marks are not durable yet, the oldest record that its marks refer to.
    oldest: BTreeMap<u64, u64>,
    /// Marks that the log refused; they are written with the next group.
    refused: Marks,
    next_group: u64,
    /// From this time on, traces whose scores are given up are judged again at the next start.
    closed_at: Option<Instant>,
}

#[derive(Debug)]
struct Marks {
    bytes: Vec<u8>,
    /// The oldest record that the marks refer to.
    oldest: u64,
}

/// Held by the scores of a group of marks. The marks are written when the last of them is kept,
/// delivered or given up.
#[derive(Debug)]
pub struct ScoresLeaving {
    group: u64,
    marks: Mutex<Marks>,
    shared: Arc<Shared>,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            oldest: u64::MAX,
        }
    }
}

impl Marks {
    fn add(&mut self, bytes: &[u8], oldest: u64) {
        self.bytes.extend_from_slice(bytes);
        self.oldest = oldest.min(self.oldest);
    }
}

impl JudgedMarks {
    /// An empty collection of marks for this log.
    pub fn new(log: JournalLog) -> Self {
        Self {
            shared: Arc::new(Shared {
                log,
                state: Mutex::default(),
            }),
        }
    }

    /// The open group, to be held by scores.
    pub fn leaving(&self) -> Arc<ScoresLeaving> {
        let mut state = self.shared.state.lock();
        if let Some(open) = &state.open {
            return Arc::clone(open);
        }
        let group = state.next_group;
        state.next_group += 1;
        let refused = std::mem::take(&mut state.refused);
        if !refused.bytes.is_empty() {
            state.oldest.insert(group, refused.oldest);
        }
        let open = Arc::new(ScoresLeaving {
            group,
            marks: Mutex::new(refused),
            shared: Arc::clone(&self.shared),
        });
        state.open = Some(Arc::clone(&open));
        open
    }

    /// Adds marks of traces whose scores hold the open group, or were handed on with it. `oldest`
    /// is the oldest record that the marks refer to.
    pub fn add(&self, bytes: &[u8], oldest: u64) {
        let open = self.leaving();
        let mut state = self.shared.state.lock();
        let of_group = state.oldest.entry(open.group).or_insert(u64::MAX);
        *of_group = oldest.min(*of_group);
        open.marks.lock().add(bytes, oldest);
    }

    /// Returns true if a group is open, or marks wait that the log refused.
    pub fn is_waiting(&self) -> bool {
        let state = self.shared.state.lock();
        state.open.is_some() || !state.refused.bytes.is_empty()
    }

    /// Closes the open group. All of its scores must have been handed on.
    pub fn turn(&self) {
        if !self.is_waiting() {
            return;
        }
        // Marks that the log refused go with this group, even if there are no others.
        let open = self.leaving();
        self.shared.state.lock().open = None;
        drop(open);
    }

    /// From `deadline` on, traces whose scores are given up are judged again at the next start.
    pub fn close(&self, deadline: Instant) {
        self.shared.state.lock().closed_at = Some(deadline);
    }

    /// The oldest record referred to by a mark that is not durable yet.
    pub fn oldest(&self) -> Option<u64> {
        let state = self.shared.state.lock();
        let oldest = state.oldest.values().copied();
        let oldest = oldest.chain([state.refused.oldest]).min();
        oldest.filter(|oldest| *oldest < u64::MAX)
    }
}

impl Drop for ScoresLeaving {
    fn drop(&mut self) {
        let marks = std::mem::take(&mut *self.marks.lock());
        let is_closed = {
            let mut state = self.shared.state.lock();
            if marks.bytes.is_empty() {
                state.oldest.remove(&self.group);
            }
            let closed_at = state.closed_at;
            closed_at.is_some_and(|at| self.shared.log.now() >= at)
        };
        if marks.bytes.is_empty() || is_closed {
            return;
        }
        let bytes = Bytes::from(marks.bytes);
        let record = Record::judged(self.shared.log.unix_nanos(), bytes.clone());
        let (group, oldest, shared) = (self.group, marks.oldest, Arc::clone(&self.shared));
        let done = move |appended: Result<u64, _>| {
            let mut state = shared.state.lock();
            state.oldest.remove(&group);
            match appended {
                // There is nothing to deliver.
                Ok(sequence) => shared.log.consume([sequence]),
                // The order of marks does not matter: each says how far it goes.
                Err(_) => state.refused.add(&bytes, oldest),
            }
        };
        self.shared.log.append(record, Box::new(done));
    }
}
