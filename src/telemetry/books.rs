//! What became of received items, signal by signal. Every request moves these numbers, so no lock
//! is shared for them.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Telemetry;

use crate::sync::Mutex;

/// What became of the items of one signal: accepted = sent + queued + the sum of dropped.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Books {
    /// Taken in and acknowledged.
    pub accepted: u64,
    /// Acknowledged by the downstream.
    pub sent: u64,
    /// On the way.
    pub queued: u64,
    /// Given up, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Never taken in, by reason; the sender still has them.
    pub refused: BTreeMap<&'static str, u64>,
}

/// The books as they are kept.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    traces: Account,
    logs: Account,
    metrics: Account,
}

#[derive(Debug, Default)]
pub(super) struct Account {
    accepted: AtomicU64,
    sent: AtomicU64,
    /// Apart from what else is dropped: where a signal is not forwarded it is every request's fate.
    discarded: AtomicU64,
    seldom: Mutex<Seldom>,
}

#[derive(Debug, Default)]
pub(super) struct Seldom {
    dropped: BTreeMap<&'static str, u64>,
    pub(super) refused: BTreeMap<&'static str, u64>,
}

impl Accounts {
    pub(super) fn of(&self, signal: &'static str) -> &Account {
        match signal {
            "traces" => &self.traces,
            "logs" => &self.logs,
            _ => &self.metrics,
        }
    }

    pub(super) fn read(&self) -> BTreeMap<&'static str, Books> {
        let all = [
            ("traces", self.traces.read()),
            ("logs", self.logs.read()),
            ("metrics", self.metrics.read()),
        ];
        all.into_iter()
            .filter(|(_, books)| *books != Books::default())
            .collect()
    }
}

impl Account {
    pub(super) fn seldom(&self) -> MutexGuard<'_, Seldom> {
        self.seldom.lock()
    }

    /// What became of items is read before how many were accepted, and an item is accepted before
    /// anything becomes of it. So the books balance without a lock: what is neither sent nor
    /// dropped is queued.
    fn read(&self) -> Books {
        let Seldom {
            mut dropped,
            refused,
        } = {
            let seldom = self.seldom();
            Seldom {
                dropped: seldom.dropped.clone(),
                refused: seldom.refused.clone(),
            }
        };
        let discarded = self.discarded.load(Ordering::Acquire);
        if discarded > 0 {
            *dropped.entry(DISCARDED).or_default() += discarded;
        }
        let sent = self.sent.load(Ordering::Acquire);
        let accepted = self.accepted.load(Ordering::Relaxed);
        let queued = accepted.saturating_sub(sent + dropped.values().sum::<u64>());
        Books {
            accepted,
            sent,
            queued,
            dropped,
            refused,
        }
    }
}

const DISCARDED: &str = "discarded";

/// A request was taken in; its items are queued now.
#[derive(Debug)]
pub struct Accepted {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl Accepted {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .accounts
            .of(self.signal)
            .accepted
            .fetch_add(self.n_items, Ordering::Relaxed);
    }
}

/// Queued items were acknowledged by the downstream.
#[derive(Debug)]
pub struct Sent {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl Sent {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .accounts
            .of(self.signal)
            .sent
            .fetch_add(self.n_items, Ordering::Release);
    }
}

/// Queued items were given up.
#[derive(Debug)]
pub struct Dropped {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
    /// `discarded` (the backend does not take the signal, or there is none), `refused`, `rejected`
    /// (partial success), `too_large`, `shutdown`, …
    pub reason: &'static str,
}

impl Dropped {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        *telemetry
            .accounts
            .of(self.signal)
            .seldom()
            .dropped
            .entry(self.reason)
            .or_default() += self.n_items;
    }
}

/// A request was taken in and given up at once: the backend does not take the signal, or there is
/// none. Counted as dropped, `discarded`.
#[derive(Debug)]
pub struct Discarded {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
}

impl Discarded {
    /// Count it.
    pub fn emit(self, telemetry: &Telemetry) {
        let account = telemetry.accounts.of(self.signal);
        account.accepted.fetch_add(self.n_items, Ordering::Relaxed);
        account.discarded.fetch_add(self.n_items, Ordering::Release);
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
                        Accepted {
                            signal: "traces",
                            n_items: 7,
                        }
                        .emit(&telemetry);
                        match nth % 3 {
                            0 => Dropped {
                                signal: "traces",
                                n_items: 7,
                                reason: "refused",
                            }
                            .emit(&telemetry),
                            1 => Discarded {
                                signal: "traces",
                                n_items: 5,
                            }
                            .emit(&telemetry),
                            _ => Sent {
                                signal: "traces",
                                n_items: 7,
                            }
                            .emit(&telemetry),
                        }
                    }
                });
            }
            for _ in 0..1_000 {
                let Some(books) = telemetry.books().remove("traces") else {
                    continue;
                };
                assert_eq!(
                    books.accepted,
                    books.sent + books.queued + books.dropped.values().sum::<u64>()
                );
            }
        });
        let books = &telemetry.books()["traces"];
        assert_eq!(
            (books.queued, books.refused.len()),
            (3 * 7 * (N_REQUESTS / 3 + 1), 0),
            "every third request stays queued"
        );
    }
}
