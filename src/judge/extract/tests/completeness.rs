//! Tests the extraction of traces that may be incomplete, and of traces of hostile shape.

use std::time::{Duration, Instant};

use super::{Made, agent, model, names, span, taken, tool, trace};
use crate::assemble::{CloseReason, Trace};
use crate::extract::*;

// === how far a trace can be trusted ===

#[test]
fn a_trace_without_an_ended_root_is_cut_short_where_it_shows_a_hole() {
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    let cut = |spans: &[Made], reason: CloseReason| {
        let is_absent = |id: u64| spans.iter().all(|span| span.id != id);
        let trace = Trace {
            reason,
            parent_missing: spans
                .iter()
                .any(|span| span.parent > 0 && span.flags & 0x200 == 0 && is_absent(span.parent)),
            ..trace(spans, &recogniser)
        };
        trajectory(&trace, &recogniser).unwrap().cut_short
    };
    let flags = |flags: u16, made: Made| Made { flags, ..made };
    let (unmarked, local, remote) = (0, 0x101, 0x301);
    let run = |of: u16| flags(of, agent(2, 1, "desk", 1, 98));
    let call = tool(3, 2, "a", 2, 3);
    let remote_call = flags(remote, tool(3, 9, "a", 2, 3));
    let server = flags(remote, span(1, 9, "POST", 0, 99));
    for (spans, is_cut, why) in [
        (vec![run(unmarked), call.clone()], false, "a finished run"),
        (vec![run(local), call.clone()], true, "its parent is here"),
        (
            vec![run(unmarked), call.clone(), agent(7, 0, "other", 1, 98)],
            true,
            "a root shows that the run is no root",
        ),
        (
            vec![flags(unmarked, agent(2, 1, "desk", 1, 0)), call.clone()],
            true,
            "the run goes on",
        ),
        (
            vec![agent(2, 0, "desk", 1, 0), call.clone()],
            true,
            "so does the root",
        ),
        (vec![flags(unmarked, call.clone())], true, "an orphan"),
        (
            vec![agent(2, 0, "desk", 1, 98), call.clone()],
            false,
            "a root",
        ),
        (vec![remote_call.clone()], true, "a tool's server"),
        (
            vec![server.clone(), tool(3, 1, "a", 2, 3)],
            true,
            "a tool's server behind HTTP",
        ),
        (
            vec![server, tool(3, 1, "a", 2, 3), model(4, 1, 1, 2)],
            false,
            "an agent behind HTTP",
        ),
        (
            vec![run(remote), call.clone()],
            false,
            "an agent called from afar",
        ),
    ] {
        for reason in [CloseReason::Inactive, CloseReason::NoRoot] {
            assert_eq!(cut(&spans, reason), is_cut, "{why}");
        }
        assert!(!cut(&spans, CloseReason::RootEnded), "{why}");
        assert!(cut(&spans, CloseReason::SpanLimit), "{why}");
    }
}

// === bad input ===

#[test]
fn cycles_and_spans_that_are_their_own_parents_end() {
    let spans = [
        tool(1, 1, "self", 10, 20),
        tool(2, 3, "b", 30, 40),
        tool(3, 4, "c", 20, 90),
        tool(4, 2, "d", 50, 60),
    ];
    let trajectory = taken(&spans);
    assert_eq!(names(&trajectory), ["self", "c", "b", "d"]);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a bound on a quadratic walk, a hundred times what it takes"
)]
fn thirty_two_thousand_spans_of_any_shape_take_linear_time() {
    let n = 32_000;
    let deep = |id: u64| {
        tool(
            id,
            id - 1,
            if id.is_multiple_of(2) { "a" } else { "b" },
            id,
            2 * n - id,
        )
        .with("gen_ai.tool.call.id", "same")
    };
    let flat = |id: u64| tool(id, 0, "a", id, id + 1).with("gen_ai.tool.call.id", "same");
    let models = |id: u64| {
        if id.is_multiple_of(2) {
            model(id, 0, id, id + 1)
        } else {
            tool(id, 0, "a", id, id + 1)
        }
    };
    let runs = |id: u64| {
        agent(
            id,
            id - 1,
            if id.is_multiple_of(2) { "x" } else { "y" },
            id,
            2 * n - id,
        )
    };
    let cycle = |id: u64| tool(id, id % n + 1, "a", id, id + 1);
    let recogniser = Recogniser::new(&Tools::default(), [], None);
    for (shape, make) in [
        ("deep", &deep as &dyn Fn(u64) -> Made),
        ("flat", &flat),
        ("models", &models),
        ("runs", &runs),
        ("cycle", &cycle),
    ] {
        let spans: Vec<Made> = (1..=n).map(make).collect();
        let trace = trace(&spans, &recogniser);
        let start = Instant::now();
        assert!(trajectory(&trace, &recogniser).is_some(), "{shape}");
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{shape} took {:?}",
            start.elapsed()
        );
    }
}
