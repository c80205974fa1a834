//! A queue of scores whose requests are in a lane of a journal. Requests that do not fit into
//! memory are only on disk; while the disk fails, requests are only in memory.

use std::sync::Arc;

use super::{CompletionGuard, KeptLane, OutboundRequest, Queue, QueuedRequest};
use crate::config::Signal;
use crate::journal::{AppendError, JournalLog, LostRecord, Record};
use crate::transport::kept::OnDisk;

impl Queue {
    /// Writes all requests to a lane of `log`, and first delivers the lane's undelivered requests.
    #[must_use]
    pub fn kept_in_lane(self, log: &JournalLog, lane: KeptLane) -> Self {
        self.state().on_disk = Some(OnDisk::of_lane(log.clone(), lane));
        let queue = self.clone();
        log.when_open(Box::new(move |opened| {
            let n_waiting = opened.n_waiting(lane.number);
            if n_waiting > 0 {
                let accounting = &queue.shared.accounting;
                accounting.queued(Signal::Traces, n_waiting);
            }
            if let Some(on_disk) = &mut queue.state().on_disk {
                on_disk.opened(opened);
            }
            queue.shared.changed.notify_one();
        }));
        let queue = self.clone();
        log.when_lost(Box::new(move |lost| queue.lose(lost, lane.number)));
        self
    }

    /// Writes scores to the queue's lane. Never waits. `leaving` is dropped once the scores are
    /// journaled or, if that fails, when they are done.
    pub fn keep_scores(&self, request: OutboundRequest, leaving: Option<CompletionGuard>) {
        let cost = request.cost();
        let kept_in = {
            let mut state = self.state();
            let has_room = state.n_keeping + cost <= self.capacity();
            let on_disk = state.on_disk.as_ref().filter(|_| has_room);
            let kept_in = on_disk.map(|on_disk| (on_disk.log.clone(), on_disk.lane_number()));
            state.n_keeping += kept_in.as_ref().map_or(0, |_| cost);
            kept_in
        };
        let Some((log, lane)) = kept_in else {
            // The disk is slower than scoring.
            let accounting = &self.shared.accounting;
            accounting.queued(request.signal, request.n_items);
            return accounting.dropped(request.signal, request.n_items, "queue_full");
        };
        let (body, written) = (request.body.clone(), log.unix_nanos());
        let meta = request.route.encode();
        let record = Record::score(lane, request.n_items, written, meta, body);
        let queue = self.clone();
        log.append(
            record,
            Box::new(move |appended| {
                queue.take_scores(appended, request, leaving);
                queue.state().n_keeping -= cost;
                queue.shared.changed.notify_one();
            }),
        );
    }

    fn take_scores(
        &self,
        appended: Result<u64, AppendError>,
        request: OutboundRequest,
        leaving: Option<CompletionGuard>,
    ) {
        match appended {
            Ok(sequence) => {
                drop(leaving);
                self.take_kept(sequence, request);
            }
            Err(_) => {
                let guards = (request.completion.clone(), leaving);
                let request = OutboundRequest {
                    completion: Some(CompletionGuard(Arc::new(guards))),
                    ..request
                };
                // `offer` never fails for a queue that drops its oldest.
                let _ = self.offer(request);
            }
        }
    }

    /// Returns true if memory has space for a request. An empty queue has space for any request.
    pub(super) fn has_room(&self, cost: usize) -> bool {
        let n_bytes = self.n_bytes();
        n_bytes == 0 || n_bytes + cost <= self.capacity()
    }

    /// Drops requests whose records the log has evicted, unless the requests are in flight.
    fn lose(&self, lost: &[LostRecord], lane: u8) {
        let lost = lost.iter().filter(|record| record.lane == lane);
        let Some(last) = lost.clone().next_back() else {
            return;
        };
        let mut state = self.state();
        let mut n_items = 0;
        if let Some(on_disk) = &mut state.on_disk {
            for record in lost.filter(|record| on_disk.has(record.sequence)) {
                n_items += record.n_items;
            }
            on_disk.give_up(last.sequence);
        }
        let gone = state.remove(|entry| {
            let kept = entry.kept.as_ref();
            kept.is_some_and(|kept| kept.sequence() <= last.sequence)
        });
        n_items += gone.iter().map(|entry| entry.request.n_items).sum::<u64>();
        if n_items > 0 {
            let accounting = &self.shared.accounting;
            accounting.dropped(Signal::Traces, n_items, "queue_full");
        }
        drop(state);
        drop(gone);
        self.moved();
        // The next request of a trace may have become due.
        self.shared.changed.notify_one();
    }
}

impl QueuedRequest {
    /// Returns true if the request is in a journal.
    pub(in crate::transport) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }
}
