//! Tests the queue alone: its order, its drops and its accounting. The tests do not prove anything
//! about delivery.

use std::time::Duration;

use super::*;
use crate::eventually::eventually;
use crate::journal::{JournalFolder, Ledger, LogSettings, Outlet};

#[derive(Debug, Default)]
struct Notebook(Mutex<Vec<(&'static str, u64)>>);

impl Accounting for Notebook {
    fn count(&self, _: Signal, n_items: u64, event: ItemEvent) {
        let event = match event {
            ItemEvent::Queued => "queued",
            ItemEvent::Restored => "restored",
            ItemEvent::Sent => "sent",
            ItemEvent::Dropped(reason) => reason,
        };
        self.0.lock().push((event, n_items));
    }
}

fn queue() -> (Queue, Arc<Notebook>) {
    let notebook = Arc::new(Notebook::default());
    (
        Queue::new(
            "scores",
            4 * (OVERHEAD + 100),
            notebook.clone(),
            &Telemetry::default(),
        ),
        notebook,
    )
}

/// Returns a request that fills a quarter of the queue, identified by its number of items.
fn request(n_items: u64) -> OutboundRequest {
    OutboundRequest::otlp(Signal::Traces, vec![0; 100].into(), n_items)
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn items(entry: Option<QueuedRequest>) -> Option<u64> {
    Some(entry?.request.n_items)
}

#[test]
fn the_oldest_that_waits_makes_room_even_if_it_was_tried() {
    let (queue, notebook) = queue();
    (1..=4).for_each(|n| queue.send(request(n), Ticket::default()));
    let under_way = queue.take(now()).unwrap();
    let tried = queue.take(now()).unwrap();
    queue.put_back(tried, Some(now()));
    notebook.0.lock().clear();
    (5..=8).for_each(|n| queue.send(request(n), Ticket::default()));
    assert_eq!(
        *notebook.0.lock(),
        [
            ("queue_full", 2),
            ("queued", 5),
            ("queue_full", 3),
            ("queued", 6),
            ("queue_full", 4),
            ("queued", 7),
            ("queue_full", 5),
            ("queued", 8)
        ]
    );
    assert_eq!(queue.n_bytes(), queue.capacity());
    queue.finish(under_way);
    assert_eq!(queue.n_bytes(), queue.capacity() / 4 * 3);
}

#[test]
fn a_request_larger_than_the_queue_evicts_no_other() {
    let (queue, notebook) = queue();
    queue.send(request(1), Ticket::default());
    let large = OutboundRequest {
        body: vec![0; 10_000].into(),
        ..request(2)
    };
    queue.send(large, Ticket::default());
    assert_eq!(
        *notebook.0.lock(),
        [("queued", 1), ("queued", 2), ("queue_full", 2)]
    );
    assert_eq!(items(queue.take(now())), Some(1));
}

#[test]
fn a_closed_queue_takes_nothing_and_says_so_or_enters_it_as_dropped() {
    let (refusing, notebook) = queue();
    refusing.close(now());
    assert_eq!(refusing.offer(request(1)), Err(QueueRefusal::Draining));
    assert_eq!(*notebook.0.lock(), []);
    let (dropping, notebook) = queue();
    dropping.close(now());
    dropping.send(request(1), Ticket::default());
    assert_eq!(*notebook.0.lock(), [("queued", 1), ("shutdown", 1)]);
}

#[test]
fn room_is_known_before_a_request_is_read() {
    let (queue, _) = queue();
    let room = |n_bytes| queue.check_room(PeerId::default(), n_bytes);
    (1..=3).for_each(|n| queue.offer(request(n)).unwrap());
    assert_eq!(room(0), Err(QueueRefusal::Full));
    let taken = queue.take(now()).unwrap();
    queue.finish(taken);
    // The sender uses half of the capacity, and may use at most seven eighths of it.
    let most = queue.capacity() * 3 / 8 - OVERHEAD;
    assert_eq!(
        [room(most), room(most + 1)],
        [Ok(()), Err(QueueRefusal::Full)]
    );
}

#[test]
fn a_draining_queue_refuses_while_its_destination_is_down() {
    let (queue, _) = queue();
    let answers = |is_down| {
        queue.set_destination_down(is_down);
        [
            queue.check_room(PeerId::default(), 1),
            queue.offer(request(1)),
        ]
    };
    let refused = Err(QueueRefusal::Draining);
    assert_eq!(
        answers(true),
        [Ok(()); 2],
        "an outage alone fills the queue"
    );
    queue.begin_drain();
    assert_eq!(answers(true), [refused; 2]);
    assert_eq!(answers(false), [Ok(()); 2], "the destination is back");
}

#[test]
fn a_failed_request_waits_until_it_is_due_and_is_then_the_next() {
    let (queue, _) = queue();
    (1..=3).for_each(|n| queue.offer(request(n)).unwrap());
    let t0 = now();
    let failed = queue.take(t0).unwrap();
    queue.put_back(failed, Some(t0 + Duration::from_secs(1)));
    assert_eq!(items(queue.take(t0)), Some(2));
    assert_eq!(items(queue.take(t0 + Duration::from_secs(1))), Some(1));
    assert_eq!(items(queue.take(t0)), Some(3));
    assert!(queue.take(t0).is_none());
}

#[test]
fn what_failed_in_an_outage_comes_first_and_in_order_when_it_is_over() {
    let (queue, _) = queue();
    (1..=3).for_each(|n| queue.offer(request(n)).unwrap());
    let t0 = now();
    let failed: Vec<QueuedRequest> = (0..2).filter_map(|_| queue.take(t0)).collect();
    for (failed, seconds) in failed.into_iter().zip([30, 20]) {
        queue.put_back(failed, Some(t0 + Duration::from_secs(seconds)));
    }
    let probe = queue.take_probe();
    assert_eq!(items(probe), Some(3), "it gets through");
    queue.retry_all();
    let next = std::iter::from_fn(|| items(queue.take(t0)));
    assert_eq!(next.collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_probe_is_one_that_did_not_fail_before_if_there_is_one() {
    let (queue, _) = queue();
    (1..=2).for_each(|n| queue.offer(request(n)).unwrap());
    let t0 = now();
    let failed = queue.take(t0).unwrap();
    queue.put_back(failed, Some(t0));
    assert_eq!(
        (
            items(queue.take_probe()),
            items(queue.take_probe()),
            items(queue.take_probe())
        ),
        (Some(2), Some(1), None)
    );
}

#[test]
fn halves_come_next_and_weigh_as_the_whole_until_both_are_done() {
    let (queue, notebook) = queue();
    (1..=2).for_each(|n| queue.offer(request(n)).unwrap());
    let entry = queue.take(now()).unwrap();
    queue.replace(entry, [(vec![0; 60].into(), 10), (vec![0; 50].into(), 20)]);
    for (next, left) in [(10, 2), (20, 1), (2, 0)] {
        let entry = queue.take(now()).unwrap();
        assert_eq!(entry.request.n_items, next);
        queue.finish(entry);
        assert_eq!(queue.n_bytes(), left * (OVERHEAD + 100));
    }
    assert_eq!(
        *notebook.0.lock(),
        [("queued", 1), ("queued", 2)],
        "the books hold items, not requests"
    );
}

#[test]
fn a_bound_that_shrinks_keeps_what_waits_and_refuses_until_it_has_left() {
    let budgets = crate::config::Config::default()
        .budgets(Some(1 << 30))
        .bounds();
    let smaller = crate::config::Config::default().budgets(Some(32 << 20));
    let queue = Queue::new(
        "forward",
        budgets.forward_queue.clone(),
        Arc::new(Notebook::default()),
        &Telemetry::default(),
    );
    let of_size = |n_bytes| OutboundRequest {
        body: vec![0; n_bytes].into(),
        ..request(1)
    };
    let large = smaller.forward_queue;
    assert_eq!(queue.offer(of_size(large)), Ok(()));
    budgets.set(&smaller);
    assert_eq!(queue.capacity(), smaller.forward_queue);
    assert_eq!(queue.offer(of_size(1_000)), Err(QueueRefusal::Full));
    let limit = large / 2;
    assert_eq!(
        queue.offer(of_size(limit + 1)),
        Err(QueueRefusal::TooLarge { limit })
    );
    let waiting = queue.take_probe().unwrap();
    queue.finish(waiting);
    assert_eq!(queue.offer(of_size(1_000)), Ok(()));
}

#[test]
fn who_holds_most_is_refused_while_others_still_find_room() {
    let (queue, notebook) = queue();
    let from = |peer, n_bytes| OutboundRequest {
        peer: PeerId(peer),
        body: vec![0; n_bytes].into(),
        ..request(peer)
    };
    (0..3).for_each(|_| queue.offer(from(1, 100)).unwrap());
    assert_eq!(queue.offer(from(1, 0)), Err(QueueRefusal::Full));
    assert_eq!(queue.check_room(PeerId(1), 0), Err(QueueRefusal::Full));
    assert_eq!(queue.check_room(PeerId(2), 0), Ok(()));
    assert_eq!(queue.offer(from(2, 40)), Ok(()));
    assert_eq!(notebook.0.lock().last(), Some(&("queued", 2)));
    // Queued requests stay in the queue.
    let order: Vec<_> = std::iter::from_fn(|| items(queue.take(now()))).collect();
    assert_eq!(order, [1, 1, 1, 2]);
}

/// Returns a request about a trace, to a backend's own API.
fn about(trace: u8, n_items: u64) -> OutboundRequest {
    OutboundRequest {
        route: Route::Api {
            trace_id: TraceId::try_new(&[trace; 16]).unwrap(),
            targets: [].into(),
        },
        ..request(n_items)
    }
}

#[test]
fn requests_about_one_trace_go_one_after_the_other_and_block_no_other_trace() {
    let (queue, _) = queue();
    let t0 = now();
    for (trace, n_items) in [(1, 1), (1, 2), (2, 3)] {
        queue.offer(about(trace, n_items)).unwrap();
    }
    let first = queue.take(t0).unwrap();
    let other = queue.take(t0).unwrap();
    assert_eq!((first.request.n_items, other.request.n_items), (1, 3));
    queue.finish(other);
    let later = t0 + Duration::from_secs(1);
    queue.put_back(first, Some(later));
    assert!(queue.take(t0).is_none() && queue.due_at() == Some(later));
    let first = queue.take(later).unwrap();
    assert!(queue.take(later).is_none(), "the first is in flight");
    queue.finish(first);
    assert_eq!(items(queue.take(t0)), Some(2));
    assert!(queue.is_empty());
}

#[test]
fn a_full_queue_drops_the_oldest_of_a_trace_and_then_sends_the_next() {
    let (queue, notebook) = queue();
    let t0 = now();
    for (trace, n_items) in [(1, 1), (1, 2), (1, 3), (2, 4)] {
        queue.send(about(trace, n_items), Ticket::default());
    }
    let tried = queue.take(t0).unwrap();
    let other = queue.take(t0).unwrap();
    assert_eq!((tried.request.n_items, other.request.n_items), (1, 4));
    queue.put_back(tried, Some(t0 + Duration::from_secs(1)));
    notebook.0.lock().clear();
    queue.send(about(3, 5), Ticket::default());
    let next = queue.take(t0).unwrap();
    assert_eq!(next.request.n_items, 2, "its trace has no earlier request");
    queue.send(about(3, 6), Ticket::default());
    let dropped = [
        ("queue_full", 1),
        ("queued", 5),
        ("queue_full", 3),
        ("queued", 6),
    ];
    assert_eq!(*notebook.0.lock(), dropped, "the requests in flight stay");
    queue.finish(next);
    assert_eq!(items(queue.take(t0)), Some(5));
    assert!(queue.take(t0).is_none());
}

#[test]
fn scores_are_done_once_delivered_or_dropped_and_not_at_the_end_of_the_process() {
    let ledger: Arc<Ledger> = Arc::default();
    let (queue, _) = queue();
    (1..=5).for_each(|n| queue.send(request(n), ledger.issue()));
    assert_eq!(ledger.low(), 1, "the queue had room for four");
    let delivered = queue.take(now()).unwrap();
    queue.finish(delivered);
    assert_eq!(ledger.low(), 2);
    queue.close(now());
    queue.send(request(6), ledger.issue());
    drop(queue.drain());
    assert_eq!((ledger.low(), ledger.next()), (2, 6));
}

#[test]
fn an_unknown_span_counts_from_the_delivery_of_all_earlier_spans() {
    let ((spans, _), (scores, _)) = (queue(), queue());
    spans.offer(request(1)).unwrap();
    scores.send(about(1, 1), Ticket::default());
    let t0 = now();
    let (span, mut score) = (spans.take(t0).unwrap(), scores.take(t0).unwrap());
    let mut unknown_for = |seconds| {
        let at = t0 + Duration::from_secs(seconds);
        score.unknown_for(Some(&spans), at).as_secs()
    };
    assert_eq!(unknown_for(0), 0);
    spans.offer(request(2)).unwrap();
    assert_eq!(unknown_for(900), 0, "the span is in flight");
    spans.finish(span);
    assert_eq!([1_000, 1_600].map(unknown_for), [0, 600]);
}

/// The journal has two requests about a trace, and memory has only the first. Then the disk refuses
/// a third request and accepts a fourth.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_never_overtakes_an_older_one_on_a_disk_that_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let telemetry: Arc<Telemetry> = Arc::default();
    let clock = || (now(), 1);
    let opened = JournalFolder::lock(folder.path()).unwrap().unwrap().open(
        LogSettings::of_scores(8 << 20, false),
        clock,
        fastrand::Rng::new(),
        &telemetry,
    );
    let (log, keeping) = opened.unwrap();
    let capacity = 3 * OVERHEAD;
    let queue = Queue::new(
        "scores",
        capacity,
        Arc::new(Notebook::default()),
        &telemetry,
    );
    let queue = queue.journaled_in(&log, Outlet::Lane(3));
    let targets = [ApiTarget {
        method: hyper::Method::POST,
        path: "/".to_owned(),
    }];
    let of_trace = |n_items| OutboundRequest {
        route: Route::Api {
            trace_id: TraceId::try_new(&[1; 16]).unwrap(),
            targets: targets.clone().into(),
        },
        // The second request does not fit into memory beside the first.
        body: vec![0; if n_items == 1 { 400 } else { 100 }].into(),
        ..request(n_items)
    };
    let journal = async |n_items, n_records| {
        queue.send(of_trace(n_items), Ticket::default());
        eventually("the score is journaled", || {
            let state = queue.state();
            let end = state.backlog.as_ref().map(Backlog::end);
            (end == Some(n_records) && state.n_appending == 0).then_some(())
        })
        .await;
    };
    journal(1, 1).await;
    journal(2, 2).await;
    let first = queue.take(now()).unwrap();
    let mut order = vec![first.request.n_items];
    queue.finish(first);
    queue.enqueue(of_trace(3), Ticket::default());
    journal(4, 3).await;
    while order.len() < 4 {
        if let Some(to_read) = queue.to_read() {
            let (reader, stretch) = to_read();
            queue.return_reader(reader);
            queue.take_read(stretch.unwrap());
        }
        let next = queue.take(now()).expect("a request is due");
        order.push(next.request.n_items);
        queue.finish(next);
    }
    assert_eq!(order, [1, 2, 3, 4]);
    tokio::task::spawn_blocking(|| keeping.end()).await.unwrap();
}
