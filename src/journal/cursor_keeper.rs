//! The thread that writes the cursor, however long the disk takes for records. Deliveries do not
//! wait for it, and those of a short while share one write.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use super::cursor::SharedProgress;
use super::keeper::{LogShared, SETTLE_DELAY, let_gather};
use super::opening::Clock;
use super::waiting::Message;

/// Ends when all handles of the log are gone.
pub(super) struct CursorKeeper {
    pub(super) wakes: Receiver<()>,
    pub(super) progress: SharedProgress,
    pub(super) shared: Arc<LogShared>,
    pub(super) clock: Clock,
    /// The other thread removes segments and syncs.
    pub(super) keeper: SyncSender<Message>,
}

impl CursorKeeper {
    pub(super) fn run(self) {
        while self.wakes.recv().is_ok() {
            // Deliveries that end in the meantime share this write.
            let_gather(SETTLE_DELAY);
            self.shared.take_consumed(&self.progress);
            let (_, unix_nanos) = (self.clock)();
            // The other thread may have taken deliveries and be waiting for the disk since, so the
            // cursor is written here, too. If that fails, the other thread tries again and reports
            // it.
            let _ = self.progress.lock().write(unix_nanos);
            // If it is full, a wake-up is pending.
            let _ = self.keeper.try_send(Message::Consumed);
        }
    }
}
