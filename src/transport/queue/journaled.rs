//! A queue whose requests are in a journal. Memory contains the oldest requests, as many as fit;
//! the delivery reads the others later.

use super::{OutboundRequest, Queue, QueueStage, Route};
use crate::config::Signal;
use crate::journal::{JournalLog, LogReader, Outlet, Stretch, Ticket};
use crate::transport::backlog::{Backlog, ToRead};

impl Queue {
    /// Stores all requests in `log`. The log's undelivered requests for `outlet` are delivered
    /// first. A record is consumed after a final answer of the destination, or when its request is
    /// dropped.
    #[must_use]
    pub fn journaled_in(self, log: &JournalLog, outlet: Outlet) -> Self {
        self.state().on_disk = Some(Backlog::new(log.clone(), outlet));
        let queue = self.clone();
        log.when_open(Box::new(move |opened| {
            let accounting = &queue.shared.accounting;
            let [restored, damaged] = opened.n_waiting(outlet);
            accounting.restored(restored);
            accounting.damaged(damaged);
            if let Some(on_disk) = &mut queue.state().on_disk {
                on_disk.opened(opened);
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
            .queued(request.signal, request.n_items);
        let mut state = self.state();
        let has_room = self.has_room(request.cost());
        let Some(on_disk) = &mut state.on_disk else {
            return;
        };
        if on_disk.appended(sequence, has_room) {
            let ticket = Ticket::of_record(&on_disk.log, on_disk.outlet, sequence);
            self.push(&mut state, request, ticket);
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Returns the records to read, if the journal has undelivered records and memory has space.
    pub(in crate::transport) fn to_read(&self) -> Option<ToRead> {
        let mut state = self.state();
        let on_disk = state.on_disk.as_mut()?;
        on_disk.begin_read(self.n_bytes(), self.capacity())
    }

    pub(in crate::transport) fn return_reader(&self, reader: LogReader) {
        if let Some(on_disk) = &mut self.state().on_disk {
            on_disk.return_reader(reader);
        }
    }

    /// Enqueues the records that were read.
    pub(in crate::transport) fn take_read(&self, stretch: Stretch) {
        let Stretch {
            records,
            next,
            damage,
            passed,
        } = stretch;
        let mut state = self.state();
        let Some(on_disk) = &state.on_disk else {
            return;
        };
        let (log, outlet) = (on_disk.log.clone(), on_disk.outlet);
        log.consume(outlet, passed);
        for (lost, damage) in damage {
            self.shared.accounting.damaged(match outlet {
                // The lanes report damage once for all of them.
                Outlet::Lane(_) => damage.counts,
                _ => outlet.counts(&damage.counts),
            });
            log.consume(outlet, lost);
        }
        for record in records {
            // Requests that were held for older records precede this one.
            state.read_up_to(record.sequence);
            // The log may have evicted the record in the meantime.
            if !(state.on_disk.as_ref()).is_some_and(|it| it.has(record.sequence)) {
                continue;
            }
            let mut signal = Signal::of_number(record.signal);
            let is_score = matches!(outlet, Outlet::Lane(_));
            let Some(mut route) = Route::decode(record.meta, is_score) else {
                log.consume(outlet, [record.sequence]);
                let accounting = &self.shared.accounting;
                accounting.dropped(signal, record.n_items, "damaged");
                continue;
            };
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
            let ticket = Ticket::of_record(&log, outlet, record.sequence);
            self.push(&mut state, request, ticket);
        }
        state.read_up_to(next);
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.state().stage, QueueStage::Closed { .. })
    }
}
