//! The start of a log's thread. An unusable disk does not prevent the start: the log refuses
//! records and retries, because a restart would not repair the disk.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::opening::{Clock, JournalError, Opener};
use super::refusals::{Refusals, retry_after};
use super::store::AppendError;
use super::waiting::Message;
use super::writer::{JournalLog, LogShared, LogWriter, MAX_WAITING};
use crate::telemetry::JournalMetrics;

pub(super) fn start(mut opener: Opener) -> Result<(JournalLog, JoinHandle<()>), JournalError> {
    let opened = match opener.open() {
        Err(error) if !error.may_pass() => return Err(error),
        opened => opened,
    };
    let (clock, name) = (opener.clock, opener.settings.name());
    let capacity = opener.settings.max_size;
    let shared = Arc::new(LogShared::new(
        JournalMetrics::new(name, capacity),
        capacity,
    ));
    let (sender, inbox) = sync_channel(MAX_WAITING);
    let log = JournalLog {
        sender,
        shared: Arc::clone(&shared),
        clock,
    };
    let folder = Arc::clone(&opener.folder);
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
    Ok((log, thread.map_err(|error| folder.unusable(error))?))
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
