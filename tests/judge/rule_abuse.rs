//! Tests the most expensive runs and rules. Each is judged within its limits. If a limit was
//! exceeded, the evaluation says so. Does not test the time; the benchmark `rules` does.

use judge::evaluate::{Criterion, Evaluation, Expectations, Explain, Verdict};
use serde_json::{Value, json};

use crate::support::calls::{Call, Written, judged};

const TOO_MUCH: &str = "there is too much to compare";

fn judge(evaluate: Value, calls: Vec<Call>, cut_short: bool) -> Evaluation {
    let criterion = json!({ "name": "any", "evaluate": evaluate });
    let criterion: Criterion = serde_json::from_value(criterion).expect("a criterion");
    let written = Written {
        calls,
        cut_short,
        ..Written::default()
    };
    let evaluations = judged(
        &[criterion.into()],
        &Expectations::default(),
        &written,
        &Explain::default(),
    );
    evaluations.into_iter().next().expect("one criterion")
}

fn rules(rules: Value, concurrency: &str) -> Value {
    json!({ "constraints": { "rules": rules, "concurrency": concurrency } })
}

fn call(name: &str, start: u64, end: u64) -> Call {
    Call {
        name: name.to_owned(),
        at: Some((start, end)),
        ..Call::default()
    }
}

fn with_args(n: u64, args: impl Fn(u64) -> Value) -> Vec<Call> {
    let calls = (0..n).map(|at| Call {
        args: Some(args(at)),
        ..call(if at % 2 == 0 { "a" } else { "b" }, at * 10, at * 10 + 5)
    });
    calls.collect()
}

#[test]
fn patterns_that_match_everything_are_judged_on_calls_that_all_overlap() {
    let n = 1_000;
    let calls: Vec<Call> = (0..n).map(|at| call("any", at, n + at)).collect();
    let every = json!({ "a": ".", "b": "." });
    let rules = rules(
        json!([
            { "alternate_succession": every },
            { "chain_precedence": every },
            { "not_succession": every },
            { "not_coexistence": every },
        ]),
        "interval",
    );
    let evaluation = judge(rules, calls, false);
    assert_eq!(evaluation.verdict, Verdict::Fail);
    let found = evaluation.details()["rules"]
        .as_array()
        .expect("a list")
        .clone();
    let counted: Vec<(u64, u64)> = found
        .iter()
        .map(|rule| {
            let number = |key: &str| rule[key].as_u64().expect("a number");
            (number("activations"), number("violations"))
        })
        .collect();
    // Calls that run at the same time have no order: rules that require an order fail, and rules
    // that forbid one pass.
    let n_each = u64::from(n as u32);
    let expected = [
        (2 * n_each, 2 * n_each),
        (n_each, n_each),
        (n_each, 0),
        (2 * n_each, 2 * n_each),
    ];
    assert_eq!(counted, expected);
    // For each rule, only the first violations are listed, with the calls that caused them.
    assert!(found.iter().all(|rule| {
        let n_of = |key: &str| rule[key].as_array().expect("a list").len();
        n_of("violated") <= 100 && n_of("because") <= 100
    }));
    assert!(evaluation.explanation().len() < 4_000);
    assert!(evaluation.offending().len() <= 400);
}

#[test]
fn a_rule_with_a_thousand_activations_in_a_cut_trace_tells_the_first() {
    let calls = || (0..2_000).map(|at| call(if at % 2 == 0 { "a" } else { "b" }, at, at));
    let pair = json!({ "a": "^a$", "b": "^b$" });
    let barred = rules(json!([{ "not_succession": pair }]), "interval");
    let evaluation = judge(barred, calls().collect(), true);
    // The forbidden call was made, so further calls change nothing.
    assert_eq!(evaluation.verdict, Verdict::Fail);
    let found = &evaluation.details()["rules"][0];
    assert_eq!(found["activations"], json!(1_000));
    assert_eq!(found["violated"].as_array().map(Vec::len), Some(100));
    assert!(evaluation.explanation().contains("and 999 more"));

    let asked = rules(json!([{ "precedence": pair }]), "interval");
    let evaluation = judge(asked, calls().collect(), true);
    assert_eq!(evaluation.verdict, Verdict::NotEvaluated);
    assert!(evaluation.explanation().contains("the trace was cut short"));
}

#[test]
fn megabytes_are_compared_by_their_content() {
    let long = |last: &str| json!({ "text": format!("{}{last}", "x".repeat(1 << 20)) });
    let pair = json!([{ "precedence": { "a": "^a$", "b": "^b$", "same": ["args.text"] } }]);
    let equal = judge(
        rules(pair.clone(), "interval"),
        with_args(20, |_| long("")),
        false,
    );
    assert_eq!(equal.verdict, Verdict::Pass, "{}", equal.explanation());
    let each = with_args(20, |at| long(&at.to_string()));
    let different = judge(rules(pair, "interval"), each, false);
    assert_eq!(different.verdict, Verdict::Fail);
    // The text contains none of the long values.
    assert!(
        different.explanation().len() < 400,
        "{}",
        different.explanation()
    );
}

#[test]
fn values_beyond_the_bound_leave_a_rule_open() {
    let ids = |n: u64| move |_| json!({ "ids": (0..n).collect::<Vec<_>>(), "others": [1] });
    let pair = |same: Value| json!([{ "precedence": { "a": "^a$", "b": "^b$", "same": same } }]);
    let each = || rules(pair(json!(["args.ids.*"])), "interval");
    let within = judge(each(), with_args(20, ids(10_000)), false);
    assert_eq!(within.verdict, Verdict::Pass, "{}", within.explanation());
    let beyond = judge(each(), with_args(40, ids(10_000)), false);
    assert_eq!(beyond.verdict, Verdict::NotEvaluated);
    assert!(
        beyond.explanation().contains(TOO_MUCH),
        "{}",
        beyond.explanation()
    );

    // Combinations of values at two paths do not count towards the bound; there are 1.6 million.
    let both = rules(
        pair(json!(["args.ids.*", { "a": "args.ids.*", "b": "args.ids.*" }])),
        "interval",
    );
    let within = judge(both, with_args(200, ids(90)), false);
    assert_eq!(within.verdict, Verdict::Pass, "{}", within.explanation());
    // A rule about another path is still judged.
    let other = rules(pair(json!(["args.others.*"])), "interval");
    assert_eq!(
        judge(other, with_args(40, ids(10_000)), false).verdict,
        Verdict::Pass
    );
}

#[test]
fn more_pairs_than_can_be_compared_leave_a_rule_open() {
    let calls = |n: u64| (0..n).map(|at| call(if at % 2 == 0 { "a" } else { "b" }, at, at));
    let pair = json!([{ "responded_existence": { "a": "^a$", "b": "^b$" } }]);
    let kept = judge(
        rules(pair.clone(), "interval"),
        calls(20_000).collect(),
        false,
    );
    assert_eq!(kept.verdict, Verdict::Pass, "{}", kept.explanation());
    let beyond = judge(rules(pair, "interval"), calls(32_000).collect(), false);
    assert_eq!(beyond.verdict, Verdict::NotEvaluated);
    assert!(
        beyond.explanation().contains(TOO_MUCH),
        "{}",
        beyond.explanation()
    );
}

#[test]
fn a_long_expected_order_is_compared_up_to_a_bound() {
    let order = |names: Vec<String>, strict: bool| {
        let fields = json!({ "tool_calls_order": names, "strict": strict });
        judge(
            json!({ "tool_call_order": fields }),
            (0..5_000)
                .map(|at| call(&format!("t{}", at % 9), at, at))
                .collect(),
            false,
        )
    };
    let names = |n: usize, shift: usize| {
        let names = (0..n).map(|at| format!("t{}", (at * 7 + shift) % 9));
        names.collect::<Vec<String>>()
    };
    assert_eq!(order(names(3_000, 0), false).verdict, Verdict::Fail);
    let beyond = order(names(4_000, 0), false);
    assert_eq!(beyond.verdict, Verdict::NotEvaluated);
    assert!(
        beyond.explanation().contains(TOO_MUCH),
        "{}",
        beyond.explanation()
    );
    // Even without an alignment, it is known that two orders differ, and at which call.
    let differs = order(names(4_000, 0), true);
    assert_eq!(
        (differs.verdict, differs.n_expected),
        (Verdict::Fail, 4_000)
    );
    assert_eq!(differs.explanation(), "call 2 is `t1`, expected `t7`");
    assert_eq!(differs.details()["lcs"], json!([]));
    assert!(differs.alignment().is_empty());
}

#[test]
fn a_reference_with_too_many_orders_is_matched_in_the_order_of_starts_and_says_so() {
    let n = 60;
    let calls = |n: u64| {
        let calls = (0..n).map(|at| Call {
            args: Some(json!({ "x": at * 7 % 8, "y": at % 5 })),
            ..call("a", at, n + at)
        });
        calls.collect::<Vec<Call>>()
    };
    let expected = |n: u64| {
        let args = (0..n).map(|at| match at % 2 {
            0 => json!({ "x": at % 8 }),
            _ => json!({ "y": at % 5 }),
        });
        let entries: Vec<Value> = args
            .map(|args| json!({ "name": "a", "args": args }))
            .collect();
        json!({ "trajectory_match": { "expected": entries, "score": "lcs_ratio" } })
    };
    let few = judge(expected(8), calls(8), false);
    assert_eq!(few.details()["concurrency"], Value::Null);
    let many = judge(expected(n), calls(n), false);
    assert_eq!(many.details()["concurrency"], json!("none"));
    assert!(
        many.explanation().contains("too many calls at one time"),
        "{}",
        many.explanation()
    );
}

/// The calls could have been made in the expected order, but finding that order takes too long.
#[test]
fn a_run_that_another_order_could_save_does_not_fail() {
    let names = "addcdbbcebeebabaabdbddddda";
    let times = [
        (0, 510),
        (35, 631),
        (58, 516),
        (59, 509),
        (83, 648),
        (96, 794),
        (148, 674),
        (154, 667),
        (158, 699),
        (165, 346),
        (204, 810),
        (227, 700),
        (229, 626),
        (271, 674),
        (272, 665),
        (275, 504),
        (285, 685),
        (308, 510),
        (311, 742),
        (313, 611),
        (315, 697),
        (352, 723),
        (365, 673),
        (388, 657),
        (408, 558),
        (448, 769),
    ];
    let named = names.chars().map(String::from).zip(times);
    let calls: Vec<Call> = named
        .map(|(name, (start, end))| call(&name, start, end))
        .collect();
    let names = |text: &str| -> Vec<String> { text.chars().map(String::from).collect() };
    let judge_by = |expected: &str, score: &str| {
        let fields = json!({ "expected": names(expected), "score": score });
        judge(json!({ "trajectory_match": fields }), calls.clone(), false)
    };
    let found = judge_by("cdbbaabbebdadddddebdadbace", "in_order");
    assert_eq!(found.verdict, Verdict::NotEvaluated);
    assert!(
        found.explanation().contains(TOO_MUCH),
        "{}",
        found.explanation()
    );
    let missing = judge_by("cdbbaabbebdadddddebdadbacez", "in_order");
    assert_eq!(missing.verdict, Verdict::Fail, "no order has a `z`");
}

#[test]
fn limits_are_counted_on_thirty_two_thousand_calls() {
    let calls = with_args(32_000, |at| json!({ "n": at / 2 % 4 }));
    let limits = json!({ "max_repeats": 3, "max_duplicates": 8, "max_retries": 0, "max_calls": 9 });
    let evaluation = judge(json!({ "efficiency": limits }), calls, false);
    assert_eq!(evaluation.verdict, Verdict::Fail);
    let found = &evaluation.details()["limits"];
    assert_eq!(found["max_calls"]["actual"], json!(32_000));
    assert_eq!(found["max_duplicates"]["actual"], json!(31_992));
    assert_eq!(found["max_retries"]["actual"], json!(0));
    assert!(evaluation.explanation().len() < 2_000);
}
