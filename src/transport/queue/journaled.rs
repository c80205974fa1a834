//! A queue whose requests are in a journal. Memory contains the oldest requests, as many as fit;
//! the delivery reads the others later.

use std::io;

use super::{OutboundRequest, Queue, QueueStage, Route, State};
use crate::config::Signal;
use crate::journal::{JournalLog, LogReader, Outlet, Stored, Stretch, Ticket};
use crate::telemetry::ItemEvent;
use crate::transport::backlog::Backlog;

impl Queue {
    /// Stores all requests in `log`. The log's undelivered requests for `outlet` are delivered
    /// first. A record is consumed after a final answer of the destination, or when its request is
    /// dropped.
    #[must_use]
    pub fn journaled_in(self, log: &JournalLog, outlet: Outlet) -> Self {
        self.state().backlog = Some(Backlog::new(log.clone(), outlet));
        let queue = self.clone();
        log.when_open(Box::new(move |opened| {
            let accounting = &queue.shared.accounting;
            let [restored, damaged] = opened.n_waiting(outlet);
            accounting.count_all(restored, ItemEvent::Restored);
            accounting.count_all(damaged, ItemEvent::Dropped("damaged"));
            if let Some(backlog) = &mut queue.state().backlog {
                backlog.opened(opened);
            }
            queue.shared.changed.notify_one();
        }));
        if let Outlet::Lane(lane) = outlet {
            let queue = self.clone();
            log.when_lost(Box::new(move |lost| queue.lose(lost, lane)));
        }
        self
    }

    /// Enqueues a request whose record is in the journal.
    pub fn enqueue_record(&self, sequence: u64, request: OutboundRequest) {
        self.shared
            .accounting
            .count(request.signal, request.n_items, ItemEvent::Queued);
        let mut state = self.state();
        let has_room = self.has_room(request.cost());
        let Some(backlog) = &mut state.backlog else {
            return;
        };
        if let Some(ticket) = backlog.appended(sequence, has_room) {
            self.push(&mut state, request, ticket);
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Returns a function that reads records, if the journal has undelivered ones and memory has
    /// space.
    pub(in crate::transport) fn to_read(
        &self,
    ) -> Option<impl FnOnce() -> (LogReader, io::Result<Stretch>) + use<>> {
        let mut state = self.state();
        let backlog = state.backlog.as_mut()?;
        backlog.begin_read(self.n_bytes(), self.capacity())
    }

    pub(in crate::transport) fn return_reader(&self, reader: LogReader) {
        if let Some(backlog) = &mut self.state().backlog {
            backlog.return_reader(reader);
        }
    }

    /// Enqueues the records that were read.
    pub(in crate::transport) fn take_read(&self, stretch: Stretch) {
        let mut state = self.state();
        let Some(backlog) = &state.backlog else {
            return;
        };
        let (log, outlet) = (backlog.log.clone(), backlog.outlet);
        let accounting = &self.shared.accounting;
        for (lost, damage) in stretch.damage {
            let counts = match outlet {
                // The lanes report damage once for all of them.
                Outlet::Lane(_) => damage.counts,
                _ => outlet.counts(&damage.counts),
            };
            accounting.count_all(counts, ItemEvent::Dropped("damaged"));
            log.consume(outlet, lost);
        }
        for record in stretch.records {
            let backlog = state.backlog.as_ref();
            // The log may have evicted the record in the meantime.
            let known = backlog.filter(|backlog| backlog.has(record.sequence));
            let ticket = known.map(|backlog| backlog.next_ticket(record.sequence));
            // Requests that were held for older records precede this one.
            state.read_up_to(record.sequence);
            if let Some(ticket) = ticket {
                self.enqueue_read(&mut state, record, outlet, ticket);
            }
        }
        if let Some(backlog) = &state.backlog {
            backlog.skip_to(stretch.next);
        }
        state.read_up_to(stretch.next);
    }

    fn enqueue_read(&self, state: &mut State, record: Stored, outlet: Outlet, ticket: Ticket) {
        let end = record.sequence + 1;
        let mut signal = Signal::of_number(record.signal);
        match Route::decode(record.meta, matches!(outlet, Outlet::Lane(_))) {
            Some(mut route) => {
                // The signal field of a record for an API contains the lane of the writer.
                if matches!(route, Route::Api { .. }) {
                    signal = Signal::Traces;
                }
                if outlet == Outlet::Topic {
                    route = Route::default();
                }
                let request = OutboundRequest {
                    route,
                    ..OutboundRequest::otlp(signal, record.body, record.n_items)
                };
                self.push(state, request, ticket);
            }
            None => {
                let accounting = &self.shared.accounting;
                accounting.count(signal, record.n_items, ItemEvent::Dropped("damaged"));
                ticket.done();
            }
        }
        state.read_up_to(end);
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.state().stage, QueueStage::Closed { .. })
    }
}
