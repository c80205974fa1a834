//! A queue of scores whose requests are in a lane of a journal. Requests that do not fit into
//! memory are only on disk; while the disk fails, requests are only in memory.

use super::{OutboundRequest, Queue, QueuedRequest};
use crate::config::Signal;
use crate::journal::{LostRecord, Outlet, Record, Ticket};
use crate::telemetry::ItemEvent;

impl Queue {
    /// Enqueues scores, in the journal if there is one. Never waits. `ticket` is done once the
    /// scores are journaled, delivered or dropped, but not if they are dropped at a shutdown.
    pub fn send(&self, request: OutboundRequest, ticket: Ticket) {
        let cost = request.cost();
        let mut state = self.state();
        let backlog = state.backlog.as_ref().map(|it| (it.log.clone(), it.outlet));
        let Some((log, Outlet::Lane(lane))) = backlog else {
            drop(state);
            return self.enqueue(request, ticket);
        };
        if state.n_appending + cost > self.capacity() {
            // The disk is slower than scoring.
            let accounting = &self.shared.accounting;
            for event in [ItemEvent::Queued, ItemEvent::Dropped("queue_full")] {
                accounting.count(request.signal, request.n_items, event);
            }
            return ticket.done();
        }
        state.n_appending += cost;
        drop(state);
        let (body, written) = (request.body.clone(), log.unix_nanos());
        let meta = request.route.encode();
        let record = Record::score(lane, request.n_items, written, meta, body);
        let queue = self.clone();
        log.append(
            record,
            Box::new(move |appended| {
                match appended {
                    Ok(sequence) => {
                        ticket.done();
                        queue.enqueue_record(sequence, request);
                    }
                    // While the disk fails, scores are only in memory.
                    Err(_) => queue.enqueue(request, ticket),
                }
                queue.state().n_appending -= cost;
                queue.shared.changed.notify_one();
            }),
        );
    }

    /// Returns true if memory has space for a request. An empty queue has space for any request.
    pub(super) fn has_room(&self, cost: usize) -> bool {
        let n_bytes = self.n_bytes();
        n_bytes == 0 || n_bytes + cost <= self.capacity()
    }

    /// Drops requests whose records the log has evicted, unless the requests are in flight.
    pub(super) fn lose(&self, lost: &[LostRecord], lane: u8) {
        let lost = lost.iter().filter(|record| record.lane == lane);
        let Some(last) = lost.clone().next_back() else {
            return;
        };
        let mut state = self.state();
        let mut n_items = 0;
        if let Some(backlog) = &mut state.backlog {
            for record in lost.filter(|record| backlog.has(record.sequence)) {
                n_items += record.n_items;
            }
        }
        state.read_up_to(last.sequence + 1);
        let gone = state.remove(|entry| {
            let record = entry.ticket.record();
            record.is_some_and(|record| record <= last.sequence)
        });
        n_items += gone.iter().map(|entry| entry.request.n_items).sum::<u64>();
        if n_items > 0 {
            let accounting = &self.shared.accounting;
            accounting.count(Signal::Traces, n_items, ItemEvent::Dropped("queue_full"));
        }
        drop(gone);
        self.moved();
        drop(state);
        // The next request of a trace may be due now.
        self.shared.changed.notify_one();
    }
}

impl QueuedRequest {
    /// Returns true if the request is in a journal.
    pub(in crate::transport) fn is_journaled(&self) -> bool {
        self.ticket.record().is_some()
    }
}
