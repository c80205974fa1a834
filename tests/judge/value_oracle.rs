//! Tests conditions, sums (`total`) and copies (`compare`) against the tables of
//! `docs/evaluators.md`, with an oracle that shares no code with the judge. Also tests the verdicts
//! if values are hidden or cut on the way. Does not test the texts.

use std::collections::BTreeMap;

use judge::assemble::Settings;
use judge::evaluate::{Criterion, Verdict};
use judge::extract::Tools;
use judge::pipeline::{Pipeline, Rules};
use otlp::scan::scan;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::support::now;
use crate::support::spans::{SpanCall, request, spans_of_run};

/// Returns the verdict on calls that are sent as spans. At most `max_value_size` bytes of each
/// value are stored.
fn verdict(evaluate: &Value, calls: &[SpanCall], max_value_size: usize) -> (Verdict, Value) {
    let criterion = json!({ "name": "any", "evaluate": evaluate });
    let criterion: Criterion =
        serde_json::from_value(criterion).unwrap_or_else(|error| panic!("{evaluate}: {error}"));
    let tools = Tools {
        max_value_size,
        ..Tools::default()
    };
    let rules = Rules::new(vec![criterion]).with_tools(&tools);
    let mut pipeline = Pipeline::new(Settings::replay(), now());
    let body = request(spans_of_run(1, &[], calls));
    let batch = scan(&body, Some(&rules)).expect("OTLP").batch;
    pipeline.take(batch, now());
    let judged = pipeline.finish(&rules, now());
    let evaluation = judged
        .evaluations
        .into_iter()
        .next()
        .expect("one criterion");
    (evaluation.verdict, evaluation.details().clone())
}

fn call(name: &str, args: Value, result: Option<Value>) -> SpanCall {
    SpanCall {
        name: name.to_owned(),
        args: Some(args),
        result,
        ..SpanCall::default()
    }
}

// === conditions ===

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-300_i64..300).prop_map(|n| json!(n)),
        (-300_i64..300).prop_map(|n| json!(n as f64 / 4.0)),
        (-300_i64..300).prop_map(|n| json!(format!("{}", n as f64 / 4.0))),
        prop::sample::select(vec!["", "a", "ab", "abc", "1,000", "+5", "NO", "é"])
            .prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ]
}

fn args() -> impl Strategy<Value = Value> {
    let list = prop::collection::vec(scalar(), 0..4).prop_map(Value::from);
    let map = prop::collection::btree_map("[xy]", scalar(), 0..3).prop_map(|map| json!(map));
    let leaf = prop_oneof![4 => scalar(), 1 => list, 1 => map];
    prop::collection::btree_map("[xyz]", leaf, 0..4).prop_map(|map| json!(map))
}

fn condition() -> impl Strategy<Value = Value> {
    let list = || prop::collection::vec(scalar(), 1..3).prop_map(Value::from);
    let bound = || (-300_i64..300).prop_map(|n| json!(n as f64 / 4.0));
    let text = || prop::sample::select(vec!["a", "b", "1", ".", "true"]).prop_map(Value::from);
    let of = |name: &'static str| move |value: Value| json!({ name: value });
    prop_oneof![
        scalar().prop_map(of("equals")),
        scalar().prop_map(of("not_equals")),
        list().prop_map(of("in")),
        list().prop_map(of("not_in")),
        bound().prop_map(of("gt")),
        bound().prop_map(of("gte")),
        bound().prop_map(of("lt")),
        (bound(), 1_u32..200).prop_map(|(low, more)| {
            let high = low.as_f64().unwrap() + f64::from(more);
            json!({ "gte": low, "lt": high })
        }),
        text().prop_map(of("contains")),
        text().prop_map(of("not_contains")),
        prop::sample::select(vec!["^a", "b$", "^-?[0-9]+$"])
            .prop_map(Value::from)
            .prop_map(of("regex")),
        any::<bool>().prop_map(Value::from).prop_map(of("exists")),
    ]
}

fn path() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "args.x", "args.y.x", "args.x.*", "args.y.0", "args.*", "args",
    ])
}

/// Returns the value as a number. Generated numbers are multiples of a quarter, so an `f64`
/// represents them exactly.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let is_number = digits.split('.').count() <= 2
                && digits
                    .split('.')
                    .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
            is_number.then(|| text.parse().unwrap())
        }
        _ => None,
    }
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

fn values<'v>(value: &'v Value, steps: &[&str]) -> Vec<&'v Value> {
    let Some((step, rest)) = steps.split_first() else {
        return vec![value];
    };
    match value {
        Value::Object(fields) => fields
            .get(*step)
            .into_iter()
            .flat_map(|value| values(value, rest))
            .collect(),
        Value::Array(items) if *step == "*" => {
            items.iter().flat_map(|value| values(value, rest)).collect()
        }
        Value::Array(items) => {
            let at = step.parse::<usize>().ok();
            let item = at.and_then(|at| items.get(at));
            item.into_iter()
                .flat_map(|value| values(value, rest))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the answer of the table; `None` if the answer is open.
fn holds(condition: &Map<String, Value>, found: &[&Value]) -> Option<bool> {
    let real: Vec<&Value> = found
        .iter()
        .copied()
        .filter(|value| !value.is_null())
        .collect();
    let (name, asked) = condition.iter().next().unwrap();
    let some = |fits: Vec<Option<bool>>| match () {
        () if fits.contains(&Some(true)) => Some(true),
        () if fits.contains(&None) => None,
        () => Some(false),
    };
    let contains =
        |value: &Value| text(value).is_some_and(|text| text.contains(asked.as_str().unwrap()));
    let is_in = |value: &Value| {
        asked
            .as_array()
            .unwrap()
            .iter()
            .any(|asked| same(asked, value))
    };
    let none = |fits: &dyn Fn(&Value) -> bool| {
        Some(!real.is_empty() && !real.iter().any(|value| fits(value)))
    };
    match name.as_str() {
        "equals" => Some(found.iter().any(|value| same(asked, value))),
        "in" => Some(found.iter().any(|value| is_in(value))),
        "not_equals" => none(&|value| same(asked, value)),
        "not_in" => none(&is_in),
        "contains" => Some(real.iter().any(|value| contains(value))),
        "not_contains" => none(&contains),
        "exists" => Some(real.is_empty() != asked.as_bool().unwrap()),
        "regex" => Some(real.iter().filter_map(|value| text(value)).any(|text| {
            match asked.as_str().unwrap() {
                "^a" => text.starts_with('a'),
                "b$" => text.ends_with('b'),
                _ => {
                    let digits = text.strip_prefix('-').unwrap_or(&text);
                    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
                }
            }
        })),
        _ => some(
            real.iter()
                .map(|value| {
                    let number = number(value)?;
                    Some(condition.iter().all(|(name, bound)| {
                        let bound = bound.as_f64().unwrap();
                        match name.as_str() {
                            "gt" => number > bound,
                            "gte" => number >= bound,
                            "lt" => number < bound,
                            _ => number <= bound,
                        }
                    }))
                })
                .collect(),
        ),
    }
}

proptest! {
    #[test]
    fn conditions_hold_as_the_table_says(args in args(), condition in condition(), path in path()) {
        let evaluate = json!({ "tool_calls": { "disallowed": [
            { "name": "t", "where": { path: condition } },
        ] } });
        let steps: Vec<&str> = path.split('.').skip(1).collect();
        let expected = match holds(condition.as_object().unwrap(), &values(&args, &steps)) {
            Some(true) => Verdict::Fail,
            Some(false) => Verdict::Pass,
            None => Verdict::NotEvaluated,
        };
        let (answer, _) = verdict(&evaluate, &[call("t", args.clone(), None)], 16 << 10);
        prop_assert_eq!(answer, expected, "{} of {}", evaluate, args);
    }

    /// Compares sums with sums that the test computes in whole hundredths.
    #[test]
    fn totals_are_those_of_whole_numbers(
        calls in prop::collection::vec((-300_i64..2_000, 0_u8..3, any::<bool>()), 1..8),
        max in 0_i64..4_000,
        by_key in any::<bool>(),
    ) {
        let amount = |cents: i64, is_text: bool| if is_text {
                let (sign, cents) = (if cents < 0 { "-" } else { "" }, cents.abs());
                json!(format!("{sign}{}.{:02}", cents / 100, cents % 100))
        } else {
            serde_json::from_str(&format!("{cents}e-2")).unwrap()
        };
        let made: Vec<SpanCall> = calls.iter().map(|(cents, key, is_text)| {
            call("t", json!({ "n": amount(*cents, *is_text), "key": key }), None)
        }).collect();
        let mut rule = json!({ "a": "t", "of": "args.n", "max": amount(max, false) });
        if by_key {
            rule["same"] = json!(["args.key"]);
        }
        let evaluate = json!({ "constraints": { "rules": [{ "total": rule }] } });
        let mut sums: BTreeMap<u8, i64> = BTreeMap::new();
        let mut violated: Vec<usize> = Vec::new();
        for (at, (cents, key, _)) in calls.iter().enumerate() {
            let sum = sums.entry(if by_key { *key } else { 0 }).or_default();
            *sum += cents;
            if *sum > max {
                violated.push(at + 1);
            }
        }
        let (answer, details) = verdict(&evaluate, &made, 16 << 10);
        let expected = if violated.is_empty() { Verdict::Pass } else { Verdict::Fail };
        prop_assert_eq!(answer, expected, "{}", evaluate);
        prop_assert_eq!(&details["rules"][0]["violated"], &json!(violated));
    }

    /// Cutting or hiding a value may make a verdict open, but must never reverse it.
    #[test]
    fn a_lost_value_never_turns_a_verdict(
        given in prop::collection::vec((args(), result()), 1..4),
        evaluate in prop_oneof![of_conditions(), of_copies(), of_totals()],
        max_value_size in 16_usize..80,
        hides_args in any::<bool>(),
    ) {
        let names = ["t", "u", "t"];
        let calls: Vec<SpanCall> = given.iter().zip(names)
            .map(|((args, result), name)| call(name, args.clone(), Some(result.clone())))
            .collect();
        let (whole, _) = verdict(&evaluate, &calls, 16 << 10);
        let hidden: Vec<SpanCall> = calls.iter().cloned().map(|call| if hides_args {
            SpanCall { args: None, ..call }
        } else {
            SpanCall { result: None, ..call }
        }).collect();
        for (lost, _) in [
            verdict(&evaluate, &calls, max_value_size),
            verdict(&evaluate, &hidden, 16 << 10),
        ] {
            prop_assert!(
                lost == whole || lost == Verdict::NotEvaluated || whole == Verdict::NotEvaluated,
                "{whole:?} became {lost:?} with {max_value_size} bytes: {evaluate} of {calls:?}"
            );
        }
    }
}

fn result() -> impl Strategy<Value = Value> {
    prop_oneof![
        args(),
        prop::collection::vec(scalar(), 0..4).prop_map(Value::from),
        "[a-c ]{0,60}".prop_map(Value::from),
        (-30_i64..30).prop_map(|n| json!(n.to_string())),
    ]
}

fn of_conditions() -> impl Strategy<Value = Value> {
    let path = prop_oneof![
        path(),
        prop::sample::select(vec!["result", "result.x", "result.*", "result.0"]),
    ];
    (path, condition(), any::<bool>()).prop_map(|(path, condition, is_required)| {
        let list = if is_required { "required" } else { "disallowed" };
        json!({ "tool_calls": { list: [{ "name": "t", "where": { path: condition } }] } })
    })
}

fn of_copies() -> impl Strategy<Value = Value> {
    let compare = prop::sample::select(vec!["equal", "a_in_b", "b_in_a", "shared_text"]);
    let template = prop::sample::select(vec!["not_succession", "precedence", "coexistence"]);
    let path = || prop::sample::select(vec!["args", "args.x", "result", "result.*"]);
    (compare, template, path(), path()).prop_map(|(compare, template, a, b)| {
        let same = json!([{ "a": a, "b": b, "compare": compare }]);
        json!({ "constraints": { "rules": [{ template: { "a": "t", "b": "u", "same": same } }] } })
    })
}

fn of_totals() -> impl Strategy<Value = Value> {
    let path = prop::sample::select(vec!["args.x", "args.x.*", "result.x"]);
    (path, 0_i64..200).prop_map(|(path, max)| {
        json!({ "constraints": { "rules": [{ "total": { "a": ".", "of": path, "max": max } }] } })
    })
}

// === hostile values ===

#[test]
fn hostile_values_cost_no_more_than_a_trace_may() {
    let text = "x".repeat(4 << 20);
    let numbers: Vec<u32> = (0..10_000).collect();
    let digits: Value = serde_json::from_str(&"7".repeat(1 << 20)).unwrap();
    let calls = [call(
        "t",
        json!({ "text": text, "numbers": numbers, "digits": digits }),
        Some(json!(text)),
    )];
    let judged = |conditions: Value| {
        let disallowed = json!([{ "name": "t", "where": conditions }]);
        verdict(
            &json!({ "tool_calls": { "disallowed": disallowed } }),
            &calls,
            32 << 20,
        )
        .0
    };
    assert_eq!(
        judged(json!({ "args.text": { "contains": "y" } })),
        Verdict::Pass
    );
    assert_eq!(
        judged(json!({ "args.numbers.*": { "gt": 9_998 } })),
        Verdict::Fail
    );
    assert_eq!(
        judged(json!({ "args.digits": { "gt": 1e300 } })),
        Verdict::Fail
    );
    // 40 searches of the text exceed `MAX_SEARCH`, 134 million units of work, so the last ones are
    // open.
    let many: Vec<Value> = (0..40)
        .map(|_| json!({ "name": "t", "where": { "args.text": { "contains": "y" } } }))
        .collect();
    let (answer, _) = verdict(
        &json!({ "tool_calls": { "disallowed": many } }),
        &calls,
        32 << 20,
    );
    assert_eq!(answer, Verdict::NotEvaluated);
    let rules = |rule: Value| {
        verdict(
            &json!({ "constraints": { "rules": [rule] } }),
            &calls,
            32 << 20,
        )
        .0
    };
    assert_eq!(
        rules(json!({ "total": { "a": "t", "of": "args.numbers.*", "max": 49_994_999 } })),
        Verdict::Fail
    );
    let too_many_digits = json!({ "total": { "a": "t", "of": "args.digits", "max": 1 } });
    assert_eq!(rules(too_many_digits), Verdict::NotEvaluated);
}

/// Reading the 1 MiB of stored arguments again for each of the 200 patterns would exceed the search
/// budget of one evaluation.
#[test]
fn what_stands_before_a_cut_is_read_once_for_all_patterns() {
    let calls = [call(
        "t",
        json!({ "amount": 5, "text": "x".repeat(2 << 20) }),
        None,
    )];
    let many: Vec<Value> = (0..200)
        .map(|n| json!({ "name": "t", "where": { "args.amount": { "gt": 10 + n } } }))
        .collect();
    let evaluate = json!({ "tool_calls": { "disallowed": many } });
    assert_eq!(verdict(&evaluate, &calls, 1 << 20).0, Verdict::Pass);
}

#[test]
fn a_text_that_is_too_long_to_look_up_is_no_kept_rule() {
    let calls = [
        call("t", json!({}), Some(json!("x".repeat(2 << 20)))),
        call("u", json!({ "body": "y".repeat(100) }), Some(json!("done"))),
    ];
    let judged = |compare: &str| {
        let same = json!([{ "a": "result", "b": "args.body", "compare": compare }]);
        let rule = json!({ "not_succession": { "a": "t", "b": "u", "same": same } });
        verdict(
            &json!({ "constraints": { "rules": [rule] } }),
            &calls,
            32 << 20,
        )
        .0
    };
    assert_eq!(judged("a_in_b"), Verdict::Pass);
    assert_eq!(judged("shared_text"), Verdict::NotEvaluated);
}
