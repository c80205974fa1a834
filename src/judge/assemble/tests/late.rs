//! Tests how the buffer handles a span that arrives after its trace was closed. The tests do not
//! prove that a late span changes a judgement; the pipeline's tests do.

use super::fixture::{Fixture, reasons, settings, span, trace_id, traces};
use crate::assemble::CloseReason::*;
use crate::assemble::{Inserted, Settings};

fn buffer() -> Fixture {
    Fixture::new(settings())
}

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
    assert_eq!(
        (
            told[0].reason,
            told[0].first,
            told[0].revision,
            told[0].arrival
        ),
        (RootEnded, false, 1, 0)
    );
    assert_eq!(
        told[0].spans,
        [span(1), span(2).under(1).tool(), span(3).under(1).tool()]
    );
}

#[test]
fn a_root_can_be_late() {
    let mut buffer = buffer();
    buffer.send(span(2).under(1).tool());
    assert_eq!(reasons(&buffer.wait(180)), [Inactive]);
    buffer.send(span(1));
    let told = buffer.wait(5);
    assert_eq!(
        (told[0].reason, told[0].parent_missing, told[0].revision),
        (RootEnded, false, 1)
    );
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
    let mut buffer = Fixture::new(Settings {
        max_recent_size: 25_000,
        ..settings()
    });
    for trace in 1..=3 {
        buffer.send(span(1).of(trace).named(&"x".repeat(10_000)));
        buffer.wait(5);
    }
    let stats = buffer.buffer.stats();
    assert_eq!((stats.n_recent, stats.n_recent_whole), (3, 2));
    assert_eq!(buffer.send(span(2).under(1).of(1)), Inserted::Forgotten);
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
    assert_eq!(
        buffer.send(span(3).under(1).lasting(7_000, 7_001)),
        Inserted::Taken
    );
    assert_eq!(buffer.buffer.stats().n_recent, 0);
}

#[test]
fn a_trace_that_was_not_handed_back_is_still_known_to_be_closed() {
    let mut buffer = buffer();
    buffer.send(span(1));
    buffer.skip(5);
    let now = buffer.now();
    drop(buffer.buffer.close_due(now, usize::MAX));
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
