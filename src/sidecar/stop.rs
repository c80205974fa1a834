//! Stops the sidecar: accepts requests until senders fall quiet, judges or keeps open traces,
//! delivers queues until the deadline, and closes the journal last. `spanscore drain` prepares a
//! stop, and refuses no requests.

use std::time::Duration;

use super::open_journal::write_down;
use super::{Sidecar, now, record};
use crate::export;
use crate::telemetry::{DrainStarted, Phase, Stopped};

/// Time for requests in flight to complete after the listeners close.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// Share of the shutdown deadline that is reserved for judging and delivering, in case senders
/// never stop sending.
const KEPT_FOR_DELIVERY: f64 = 0.4;

/// Share of the shutdown deadline that is reserved for delivering scores, in case judging takes
/// long.
const KEPT_FOR_LAST_SCORES: f64 = 0.1;

impl Sidecar {
    /// Starts the drain (`spanscore drain`): closes traces sooner, sends scores immediately, and
    /// still accepts requests. From now on the sidecar is not ready.
    pub fn begin_drain(&self) {
        self.telemetry.enter(Phase::Draining);
        DrainStarted {}.emit(&self.telemetry);
        self.exporting.begin_drain();
        if let Some(scoring) = &self.intake.scoring {
            scoring.begin_drain();
        }
    }

    /// Accepts requests until senders fall quiet or the deadline is near, judges or keeps open
    /// traces, and delivers the queues.
    pub async fn stop(mut self) -> Stopped {
        let begun = now().instant;
        let deadline = self.shutdown.deadline.0;
        let deadline_at = begun + deadline;

        // 1. Senders send their last requests. Requests that do not fit into the queues are
        // refused.
        self.telemetry.enter(Phase::Draining);
        self.intake.forward.begin_drain();
        #[cfg(feature = "kafka")]
        if let Some(reading) = &self.reading {
            reading.begin_stop();
        }
        // A process that only reads a topic has no senders.
        let quiet = self.shutdown.quiet.0;
        let quiet = if self.doors.is_empty() { Duration::ZERO } else { quiet };
        let latest = begun + deadline.mul_f64(1.0 - KEPT_FOR_DELIVERY);
        self.intake.fall_quiet(quiet, begun, latest).await;
        let grace = LAST_REQUESTS.min(deadline.mul_f64(KEPT_FOR_DELIVERY / 2.0));
        self.doors.close(grace).await;
        self.background.shutdown().await;

        // 2. When the last handle of the scoring queue is dropped, the threads judge or keep the
        // open traces, export the scores and stop. Scores that are exported too late are lost; with
        // a journal, their traces are judged again at the next start.
        let forward = self.intake.forward.clone();
        drop(self.intake);
        let judged = tokio::task::spawn_blocking(move || {
            for thread in self.scoring {
                // A panic of the thread has already been reported.
                let _ = thread.join();
            }
        });
        let latest = deadline_at - deadline.mul_f64(KEPT_FOR_LAST_SCORES);
        let _ = tokio::time::timeout_at(latest.into(), judged).await;
        if let Some(recording) = self.recording {
            record::finish(recording, LAST_REQUESTS).await;
        }

        // 3. All queues deliver until the deadline. Undelivered items stay in the journal, or are
        // dropped.
        forward.close(deadline_at);
        // A panic of a delivery has already been reported, and the stop must continue.
        let forwarded = async { while self.forwarding.join_next().await.is_some() {} };
        let ((), scores_left) = tokio::join!(forwarded, self.exporting.drain(deadline_at));

        // 4. The journal records which requests were delivered, and is unlocked.
        let is_kept = !self.journal.is_empty();
        write_down(self.journal).await;

        self.admin.close(Duration::from_millis(200)).await;
        let (end_watching, mut watching) = self.watching;
        drop(end_watching);
        while watching.join_next().await.is_some() {}
        // The item counts include items that a panicked delivery did not deliver.
        let item_counts = self.telemetry.item_counts();
        let n_queued: u64 = item_counts.values().map(|books| books.queued).sum();
        let dropped = item_counts.values().map(|books| &books.dropped);
        let n_dropped: u64 = dropped.filter_map(|it| it.get("shutdown")).sum();
        let n_kept = if is_kept { n_queued } else { 0 };
        Stopped {
            n_undelivered: n_queued - n_kept + n_dropped + self.telemetry.n_left_for_kafka(),
            n_kept,
            n_undelivered_scores: scores_left.values().sum(),
            n_kept_scores: if is_kept { export::n_queued(&self.telemetry) } else { 0 },
        }
    }
}
