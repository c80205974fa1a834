//! The start of a log's thread. An unusable disk does not prevent the start: the log refuses
//! records and retries, because a restart would not repair the disk.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::LogThread;
use super::opening::{Clock, JournalError, JournalFolder, Opener};
use super::refusals::{Refusals, retry_after};
use super::store::{AppendError, LogSettings};
use super::waiting::Message;
use super::writer::{JournalLog, LogShared, LogWriter, MAX_WAITING};
use crate::telemetry::{JournalMetrics, Telemetry};

impl JournalFolder {
    /// Opens a log and starts its thread. Moves a log of another version aside. While the folder is
    /// unusable, the log refuses records and the thread retries; [`JournalLog::when_open`] reports
    /// success.
    ///
    /// # Errors
    /// Returns an error if another process has locked the folder, if a file has the name of the
    /// folder or of one of its parents, or if no thread can be started.
    pub fn open(
        self: &Arc<Self>,
        settings: LogSettings,
        clock: Clock,
        rng: fastrand::Rng,
        telemetry: &Arc<Telemetry>,
    ) -> Result<(JournalLog, LogThread), JournalError> {
        let mut opener = Opener {
            folder: Arc::clone(self),
            settings,
            clock,
            rng,
            telemetry: Arc::clone(telemetry),
        };
        let opened = match opener.open() {
            Err(error) if !error.may_pass() => return Err(error),
            opened => opened,
        };
        let (name, capacity) = (settings.name(), settings.max_size);
        let metrics = JournalMetrics::new(name, capacity);
        let shared = Arc::new(LogShared::new(metrics, capacity));
        let (sender, inbox) = sync_channel(MAX_WAITING);
        let log = JournalLog {
            sender,
            shared: Arc::clone(&shared),
            clock,
        };
        // If the folder is usable, the undelivered records are known when this function returns.
        let mut opened = opened.map(|opened| shared.opened(opened, clock().0));
        let run = move || {
            let mut refusals = Refusals::new(name, capacity);
            let store = loop {
                let error = match opened {
                    Ok(store) => break store,
                    Err(error) => error,
                };
                let (refusal, (now, _)) = (error.refusal(), clock());
                shared.refuses(refusal);
                refusals.begin(refusal, Some(&error), 0, now);
                if refuse_until(now + retry_after(refusal), refusal, &inbox, clock) {
                    return;
                }
                opened = opener.open().map(|opened| {
                    let (now, _) = clock();
                    refusals.end(now);
                    shared.opened(opened, now)
                });
            };
            LogWriter::new(store, inbox, shared, clock, refusals).run();
        };
        let thread = thread::Builder::new()
            .name(format!("journal-{name}"))
            .spawn(run);
        let thread = LogThread {
            log: log.clone(),
            thread: thread.map_err(|error| self.unusable(error))?,
            _folder: Arc::clone(self),
        };
        Ok((log, thread))
    }
}

/// Refuses all records until `until`. Returns true if the process ends.
fn refuse_until(
    until: Instant,
    refusal: AppendError,
    inbox: &Receiver<Message>,
    clock: Clock,
) -> bool {
    loop {
        let left = until.saturating_duration_since(clock().0);
        match inbox.recv_timeout(left) {
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
