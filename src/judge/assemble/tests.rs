//! Tests the rules of docs/design.md#when-is-a-trace-done by example, first those that no limit
//! affects. These tests do not prove that every order ends in the same revision; `properties` does.

mod fixture;
mod late;
mod limits;
mod partitions;
mod peers;
mod properties;
mod senders;

use std::time::Duration;

use self::fixture::{Fixture, reasons, settings, span};
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
    (loser.span.class.update, loser.span.n_attributes) = (9, 9);
    winner_is_second_in_both_orders(loser, span(1).lasting(1, 3));
}

#[test]
fn with_the_same_end_the_higher_update_counter_wins() {
    let (mut loser, mut winner) = (span(1).partial(), span(1).partial());
    (loser.span.n_attributes, winner.span.class.update) = (9, 1);
    winner.span.class.partial = false;
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
    assert_eq!(
        buffer.send(span(1).lasting(1, 1)),
        Inserted::Known,
        "an older version"
    );
    assert_eq!(reasons(&buffer.wait(1)), [RootEnded]);
}

// === root_ended ===

#[test]
fn a_trace_settles_five_seconds_after_its_root_has_ended() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    buffer.send(span(1));
    assert_eq!(
        buffer.buffer.next_deadline(),
        Some(buffer.begin.instant + Duration::from_secs(5))
    );
    assert!(buffer.wait(4).is_empty());
    let told = buffer.wait(1);
    assert_eq!(reasons(&told), [RootEnded]);
    assert_eq!((told[0].first, told[0].parent_missing), (true, false));
    assert_eq!(
        told[0].spans,
        [span(1), span(2).under(1).tool()],
        "by start, then id"
    );
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
    buffer.send(span(3).under(2).model());
    buffer.send(span(2).under(1));
    buffer.send(span(1).under(100).remote());
    assert!(buffer.wait(14).is_empty());
    let told = buffer.wait(1);
    assert_eq!((told[0].reason, told[0].parent_missing), (RootEnded, false));
}

#[test]
fn a_root_of_our_own_shortens_the_wait_for_remote_ones() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).model());
    buffer.send(span(1).under(100).remote());
    buffer.skip(5);
    buffer.send(span(9));
    assert!(buffer.wait(4).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [RootEnded]);
}

#[test]
fn a_root_of_our_own_begins_the_longest_settling_anew() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).model());
    buffer.send(span(1).under(100).remote());
    buffer.skip(5);
    buffer.send(span(9));
    for id in 10..14 {
        assert!(buffer.wait(3).is_empty());
        buffer.send(span(id).under(9));
    }
    assert!(buffer.wait(2).is_empty());
    assert_eq!(
        (reasons(&buffer.wait(1)), buffer.secs()),
        (vec![RootEnded], 20)
    );
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
    buffer.send(span(2).under(1).model());
    buffer.send(span(1).under(100).remote().tool());
    assert_eq!(reasons(&buffer.wait(180)), [Inactive]);
}

#[test]
fn a_top_is_one_no_longer_once_its_parent_comes() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).model());
    buffer.send(span(1).under(100).remote());
    buffer.skip(1);
    buffer.send(span(100).open());
    assert!(buffer.wait(179).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [Inactive]);
}

#[test]
fn a_newer_version_can_undo_what_made_its_ancestor_a_top() {
    let mut buffer = buffer();
    buffer.send(span(3).under(2).model());
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

#[test]
fn an_agent_run_under_a_remote_parent_is_a_top_whatever_it_holds() {
    let mut buffer = buffer();
    buffer.send(span(1).under(100).remote().agent_run());
    assert!(buffer.wait(14).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [RootEnded]);
}

#[test]
fn tool_calls_alone_make_no_top_of_a_remote_span() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    buffer.send(span(1).under(100).remote());
    assert!(buffer.wait(179).is_empty());
    assert_eq!(reasons(&buffer.wait(1)), [Inactive]);
}

#[test]
fn every_top_must_have_ended() {
    for open in [
        span(9).open(),
        span(9).partial(),
        span(9).under(100).remote().agent_run().open(),
    ] {
        let mut buffer = buffer();
        buffer.send(span(1));
        buffer.send(open);
        assert!(buffer.wait(179).is_empty());
        assert_eq!(reasons(&buffer.wait(1)), [Inactive]);
    }
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
    let settings = Settings {
        span_limit: usize::MAX,
        size_limit: usize::MAX,
        ..settings()
    };
    for ids in [Vec::from_iter(2..=n), Vec::from_iter((2..=n).rev())] {
        let mut buffer = Fixture::new(settings.clone());
        for id in ids {
            let nested = span(id).under(id - 1);
            buffer.send(if id % 2 == 0 { nested.remote() } else { nested.model() });
        }
        buffer.send(span(1).under(1_000_000).remote());
        assert_eq!(buffer.wait(15)[0].spans.len() as u64, n);
    }
}

#[test]
fn fifty_thousand_children_can_wait_for_one_parent() {
    let mut buffer = Fixture::new(Settings {
        span_limit: usize::MAX,
        size_limit: usize::MAX,
        ..settings()
    });
    for id in 2..50_000 {
        buffer.send(span(id).under(1));
    }
    buffer.send(span(1));
    assert_eq!(buffer.wait(5)[0].reason, RootEnded);
}

#[test]
fn of_many_versions_of_a_span_only_the_last_is_kept() {
    let mut buffer = buffer();
    let large = "l".repeat(2_000);
    let versions = 500;
    for version in 1..=versions {
        for (id, name) in [(1, "root"), (2, "small"), (3, &large)] {
            let sent = span(id)
                .named(&format!("{name} {version}"))
                .lasting(1, 1 + version);
            buffer.send(if id == 1 { sent } else { sent.under(1) });
        }
        assert!(
            buffer.buffer.stats().open_size < 8_000,
            "{}",
            buffer.buffer.stats().open_size
        );
    }
    let told = buffer.wait(60);
    let names: Vec<&str> = told[0]
        .spans
        .iter()
        .map(|sent| sent.span.kept.index().name())
        .collect();
    assert_eq!(names, ["root 500", "small 500", &format!("{large} 500")]);
}
