//! The start of a log's thread. An unusable disk does not prevent the start: the log refuses
//! records and retries, because a restart would not repair the disk.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::opening::{JournalError, OpenedStore, Opener};
use super::refusals::{Refusals, retry_after};
use super::resent::AFTER_START;
use super::store::AppendError;
use super::waiting::Message;
use super::writer::{JournalLog, LogShared, LogWriter, MAX_WAITING};
use crate::telemetry::{JournalAccepting, JournalMetrics, JournalRefusing};

/// A log's thread until the log is open.
struct LogStart {
    opener: Opener,
    outcome: Result<OpenedStore, JournalError>,
    inbox: Receiver<Message>,
    shared: Arc<LogShared>,
    refusals: Refusals,
}

pub(super) fn start(mut opener: Opener) -> Result<(JournalLog, JoinHandle<()>), JournalError> {
    let outcome = match opener.open() {
        Err(error) if !error.may_pass() => return Err(error),
        outcome => outcome,
    };
    let metrics = JournalMetrics::new(opener.contents.name(), opener.settings.max_size);
    let shared = Arc::new(LogShared::new(metrics, opener.settings.max_size));
    let (sender, inbox) = sync_channel(MAX_WAITING);
    let clock = opener.clock;
    let log = JournalLog::new(sender, Arc::clone(&shared), clock);
    let (folder, name) = (Arc::clone(&opener.folder), opener.contents.name());
    let start = Box::new(LogStart {
        opener,
        outcome,
        inbox,
        shared,
        refusals: Refusals::default(),
    });
    // If the folder is usable, the undelivered records are known when this function returns.
    let start = start.try_begin();
    let thread = thread::Builder::new()
        .name(format!("journal-{name}"))
        .spawn(move || match start {
            Ok(writer) => writer.run(),
            Err(start) => start.run(),
        })
        .map_err(|error| folder.unusable(error))?;
    Ok((log, thread))
}

impl LogStart {
    /// Tries to open the log until it succeeds or the process ends.
    fn run(mut self: Box<Self>) {
        loop {
            self = match self.try_begin() {
                Ok(writer) => return writer.run(),
                Err(start) => start,
            };
            let Err(error) = &self.outcome else { continue };
            let refusal = error.refusal();
            let (now, _) = (self.opener.clock)();
            self.refuse(refusal, now);
            if self.wait(refusal, now + retry_after(refusal)) {
                return;
            }
            self.outcome = self.opener.open();
        }
    }

    /// Returns the writer if the last attempt opened the log, or `self` for another attempt.
    fn try_begin(self: Box<Self>) -> Result<LogWriter, Box<Self>> {
        let Self {
            opener,
            outcome,
            inbox,
            shared,
            mut refusals,
        } = *self;
        let clock = opener.clock;
        let (now, _) = clock();
        let OpenedStore { store, log, last } = match outcome {
            Ok(opened) => opened,
            Err(error) => {
                return Err(Box::new(Self {
                    opener,
                    outcome: Err(error),
                    inbox,
                    shared,
                    refusals,
                }));
            }
        };
        if let Some(after) = refusals.end(now) {
            let log = opener.contents.name();
            JournalAccepting { log, after }.emit();
        }
        // Run the callbacks before the first record is appended.
        shared.opened(log, (last, now + AFTER_START), &store);
        Ok(LogWriter::new(store, inbox, shared, clock, refusals))
    }

    fn refuse(&mut self, refusal: AppendError, now: Instant) {
        self.shared.refuses(refusal);
        let Err(error) = &self.outcome else { return };
        if self.refusals.begin(refusal, now) {
            JournalRefusing {
                log: self.opener.contents.name(),
                state: refusal.as_str(),
                why: Some(error.to_string()),
                size: 0,
                capacity: self.opener.settings.max_size,
            }
            .emit();
        }
    }

    /// Refuses all records until `until`. Returns true if the process ends.
    fn wait(&self, refusal: AppendError, until: Instant) -> bool {
        loop {
            let (now, _) = (self.opener.clock)();
            let left = until.saturating_duration_since(now);
            match self.inbox.recv_timeout(left) {
                Ok(Message::Append(waiting)) => waiting.refuse(refusal),
                Ok(Message::Consumed) => {}
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
            if left == Duration::ZERO {
                return false;
            }
        }
    }
}
