//! Tickets for work that other code waits for: the delivery of a record, or of a batch of scores.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::format::Outlet;
use super::writer::JournalLog;
use crate::sync::Mutex;

/// A ticket for a piece of work; the default ticket is for work that nobody waits for. The owner
/// calls [`Self::done`] once the work is delivered, permanently refused, dropped and counted, or,
/// if the work is scores, journaled. If a ticket is dropped without this call, its work counts as
/// undone, and with a journal a restart repeats it.
#[derive(Debug, Default)]
#[must_use]
pub struct Ticket(Option<Arc<Work>>);

#[derive(Debug)]
struct Work {
    /// The number of a ledger's ticket, or the range of a record: see [`Ticket::of_record`].
    numbers: Range<u64>,
    book: Book,
    /// Number of parts that are not done.
    n_parts: AtomicUsize,
}

/// The issuer of a ticket, which is informed when the ticket is done.
#[derive(Debug)]
enum Book {
    Ledger(Arc<Ledger>),
    Log(JournalLog, Outlet),
}

impl Ticket {
    fn new(numbers: Range<u64>, book: Book) -> Self {
        let n_parts = AtomicUsize::new(1);
        Self(Some(Arc::new(Work {
            numbers,
            book,
            n_parts,
        })))
    }

    /// Returns the ticket of a record. When the ticket is done, the record is consumed.
    pub fn of_record(log: &JournalLog, outlet: Outlet, range: Range<u64>) -> Self {
        Self::new(range, Book::Log(log.clone(), outlet))
    }

    /// Returns the number of the ticket's record; `None` if the ticket is not of a record.
    pub fn record(&self) -> Option<u64> {
        let work = self.0.as_ref()?;
        matches!(work.book, Book::Log(..)).then_some(work.numbers.end - 1)
    }

    /// Returns a ticket for a further part of the work. The work is done when all parts are done.
    pub fn split(&self) -> Self {
        if let Some(work) = &self.0 {
            work.n_parts.fetch_add(1, Ordering::Relaxed);
        }
        Self(self.0.clone())
    }

    pub fn done(self) {
        let last = self
            .0
            .filter(|work| work.n_parts.fetch_sub(1, Ordering::AcqRel) == 1);
        let Some(work) = last else {
            return;
        };
        match &work.book {
            Book::Ledger(ledger) => ledger.done(work.numbers.start),
            Book::Log(log, outlet) => log.consume(*outlet, work.numbers.clone()),
        }
    }
}

/// Issues numbered tickets, and tracks the number below which all of them are done.
#[derive(Debug, Default)]
pub struct Ledger {
    tickets: Mutex<Tickets>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    open: BTreeSet<u64>,
}

impl Ledger {
    pub fn issue(self: &Arc<Self>) -> Ticket {
        let mut tickets = self.tickets.lock();
        let number = tickets.next;
        tickets.next += 1;
        tickets.open.insert(number);
        Ticket::new(number..number + 1, Book::Ledger(Arc::clone(self)))
    }

    pub fn next(&self) -> u64 {
        self.tickets.lock().next
    }

    /// Returns the number below which all tickets are done.
    pub fn low(&self) -> u64 {
        let tickets = self.tickets.lock();
        tickets.open.first().copied().unwrap_or(tickets.next)
    }

    /// Waits until a ticket is done. Only one task may wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn done(&self, number: u64) {
        self.tickets.lock().open.remove(&number);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_when_all_its_parts_and_all_earlier_work_are() {
        let ledger: Arc<Ledger> = Arc::default();
        let (first, second) = (ledger.issue(), ledger.issue());
        let half = first.split();
        second.done();
        first.done();
        assert_eq!((ledger.low(), ledger.next()), (0, 2), "half is not done");
        half.done();
        assert_eq!((ledger.low(), ledger.next()), (2, 2));
    }

    #[test]
    fn work_that_is_dropped_undone_stays_open() {
        let ledger: Arc<Ledger> = Arc::default();
        drop(ledger.issue());
        ledger.issue().done();
        assert_eq!((ledger.low(), ledger.next()), (0, 2));
    }
}
