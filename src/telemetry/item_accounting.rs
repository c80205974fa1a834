//! Accounts for received items by signal: accepted + restored = sent + queued + dropped, at any
//! time. Every request changes these numbers, so the frequent changes need no lock.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{MetricKind, MetricsPage, Telemetry};

use crate::sync::Mutex;

/// The numbers of one signal's items by outcome: accepted + restored = sent + queued + the sum of
/// dropped.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ItemCounts {
    /// Received and acknowledged.
    pub accepted: u64,
    pub restored: u64,
    /// Acknowledged by the downstream.
    pub sent: u64,
    pub queued: u64,
    /// Dropped after they were acknowledged, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Refused, by reason; the sender still has them.
    pub refused: BTreeMap<&'static str, u64>,
}

/// What happens to the items of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemEvent {
    Queued,
    /// Found in the journal at the start.
    Restored,
    Sent,
    /// Dropped for a reason.
    Dropped(&'static str),
}

#[derive(Debug, Default)]
pub(super) struct ItemAccounting {
    traces: SignalAccount,
    logs: SignalAccount,
    metrics: SignalAccount,
}

#[derive(Debug, Default)]
pub(super) struct SignalAccount {
    accepted: AtomicU64,
    restored: AtomicU64,
    sent: AtomicU64,
    /// This counter is separate from other drops, because every request of a signal that is not
    /// forwarded is counted here.
    discarded: AtomicU64,
    rare: Mutex<RareCounts>,
}

/// Counts that change too rarely for their lock to matter.
#[derive(Debug, Default)]
pub(super) struct RareCounts {
    dropped: BTreeMap<&'static str, u64>,
    pub(super) refused: BTreeMap<&'static str, u64>,
}

impl ItemAccounting {
    pub(super) fn signal(&self, signal: &'static str) -> &SignalAccount {
        match signal {
            "traces" => &self.traces,
            "logs" => &self.logs,
            _ => &self.metrics,
        }
    }

    pub(super) fn read(&self) -> BTreeMap<&'static str, ItemCounts> {
        ["traces", "logs", "metrics"]
            .into_iter()
            .map(|signal| (signal, self.signal(signal).read()))
            .filter(|(_, books)| *books != ItemCounts::default())
            .collect()
    }

    pub(super) fn write(&self, page: &mut MetricsPage) {
        self.traces.read().write("spans", page);
        self.logs.read().write("log_records", page);
        self.metrics.read().write("metric_points", page);
    }
}

impl SignalAccount {
    pub(super) fn rare(&self) -> MutexGuard<'_, RareCounts> {
        self.rare.lock()
    }

    /// Reads the outcomes before the number of accepted items, because an item is counted as
    /// accepted before its outcome. Every item that is neither sent nor dropped is queued, so the
    /// numbers balance without a lock.
    fn read(&self) -> ItemCounts {
        let (mut dropped, refused) = {
            let rare = self.rare();
            (rare.dropped.clone(), rare.refused.clone())
        };
        let discarded = self.discarded.load(Ordering::Acquire);
        if discarded > 0 {
            *dropped.entry(DISCARDED).or_default() += discarded;
        }
        let sent = self.sent.load(Ordering::Acquire);
        let accepted = self.accepted.load(Ordering::Relaxed);
        let restored = self.restored.load(Ordering::Relaxed);
        let queued = (accepted + restored).saturating_sub(sent + dropped.values().sum::<u64>());
        ItemCounts {
            accepted,
            restored,
            sent,
            queued,
            dropped,
            refused,
        }
    }
}

impl ItemCounts {
    /// Writes the metrics of one signal. The names of the metrics contain `items`.
    fn write(&self, items: &str, page: &mut MetricsPage) {
        let words = items.replace('_', " ");
        let dropped: u64 = self.dropped.values().sum();
        // Discarded items cannot be sent: the backend does not accept the signal, or there is no
        // backend.
        let discarded = self.dropped.get(DISCARDED).copied().unwrap_or_default();
        let refused: u64 = self.refused.values().sum();
        let failed = dropped - discarded;
        for (name, value, help) in [
            (
                "receiver_accepted",
                self.accepted,
                "received and acknowledged",
            ),
            (
                "receiver_refused",
                refused,
                "refused; their sender still has them",
            ),
            (
                "journal_restored",
                self.restored,
                "found in the journal at the start",
            ),
            ("exporter_sent", self.sent, "acknowledged by the downstream"),
            (
                "exporter_send_failed",
                failed,
                "acknowledged to the sender and then dropped",
            ),
        ] {
            let name = format!("spanscore_{name}_{items}");
            page.metric(&name, MetricKind::Counter, &format!("{words} {help}"));
            page.total(&name, [], value);
        }
        let name = format!("spanscore_exporter_dropped_{items}");
        let help =
            format!("{words} dropped, by reason; accepted + restored = sent + queue + dropped");
        page.metric(&name, MetricKind::Counter, &help);
        for (reason, n) in &self.dropped {
            page.total(&name, [("reason", *reason)], n);
        }
        page.gauge(
            &format!("spanscore_exporter_queue_{items}"),
            &format!("{words} waiting for the downstream"),
            self.queued,
        );
    }
}

const DISCARDED: &str = "discarded";

events! {
    ItemsCounted { signal: &'static str, n_items: u64, event: ItemEvent } (telemetry) {
        let account = telemetry.items.signal(signal);
        match event {
            ItemEvent::Queued => account.accepted.fetch_add(n_items, Ordering::Relaxed),
            ItemEvent::Restored => account.restored.fetch_add(n_items, Ordering::Relaxed),
            ItemEvent::Sent => account.sent.fetch_add(n_items, Ordering::Release),
            ItemEvent::Dropped(reason) => {
                *account.rare().dropped.entry(reason).or_default() += n_items;
                return;
            }
        };
    }

    /// A request was accepted and immediately discarded: the backend does not accept the signal, or
    /// there is no backend. Counted as dropped with the reason `discarded`.
    ItemsDiscarded { signal: &'static str, n_items: u64 } (telemetry) {
        let account = telemetry.items.signal(signal);
        account.accepted.fetch_add(n_items, Ordering::Relaxed);
        account.discarded.fetch_add(n_items, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_books_balance_at_every_look_while_threads_move_them() {
        const N_REQUESTS: u64 = 20_000;
        let telemetry = Telemetry::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for nth in 0..N_REQUESTS {
                        ItemsCounted {
                            signal: "traces",
                            n_items: 7,
                            event: ItemEvent::Queued,
                        }
                        .emit(&telemetry);
                        match nth % 3 {
                            0 => ItemsCounted {
                                signal: "traces",
                                n_items: 7,
                                event: ItemEvent::Dropped("refused"),
                            }
                            .emit(&telemetry),
                            1 => ItemsDiscarded {
                                signal: "traces",
                                n_items: 5,
                            }
                            .emit(&telemetry),
                            _ => ItemsCounted {
                                signal: "traces",
                                n_items: 7,
                                event: ItemEvent::Sent,
                            }
                            .emit(&telemetry),
                        }
                    }
                });
            }
            for _ in 0..1_000 {
                let Some(books) = telemetry.item_counts().remove("traces") else {
                    continue;
                };
                assert_eq!(
                    books.accepted,
                    books.sent + books.queued + books.dropped.values().sum::<u64>()
                );
            }
        });
        let books = &telemetry.item_counts()["traces"];
        assert_eq!(
            (books.queued, books.refused.len()),
            (3 * 7 * (N_REQUESTS / 3 + 1), 0),
            "every third request stays queued"
        );
    }
}
