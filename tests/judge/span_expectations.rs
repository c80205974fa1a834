//! Tests expectations on a run's own spans, from the bytes of requests through the pipeline with
//! its clock: which values are stored, and that the order of arrival does not matter. `corpus`
//! tests how an expectation judges calls, `traces` which spans count. Does not prove that any SDK
//! sends such spans.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::now;
use judge::assemble::Settings;
use judge::evaluate::{Evaluation, Expectations, FromSpans};
use judge::pipeline::{Pipeline, Rules};
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::scan::scan;
use otlp::span::{Now, StoredAttributesBuilder};
use proptest::prelude::*;
use serde_json::json;

use crate::support::records::rules_of;
use crate::support::spans::{SpanCall, attribute, request, spans_of_run};

const CALLS: [&str; 2] = ["search", "book"];

fn rules(from_spans: FromSpans, max_size: usize) -> Rules {
    let criteria = json!([
        {
            "name": "of others",
            "select": { "agent": "other" },
            "evaluate": { "tool_calls": { "required": ["search"] } },
        },
        { "name": "of all", "evaluate": { "tool_calls": { "disallowed": ["search"] } } },
    ]);
    rules_of(criteria).expecting(Expectations {
        from_spans,
        max_size,
        cases: BTreeMap::new(),
    })
}

fn expecting(tool: &str) -> String {
    json!({ "tool_call_order": { "tool_calls_order": [tool] } }).to_string()
}

/// Returns a run below a span of a test harness, which has these attributes.
fn run_below_a_case(of_case: &[(&str, &str)]) -> Vec<Span> {
    let calls = CALLS.map(|name| SpanCall {
        name: name.to_owned(),
        ..SpanCall::default()
    });
    let mut spans = spans_of_run(1, &[], &calls);
    let mut case = spans_of_run(1, &[], &[]).remove(0);
    (case.name, case.span_id) = ("case".to_owned(), vec![9; 8]);
    case.end_time_unix_nano = spans[0].end_time_unix_nano + 1_000;
    case.attributes = of_case
        .iter()
        .map(|(key, text)| attribute(key, text))
        .collect();
    spans[0].parent_span_id.clone_from(&case.span_id);
    spans.insert(0, case);
    spans
}

/// Feeds batches, each followed by a pause in seconds, then waits until all traces are judged.
fn fed(rules: &Rules, batches: Vec<(Vec<Span>, u64)>) -> Vec<Evaluation> {
    let mut now = now();
    let settings = Settings {
        settle: Duration::from_secs(5),
        inactive: Duration::from_secs(180),
        ..Settings::replay()
    };
    let mut pipeline = Pipeline::new(settings, now);
    let mut evaluations = Vec::new();
    for (spans, wait) in batches {
        pipeline.take(scan(&request(spans), Some(rules)).expect("OTLP").batch, now);
        now = after(now, wait);
        evaluations.extend(pipeline.advance(rules, now).evaluations);
    }
    while let Some(deadline) = pipeline.next_deadline() {
        now = after(now, (deadline - now.instant).as_secs() + 1);
        evaluations.extend(pipeline.advance(rules, now).evaluations);
    }
    evaluations
}

fn after(now: Now, secs: u64) -> Now {
    Now {
        instant: now.instant + Duration::from_secs(secs),
        unix_nanos: now.unix_nanos + secs * 1_000_000_000,
    }
}

fn said(evaluations: &[Evaluation]) -> Vec<(&str, &str, u32)> {
    evaluations
        .iter()
        .map(|evaluation| {
            (
                evaluation.criterion.name(),
                evaluation.verdict.as_str(),
                evaluation.revision,
            )
        })
        .collect()
}

#[test]
fn what_the_mode_does_not_ask_for_is_not_even_kept() {
    let expect = expecting("search");
    let brings = [
        ("spanscore.expect", expect.as_str()),
        ("spanscore.criteria", "of others, of nobody"),
    ];
    let spans = || run_below_a_case(&brings);
    let size = |rules: &Rules| {
        scan(&request(spans()), Some(rules)).unwrap().batch.spans[0]
            .kept
            .size()
    };
    let [off, names, full] =
        [FromSpans::Off, FromSpans::NamesOnly, FromSpans::Full].map(|mode| rules(mode, 16_384));
    let head = StoredAttributesBuilder::HEAD_SIZE;
    assert_eq!(size(&names) - size(&off), head + brings[1].1.len());
    assert_eq!(size(&full) - size(&names), head + expect.len());
}

#[test]
fn an_expectation_that_is_too_large_is_an_error_and_has_room_of_its_own() {
    let expect = expecting("search");
    let spans = || run_below_a_case(&[("spanscore.expect", &expect)]);
    let label = |max_size: usize| {
        said(&fed(&rules(FromSpans::Full, max_size), vec![(spans(), 0)]))
            .pop()
            .map(|(_, label, _)| label.to_owned())
    };
    assert_eq!(label(expect.len()).as_deref(), Some("pass"));
    assert_eq!(label(expect.len() - 1).as_deref(), Some("error"));
    // Any number of large attributes must not displace the expectation.
    let mut spans = spans();
    let crowd = (0..5_000).map(|_| attribute("gen_ai.agent.name", &"x".repeat(40)));
    let large = (0..10).map(|_| attribute("input.value", &"x".repeat(20_000)));
    let own = std::mem::take(&mut spans[0].attributes);
    spans[0].attributes = crowd.chain(large).chain(own).collect();
    let evaluations = fed(&rules(FromSpans::Full, expect.len()), vec![(spans, 0)]);
    assert_eq!(said(&evaluations).last(), Some(&("expect", "pass", 0)));
}

#[test]
fn another_expectation_with_the_same_outcome_is_another_revision() {
    let rules = rules(FromSpans::Full, 16_384);
    let mild =
        json!({ "tool_call_count": { "tool_calls_count": { "search": [">", 0] } } }).to_string();
    let milder = json!({ "tool_call_count": {
        "tool_calls_count": { "search": [">", 0] },
        "strict": true,
    } })
    .to_string();
    let first = run_below_a_case(&[("spanscore.expect", &mild)]);
    let mut second = run_below_a_case(&[("spanscore.expect", &milder)]).remove(0);
    second.end_time_unix_nano += 1_000;
    let evaluations = fed(&rules, vec![(first, 200), (vec![second], 200)]);
    let revisions: Vec<_> = evaluations
        .iter()
        .filter(|evaluation| evaluation.criterion.name() == "expect")
        .collect();
    assert_eq!(
        revisions
            .iter()
            .map(|evaluation| evaluation.revision)
            .collect::<Vec<_>>(),
        [0, 1]
    );
    assert_ne!(
        revisions[0].criterion.revision(),
        revisions[1].criterion.revision()
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Several versions of the case's span have different contents. The version that ends last
    /// decides, in any order of arrival.
    #[test]
    fn any_order_of_arrival_ends_in_the_same_word(
        versions in prop::collection::vec(
            (prop::option::of(prop::sample::select(vec!["search", "pay", "{"])), any::<bool>()),
            1..4,
        ),
        order in Just((0..7_usize).collect::<Vec<_>>()).prop_shuffle(),
        waits in prop::collection::vec(prop::sample::select(vec![0_u64, 1, 6, 200]), 7),
    ) {
        let rules = rules(FromSpans::Full, 16_384);
        let mut spans = run_below_a_case(&[]);
        let case = spans.remove(0);
        for (version, (tool, names)) in versions.iter().enumerate() {
            let mut case = case.clone();
            case.end_time_unix_nano += version as u64;
            let expect = tool.map(|tool| {
                (
                    "spanscore.expect",
                    if tool == "{" {
                        tool.to_owned()
                    } else {
                        expecting(tool)
                    },
                )
            });
            let names = names.then(|| ("spanscore.criteria", "of others".to_owned()));
            case.attributes = expect
                .into_iter()
                .chain(names)
                .map(|(key, text)| attribute(key, &text))
                .collect();
            spans.push(case);
        }
        let last = |evaluations: Vec<Evaluation>| -> BTreeMap<String, (String, String)> {
            let words = evaluations.into_iter().map(|evaluation| {
                (
                    evaluation.criterion.name().to_owned(),
                    (
                        evaluation.verdict.as_str().to_owned(),
                        evaluation.explanation().to_owned(),
                    ),
                )
            });
            let words: BTreeMap<_, _> = words.collect();
            words
                .into_iter()
                .filter(|(_, (_, explanation))| !explanation.starts_with("withdrawn: "))
                .collect()
        };
        let at_once = last(fed(&rules, vec![(spans.clone(), 0)]));
        let arrivals = order
            .iter()
            .filter(|&&at| at < spans.len())
            .map(|&at| vec![spans[at].clone()])
            .zip(waits);
        prop_assert_eq!(last(fed(&rules, arrivals.collect())), at_once);
    }
}
