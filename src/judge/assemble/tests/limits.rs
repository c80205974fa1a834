//! Tests how the buffer cuts traces short: at limits and budgets, by age, at shutdown and for known
//! gaps. The buffer's benchmark measures the memory that traces use.

use std::time::Duration;

use super::fixture::{Fixture, reasons, settings, span, trace_id, traces};
use crate::assemble::CloseReason::*;
use crate::assemble::{Inserted, Settings, TraceIdFilter};

fn buffer() -> Fixture {
    Fixture::new(settings())
}

// === limits ===

#[test]
fn span_limit_closes_a_trace_at_once_and_later_spans_are_only_counted() {
    let mut buffer = Fixture::new(Settings {
        span_limit: 3,
        ..settings()
    });
    for id in 2..=4 {
        assert_eq!(buffer.send(span(id).under(1)), Inserted::Taken);
    }
    assert_eq!(buffer.send(span(1)), Inserted::TooLate);
    assert_eq!(buffer.buffer.next_deadline(), Some(buffer.begin.instant));
    let told = buffer.wait(0);
    assert_eq!((told[0].reason, told[0].spans.len()), (SpanLimit, 3));
    assert_eq!(buffer.send(span(1)), Inserted::TooLate);
    assert!(buffer.finish().is_empty());
}

#[test]
fn size_limit_closes_a_trace_at_once() {
    let mut buffer = Fixture::new(Settings {
        size_limit: 10_000,
        ..settings()
    });
    buffer.send(span(1).named(&"x".repeat(4_000)));
    assert!(buffer.wait(0).is_empty());
    buffer.send(span(2).named(&"y".repeat(6_000)));
    assert_eq!(reasons(&buffer.wait(0)), [SizeLimit]);
    assert_eq!(buffer.buffer.stats().open_size, 0);
}

#[test]
fn without_room_settling_traces_are_closed_first_then_the_longest_idle() {
    let mut buffer = Fixture::new(Settings {
        max_open_traces: 3,
        ..settings()
    });
    buffer.send(span(2).under(1).of(1));
    buffer.send(span(2).under(1).of(2));
    buffer.send(span(1).of(3));
    assert!(buffer.wait(1).is_empty());
    buffer.send(span(3).under(1).of(1));
    buffer.send(span(2).under(1).of(4));
    let told = buffer.wait(0);
    assert_eq!(
        (traces(&told), reasons(&told)),
        (vec![trace_id(3)], vec![RootEnded])
    );
    buffer.send(span(2).under(1).of(5));
    let told = buffer.wait(0);
    assert_eq!(
        (traces(&told), reasons(&told)),
        (vec![trace_id(2)], vec![Evicted])
    );
}

#[test]
fn open_traces_have_a_budget_in_bytes() {
    let mut buffer = Fixture::new(Settings {
        max_open_size: 100_000,
        ..settings()
    });
    for trace in 1..=20 {
        buffer.send(span(2).under(1).named(&"x".repeat(10_000)).of(trace));
        assert!(buffer.buffer.stats().open_size <= 100_000);
    }
    let told = buffer.wait(0);
    assert_eq!(told[0].trace_id, trace_id(1));
    assert_eq!(reasons(&told), [Evicted].repeat(told.len()));
    assert_eq!(told.len() + buffer.buffer.stats().n_open, 20);
}

#[test]
fn an_evicted_trace_takes_spans_until_it_is_returned_and_opens_again_after() {
    let mut buffer = Fixture::new(Settings {
        max_open_traces: 1,
        ..settings()
    });
    buffer.send(span(2).under(1).of(1));
    buffer.send(span(2).under(1).of(2));
    assert_eq!(buffer.send(span(3).under(1).of(1)), Inserted::Taken);
    let told = buffer.wait(0);
    assert_eq!((told[0].trace_id, told[0].spans.len()), (trace_id(1), 2));
    assert_eq!(buffer.send(span(1).of(1)), Inserted::Late);
    let told = buffer.wait(0);
    assert_eq!(
        (traces(&told), reasons(&told)),
        (vec![trace_id(1)], vec![RootEnded]),
        "settling, so it gives way first"
    );
    assert_eq!((told[0].revision, told[0].spans.len()), (1, 3));
}

#[test]
fn an_expired_trace_is_reported_once_and_stays_open() {
    let mut buffer = buffer();
    let mut told = Vec::new();
    for id in 2..=80 {
        buffer.send(span(id).under(1));
        told.extend(buffer.wait(100));
    }
    assert_eq!(reasons(&told), [Expired]);
    assert_eq!((told[0].spans.len(), told[0].first), (36, true));
    assert_eq!(buffer.send(span(1)), Inserted::Late);
    let told = buffer.wait(5);
    assert_eq!(
        (
            told[0].reason,
            told[0].spans.len(),
            told[0].first,
            told[0].revision
        ),
        (RootEnded, 80, false, 1)
    );
    assert_eq!(
        told[0].spans[0].span.kept.index().name(),
        "span",
        "its spans are still there"
    );
}

#[test]
fn a_trace_that_is_due_for_two_reasons_comes_once() {
    let mut buffer = Fixture::new(Settings {
        expired: Duration::from_secs(180),
        ..settings()
    });
    buffer.send(span(2).under(1));
    assert_eq!(reasons(&buffer.wait(1_000)), [Inactive]);
}

#[test]
fn shutdown_closes_an_ended_root_as_such_and_cuts_the_others_short() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).of(3));
    buffer.send(span(1).of(2));
    buffer.send(span(1).of(1));
    buffer.send(span(3).under(2).of(1));
    let told = buffer.close_all(Shutdown);
    assert_eq!(
        traces(&told),
        [trace_id(3), trace_id(2), trace_id(1)],
        "by first arrival"
    );
    assert_eq!(reasons(&told), [Shutdown, RootEnded, Shutdown]);
    assert_eq!(buffer.buffer.next_deadline(), None);
}

#[test]
fn shorter_settle_times_apply_to_ended_roots_only() {
    let mut buffer = buffer();
    buffer.send(span(1).of(1));
    buffer.send(span(2).under(1).of(2));
    buffer.buffer.shorten_settle(Duration::from_secs(1));
    buffer.send(span(1).of(3));
    assert!(buffer.wait(0).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [RootEnded, RootEnded]);
    assert!(buffer.wait(178).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [Inactive]);
}

#[test]
fn replay_closes_traces_at_the_end_of_input_only() {
    let mut buffer = Fixture::new(Settings::replay());
    buffer.send(span(1).of(1));
    buffer.send(span(2).under(1).of(2));
    assert_eq!(buffer.buffer.next_deadline(), None);
    assert!(buffer.wait(1_000_000).is_empty());
    let told = buffer.close_all(NoRoot);
    assert_eq!(reasons(&told), [RootEnded, NoRoot]);
    assert_eq!([told[0].arrival, told[1].arrival], [0, 1]);
}

// === incomplete ===

#[test]
fn unscored_spans_make_a_trace_incomplete_in_any_order() {
    let mut buffer = buffer();
    buffer.send(span(1).of(1));
    buffer.mark_unscored(1);
    buffer.mark_unscored(2);
    buffer.send(span(1).of(2));
    buffer.send(span(2).under(9).of(2));
    buffer.send(span(1).of(3));
    let told = buffer.finish();
    assert_eq!(traces(&told), [trace_id(1), trace_id(3), trace_id(2)]);
    assert_eq!(reasons(&told), [Incomplete, RootEnded, Incomplete]);
    assert_eq!(buffer.buffer.stats().n_unscored, 0);
}

#[test]
fn a_limit_says_more_than_incomplete() {
    let mut buffer = Fixture::new(Settings {
        span_limit: 1,
        ..settings()
    });
    buffer.mark_unscored(1);
    buffer.send(span(1));
    assert_eq!(reasons(&buffer.wait(0)), [SpanLimit]);
}

#[test]
fn a_closed_trace_with_unscored_spans_is_reported_again_as_incomplete() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.wait(5);
    buffer.mark_unscored(1);
    buffer.mark_unscored(1);
    let told = buffer.finish();
    assert_eq!((reasons(&told), told[0].revision), (vec![Incomplete], 1));
    buffer.mark_unscored(1);
    assert!(buffer.finish().is_empty(), "it is incomplete already");
}

#[test]
fn unscored_traces_beyond_the_set_are_incomplete_and_others_are_not() {
    let mut buffer = Fixture::new(Settings {
        max_open_traces: 2,
        ..settings()
    });
    for trace in [1, 2, 3, 6] {
        buffer.mark_unscored(trace);
    }
    assert_eq!(buffer.buffer.stats().n_unscored, 2);
    buffer.send(span(1).of(4));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded]);
    buffer.send(span(1).of(3).lasting(1, 2));
    assert_eq!(reasons(&buffer.wait(179)), [Incomplete]);
    buffer.skip(400);
    buffer.send(span(1).of(6).lasting(580, 581));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded], "it is forgotten");
    buffer.send(span(1).of(5).lasting(-1, 588));
    assert_eq!(
        reasons(&buffer.wait(5)),
        [Incomplete],
        "it began before what was forgotten"
    );
    buffer.skip(3_600);
    buffer.send(span(1).of(1).lasting(4_100, 4_101));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded]);
    assert_eq!(buffer.buffer.stats().n_unscored, 0);
}

#[test]
fn unscored_traces_of_a_filter_are_incomplete_whether_open_or_opened_later() {
    let mut buffer = buffer();
    buffer.send(span(1).of(1));
    buffer.send(span(1).of(3));
    let mut filter = TraceIdFilter::default();
    filter.insert(trace_id(1));
    filter.insert(trace_id(2));
    let now = buffer.now();
    buffer.buffer.mark_many_unscored(filter, now);
    buffer.send(span(1).of(2));
    assert_eq!(
        reasons(&buffer.wait(5)),
        [Incomplete, RootEnded, Incomplete]
    );
}

#[test]
fn a_trace_that_began_before_us_is_incomplete() {
    let mut buffer = buffer();
    buffer.send(span(1).of(1).lasting(-1, 2));
    buffer.send(span(1).of(2).lasting(-500, -119));
    buffer.send(span(1).of(3).lasting(-500, -120));
    buffer.send(span(1).of(4).lasting(0, 2));
    let told = buffer.wait(5);
    assert_eq!(
        reasons(&told),
        [Incomplete, Incomplete, RootEnded, RootEnded],
        "what ended earlier is a recording sent again"
    );
}

#[test]
fn only_a_top_span_shows_when_a_trace_began() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.send(span(2).under(1).lasting(-1, 3));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded]);
}

#[test]
fn the_guard_can_be_off() {
    let mut buffer = Fixture::new(Settings {
        restart_guard: None,
        ..settings()
    });
    buffer.send(span(1).lasting(-1, 2));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded]);
}

#[test]
fn a_trace_that_was_forgotten_early_is_incomplete_and_others_are_not() {
    let mut buffer = Fixture::new(Settings {
        max_recent_traces: 1,
        ..settings()
    });
    buffer.send(span(1).of(1));
    buffer.send(span(9).of(3).open());
    buffer.wait(5);
    buffer.send(span(1).of(2).lasting(4, 5));
    buffer.wait(5);
    buffer.send(span(1).of(4).lasting(4, 11));
    buffer.send(span(2).of(1).lasting(5, 11));
    buffer.send(span(9).of(3).lasting(1, 11));
    let told = buffer.wait(5);
    assert_eq!(traces(&told), [trace_id(4), trace_id(1), trace_id(3)]);
    assert_eq!(reasons(&told), [RootEnded, Incomplete, RootEnded]);
}

#[test]
fn a_memory_of_no_closed_traces_makes_none_incomplete() {
    let mut buffer = Fixture::new(Settings {
        max_recent_traces: 0,
        ..settings()
    });
    buffer.send(span(1));
    buffer.wait(5);
    buffer.send(span(2).under(1));
    buffer.send(span(1).of(2).lasting(1, 11));
    assert_eq!(reasons(&buffer.finish()), [RootEnded, Inactive]);
}
