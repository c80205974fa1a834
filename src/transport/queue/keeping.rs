//! A queue whose requests are in a journal. Memory contains the oldest requests, as many as fit;
//! the delivery reads the others later.

use super::{KeepOutcome, OutboundRequest, Queue, QueueRefusal, QueueStage, Route};
use crate::config::Signal;
use crate::journal::{JournalLog, LogReader, Record, Stretch, Ticket};
use crate::transport::kept::{OnDisk, ToRead};

impl Queue {
    /// Stores all requests in `log`. The log's undelivered requests are delivered first; with
    /// `lane`, only the requests of that lane. A record is consumed after a final answer of the
    /// destination, or when its request is dropped.
    #[must_use]
    pub fn kept_in(self, log: &JournalLog, lane: Option<u8>) -> Self {
        self.state().on_disk = Some(OnDisk::new(log.clone(), lane));
        let queue = self.clone();
        log.when_open(Box::new(move |opened| {
            let accounting = &queue.shared.accounting;
            let (n_waiting, n_damaged) = lane.map_or((0, 0), |lane| opened.n_waiting(lane));
            if n_waiting > 0 {
                accounting.queued(Signal::Traces, n_waiting);
            }
            if n_damaged > 0 {
                accounting.dropped(Signal::Traces, n_damaged, "damaged");
            }
            if let Some(on_disk) = &mut queue.state().on_disk {
                on_disk.opened(opened);
            }
            queue.shared.changed.notify_one();
        }));
        if let Some(lane) = lane {
            let queue = self.clone();
            log.when_lost(Box::new(move |lost| queue.lose(lost, lane)));
        }
        self
    }

    /// Writes an OTLP request to the journal. Never waits.
    pub fn keep(&self, request: OutboundRequest, arrived_unix_nanos: u64, outcome: KeepOutcome) {
        let log = {
            let state = self.state();
            let is_closed = matches!(state.stage, QueueStage::Closed { .. });
            let on_disk = state.on_disk.as_ref().filter(|_| !is_closed);
            on_disk.map(|on_disk| on_disk.log.clone())
        };
        let Some(log) = log else {
            return outcome(Err(QueueRefusal::Draining));
        };
        let record = Record::new(
            request.signal.number(),
            request.n_items,
            arrived_unix_nanos,
            request.route.encode(),
            request.body.clone(),
        )
        .of(request.peer);
        if log.has(&record) {
            return outcome(Ok(None));
        }
        let queue = self.clone();
        log.append(
            record,
            Box::new(move |appended| {
                if let Ok(sequence) = appended {
                    queue.take_kept(sequence, request);
                }
                outcome(appended.map(Some).map_err(QueueRefusal::from));
            }),
        );
    }

    pub(super) fn take_kept(&self, sequence: u64, request: OutboundRequest) {
        self.shared
            .accounting
            .queued(request.signal, request.n_items);
        let mut state = self.state();
        let has_room = self.has_room(request.cost());
        let Some(on_disk) = &mut state.on_disk else {
            return;
        };
        if on_disk.appended(sequence, has_room) {
            let ticket = Ticket::of_record(&on_disk.log, sequence);
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
        if let Some(on_disk) = &state.on_disk {
            on_disk.log.consume(passed);
        }
        for (lost, damage) in damage {
            self.shared.accounting.damaged(damage.counts);
            if let Some(on_disk) = &state.on_disk {
                on_disk.log.consume(lost);
            }
        }
        for record in records {
            // Requests that were held for older records precede this one.
            state.read_up_to(record.sequence);
            // The log may have evicted the record in the meantime.
            let Some(on_disk) = state.on_disk.as_ref().filter(|it| it.has(record.sequence)) else {
                continue;
            };
            let mut signal = Signal::of_number(record.signal);
            let Some(route) = Route::decode(record.meta, on_disk.lane.is_some()) else {
                on_disk.log.consume([record.sequence]);
                let accounting = &self.shared.accounting;
                accounting.dropped(signal, record.n_items, "damaged");
                continue;
            };
            // The signal field of a record for an API contains the lane of the writer.
            if matches!(route, Route::Api { .. }) {
                signal = Signal::Traces;
            }
            let request = OutboundRequest {
                route,
                ..OutboundRequest::otlp(signal, record.body, record.n_items)
            };
            let ticket = Ticket::of_record(&on_disk.log, record.sequence);
            self.push(&mut state, request, ticket);
        }
        state.read_up_to(next);
    }

    /// Returns true if the queue has a journal.
    pub fn is_kept(&self) -> bool {
        self.state().on_disk.is_some()
    }
}
