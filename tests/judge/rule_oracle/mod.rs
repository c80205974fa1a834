//! Compares the evaluators that read times with naive evaluators that enumerate every order that
//! the times allow. The naive evaluators share no code with the real ones; their only source is
//! `docs/evaluators.md`. Runs have at most six calls, so long runs are not tested; the benchmark
//! `rules` covers them.

mod counts;
mod effort;
mod references;

use judge::evaluate::{Criterion, Evaluation, Expectations, Explain, RULE_TEMPLATES, Verdict};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::calls::{Call, Written, judged};

/// A call, possibly one that has not ended or has unusable times.
#[derive(Debug, Clone)]
struct Made {
    start: u64,
    end: u64,
    name: &'static str,
    values: Option<Vec<u64>>,
    others: Option<Vec<u64>>,
    group: Option<u32>,
    partial: bool,
    untimed: bool,
}

#[derive(Debug, Clone)]
struct Asked {
    template: &'static str,
    a: &'static str,
    b: &'static str,
    within: Option<u64>,
    same: Same,
    overlap: Option<&'static str>,
    concurrency: &'static str,
}

/// The values on which two calls must agree.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Same {
    Nothing,
    /// The values at one path, the same for both calls.
    OnePath,
    /// The value of `a` at one path and the value of `b` at another.
    APathEach,
}

fn made() -> impl Strategy<Value = Made> {
    let values = || {
        prop::sample::select(vec![
            None,
            Some(vec![]),
            Some(vec![1]),
            Some(vec![2]),
            Some(vec![1, 2]),
        ])
    };
    (
        0_u64..9,
        prop::sample::select(vec![0_u64, 1, 2, 3, 6]),
        prop::sample::select(vec!["a", "b", "c"]),
        (values(), values()),
        prop::option::of(0_u32..2),
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(start, length, name, (values, others), group, partial)| Made {
                start,
                end: start + length,
                name,
                values,
                others,
                group,
                partial,
                untimed: false,
            },
        )
}

fn calls() -> impl Strategy<Value = Vec<Made>> {
    prop::collection::vec(made(), 1..7).prop_map(|mut calls| {
        calls.sort_by_key(|call| (call.start, call.end));
        calls
    })
}

fn asked() -> impl Strategy<Value = Asked> {
    let kind = || prop::sample::select(vec!["^a$", "^b$", "a|b", "."]);
    (
        prop::sample::select(
            (RULE_TEMPLATES.iter())
                .filter(|(_, has_b)| *has_b)
                .map(|(template, _)| *template)
                .collect::<Vec<_>>(),
        ),
        kind(),
        kind(),
        prop::option::weighted(0.3, 1_u64..5),
        prop::sample::select(vec![Same::Nothing, Same::OnePath, Same::APathEach]),
        prop::option::weighted(
            0.4,
            prop::sample::select(vec!["fail", "pass", "not_evaluated"]),
        ),
        prop::sample::select(vec!["interval", "interval", "reply", "none"]),
    )
        .prop_map(
            |(template, a, b, within, same, overlap, concurrency)| Asked {
                template,
                a,
                b,
                within,
                same,
                overlap,
                concurrency,
            },
        )
}

fn args_of(call: &Made) -> Value {
    json!({ "x": call.values, "y": call.others })
}

impl Made {
    /// Returns true for calls with the single value 1, so that some of the calls fail.
    fn has_failed(&self) -> bool {
        self.values == Some(vec![1])
    }
}

/// Returns the calls in the tests' notation. The values of one of them may be unknown.
fn written(calls: &[Made], unknown: Option<usize>) -> Written {
    let written = calls.iter().enumerate().map(|(at, call)| Call {
        name: call.name.to_owned(),
        args: Some(args_of(call)),
        at: Some((call.start, call.end)),
        group: call.group,
        partial: call.partial,
        error: Some(call.has_failed()),
        untimed: call.untimed,
        cut: unknown == Some(at),
        ..Call::default()
    });
    Written {
        calls: written.collect(),
        ..Written::default()
    }
}

fn evaluated(evaluate: &Value, calls: &[Made], unknown: Option<usize>) -> Evaluation {
    let criterion: Criterion =
        serde_json::from_value(json!({ "name": "any", "evaluate": evaluate }))
            .unwrap_or_else(|error| panic!("{evaluate}: {error}"));
    judged(
        &[criterion.into()],
        &Expectations::default(),
        &written(calls, unknown),
        &Explain::default(),
    )
    .pop()
    .expect("one criterion, one evaluation")
}

fn rule(asked: &Asked) -> Value {
    let mut fields = json!({ "a": asked.a, "b": asked.b });
    if let Some(within) = asked.within {
        fields["within"] = json!(format!("{within}ms"));
    }
    match asked.same {
        Same::Nothing => {}
        Same::OnePath => fields["same"] = json!(["args.x.*"]),
        Same::APathEach => fields["same"] = json!([{ "a": "args.x.*", "b": "args.y.*" }]),
    }
    if let Some(overlap) = asked
        .overlap
        .filter(|_| !asked.template.ends_with("existence"))
    {
        fields["overlap"] = json!(overlap);
    }
    let rules = json!([{ asked.template: fields }]);
    json!({ "constraints": { "rules": rules, "concurrency": asked.concurrency } })
}

/// Returns true if `x` precedes `y` under this setting of `concurrency`.
fn is_before(calls: &[Made], concurrency: &str, x: usize, y: usize) -> bool {
    let group = |at: usize| -> Vec<usize> {
        match calls[at].group.filter(|_| concurrency == "reply") {
            None => vec![at],
            group => (0..calls.len())
                .filter(|&other| calls[other].group == group)
                .collect(),
        }
    };
    if concurrency == "none" {
        return !calls[x].partial && x < y;
    }
    if group(x).iter().any(|&at| calls[at].partial) {
        return false;
    }
    let end = group(x).iter().map(|&at| calls[at].end).max();
    let start = group(y).iter().map(|&at| calls[at].start).min();
    (end, group(x).last()) < (start, group(y).first())
}

/// Returns every order in which each call comes after the calls that precede it in time.
fn orders(calls: &[Made], concurrency: &str) -> Vec<Vec<usize>> {
    fn extend(
        order: &mut Vec<usize>,
        n: usize,
        is_before: &dyn Fn(usize, usize) -> bool,
        all: &mut Vec<Vec<usize>>,
    ) {
        if order.len() == n {
            all.push(order.clone());
        }
        for next in 0..n {
            let is_free = !order.contains(&next)
                && (0..n).all(|other| order.contains(&other) || !is_before(other, next));
            if is_free {
                order.push(next);
                extend(order, n, is_before, all);
                order.pop();
            }
        }
    }
    let mut all = Vec::new();
    let is_before = |x: usize, y: usize| x != y && is_before(calls, concurrency, x, y);
    extend(&mut Vec::new(), calls.len(), &is_before, &mut all);
    all
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern {
        "." => true,
        "a|b" => name == "a" || name == "b",
        exact => exact == format!("^{name}$"),
    }
}

/// Returns true if two calls agree, given whether each is a `b`.
fn agree(same: Same, (x, x_is_b): (&Made, bool), (y, y_is_b): (&Made, bool)) -> bool {
    let values = |call: &Made, is_b: bool| {
        if same == Same::APathEach && is_b {
            call.others.clone()
        } else {
            call.values.clone()
        }
    };
    match (values(x, x_is_b), values(y, y_is_b)) {
        _ if same == Same::Nothing => true,
        (Some(x), Some(y)) => x.iter().any(|value| y.contains(value)),
        _ => false,
    }
}

fn gap(x: &Made, y: &Made) -> u64 {
    let end = |call: &Made| if call.partial { u64::MAX } else { call.end };
    x.start.max(y.start).saturating_sub(end(x).min(end(y)))
}

/// Returns the requirements of a template: whether each applies to `b`; whether the partner is
/// `after`, `before` or `anywhere`; whether the partner is forbidden; whether nothing (`n`), no
/// call of the same kind (`o`), or anything (`a`) may come in between.
fn questions(template: &str) -> Vec<(bool, &'static str, bool, char)> {
    let between = if template.contains("alternate") {
        'o'
    } else if template.contains("chain") {
        'n'
    } else {
        'a'
    };
    let (after, before) = (
        (false, "after", false, between),
        (true, "before", false, between),
    );
    match template {
        "responded_existence" => vec![(false, "anywhere", false, 'a')],
        "coexistence" => vec![
            (false, "anywhere", false, 'a'),
            (true, "anywhere", false, 'a'),
        ],
        "not_coexistence" => vec![
            (false, "anywhere", true, 'a'),
            (true, "anywhere", true, 'a'),
        ],
        "not_succession" | "not_chain_succession" => vec![(true, "before", true, between)],
        _ if template.ends_with("response") => vec![after],
        _ if template.ends_with("precedence") => vec![before],
        _ => vec![after, before],
    }
}

/// Returns the score (`None` if open), the number of activations and of violations, and the
/// violating calls.
fn naively(asked: &Asked, calls: &[Made]) -> (Option<f64>, usize, usize, Vec<usize>) {
    let orders = orders(calls, asked.concurrency);
    let (mut n_activations, mut n_kept, mut n_open) = (0, 0, 0);
    let mut violated = Vec::new();
    let mut n_violations = 0;
    for (of_b, place, bars, between) in questions(asked.template) {
        let (own, other) = if of_b { (asked.b, asked.a) } else { (asked.a, asked.b) };
        for x in (0..calls.len()).filter(|&x| fits(own, calls[x].name)) {
            let near = |y: usize| {
                asked
                    .within
                    .is_none_or(|within| gap(&calls[x], &calls[y]) <= within)
            };
            let agrees = |y: usize| agree(asked.same, (&calls[x], of_b), (&calls[y], !of_b));
            let agrees_with_own =
                |z: usize| agree(asked.same, (&calls[x], of_b), (&calls[z], of_b));
            let is_partner = |y: usize| {
                y != x
                    && fits(other, calls[y].name)
                    && (bars || !calls[y].partial)
                    && near(y)
                    && agrees(y)
            };
            let blocks = |z: usize| match between {
                'a' => false,
                'n' => z != x,
                _ => z != x && fits(own, calls[z].name) && agrees_with_own(z),
            };
            let found_in = |order: &[usize]| {
                let at = order.iter().position(|&call| call == x).unwrap();
                let mut way: Vec<usize> = match place {
                    "after" => order[at + 1..].to_vec(),
                    "before" => order[..at].iter().rev().copied().collect(),
                    _ => order.to_vec(),
                };
                if place == "anywhere" {
                    return way.into_iter().any(is_partner);
                }
                way.truncate(
                    way.iter()
                        .position(|&z| blocks(z) && !is_partner(z))
                        .unwrap_or(way.len()),
                );
                way.into_iter().any(is_partner)
            };
            let n_found = orders.iter().filter(|order| found_in(order)).count();
            let kept = match (n_found == orders.len(), n_found == 0) {
                (true, _) => Some(!bars),
                (_, true) => Some(bars),
                _ => match asked.overlap.unwrap_or(if bars { "pass" } else { "fail" }) {
                    "fail" => Some(false),
                    "pass" => Some(true),
                    _ => None,
                },
            };
            n_activations += 1;
            n_kept += usize::from(kept == Some(true));
            n_open += usize::from(kept.is_none());
            if kept == Some(false) {
                n_violations += 1;
                violated.push(x + 1);
            }
        }
    }
    violated.sort_unstable();
    violated.dedup();
    let score = match (n_activations, n_open, n_violations) {
        (0, ..) => Some(1.0),
        (_, 0, _) => Some(f64::from(n_kept as u32) / f64::from(n_activations as u32)),
        (_, _, 0) => None,
        // NaN means a certain failure with an unknown score.
        _ => Some(f64::NAN),
    };
    (score, n_activations, n_violations, violated)
}

proptest! {
    #[test]
    fn a_rule_is_kept_as_in_the_orders_that_are_possible(calls in calls(), asked in asked()) {
        let evaluation = evaluated(&rule(&asked), &calls, None);
        let (score, n_activations, n_violations, violated) = naively(&asked, &calls);
        let said = format!("{} {}", evaluation.explanation(), evaluation.details());
        let found = &evaluation.details()["rules"][0];
        prop_assert_eq!(&found["activations"], &json!(n_activations), "{}", said);
        prop_assert_eq!(&found["violations"], &json!(n_violations), "{}", said);
        prop_assert_eq!(&found["violated"], &json!(violated), "{}", said);
        match score {
            Some(score) if score.is_nan() => prop_assert_eq!(evaluation.verdict, Verdict::Fail),
            Some(score) => prop_assert!(
                evaluation.value.is_some_and(|value| (value - score).abs() < 1e-11),
                "{}: {}", score, said
            ),
            None => prop_assert_eq!(evaluation.verdict, Verdict::NotEvaluated, "{}", said),
        }
        // A failure names the calls that prove it.
        prop_assert_eq!(evaluation.verdict == Verdict::Fail, !evaluation.offending().is_empty());
    }

    /// If the values of a call are unknown, the verdict holds for all possible values.
    #[test]
    fn a_verdict_holds_whatever_an_unknown_value_is(
        calls in calls(),
        asked in asked(),
        at in 0_usize..6,
        other in prop::sample::select(vec![None, Some(vec![1]), Some(vec![2]), Some(vec![3])]),
    ) {
        let at = at % calls.len();
        let rule = rule(&asked);
        let without = evaluated(&rule, &calls, Some(at));
        if without.verdict != Verdict::NotEvaluated {
            let mut calls = calls.clone();
            calls[at].values = other;
            let with = evaluated(&rule, &calls, None);
            let said = [without.explanation(), with.explanation()];
            prop_assert_eq!(without.verdict, with.verdict, "{:?}", said);
        }
    }
}

// === calls without times ===

fn any_criterion() -> impl Strategy<Value = Value> {
    let names = prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 0..4);
    let score = prop::sample::select(vec![
        "exact",
        "in_order",
        "any_order",
        "superset",
        "lcs_ratio",
        "edit",
    ]);
    let matched = (names, score).prop_map(
        |(expected, score)| json!({ "trajectory_match": { "expected": expected, "score": score } }),
    );
    let edges = (prop::sample::select(vec!["init", "end"]), any::<bool>()).prop_map(
        |(template, passes)| {
            let overlap = if passes { "pass" } else { "fail" };
            let rule = json!({ template: { "a": "^a$", "overlap": overlap } });
            json!({ "constraints": { "rules": [rule] } })
        },
    );
    let effort = (0_u32..3).prop_map(
        |max| json!({ "efficiency": { "max_retries": max, "max_repeats": max, "max_calls": 4 } }),
    );
    prop_oneof![
        6 => asked().prop_map(|asked| rule(&asked)),
        1 => edges,
        2 => matched,
        1 => effort
    ]
}

proptest! {
    #[test]
    fn a_verdict_holds_whenever_a_call_without_times_ran(
        calls in calls(),
        evaluate in any_criterion(),
        at in 0_usize..6,
        start in 0_u64..12,
        length in prop::sample::select(vec![0_u64, 1, 3, 12]),
    ) {
        let at = at % calls.len();
        let mut untimed = calls.clone();
        untimed[at].untimed = true;
        let without = evaluated(&evaluate, &untimed, None);
        if without.verdict != Verdict::NotEvaluated {
            let mut moved = calls;
            (moved[at].start, moved[at].end) = (start, start + length);
            moved.sort_by_key(|call| (call.start, call.end));
            let with = evaluated(&evaluate, &moved, None);
            let said = [without.explanation(), with.explanation()];
            prop_assert_eq!(without.verdict, with.verdict, "{:?}", said);
        }
    }
}
