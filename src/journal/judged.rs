//! Collects the marks of judged traces until their scores are journaled, delivered or dropped, and
//! then appends the marks to the log. A trace without a mark is judged again after a restart, so
//! its scores are not lost. A mark must be durable before the records of its trace are removed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::store::Record;
use super::ticket::Ledger;
use super::writer::JournalLog;
use crate::sync::Mutex;

/// Marks of judged traces.
#[derive(Debug)]
pub struct JudgedMarks {
    log: JournalLog,
    ledger: Arc<Ledger>,
    state: Mutex<State>,
    /// Locked during [`JudgedMarks::turn`].
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Marks of traces whose scores may not have tickets yet.
    open: Marks,
    /// Marks that wait until all tickets below a number are done.
    waiting: VecDeque<(u64, Marks)>,
    /// The oldest record that the marks of each write refer to, by the number of the write.
    writing: BTreeMap<u64, Option<u64>>,
}

#[derive(Debug, Default)]
struct Marks {
    bytes: Vec<u8>,
    /// The oldest record that the marks refer to; `None` without marks.
    oldest: Option<u64>,
}

impl Marks {
    fn add(&mut self, bytes: &[u8], oldest: Option<u64>) {
        self.bytes.extend_from_slice(bytes);
        self.oldest = self.oldest.into_iter().chain(oldest).min();
    }
}

impl JudgedMarks {
    pub fn new(log: JournalLog) -> Arc<Self> {
        Arc::new(Self {
            log,
            ledger: Arc::default(),
            state: Mutex::default(),
            turn: Mutex::default(),
        })
    }

    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Adds marks of judged traces. The tickets for their scores were issued already, or the next
    /// [`Self::turn`] issues them. `oldest` is the oldest record that the marks refer to.
    pub fn add(&self, bytes: &[u8], oldest: u64) {
        self.state.lock().open.add(bytes, Some(oldest));
    }

    /// Returns true if marks wait for a turn.
    pub fn is_waiting(&self) -> bool {
        !self.state.lock().open.bytes.is_empty()
    }

    /// Calls `send_scores`, which issues the tickets of all scores. Marks that were added before
    /// this call then wait for these tickets.
    pub fn turn(self: &Arc<Self>, send_scores: impl FnOnce()) {
        let turn = self.turn.lock();
        {
            let mut state = self.state.lock();
            let marks = std::mem::take(&mut state.open);
            if !marks.bytes.is_empty() {
                state.waiting.push_back((u64::MAX, marks));
            }
        }
        send_scores();
        if let Some((below, _)) = self.state.lock().waiting.back_mut() {
            *below = (*below).min(self.ledger.next());
        }
        drop(turn);
        self.write();
    }

    /// Appends the marks whose scores are journaled, delivered or dropped.
    pub fn write(self: &Arc<Self>) {
        let low = self.ledger.low();
        loop {
            let mut state = self.state.lock();
            let due = state.waiting.pop_front_if(|(below, _)| *below <= low);
            let Some((_, Marks { bytes, oldest })) = due else {
                return;
            };
            let last = state.writing.last_key_value();
            let number = last.map_or(0, |(number, _)| number + 1);
            state.writing.insert(number, oldest);
            // If the log refuses the record immediately, it runs the callback here, which locks
            // `state`.
            drop(state);
            let bytes = Bytes::from(bytes);
            let record = Record::judged(self.log.unix_nanos(), bytes.clone());
            let shared = Arc::clone(self);
            let done = move |appended: Result<u64, _>| {
                let mut state = shared.state.lock();
                state.writing.remove(&number);
                match appended {
                    Ok(_) => {}
                    // The order of marks does not matter: each mark contains its position.
                    Err(_) => state.open.add(&bytes, oldest),
                }
            };
            self.log.append(record, Box::new(done));
        }
    }

    /// Returns the oldest record to which any mark that is not durable refers.
    pub fn oldest(&self) -> Option<u64> {
        let state = self.state.lock();
        let waiting = state.waiting.iter().map(|(_, marks)| marks.oldest);
        let oldest = waiting.chain(state.writing.values().copied());
        oldest.chain([state.open.oldest]).flatten().min()
    }
}
