//! Tests several scoring threads: the traces of each thread, their shared state, and the failure of
//! a thread. `tests/it/judging_threads.rs` checks that their scores equal those of one thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use judge::assemble::Stats;
use judge::pipeline::CrossTraceAccess;

use super::*;
use crate::sidecar::judgements::in_memory;
use crate::sidecar::scoring::shared_traces::Round;

/// Returns the first trace of each thread, for two threads.
fn of_each() -> [u8; 2] {
    [0, 1].map(|index| {
        let is_of = |trace: &u8| Partition::index_of(id(*trace), 2) == index;
        (1..=u8::MAX).find(is_of).unwrap()
    })
}

fn id(trace: u8) -> TraceId {
    TraceId::try_new(&[trace; 16]).unwrap()
}

fn silent() -> Judge {
    Box::new(|_, _| ())
}

fn two(capacity: usize, judges: [Judge; 2]) -> (ScoringQueue, Vec<Worker>) {
    ScoringQueue::prepare(
        settings(),
        bounds(capacity),
        Arc::new(ArcSwap::from_pointee(rules())),
        Arc::default(),
        judges.into(),
        None,
    )
}

#[test]
fn a_request_is_divided_by_trace_and_waits_until_its_last_part_is_taken() {
    let (queue, workers) = two(1 << 20, [silent(), silent()]);
    let traces = of_each();
    let spans = [1, 2, 3].map(|span_id| traces.map(|trace| span(trace, span_id, "a")));
    let whole = batch(spans.iter().flatten().cloned().collect());
    let size = whole.size();
    queue.offer(whole, 0, None);
    let waiting = || queue.shared.waiting.n_bytes();
    assert_eq!(waiting(), size);
    for (worker, trace) in workers.iter().zip(traces) {
        assert_eq!(waiting(), size);
        let arrived = worker.inbox.try_recv().unwrap();
        let QueuedSpans::InMemory(batch) = arrived.spans else {
            panic!("the batch is in memory")
        };
        let ids = batch.spans.iter();
        let ids: Vec<_> = ids
            .map(|span| (span.trace_id, span.span_id.to_string()))
            .collect();
        let expected = [1, 2, 3].map(|span_id| (id(trace), format!("{span_id:02x}").repeat(8)));
        assert_eq!(ids, expected, "in the order of the request");
        assert!(worker.inbox.try_recv().is_err());
    }
    assert_eq!(waiting(), 0);
}

#[test]
fn a_refused_request_marks_each_trace_for_its_own_thread() {
    let (queue, _workers) = two(1, [silent(), silent()]);
    let traces = of_each();
    queue.offer(batch(vec![span(traces[0], 1, "")]), 0, None);
    queue.offer(
        batch(traces.map(|trace| span(trace, 2, "a")).into()),
        0,
        None,
    );
    let marked = queue.shared.threads.iter().map(|thread| {
        let thread = thread.lock();
        thread.unscored.clone()
    });
    let expected = traces.map(|trace| vec![id(trace)]);
    assert_eq!(marked.collect::<Vec<_>>(), expected);
    let telemetry = &queue.shared.telemetry;
    assert_eq!(telemetry.counter("spanscore_unscored_spans_total", &[]), 2);
}

#[tokio::test]
async fn a_panic_on_one_thread_leaves_the_others_judging_and_holds_no_room() {
    let (tell, judgements) = sync_channel(MAX_BATCHES);
    let judge: Judge = Box::new(move |judged, _| tell.send(told(judged)).unwrap());
    let (queue, workers) = two(1 << 20, [Box::new(|_, _| panic!("on purpose")), judge]);
    let traces = of_each();
    for trace in traces {
        queue.offer(
            batch(vec![span(trace, 1, ""), span(trace, 2, "a")]),
            0,
            None,
        );
    }
    let telemetry = Arc::clone(&queue.shared.telemetry);
    let mut threads = workers
        .into_iter()
        .map(|worker| thread::spawn(move || worker.run()));
    assert!(threads.next().unwrap().join().is_err());
    let other = threads.next().unwrap();
    drop(threads);
    assert_eq!(
        telemetry.unhealthy(now().instant),
        [("scoring-1".to_owned(), Unhealthy::Dead)]
    );
    queue.offer(
        batch(traces.map(|trace| span(trace, 3, "b")).into()),
        0,
        None,
    );
    assert_eq!(telemetry.counter("spanscore_unscored_spans_total", &[]), 1);
    is_empty(&queue).await;
    drop(queue);
    other.join().unwrap();
    // This thread must not wait for the dead thread.
    assert_eq!(
        judgements.iter().flatten().collect::<Told>(),
        [("pass", "root_ended", 0)]
    );
}

#[test]
fn what_all_threads_hold_is_added_up() {
    let held = |n_open: usize| Stats {
        n_open,
        open_size: 100 * n_open,
        n_recent: 2 * n_open,
        recent_size: 200 * n_open,
        ..Stats::default()
    };
    let sum = in_memory([held(1), held(2)].into_iter());
    let sum = [sum.n_open, sum.open_bytes, sum.n_recent, sum.recent_bytes];
    assert_eq!(sum, [3, 300, 6, 600]);
}

#[test]
fn threads_that_stop_wait_until_all_have_noted_their_traces() {
    let (queue, workers) = two(1 << 20, [silent(), silent()]);
    let time = now();
    let traces = &queue.shared.traces;
    let has_noted = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        for index in [0, 1] {
            let has_noted = &has_noted;
            scope.spawn(move || {
                let mut access = traces.access(index);
                access.round = Round::Last;
                // One more slice is due, so this thread is not done yet.
                access.noted(Some(time.instant), time);
                has_noted[index].store(true, Ordering::SeqCst);
                access.noted(None, time);
                assert!(access.others_keep_up(time));
                assert!(has_noted[1 - index].load(Ordering::SeqCst));
            });
        }
    });
    drop(workers);
}

#[test]
fn a_thread_that_keeps_up_waits_only_for_those_that_have_something_due() {
    let (queue, _workers) = two(1 << 20, [silent(), silent()]);
    let time = now();
    let traces = &queue.shared.traces;
    let mut access = traces.access(0);
    assert!(access.others_keep_up(time));
    traces.end_round(1, Some(time.instant + Duration::from_secs(1)));
    assert!(access.others_keep_up(time));
    traces.end_round(1, Some(time.instant));
    assert!(!access.others_keep_up(time), "the other thread is due");
    access.round = Round::IsBehind;
    assert!(access.others_keep_up(time));
    traces.end_round(1, None);
    access.round = Round::KeepsUp;
    assert!(access.others_keep_up(time));
}
