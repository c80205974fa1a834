//! Tests that hostile and huge configurations are refused, and that no mangled one causes a panic.

use judge::evaluate::PatternLimits;
use proptest::prelude::*;

use super::TEN_MISTAKES;
use crate::config::tests::{Given, messages};

#[test]
fn an_alias_bomb_is_stopped() {
    let mut text = "log: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let report = messages(&text).render(false);
    assert!(
        report.contains("too many values (each use of an alias counts in full)"),
        "{report}"
    );
}

#[test]
fn a_call_of_the_api_may_hold_fewer_values_than_a_file() {
    const TOO_MANY: &str = "too many values";
    let values = vec!["x"; 1_000].join(", ");
    let bomb = format!(
        "name: &a [{values}]\nevaluate: [{}]\n",
        vec!["*a"; 20].join(", ")
    );
    let long = format!("name: [{}]\n", vec!["x"; 50_000].join(", "));
    for text in [bomb, long] {
        let of_api = crate::config::criterion(&text, None, PatternLimits::FILE).unwrap_err();
        assert!(
            of_api.render(false).contains(TOO_MANY),
            "{}",
            of_api.render(false)
        );
        assert!(!messages(&text).render(false).contains(TOO_MANY));
    }
}

#[test]
fn hundreds_of_mistakes_end_with_the_first_hundred() {
    let text: String = (0..500).map(|n| format!("zzz{n}: 1\n")).collect();
    let n_reported = messages(&text).len();
    assert!((100..=110).contains(&n_reported), "{n_reported}");
}

#[test]
fn a_mistake_among_thousands_of_criteria_is_found_in_linear_time() {
    let criterion = |n: usize| {
        let threshold = if n % 100 == 7 { "high" } else { "1" };
        format!(
            "  - name: c{n}\n    threshold: {threshold}\
             \n    evaluate: {{ tool_call_order: {{ tool_calls_order: [a] }} }}\n"
        )
    };
    let text: String = std::iter::once("criteria:\n".to_owned())
        .chain((0..1_000).map(criterion))
        .collect();
    let report = messages(&text);
    assert_eq!(report.len(), 10);
    assert_eq!(
        report.iter().next().unwrap().title,
        "`criteria[c7].threshold` is the text `high`"
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_mangled_file_never_panics(
        cut in 0..TEN_MISTAKES.len(),
        len in 0..40_usize,
        put in "[\\[\\]{}:,\"' \n\t&*!|>%@`$-]{0,4}|ü|\\$\\{env:X",
    ) {
        let from = (0..=cut).rev().find(|at| TEN_MISTAKES.is_char_boundary(*at)).unwrap();
        let to = (from + len).min(TEN_MISTAKES.len());
        let text = format!("{}{put}{}", &TEN_MISTAKES[..from], &TEN_MISTAKES[to..]);
        let report = messages(&text).render(true);
        prop_assert!(!report.is_empty());
    }

    #[test]
    fn a_mangled_variable_never_panics(
        name in "(FORWARD|SCORES|RECEIVERS)(__(ENDPOINT|HEADERS|OTLP|TLS|SPAN)){0,3}",
        value in "[\\[\\]{}:,\"' a1&*!|>%@`$=-]{1,12}",
    ) {
        let name = format!("SPANSCORE_{name}");
        let variables = [
            (name.as_str(), value.as_str()),
            ("OTEL_EXPORTER_OTLP_HEADERS", value.as_str()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", value.as_str()),
        ];
        let _ = Given {
            variables: &variables,
            ..Given::default()
        }
        .load();
    }
}
