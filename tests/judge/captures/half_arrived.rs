//! Some sessions report their calls in log records. If a router forwards only one of the signals,
//! the pipeline must warn that the other signal is missing; it must not warn about complete
//! sessions. Does not prove where a router sends each signal; `tests/kubernetes` tests that.

use judge::extract::MissingHalf;
use judge::pipeline::Rules;
use otlp::span::Span;

use super::{items, judged, load};

fn missing(items: Vec<Span>, rules: &Rules) -> Vec<MissingHalf> {
    let judged = judged(items, rules);
    let halves = judged.half_arrived.iter();
    halves.map(|half| half.missing).collect()
}

#[test]
fn a_trace_of_which_only_one_signal_arrived_says_what_is_missing() {
    let rules = Rules::new(Vec::new());
    let mut n_in_records = 0;
    for scenario in load::scenarios() {
        let all = items(&scenario, &rules);
        let whole = missing(all.clone(), &rules);
        // This session was recorded without messages, so its calls are indeed missing.
        let expected: &[MissingHalf] = match &*scenario.name {
            "openai-sdk-otel-v2/multiturn" => &[MissingHalf::Calls; 3],
            _ => &[],
        };
        assert_eq!(whole, expected, "{}: whole", scenario.name);
        if !scenario.name.starts_with("openai-sdk-otel-v2/") {
            continue;
        }
        let (spans, records): (Vec<Span>, Vec<Span>) =
            all.into_iter().partition(|item| !item.is_record);
        if records.is_empty() {
            continue;
        }
        n_in_records += 1;
        let of_records = missing(records, &rules);
        assert!(
            of_records.contains(&MissingHalf::Spans),
            "{}",
            scenario.name
        );
        let of_spans = missing(spans, &rules);
        // One of these sessions has its messages on its spans, too.
        let has_both = scenario.name.ends_with("/sequence");
        assert_eq!(
            of_spans.contains(&MissingHalf::Calls),
            !has_both,
            "{}",
            scenario.name
        );
    }
    assert_eq!(n_in_records, 3);
}
