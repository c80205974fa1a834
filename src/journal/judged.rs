//! Collects the marks of judged traces until their scores are journaled or delivered, and then
//! appends the marks to the log. A trace without a mark is judged again after a restart, so its
//! scores are not lost. A mark must be durable before the records of its trace are removed.

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

/// Code that locks this state must lock nothing else, because a queue may drop a score, and with it
/// the guard of a group, while the queue is locked.
#[derive(Debug, Default)]
struct State {
    /// The open group, which collects marks and scores.
    open: Option<Arc<ScoresLeaving>>,
    /// The oldest record that the marks refer to, for each group whose marks are not durable.
    oldest: BTreeMap<u64, u64>,
    /// Marks that the log refused; the next group writes them.
    refused: Marks,
    next_group: u64,
    /// Traces whose scores are dropped after this time are judged again at the next start.
    closed_at: Option<Instant>,
}

#[derive(Debug)]
struct Marks {
    bytes: Vec<u8>,
    /// The oldest record that the marks refer to.
    oldest: u64,
}

/// The guard of a group of marks, which the group's scores own. The marks are written when the last
/// score is journaled, delivered or dropped.
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
    /// Creates an empty collection of marks for this log.
    pub fn new(log: JournalLog) -> Self {
        Self {
            shared: Arc::new(Shared {
                log,
                state: Mutex::default(),
            }),
        }
    }

    /// Returns the guard of the open group, to be stored with scores.
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

    /// Adds marks of traces whose scores have the open group's guard, or were enqueued with it.
    /// `oldest` is the oldest record that the marks refer to.
    pub fn add(&self, bytes: &[u8], oldest: u64) {
        let open = self.leaving();
        let mut state = self.shared.state.lock();
        let of_group = state.oldest.entry(open.group).or_insert(u64::MAX);
        *of_group = oldest.min(*of_group);
        open.marks.lock().add(bytes, oldest);
    }

    /// Returns true if a group is open, or if marks were refused by the log.
    pub fn is_waiting(&self) -> bool {
        let state = self.shared.state.lock();
        state.open.is_some() || !state.refused.bytes.is_empty()
    }

    /// Closes the open group. All its scores must have been enqueued.
    pub fn turn(&self) {
        if !self.is_waiting() {
            return;
        }
        // Marks that the log refused are written with this group, even if there are no other marks.
        let open = self.leaving();
        self.shared.state.lock().open = None;
        drop(open);
    }

    /// Sets the deadline: traces whose scores are dropped from `deadline` on are judged again at
    /// the next start.
    pub fn close(&self, deadline: Instant) {
        self.shared.state.lock().closed_at = Some(deadline);
    }

    /// Returns the oldest record that a mark refers to and that is not durable.
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
                // Marks need no delivery.
                Ok(sequence) => shared.log.consume([sequence]),
                // The order of marks does not matter: each mark contains its position.
                Err(_) => state.refused.add(&bytes, oldest),
            }
        };
        self.shared.log.append(record, Box::new(done));
    }
}
