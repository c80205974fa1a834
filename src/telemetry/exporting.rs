//! Events about the delivery of scores, from the queue to the destination.

use super::Telemetry;
use super::item_accounting::ItemEvent;

/// Maximum number of log lines about alarms in a second.
const MAX_ALARMS_LOGGED: u64 = 10;

#[derive(Debug, Default)]
pub(super) struct AlarmsLogged {
    /// The Unix time of the last log line in seconds, and the number of lines in that second.
    second: u64,
    n_lines: u64,
    /// Number of alarms since the last log line. They were not logged.
    n_more: u64,
}

events! {
    ScoresCounted { shape: &'static str, n_items: u64, event: ItemEvent } (telemetry) {
        let metrics = &telemetry.metrics;
        let n_queued = n_items.cast_signed();
        match event {
            ItemEvent::Queued | ItemEvent::Restored => metrics.scores_queued.add([shape], n_queued),
            ItemEvent::Sent => {
                metrics.scores_queued.add([shape], -n_queued);
                metrics.scores_sent.add([shape], n_items);
            }
            ItemEvent::Dropped(reason) => {
                metrics.scores_queued.add([shape], -n_queued);
                metrics.scores_dropped.add([shape, reason], n_items);
            }
        }
    }

    ScoresUnprinted { n_items: u64, reason: &'static str } (telemetry) {
        telemetry.metrics.scores_dropped.add(["print", reason], n_items);
    }

    /// A listener of `GET /v1/scores` is too slow: its oldest lines were dropped, and a line with
    /// their number was sent.
    ListenerBehind { n_items: u64 } (telemetry) {
        telemetry.metrics.scores_dropped.add(["listener", "queue_full"], n_items);
    }

    ScoresOverflow { shape: &'static str } (_) {
        tracing::warn!(
            shape,
            "the score queue is full; the oldest scores are dropped until the destination accepts \
             some again"
        );
    }

    /// A criterion was permanently violated while the trace is open. Logged at most ten times a
    /// second.
    AlarmRaised<'a> {
        criterion: &'a str,
        severity: &'static str,
        trace_id: String,
        service: &'a str,
        explanation: &'a str,
        second: u64,
    } (telemetry) {
        let mut logged = telemetry.alarms_logged.lock();
        if logged.second != second {
            (logged.second, logged.n_lines) = (second, 0);
        }
        if logged.n_lines == MAX_ALARMS_LOGGED {
            logged.n_more += 1;
            return;
        }
        logged.n_lines += 1;
        let n_not_logged = std::mem::take(&mut logged.n_more);
        drop(logged);
        tracing::warn!(
            criterion,
            severity,
            trace_id,
            service,
            explanation,
            n_not_logged,
            "alarm: an open trace permanently violates a criterion"
        );
    }

    ScoreShapeOff { shape: &'static str, why: String } (_) {
        tracing::info!(shape, why, "no scores of this shape are sent");
    }

    ScoreLabelsFolded { limit: &'static str } (_) {
        tracing::warn!(limit, "metric label limit reached; further names are counted as `_other`");
    }
}
