//! The thread that writes the cursor, even while the disk is busy with records. Deliveries do not
//! wait for the write, and deliveries within a short time share a write.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use super::cursor::SharedProgress;
use super::keeper::{LogShared, SETTLE_DELAY, let_gather};
use super::opening::Clock;
use super::waiting::Message;

/// Ends when all handles of the log are dropped.
pub(super) struct CursorKeeper {
    pub(super) wakes: Receiver<()>,
    pub(super) progress: SharedProgress,
    pub(super) shared: Arc<LogShared>,
    pub(super) clock: Clock,
    /// Sends to the thread that removes segments and syncs.
    pub(super) keeper: SyncSender<Message>,
}

impl CursorKeeper {
    pub(super) fn run(self) {
        while self.wakes.recv().is_ok() {
            // Deliveries that end during the pause share this write.
            let_gather(SETTLE_DELAY);
            self.shared.take_consumed(&self.progress);
            let (_, unix_nanos) = (self.clock)();
            // Write the cursor here too: the other thread may have read the deliveries and be
            // waiting for the disk. If the write fails, the other thread retries and reports the
            // failure.
            let _ = self.progress.lock().write(unix_nanos);
            // If the channel is full, a wake-up is pending.
            let _ = self.keeper.try_send(Message::Consumed);
        }
    }
}
