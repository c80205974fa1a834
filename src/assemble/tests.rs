//! The rules of DESIGN 4 by example. They do not prove that any order ends in the same revision: `properties` does.

mod fixture;
mod properties;

use std::time::Duration;

use self::fixture::{Fixture, reasons, settings, span, trace_id, traces};
use super::CloseReason::*;
use super::{Inserted, Settings};

fn buffer() -> Fixture {
    Fixture::new(settings())
}

// === versions of one span ===

fn winner_is_second_in_both_orders(loser: fixture::Sent, winner: fixture::Sent) {
    for versions in [[&loser, &winner], [&winner, &loser]] {
        let mut buffer = buffer();
        for version in versions {
            buffer.send(version.clone());
        }
        assert_eq!(buffer.finish()[0].spans, std::slice::from_ref(&winner));
    }
}

#[test]
fn of_two_versions_the_later_end_wins() {
    let mut loser = span(1).lasting(1, 2);
    (loser.mark.update, loser.span.n_attributes) = (9, 9);
    winner_is_second_in_both_orders(loser, span(1).lasting(1, 3));
}

#[test]
fn with_the_same_end_the_higher_update_counter_wins() {
    let (mut loser, mut winner) = (span(1).partial(), span(1).partial());
    (loser.span.n_attributes, winner.mark.update) = (9, 1);
    winner.mark.partial = false;
    winner_is_second_in_both_orders(loser, winner);
}

#[test]
fn with_the_same_update_counter_more_attributes_win() {
    let mut winner = span(1).named("a");
    winner.span.n_attributes = 1;
    winner_is_second_in_both_orders(span(1).named("b"), winner);
}

#[test]
fn any_other_difference_decides_the_same_way_in_both_orders() {
    winner_is_second_in_both_orders(span(1).named("a"), span(1).named("b"));
    winner_is_second_in_both_orders(span(1).under(2), span(1).under(3));
    winner_is_second_in_both_orders(span(1), span(1).tool());
    winner_is_second_in_both_orders(span(1).lasting(1, 3), span(1).lasting(2, 3));
    let mut other = span(1);
    let mut resource = (*other.span.resource).clone();
    resource.service = "store".into();
    other.span.resource = resource.into();
    winner_is_second_in_both_orders(span(1), other);
}

#[test]
fn a_repeated_span_changes_nothing_and_puts_nothing_off() {
    let mut buffer = buffer();
    assert_eq!(buffer.send(span(1)), Inserted::Taken);
    buffer.skip(4);
    assert_eq!(buffer.send(span(1)), Inserted::Known);
    assert_eq!(buffer.send(span(1).lasting(1, 1)), Inserted::Known, "an older version");
    assert_eq!(reasons(&buffer.wait(1)), [RootEnded]);
}

// === root_ended ===

#[test]
fn a_trace_settles_five_seconds_after_its_root_has_ended() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    buffer.send(span(1));
    assert_eq!(buffer.buffer.next_deadline(), Some(buffer.begin.instant + Duration::from_secs(5)));
    assert!(buffer.wait(4).is_empty());
    let told = buffer.wait(1);
    assert_eq!(reasons(&told), [RootEnded]);
    assert_eq!((told[0].first, told[0].parent_missing), (true, false));
    assert_eq!(told[0].spans, [span(1), span(2).under(1).tool()], "by start, then id");
    assert_eq!(buffer.buffer.next_deadline(), None);
}

#[test]
fn late_child_joins_its_trace_before_it_settles() {
    let mut buffer = buffer();
    buffer.send(span(1));
    assert!(buffer.wait(4).is_empty());
    buffer.send(span(2).under(1));
    assert!(buffer.wait(4).is_empty());
    let told = buffer.wait(1);
    assert_eq!((told[0].reason, told[0].spans.len()), (RootEnded, 2));
}

#[test]
fn new_spans_put_off_settling_for_fifteen_seconds_at_most() {
    let mut buffer = buffer();
    buffer.send(span(1));
    for id in 2..=5 {
        assert!(buffer.wait(3).is_empty());
        buffer.send(span(id).under(1));
    }
    assert!(buffer.wait(2).is_empty());
    let told = buffer.wait(1);
    assert_eq!((told[0].reason, buffer.secs()), (RootEnded, 15));
}

#[test]
fn a_span_whose_parent_is_missing_disarms_settling() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.skip(1);
    buffer.send(span(3).under(2));
    assert!(buffer.wait(20).is_empty());
    buffer.send(span(2).under(1));
    assert!(buffer.wait(4).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [RootEnded]);
}

#[test]
fn a_partial_root_has_not_ended() {
    let mut buffer = buffer();
    buffer.send(span(1).partial());
    assert!(buffer.wait(20).is_empty());
    buffer.send(span(1).lasting(1, 9));
    let told = buffer.wait(5);
    assert_eq!((told[0].reason, told[0].spans.len()), (RootEnded, 1));
}

#[test]
fn a_root_of_zero_length_has_ended() {
    let mut buffer = buffer();
    buffer.send(span(1).lasting(1, 1));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded]);
}

#[test]
fn a_root_that_ends_at_zero_has_not_ended() {
    let mut buffer = buffer();
    buffer.send(span(1).open());
    assert!(buffer.wait(179).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [Inactive]);
}

// === remote parents ===

#[test]
fn a_top_under_a_remote_parent_settles_after_fifteen_seconds() {
    let mut buffer = buffer();
    buffer.send(span(3).under(2).tool());
    buffer.send(span(2).under(1));
    buffer.send(span(1).under(100).remote());
    assert!(buffer.wait(14).is_empty());
    let told = buffer.wait(1);
    assert_eq!((told[0].reason, told[0].parent_missing), (RootEnded, false));
}

#[test]
fn a_root_of_our_own_shortens_the_wait_for_remote_ones() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    buffer.send(span(1).under(100).remote());
    buffer.skip(5);
    buffer.send(span(9));
    assert!(buffer.wait(4).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [RootEnded]);
}

#[test]
fn a_root_of_our_own_begins_the_longest_settling_anew() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    buffer.send(span(1).under(100).remote());
    buffer.skip(5);
    buffer.send(span(9));
    for id in 10..14 {
        assert!(buffer.wait(3).is_empty());
        buffer.send(span(id).under(9));
    }
    assert!(buffer.wait(2).is_empty());
    assert_eq!((reasons(&buffer.wait(1)), buffer.secs()), (vec![RootEnded], 20));
}

#[test]
fn a_remote_span_with_nothing_of_interest_beneath_is_no_top() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1));
    buffer.send(span(1).under(100).remote().model());
    let told = buffer.wait(180);
    assert_eq!((told[0].reason, told[0].parent_missing), (Inactive, false));
}

#[test]
fn an_mcp_server_span_is_no_top() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    buffer.send(span(1).under(100).remote().tool());
    assert_eq!(reasons(&buffer.wait(180)), [Inactive]);
}

#[test]
fn a_top_is_one_no_longer_once_its_parent_comes() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    buffer.send(span(1).under(100).remote());
    buffer.skip(1);
    buffer.send(span(100).open());
    assert!(buffer.wait(179).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [Inactive]);
}

#[test]
fn a_newer_version_can_take_back_what_made_its_ancestor_a_top() {
    let mut buffer = buffer();
    buffer.send(span(3).under(2).tool());
    buffer.send(span(2).under(1));
    buffer.send(span(1).under(100).remote());
    buffer.send(span(3).under(2).lasting(1, 9));
    assert!(buffer.wait(179).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [Inactive]);
}

#[test]
fn a_newer_version_can_move_to_another_parent() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.send(span(2).under(50));
    buffer.send(span(2).under(1).lasting(1, 9));
    let told = buffer.wait(5);
    assert_eq!((told[0].reason, told[0].parent_missing), (RootEnded, false));
}

// === inactive ===

#[test]
fn an_orphan_is_no_top() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    assert!(buffer.wait(100).is_empty());
    buffer.send(span(3).under(1).tool());
    assert!(buffer.wait(179).is_empty());
    let told = buffer.wait(1);
    assert_eq!((told[0].reason, told[0].parent_missing), (Inactive, true));
}

#[test]
fn nothing_in_a_cycle_of_parents_is_a_top() {
    let mut buffer = buffer();
    buffer.send(span(1).under(1).tool());
    buffer.send(span(2).under(4).of(2).tool());
    buffer.send(span(3).under(2).of(2));
    buffer.send(span(4).under(3).of(2).remote());
    let told = buffer.wait(180);
    assert_eq!(reasons(&told), [Inactive, Inactive]);
    assert!(told.iter().all(|told| !told.parent_missing));
}

#[test]
fn a_hundred_thousand_nested_spans_take_no_stack_and_no_time() {
    let n = 100_000;
    let settings = Settings { span_limit: usize::MAX, size_limit: usize::MAX, ..settings() };
    for ids in [Vec::from_iter(2..=n), Vec::from_iter((2..=n).rev())] {
        let mut buffer = Fixture::new(settings.clone());
        for id in ids {
            let nested = span(id).under(id - 1);
            buffer.send(if id % 2 == 0 { nested.remote() } else { nested.tool() });
        }
        buffer.send(span(1).under(1_000_000).remote());
        assert_eq!(buffer.wait(15)[0].spans.len() as u64, n);
    }
}

#[test]
fn fifty_thousand_children_can_wait_for_one_parent() {
    let mut buffer = Fixture::new(Settings { span_limit: usize::MAX, size_limit: usize::MAX, ..settings() });
    for id in 2..50_000 {
        buffer.send(span(id).under(1));
    }
    buffer.send(span(1));
    assert_eq!(buffer.wait(5)[0].reason, RootEnded);
}

// === limits ===

#[test]
fn span_limit_closes_a_trace_at_once_and_later_spans_are_only_counted() {
    let mut buffer = Fixture::new(Settings { span_limit: 3, ..settings() });
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
    let mut buffer = Fixture::new(Settings { size_limit: 10_000, ..settings() });
    buffer.send(span(1).named(&"x".repeat(4_000)));
    assert!(buffer.wait(0).is_empty());
    buffer.send(span(2).named(&"y".repeat(6_000)));
    assert_eq!(reasons(&buffer.wait(0)), [SizeLimit]);
    assert_eq!(buffer.buffer.stats().open_size, 0);
}

#[test]
fn without_room_settling_traces_are_closed_first_then_the_longest_idle() {
    let mut buffer = Fixture::new(Settings { max_open_traces: 3, ..settings() });
    buffer.send(span(2).under(1).of(1));
    buffer.send(span(2).under(1).of(2));
    buffer.send(span(1).of(3));
    buffer.send(span(3).under(1).of(1));
    buffer.send(span(2).under(1).of(4));
    let told = buffer.wait(0);
    assert_eq!((traces(&told), reasons(&told)), (vec![trace_id(3)], vec![RootEnded]));
    buffer.send(span(2).under(1).of(5));
    let told = buffer.wait(0);
    assert_eq!((traces(&told), reasons(&told)), (vec![trace_id(2)], vec![Evicted]));
}

#[test]
fn open_traces_have_a_budget_in_bytes() {
    let mut buffer = Fixture::new(Settings { max_open_size: 100_000, ..settings() });
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
fn an_evicted_trace_takes_what_comes_before_it_is_handed_out_and_opens_again_after() {
    let mut buffer = Fixture::new(Settings { max_open_traces: 1, ..settings() });
    buffer.send(span(2).under(1).of(1));
    buffer.send(span(2).under(1).of(2));
    assert_eq!(buffer.send(span(3).under(1).of(1)), Inserted::Taken);
    let told = buffer.wait(0);
    assert_eq!((told[0].trace_id, told[0].spans.len()), (trace_id(1), 2));
    assert_eq!(buffer.send(span(1).of(1)), Inserted::Late);
    let told = buffer.wait(0);
    assert_eq!((traces(&told), reasons(&told)), (vec![trace_id(1)], vec![RootEnded]), "settling, so it gives way first");
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
    assert_eq!((told[0].reason, told[0].spans.len(), told[0].first, told[0].revision), (RootEnded, 80, false, 1));
    assert_eq!(told[0].spans[0].span.name(), "span", "its facts are still there");
}

#[test]
fn a_trace_that_is_due_for_two_reasons_comes_once() {
    let mut buffer = Fixture::new(Settings { expired: Duration::from_secs(180), ..settings() });
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
    assert_eq!(traces(&told), [trace_id(3), trace_id(2), trace_id(1)], "by first arrival");
    assert_eq!(reasons(&told), [Shutdown, RootEnded, Shutdown]);
    assert_eq!(buffer.buffer.next_deadline(), None);
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
fn missed_spans_make_a_trace_incomplete_whether_they_come_before_or_after_the_others() {
    let mut buffer = buffer();
    buffer.send(span(1).of(1));
    buffer.miss(1);
    buffer.miss(2);
    buffer.send(span(1).of(2));
    buffer.send(span(2).under(9).of(2));
    buffer.send(span(1).of(3));
    let told = buffer.finish();
    assert_eq!(traces(&told), [trace_id(1), trace_id(3), trace_id(2)]);
    assert_eq!(reasons(&told), [Incomplete, RootEnded, Incomplete]);
    assert_eq!(buffer.buffer.stats().n_missed, 0);
}

#[test]
fn a_limit_says_more_than_incomplete() {
    let mut buffer = Fixture::new(Settings { span_limit: 1, ..settings() });
    buffer.miss(1);
    buffer.send(span(1));
    assert_eq!(reasons(&buffer.wait(0)), [SpanLimit]);
}

#[test]
fn a_closed_trace_of_which_spans_are_missed_is_told_again_as_incomplete() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.wait(5);
    buffer.miss(1);
    buffer.miss(1);
    let told = buffer.finish();
    assert_eq!((reasons(&told), told[0].revision), (vec![Incomplete], 1));
    buffer.miss(1);
    assert!(buffer.finish().is_empty(), "it is incomplete already");
}

#[test]
fn more_missed_traces_than_fit_make_every_trace_opened_since_incomplete() {
    let mut buffer = Fixture::new(Settings { max_open_traces: 2, ..settings() });
    for trace in 1..=3 {
        buffer.miss(trace);
    }
    assert_eq!(buffer.buffer.stats().n_missed, 2);
    buffer.send(span(1).of(4));
    assert_eq!(reasons(&buffer.wait(179)), [Incomplete]);
    buffer.skip(1);
    buffer.send(span(1).of(5).lasting(181, 182));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded]);
    buffer.send(span(1).of(3).lasting(-1, 183));
    assert_eq!(reasons(&buffer.wait(5)), [Incomplete], "it began before what was forgotten");
    buffer.skip(3_600);
    buffer.send(span(1).of(1).lasting(3_700, 3_701));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded]);
    assert_eq!(buffer.buffer.stats().n_missed, 0);
}

#[test]
fn a_trace_that_began_before_us_is_incomplete() {
    let mut buffer = buffer();
    buffer.send(span(1).of(1).lasting(-1, 2));
    buffer.send(span(1).of(2).lasting(-500, -119));
    buffer.send(span(1).of(3).lasting(-500, -120));
    buffer.send(span(1).of(4).lasting(0, 2));
    let told = buffer.wait(5);
    assert_eq!(reasons(&told), [Incomplete, Incomplete, RootEnded, RootEnded], "what ended earlier is a recording sent again");
}

#[test]
fn only_a_top_span_tells_when_a_trace_began() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.send(span(2).under(1).lasting(-1, 3));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded]);
}

#[test]
fn the_guard_can_be_off() {
    let mut buffer = Fixture::new(Settings { restart_guard: None, ..settings() });
    buffer.send(span(1).lasting(-1, 2));
    assert_eq!(reasons(&buffer.wait(5)), [RootEnded]);
}

#[test]
fn our_memory_begins_after_the_last_forgotten_trace() {
    let mut buffer = Fixture::new(Settings { max_recent_traces: 1, ..settings() });
    buffer.send(span(1).of(1));
    buffer.send(span(9).of(3).open());
    buffer.wait(5);
    buffer.send(span(1).of(2).lasting(4, 5));
    buffer.wait(5);
    buffer.send(span(1).of(4).lasting(4, 11));
    buffer.send(span(1).of(5).lasting(5, 11));
    buffer.send(span(9).of(3).lasting(1, 11));
    let told = buffer.wait(5);
    assert_eq!(traces(&told), [trace_id(4), trace_id(5), trace_id(3)]);
    assert_eq!(reasons(&told), [Incomplete, RootEnded, RootEnded], "trace 3 was open all the time");
}

// === late spans ===

#[test]
fn a_late_span_opens_its_trace_again_to_settle() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.send(span(2).under(1).tool());
    assert_eq!(buffer.wait(5)[0].revision, 0);
    buffer.skip(100);
    assert_eq!(buffer.send(span(3).under(1).tool()), Inserted::Late);
    assert!(buffer.wait(4).is_empty());
    let told = buffer.wait(1);
    assert_eq!((told[0].reason, told[0].first, told[0].revision, told[0].arrival), (RootEnded, false, 1, 0));
    assert_eq!(told[0].spans, [span(1), span(2).under(1).tool(), span(3).under(1).tool()]);
}

#[test]
fn a_root_can_be_late() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    assert_eq!(reasons(&buffer.wait(180)), [Inactive]);
    buffer.send(span(1));
    let told = buffer.wait(5);
    assert_eq!((told[0].reason, told[0].parent_missing, told[0].revision), (RootEnded, false, 1));
}

#[test]
fn an_export_sent_again_leaves_its_closed_trace_alone() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.wait(5);
    assert_eq!(buffer.send(span(1)), Inserted::Known);
    assert_eq!(buffer.send(span(1).lasting(1, 1)), Inserted::Known);
    assert_eq!(buffer.buffer.next_deadline(), None);
    assert_eq!(buffer.buffer.stats().n_recent_whole, 1);
}

#[test]
fn facts_go_oldest_first_and_a_late_span_is_known_to_be_late_without_them() {
    let mut buffer = Fixture::new(Settings { max_recent_size: 25_000, ..settings() });
    for trace in 1..=3 {
        buffer.send(span(1).of(trace).named(&"x".repeat(10_000)));
        buffer.wait(5);
    }
    let stats = buffer.buffer.stats();
    assert_eq!((stats.n_recent, stats.n_recent_whole), (3, 2));
    assert_eq!(buffer.send(span(2).under(1).of(1)), Inserted::TooLate);
    assert_eq!(buffer.send(span(2).under(1).of(2)), Inserted::Late);
    assert_eq!(traces(&buffer.finish()), [trace_id(2)]);
}

#[test]
fn a_trace_is_forgotten_after_an_hour() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.wait(5);
    buffer.skip(3_599);
    assert_eq!(buffer.send(span(2).under(1)), Inserted::Late);
    buffer.wait(5);
    buffer.skip(3_600);
    assert_eq!(buffer.send(span(3).under(1).lasting(7_000, 7_001)), Inserted::Taken);
    assert_eq!(buffer.buffer.stats().n_recent, 0);
}

#[test]
fn a_trace_that_was_not_handed_back_is_still_known_to_be_closed() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.skip(5);
    let now = buffer.now();
    drop(buffer.buffer.close_due(now));
    assert_eq!(buffer.send(span(2).under(1)), Inserted::TooLate);
}

#[test]
fn equal_resources_of_different_requests_are_kept_once() {
    let size_of_spans = |n: u64| {
        let mut buffer = buffer();
        for id in 1..=n {
            let mut sent = span(id).under(100);
            let mut resource = (*sent.span.resource).clone();
            resource.encoded = vec![7; 50_000].into();
            sent.span.resource = resource.into();
            buffer.send(sent);
        }
        buffer.buffer.stats().open_size
    };
    assert!(size_of_spans(12) < size_of_spans(1) + 12 * 200);
}
