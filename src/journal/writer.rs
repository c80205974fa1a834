//! The thread of a log. It collects queued records into groups, appends them, answers when they are
//! durable, and writes to the cursor which records are consumed. No heartbeat watches the thread,
//! because a restart would not repair a disk that blocks it.

use std::collections::VecDeque;
use std::fmt::{self, Debug, Display};
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use otlp::span::PeerId;

use super::consumed::N_OUTLETS;
use super::format::{Needed, Outlet};
use super::gathering::Gathering;
use super::opening::{Clock, OpenedLog};
use super::progress::Progress;
use super::refusals::{Refusals, retry_after};
use super::resent::{AFTER_START, LastRecords};
use super::segment::FileFault;
use super::segment_charges::SegmentCharges;
use super::store::{AppendError, LostRecord, Record, Store};
use super::waiting::{Done, Message, WaitingRecord};
use crate::fair::FairBudget;
use crate::sync::Mutex;
use crate::telemetry::{JournalMetrics, JournalProgressUnwritten, MetricsPage, Throttled};

/// Maximum number of messages in the thread's inbox. The receivers limit the bytes of requests, and
/// the queues of scores limit the bytes of scores.
pub(super) const MAX_WAITING: usize = 4096;

/// Interval at which changes of the cursor and, with `sync: false`, records are synced. The time in
/// the cursor is renewed as often; the next start computes from it how long no process ran.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Delay before deliveries are written to the cursor. If the process is killed, requests that were
/// delivered since the last write are delivered again.
const SETTLE_DELAY: Duration = Duration::from_millis(10);

/// A handle to append to a log. Clones share the log.
#[derive(Debug, Clone)]
pub struct JournalLog {
    pub(super) sender: SyncSender<Message>,
    pub(super) shared: Arc<LogShared>,
    pub(super) clock: Clock,
}

pub(super) struct LogShared {
    pub(super) metrics: JournalMetrics,
    /// Records that outlets consumed since the thread last read the list.
    consumed: Mutex<Vec<(Outlet, Range<u64>)>>,
    /// True from the first change after a write of the cursor until the next write.
    has_changed: AtomicBool,
    /// The records that scoring needs, if they have changed.
    needed: Mutex<Option<Needed>>,
    /// The records that senders may send again after the start, and the time until which they may
    /// do so.
    last: Mutex<Option<(LastRecords, Instant)>>,
    status: Mutex<Status>,
    /// Budget of the log's bytes. Records that are queued or in undelivered segments are charged to
    /// their senders.
    budget: Arc<FairBudget>,
    /// True if, since a segment was last delivered or evicted, a record was refused so that other
    /// senders have space.
    refused_some: AtomicBool,
    opening: Mutex<Opening>,
    losers: Mutex<Vec<WhenLost>>,
}

/// A callback on the journal's thread for records that a full log has evicted.
pub type WhenLost = Box<dyn Fn(&[LostRecord]) + Send>;

pub type WhenOpen = Box<dyn FnOnce(&OpenedLog) + Send>;

enum Opening {
    NotYet(Vec<WhenOpen>),
    Open(Arc<OpenedLog>),
}

/// The state that the log's thread last published.
#[derive(Debug, Clone, Copy)]
struct Status {
    refuses: Option<AppendError>,
    /// Bytes of the largest record that can be appended.
    room: u64,
    /// For each outlet, the number below which every record is consumed.
    lows: [u64; N_OUTLETS],
}

impl JournalLog {
    /// Calls `when_open` when the log is open: immediately, or on the journal's thread before the
    /// first record is appended.
    pub fn when_open(&self, when_open: WhenOpen) {
        let opened = match &mut *self.shared.opening.lock() {
            Opening::NotYet(waiting) => return waiting.push(when_open),
            Opening::Open(opened) => Arc::clone(opened),
        };
        when_open(&opened);
    }

    pub fn when_lost(&self, when_lost: WhenLost) {
        self.shared.losers.lock().push(when_lost);
    }

    /// Returns an error if a record of this sender and of at least `n_bytes` would be refused.
    pub fn check_room(&self, peer: PeerId, n_bytes: usize) -> Result<(), AppendError> {
        let status = *self.shared.status.lock();
        let is_beyond = !self.shared.budget.has_room(peer, n_bytes);
        self.shared.refused_some.fetch_or(is_beyond, Relaxed);
        match status.refuses {
            Some(error) if error != AppendError::Full => Err(error),
            _ if is_beyond || n_bytes as u64 > status.room => Err(AppendError::Full),
            _ => Ok(()),
        }
    }

    /// Returns true if the log already had this record at the start. Its sender is then assumed to
    /// have got no answer and to repeat the request. Each record matches once, and only within a
    /// minute after the opening. The caller must acknowledge the record without appending it.
    pub fn has(&self, record: &Record) -> bool {
        let mut last = self.shared.last.lock();
        let Some((records, until)) = &mut *last else {
            return false;
        };
        if (self.clock)().0 > *until {
            *last = None;
            return false;
        }
        let is_known = records.take(record);
        if is_known {
            self.shared.metrics.resent();
        }
        is_known
    }

    /// Appends a record. Never waits: `done` gets the outcome on the journal's thread. If the log
    /// is almost full, records of the senders that use most of it are refused immediately, on the
    /// caller's thread. So are all records while the thread's inbox is full, or after the thread
    /// has ended.
    pub fn append(&self, record: Record, done: Done) {
        let budget = &self.shared.budget;
        let charge = record
            .peer
            .map(|peer| budget.charge(peer, record.n_bytes()));
        if matches!(charge, Some(None)) {
            self.shared.refused_some.store(true, Relaxed);
            return done(Err(AppendError::Full));
        }
        let waiting = Box::new(WaitingRecord {
            record,
            since: (self.clock)().0,
            charge: charge.flatten(),
            done,
        });
        let (message, error) = match self.sender.try_send(Message::Append(waiting)) {
            Ok(()) => return,
            Err(TrySendError::Full(message)) => (message, AppendError::Full),
            Err(TrySendError::Disconnected(message)) => (message, AppendError::DiskFailed),
        };
        if let Message::Append(waiting) = message {
            waiting.refuse(error);
        }
    }

    /// Returns the number below which an outlet has consumed every record.
    pub fn low(&self, outlet: Outlet) -> u64 {
        self.shared.status.lock().lows[outlet.index()]
    }

    /// Marks records as consumed: they need no delivery to this outlet.
    pub fn consume(&self, outlet: Outlet, range: Range<u64>) {
        self.shared.consumed.lock().push((outlet, range));
        self.changed();
    }

    pub fn need(&self, needed: Needed) {
        *self.shared.needed.lock() = Some(needed);
        self.changed();
    }

    fn changed(&self) {
        if !self.shared.has_changed.swap(true, AcqRel) {
            // If the channel is full, the thread is awake and writes the cursor soon.
            let _ = self.sender.try_send(Message::Consumed);
        }
    }

    pub fn unix_nanos(&self) -> u64 {
        (self.clock)().1
    }

    /// Makes the thread append its queued records, write the cursor and end.
    pub(super) fn end(&self) {
        // Blocks only while the inbox is full.
        let _ = self.sender.send(Message::End);
    }

    /// Writes the metrics of a journal's logs. The log of requests must come first, because some
    /// metrics are written only for the first log.
    pub fn write_metrics(logs: &[Self], page: &mut MetricsPage) {
        let Some(first) = logs.first() else { return };
        let metrics: Vec<&JournalMetrics> = logs.iter().map(|log| &log.shared.metrics).collect();
        JournalMetrics::write(&metrics, first.unix_nanos() / 1_000_000_000, page);
    }
}

impl Debug for LogShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogShared")
    }
}

impl LogShared {
    pub(super) fn new(metrics: JournalMetrics, max_size: u64) -> Self {
        Self {
            metrics,
            consumed: Mutex::default(),
            has_changed: AtomicBool::new(false),
            needed: Mutex::default(),
            last: Mutex::default(),
            status: Mutex::new(Status {
                refuses: Some(AppendError::DiskFailed),
                room: 0,
                lows: [0; N_OUTLETS],
            }),
            budget: FairBudget::new(n_bytes(max_size)),
            refused_some: AtomicBool::new(false),
            opening: Mutex::new(Opening::NotYet(Vec::new())),
            losers: Mutex::default(),
        }
    }

    /// Records that the log cannot be opened, and the reason.
    pub(super) fn refuses(&self, error: AppendError) {
        self.status.lock().refuses = Some(error);
        self.metrics.set_state(error.as_str());
    }

    /// Marks the log as open, and runs the callbacks that wait for the opening, before the first
    /// record is appended.
    pub(super) fn opened(&self, (store, log): (Store, OpenedLog), now: Instant) -> Store {
        let (storage, index) = store.segments();
        let last = LastRecords::find(storage, &index);
        *self.last.lock() = Some((last, now + AFTER_START));
        // The message of an earlier change was ignored, because the log was not open. Let the next
        // change send a message.
        self.has_changed.store(false, Relaxed);
        let log = Arc::new(log);
        let opening = mem::replace(&mut *self.opening.lock(), Opening::Open(Arc::clone(&log)));
        if let Opening::NotYet(waiting) = opening {
            for when_open in waiting {
                when_open(&log);
            }
        }
        self.set_status(None, &store, &mut SegmentCharges::default());
        store
    }

    fn set_status(
        &self,
        refuses: Option<AppendError>,
        store: &Store,
        charges: &mut SegmentCharges,
    ) {
        *self.status.lock() = Status {
            refuses,
            room: store.room(),
            lows: store.lows(),
        };
        if charges.release_all_but(&store.waiting_segments()) {
            self.refused_some.store(false, Relaxed);
        }
        let taken = n_bytes(store.capacity().saturating_sub(store.free()));
        self.budget
            .set_other(taken.saturating_sub(charges.n_bytes()));
        let shared_out = self.refused_some.load(Relaxed).then_some(AppendError::Full);
        let state = refuses.or(shared_out).map_or("ok", AppendError::as_str);
        self.metrics.set_state(state);
    }

    fn take_consumed(&self, progress: &mut Progress) {
        for (outlet, range) in mem::take(&mut *self.consumed.lock()) {
            progress.consume(outlet.index(), range);
        }
        let needed = self.needed.lock().take();
        if let Some(needed) = needed {
            progress.need(needed);
        }
    }
}

fn n_bytes(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The thread that appends records to an open log.
pub(super) struct LogWriter {
    store: Store,
    charges: SegmentCharges,
    inbox: Receiver<Message>,
    shared: Arc<LogShared>,
    clock: Clock,
    waiting: VecDeque<WaitingRecord>,
    /// True once the process ends.
    is_ending: bool,
    refusals: Refusals,
    /// Refusals of the senders that use most of the log.
    refusals_of_some: Refusals,
    /// Time at which the cursor is renewed, and synced with the records if they have changed;
    /// `None` before the first time.
    sync_at: Option<Instant>,
    /// Time at which a full or failed disk is retried.
    probe_at: Option<Instant>,
    /// Time at which the cursor is written and segments are removed.
    settle_at: Option<Instant>,
    gathering: Gathering,
    unwritten: Throttled,
}

impl LogWriter {
    pub(super) fn new(
        store: Store,
        inbox: Receiver<Message>,
        shared: Arc<LogShared>,
        clock: Clock,
        refusals: Refusals,
    ) -> Self {
        Self {
            refusals_of_some: Refusals::new(shared.metrics.log(), store.capacity()),
            store,
            charges: SegmentCharges::default(),
            inbox,
            shared,
            clock,
            waiting: VecDeque::new(),
            is_ending: false,
            refusals,
            sync_at: None,
            probe_at: None,
            settle_at: None,
            gathering: Gathering::default(),
            unwritten: Throttled::default(),
        }
    }

    pub(super) fn run(mut self) {
        loop {
            if self.waiting.is_empty() {
                self.wait();
            }
            self.gather();
            let n_bytes = self.waiting.iter().map(|it| it.record.n_bytes()).sum();
            if !self.is_ending
                && let Some(pause) = self.gathering.pause(self.waiting.len(), n_bytes)
            {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the thread is the journal's own; a message would wake it too early"
                )]
                thread::sleep(pause);
                self.gather();
            }
            self.shared.take_consumed(&mut self.store.progress);
            self.append();
            let has_ended = self.is_ending && self.waiting.is_empty();
            self.settle(has_ended);
            self.publish();
            if has_ended {
                return;
            }
        }
    }

    fn wait(&mut self) {
        let due = [self.sync_at, self.probe_at, self.settle_at];
        let due = due.into_iter().flatten().min();
        let left = due.map_or(Duration::MAX, |due| {
            due.saturating_duration_since((self.clock)().0)
        });
        match self.inbox.recv_timeout(left) {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.is_ending = true,
        }
    }

    /// Receives at most [`MAX_WAITING`] queued messages.
    fn gather(&mut self) {
        for _ in 0..MAX_WAITING {
            let Ok(message) = self.inbox.try_recv() else {
                return;
            };
            self.take(message);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Append(record) => self.waiting.push_back(*record),
            Message::Consumed => self.settle_soon((self.clock)().0),
            Message::End => self.is_ending = true,
        }
    }

    /// Appends the oldest records as one group. If that fails, refuses all queued records, except
    /// those that may still fit into a full log.
    fn append(&mut self) {
        self.probe();
        let error = match self.refusals.current {
            _ if self.waiting.is_empty() => return,
            Some(error) if error != AppendError::Full => error,
            _ => match self.append_group() {
                Ok(()) => return,
                Err(fault) => self.refused(fault),
            },
        };
        self.gathering = Gathering::default();
        // A record that is smaller than the first may still fit into a full log.
        let first = self.waiting.front().filter(|_| error == AppendError::Full);
        let least = first.map_or(0, |it| it.record.n_bytes());
        for record in mem::take(&mut self.waiting) {
            if record.record.n_bytes() < least {
                self.waiting.push_back(record);
            } else {
                record.refuse(error);
            }
        }
    }

    fn append_group(&mut self) -> Result<(), Option<FileFault>> {
        let (begun, _) = (self.clock)();
        let records: Vec<&Record> = self.waiting.iter().map(|it| &it.record).collect();
        let appended = self.store.append(&records);
        let lost = mem::take(&mut self.store.lost);
        if !lost.is_empty() {
            for when_lost in &*self.shared.losers.lock() {
                when_lost(&lost);
            }
        }
        let sequences = appended?;
        let (now, _) = (self.clock)();
        let took = now.saturating_duration_since(begun);
        self.shared.metrics.synced(took);
        self.resumed(now);
        self.settle_soon(now);
        // These records arrived while the group was written, before any of its senders was
        // answered, so each of them counts as a further sender.
        self.gather();
        self.gathering.synced(self.waiting.len(), took);
        let segment = self.store.last_segment();
        for sequence in sequences {
            let Some(record) = self.waiting.pop_front() else {
                break;
            };
            if let Some(charge) = record.charge {
                self.charges.hold(segment, charge);
            }
            let after = now.saturating_duration_since(record.since);
            self.shared.metrics.acknowledged(after);
            (record.done)(Ok(sequence));
        }
        Ok(())
    }

    fn probe(&mut self) {
        let (now, unix_nanos) = (self.clock)();
        if self.probe_at.is_some_and(|at| at <= now) {
            match self.store.probe(unix_nanos) {
                Ok(()) => self.resumed(now),
                Err(fault) => {
                    self.refused(fault);
                }
            }
        }
    }

    /// Refuses records because of a fault of the disk, or because the log is full.
    fn refused(&mut self, fault: Option<FileFault>) -> AppendError {
        let error = fault
            .as_ref()
            .map_or(AppendError::Full, |fault| AppendError::of(&fault.error));
        let (now, _) = (self.clock)();
        self.probe_at = match error {
            AppendError::Full => None,
            AppendError::DiskFull | AppendError::DiskFailed => Some(now + retry_after(error)),
        };
        let why = fault.as_ref().map(|fault| fault as &dyn Display);
        self.refusals.begin(error, why, self.store.used(), now);
        error
    }

    fn resumed(&mut self, now: Instant) {
        self.probe_at = None;
        self.refusals.end(now);
    }

    fn settle_soon(&mut self, now: Instant) {
        self.settle_at = self.settle_at.or(Some(now + SETTLE_DELAY));
    }

    /// Does nothing unless a write of the cursor or a sync is due, or the process ends. Writes the
    /// cursor, removes consumed segments, and syncs if that is due.
    fn settle(&mut self, is_ending: bool) {
        let (now, unix_nanos) = (self.clock)();
        let syncs = is_ending || self.sync_at.is_none_or(|at| at <= now);
        if !syncs && self.settle_at.is_none_or(|at| at > now) {
            return;
        }
        self.settle_at = None;
        self.shared.has_changed.store(false, Relaxed);
        self.shared.take_consumed(&mut self.store.progress);
        if syncs {
            self.sync_at = Some(now + SYNC_INTERVAL);
            // The next write that changes something reports the failure.
            let _ = self.store.progress.touch(unix_nanos);
        }
        let used = self.store.used();
        let mut settled = self.store.settle(unix_nanos);
        if self.store.used() < used && self.probe_at.is_some() {
            self.probe_at = Some(now);
        }
        if syncs {
            settled = settled.and_then(|()| self.store.sync());
        }
        if let Err(fault) = settled
            && self.unwritten.ready((), now).is_some()
        {
            let why = fault.to_string();
            JournalProgressUnwritten { why }.emit();
        }
    }

    fn publish(&mut self) {
        let (refuses, charges) = (self.refusals.current, &mut self.charges);
        self.shared.set_status(refuses, &self.store, charges);
        let ((now, _), used) = ((self.clock)(), self.store.used());
        if self.shared.refused_some.load(Relaxed) {
            let why = "only for the senders that use most of the journal";
            let refusals = &mut self.refusals_of_some;
            refusals.begin(AppendError::Full, Some(&why), used, now);
        } else {
            self.refusals_of_some.end(now);
        }
        let metrics = &self.shared.metrics;
        let (n_segments, oldest) = self.store.extent();
        let oldest = oldest.map(|unix_nanos| unix_nanos / 1_000_000_000);
        metrics.resized(used, n_segments, oldest);
    }
}
