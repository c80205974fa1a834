//! Tests properties of evaluators with random calls and criteria: a stricter criterion never scores
//! higher, scores lie in 0..=1, an early verdict never changes when the rest of the trace arrives,
//! equal hashes mean equal texts, and private values are not shown. Does not prove that a trace is
//! cut short where it should be.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use judge::evaluate::{Criterion, Evaluation, Expectations, Explain, Verdict};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::calls::{Call, Written, judged};

fn one(evaluate: Value, threshold: f64, written: &Written) -> Option<Evaluation> {
    // Some random criteria are rejected, as they should be (empty orders, lists without an entry).
    let criterion: Criterion = serde_json::from_value(
        json!({ "name": "any", "evaluate": evaluate, "threshold": threshold }),
    )
    .ok()?;
    judged(
        &[criterion.into()],
        &Expectations::default(),
        written,
        &Explain::default(),
    )
    .pop()
}

fn score(evaluate: Value, written: &Written) -> f64 {
    one(evaluate, 1.0, written)
        .and_then(|evaluation| evaluation.value)
        .expect("a whole trajectory of names can be judged")
}

fn hash_of(evaluation: &Evaluation) -> u64 {
    let mut hasher = DefaultHasher::new();
    evaluation.hash_shown(&mut hasher);
    hasher.finish()
}

fn has_same_text(a: &Evaluation, b: &Evaluation) -> bool {
    (a.explanation(), a.details()) == (b.explanation(), b.details())
}

fn whole(calls: Vec<Call>) -> Written {
    Written {
        calls,
        ..Written::default()
    }
}

fn names(max: usize) -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "d"]), 0..max)
}

fn named(names: &[&str]) -> Vec<Call> {
    names
        .iter()
        .map(|name| Call {
            name: (*name).to_owned(),
            ..Call::default()
        })
        .collect()
}

fn value() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({}),
        json!({"x": 1}),
        json!({"x": 2, "command": "ls"}),
        json!({"command": "rm", "y": "z"}),
    ])
}

fn call() -> impl Strategy<Value = Call> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let result = prop::option::of(prop::sample::select(vec![json!("ok"), json!("bad")]));
    (
        name,
        prop::option::weighted(0.8, value()),
        result,
        0_u32..3,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(name, args, result, step, partial, cut, error)| Call {
            name: name.to_owned(),
            args,
            result,
            step,
            partial,
            cut,
            error: Some(error),
            ..Call::default()
        })
}

fn pattern() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!("a"),
        json!("b|c"),
        json!({"name": "a", "args": {"command": "rm"}}),
        json!({"name": "b", "args": {"y": "z"}}),
        json!({"name": "a", "command": "rm"}),
        json!({"name": "c", "path": "."}),
        json!({"name": "b", "error": true}),
        json!({"name": "a", "error": false}),
    ])
}

fn required() -> impl Strategy<Value = Value> {
    prop_oneof![
        1 => pattern(),
        4 => prop::sample::select(vec![
            json!({"name": "a", "result": "ok"}),
            json!({"name": "a", "min_count": 2}),
            json!({"name": "b", "final": true}),
            json!({"name": "c", "at_step": 1}),
            json!({"name": ".", "before_step": 1}),
        ]),
    ]
}

fn trajectory_match() -> impl Strategy<Value = Value> {
    let scores = vec![
        "exact",
        "in_order",
        "any_order",
        "subset",
        "superset",
        "precision",
        "recall",
        "f1",
        "lcs_ratio",
        "edit",
    ];
    let expected = (names(2), prop::option::weighted(0.3, value())).prop_map(|(names, args)| {
        let name = names.first().unwrap_or(&"a");
        match args {
            Some(args) => json!({"name": name, "args": args}),
            None => json!(name),
        }
    });
    let expected = prop::collection::vec(expected, 0..4);
    let score = prop::sample::select(scores);
    (expected, score, any::<bool>(), any::<bool>()).prop_map(|(expected, score, exact, failed)| {
        json!({"trajectory_match": {
            "expected": expected, "score": score, "exact_args": exact, "include_failed": failed,
        }})
    })
}

fn efficiency() -> impl Strategy<Value = Value> {
    let limits = vec![
        "max_calls",
        "max_errors",
        "max_retries",
        "max_repeats",
        "max_duplicates",
    ];
    let limits = prop::sample::subsequence(limits, 1..=3);
    (limits, 0_u32..3, any::<bool>()).prop_map(|(limits, most, ignores)| {
        let mut fields = json!({"ignore": if ignores { vec!["c"] } else { Vec::new() }});
        for limit in limits {
            fields[limit] = json!(most);
        }
        json!({ "efficiency": fields })
    })
}

fn constraints() -> impl Strategy<Value = Value> {
    let concurrency = prop::sample::select(vec!["interval", "reply", "none"]);
    (prop::collection::vec(rule(), 0..3), concurrency).prop_map(
        |(rules, concurrency)| json!({"constraints": {"rules": rules, "concurrency": concurrency}}),
    )
}

/// Generates a rule of any template except `total`, with some of its fields.
fn rule() -> impl Strategy<Value = Value> {
    let templates = vec![
        "existence",
        "absence",
        "exactly",
        "init",
        "end",
        "responded_existence",
        "coexistence",
        "not_coexistence",
        "response",
        "alternate_response",
        "chain_response",
        "precedence",
        "alternate_precedence",
        "chain_precedence",
        "succession",
        "alternate_succession",
        "chain_succession",
        "not_succession",
        "not_chain_succession",
    ];
    let within = prop::option::weighted(0.3, prop::sample::select(vec!["1ms", "5ms", "20ms"]));
    let same = prop::option::weighted(0.3, prop::sample::select(vec!["args.x", "result"]));
    let overlap = prop::option::weighted(
        0.3,
        prop::sample::select(vec!["fail", "pass", "not_evaluated"]),
    );
    let calls = (pattern(), pattern());
    (
        prop::sample::select(templates),
        calls,
        within,
        same,
        overlap,
    )
        .prop_map(|(template, (a, b), within, same, overlap)| {
            let mut fields = json!({ "a": a });
            let counts = ["existence", "absence", "exactly"].contains(&template);
            let is_edge = ["init", "end"].contains(&template);
            let is_unordered = template.ends_with("existence") && !counts;
            if !counts && !is_edge {
                fields["b"] = b;
                fields["same"] = json!(same.into_iter().collect::<Vec<_>>());
                if let Some(within) = within {
                    fields["within"] = json!(within);
                }
            }
            if let Some(overlap) = overlap.filter(|_| !counts && !is_unordered) {
                fields["overlap"] = json!(overlap);
            }
            json!({ template: fields })
        })
}

fn evaluate() -> impl Strategy<Value = Value> {
    let operator = prop::sample::select(vec!["=", "!=", ">", "<", ">=", "<="]);
    let count = (operator, 0_u32..4).prop_map(|(operator, n)| json!([operator, n]));
    let list = |strategy: BoxedStrategy<Value>| prop::collection::vec(strategy, 0..3);
    let expected_tool = (names(2), prop::option::of(value())).prop_map(|(name, parameters)| {
        json!({
            "tool_name": name.first().unwrap_or(&"a"),
            "parameters": parameters,
        })
    });
    prop_oneof![
        1 => (names(4), any::<bool>()).prop_map(|(names, strict)| json!({"tool_call_order": {
            "tool_calls_order": names,
            "strict": strict,
        }})),
        1 => (count.clone(), count, any::<bool>())
            .prop_map(|(a, b, strict)| json!({"tool_call_count": {
                "tool_calls_count": {"a": a, "b": b},
                "strict": strict,
            }})),
        1 => (list(expected_tool.boxed()), any::<bool>())
            .prop_map(|(tools, exact)| json!({"tool_order": {
                "expected_tools": tools,
                "exact_match": exact,
            }})),
        1 => (names(4), any::<[bool; 3]>()).prop_map(|(names, flags)| json!({"execution_order": {
            "expected_output": names,
            "should_exact_match": flags[0],
            "should_consider_ordering": flags[1],
            "strict_mode": flags[2],
        }})),
        1 => (list(required().boxed()), list(pattern().boxed()), list(pattern().boxed())).prop_map(
            |(required, disallowed, sequence)| json!({"tool_calls": {
                "required": required, "disallowed": disallowed, "sequence": sequence,
            }})
        ),
        1 => (
            prop::collection::vec((names(2), value()), 0..3),
            any::<bool>(),
            any::<bool>(),
        ).prop_map(|(calls, strict, exact)| {
            let call = |(name, args): &(Vec<&str>, Value)| {
                json!({"name": name.first().unwrap_or(&"a"), "args": args})
            };
            let calls: Vec<Value> = calls.iter().map(call).collect();
            json!({"tool_call_args": {"tool_calls": calls, "strict": strict, "exact": exact}})
        }),
        3 => constraints(),
        2 => trajectory_match(),
        2 => efficiency(),
        1 => (prop::collection::vec(names(2), 0..3), any::<bool>()).prop_map(|(names, strict)| {
            let output = |name: &Vec<&str>| {
                json!({"name": name.first().unwrap_or(&"a"), "output": "ok"})
            };
            let outputs: Vec<Value> = names.iter().map(output).collect();
            json!({"tool_call_output": {"tool_outputs": outputs, "strict": strict}})
        }),
    ]
}

proptest! {
    #[test]
    fn exact_implies_ordered_implies_set((actual, expected) in prop_oneof![
        (names(6), names(6)),
        names(6).prop_map(|names| (names.clone(), names)),
    ]) {
        prop_assume!(!expected.is_empty());
        let written = whole(named(&actual));
        let in_mode = |exact: bool, ordering: bool| {
            score(
                json!({"execution_order": {
                    "expected_output": expected,
                    "should_exact_match": exact,
                    "should_consider_ordering": ordering,
                }}),
                &written,
            )
        };
        let (exact, ordered, set) = (
            in_mode(true, false),
            in_mode(false, true),
            in_mode(false, false),
        );
        prop_assert!(exact <= ordered);
        let mut distinct = expected.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() == expected.len() {
            prop_assert!(ordered <= set, "ordered {ordered}, as a set {set}");
        }
        let tool_order = |exact: bool| {
            let tool = |name: &&str| json!({ "tool_name": name });
            let tools: Vec<Value> = expected.iter().map(tool).collect();
            score(json!({"tool_order": {"expected_tools": tools, "exact_match": exact}}), &written)
        };
        prop_assert_eq!(tool_order(true), exact);
        prop_assert_eq!(tool_order(false) == 1.0, ordered == 1.0);
    }

    #[test]
    fn strict_never_scores_higher(
        calls in prop::collection::vec(call(), 0..7),
        evaluate in evaluate(),
    ) {
        let strictly = |strict: bool| {
            let mut evaluate = evaluate.clone();
            let fields = evaluate.as_object_mut()?.values_mut().next()?;
            fields.get("strict")?;
            fields["strict"] = json!(strict);
            one(evaluate, 1.0, &whole(calls.clone()))?.value
        };
        if let (Some(strict), Some(loose)) = (strictly(true), strictly(false)) {
            prop_assert!(strict <= loose);
        }
    }

    #[test]
    fn scores_lie_between_0_and_1(
        calls in prop::collection::vec(call(), 0..7),
        evaluate in evaluate(),
        threshold in 0.0..=1.0,
    ) {
        if let Some(evaluation) = one(evaluate, threshold, &whole(calls)) {
            let judged = matches!(evaluation.verdict, Verdict::Pass | Verdict::Fail);
            prop_assert_eq!(evaluation.value.is_some(), judged);
            prop_assert_eq!(evaluation.error.is_some(), evaluation.verdict == Verdict::Error);
            prop_assert!(evaluation.value.is_none_or(|value| (0.0..=1.0).contains(&value)));
            prop_assert!(!evaluation.explanation().is_empty());
        }
    }

    /// At first only some of the calls have been seen, and their steps may still change. Calls that
    /// have not ended lack arguments and results.
    #[test]
    fn a_verdict_given_early_never_changes(
        known in prop::collection::vec(
            (call(), any::<bool>(), prop::bool::weighted(0.1), 0_u32..3),
            0..7,
        ),
        evaluate in evaluate(),
        threshold in prop::sample::select(vec![0.0, 0.3, 0.5, 1.0]),
    ) {
        let late: Vec<Call> = known.iter().map(|(call, ..)| call.clone()).collect();
        let early =
            known
                .iter()
                .filter(|(_, known, ..)| *known)
                .map(|(call, _, unfinished, step)| {
                    let unfinished = *unfinished || call.partial;
                    let kept =
                        |value: &Option<Value>| if unfinished { None } else { value.clone() };
                    Call {
                        args: kept(&call.args),
                        result: kept(&call.result),
                        partial: unfinished,
                        step: *step,
                        ..call.clone()
                    }
                });
        let early = Written {
            calls: early.collect(),
            cut_short: true,
            ..Written::default()
        };
        let Some(first) = one(evaluate.clone(), threshold, &early) else {
            return Ok(());
        };
        if first.verdict != Verdict::NotEvaluated {
            let last = one(evaluate, threshold, &whole(late)).expect("was loaded before");
            prop_assert_eq!(
                first.verdict,
                last.verdict,
                "early: {}; late: {}",
                first.explanation(),
                last.explanation()
            );
        }
    }

    /// Two evaluations with the same verdict and score must have the same hash if and only if their
    /// visible texts are equal. Most hashes are computed without rendering text. The calls have
    /// equal names, but may have different values, or may have ended in only one of the
    /// trajectories.
    #[test]
    fn two_evaluations_have_the_same_hash_exactly_where_their_text_is_the_same(
        calls in prop::collection::vec((call(), call(), any::<bool>()), 0..5),
        evaluate in evaluate(),
        threshold in prop::sample::select(vec![0.0, 0.5, 1.0]),
        cut_short in any::<[bool; 2]>(),
        values in any::<bool>(),
    ) {
        let changed = calls.iter().map(|(call, other, is_same)| if *is_same {
            call.clone()
        } else {
            Call {
                name: call.name.clone(),
                ..other.clone()
            }
        });
        let written = [
            calls
                .iter()
                .map(|(call, ..)| call.clone())
                .collect::<Vec<_>>(),
            changed.collect(),
        ];
        let Ok(criterion) = serde_json::from_value::<Criterion>(
            json!({ "name": "any", "evaluate": evaluate, "threshold": threshold }),
        ) else {
            return Ok(());
        };
        let criteria = [Arc::new(criterion)];
        let mut evaluations =
            written
                .into_iter()
                .zip(cut_short)
                .filter_map(|(calls, cut_short)| {
                    let explain = Explain {
                        values,
                        ..Explain::default()
                    };
                    judged(
                        &criteria,
                        &Expectations::default(),
                        &Written {
                            calls,
                            cut_short,
                            ..Written::default()
                        },
                        &explain,
                    )
                    .pop()
                });
        let (Some(a), Some(b)) = (evaluations.next(), evaluations.next()) else {
            return Ok(());
        };
        if (a.verdict, a.value) != (b.verdict, b.value) {
            return Ok(());
        }
        prop_assert_eq!(
            hash_of(&a) == hash_of(&b),
            has_same_text(&a, &b),
            "{} {}; {} {}",
            a.explanation(),
            a.details(),
            b.explanation(),
            b.details()
        );
    }

    #[test]
    fn values_are_shown_only_where_that_is_allowed(
        calls in prop::collection::vec(call(), 1..7),
        evaluate in evaluate(),
    ) {
        let secret = "s3cret-value";
        let calls: Vec<Call> = calls
            .into_iter()
            .map(|call| Call {
                args: call.args.map(|_| json!({"x": secret, "command": secret})),
                result: Some(json!(secret)),
                ..call
            })
            .collect();
        if let Some(evaluation) = one(evaluate, 1.0, &whole(calls)) {
            prop_assert!(!evaluation.explanation().contains(secret));
            prop_assert!(!evaluation.details().to_string().contains(secret));
        }
    }
}

/// Tests every trajectory of up to three of these calls, with every early subset of its calls. At
/// most one early call is unfinished. The early calls have their final steps or step 0. Each
/// criterion has few requirements: one, or two that interact.
#[test]
fn no_verdict_given_early_changes_on_any_short_trajectory() {
    let alphabet = [
        json!({"name": "a", "args": {"x": 1, "command": "ls"}, "result": "ok", "step": 0}),
        json!({"name": "b", "args": {"x": 2, "command": "rm"}, "result": "bad", "step": 1}),
        json!({"name": "a", "args": {"x": 2, "command": "rm"}, "result": "ok", "step": 2}),
        json!({"name": "a", "args": {"x": 3}, "result": "ok", "step": 2}),
    ];
    let alphabet: Vec<Call> = alphabet
        .into_iter()
        .map(|call| serde_json::from_value(call).unwrap())
        .collect();
    let criteria = one_thing_each();
    let judge = |written: Written| {
        let (criteria, explain) = (&criteria, Explain::default());
        judged(criteria, &Expectations::default(), &written, &explain)
    };
    // Many trajectories have the same early calls, so early judgements are cached. The key consists
    // of the early calls, the index of the unfinished call, and true if all steps are 0.
    let mut firsts: BTreeMap<(Vec<usize>, Option<usize>, bool), Vec<Evaluation>> = BTreeMap::new();
    let (mut n_early, mut n_certain) = (0, 0);
    for len in 0..=3_u32 {
        for word in 0..alphabet.len().pow(len) {
            let letters: Vec<usize> = (0..len)
                .map(|at| word / alphabet.len().pow(at) % alphabet.len())
                .collect();
            let late = letters.iter().map(|letter| alphabet[*letter].clone());
            let last = judge(whole(late.collect()));
            for known in 0..1_usize << len {
                let early: Vec<usize> = (0..letters.len())
                    .filter(|at| known >> at & 1 == 1)
                    .map(|at| letters[at])
                    .collect();
                for unfinished in [None].into_iter().chain((0..early.len()).map(Some)) {
                    for moved in [false, true] {
                        let call = |(at, letter): (usize, &usize)| {
                            let mut call = alphabet[*letter].clone();
                            if moved {
                                call.step = 0;
                            }
                            if unfinished == Some(at) {
                                (call.args, call.result, call.partial) = (None, None, true);
                            }
                            call
                        };
                        let key = (early.clone(), unfinished, moved);
                        let first = firsts.entry(key).or_insert_with(|| {
                            judge(Written {
                                calls: early.iter().enumerate().map(call).collect(),
                                cut_short: true,
                                ..Written::default()
                            })
                        });
                        for (first, last) in first.iter().zip(&last) {
                            n_early += 1;
                            if first.verdict != Verdict::NotEvaluated {
                                n_certain += 1;
                                assert_eq!(
                                    first.verdict,
                                    last.verdict,
                                    "{}: {} {}, later {}",
                                    first.criterion.name(),
                                    first.explanation(),
                                    first.details(),
                                    last.explanation()
                                );
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(
        n_certain * 10 > n_early,
        "only {n_certain} of {n_early} were certain: the test says little"
    );
    assert!(
        n_certain < n_early,
        "nothing was ever uncertain: the test says little"
    );
}

fn one_thing_each() -> Vec<Arc<Criterion>> {
    let mut list = Vec::new();
    for names in [
        json!(["a"]),
        json!(["a", "b"]),
        json!(["b", "a"]),
        json!(["a", "a"]),
        json!(["c", "a"]),
    ] {
        for strict in [false, true] {
            list.push(json!({"tool_call_order": {"tool_calls_order": names, "strict": strict}}));
            list.push(json!({"execution_order": {
                "expected_output": names,
                "should_exact_match": strict,
            }}));
            list.push(json!({"execution_order": {
                "expected_output": names,
                "should_consider_ordering": true,
                "strict_mode": strict,
            }}));
            let tools: Vec<Value> = names
                .as_array()
                .expect("a list of names")
                .iter()
                .map(|name| json!({"tool_name": name}))
                .collect();
            list.push(json!({"tool_order": {"expected_tools": tools, "exact_match": strict}}));
        }
    }
    for operator in ["=", "!=", ">", "<", ">=", "<="] {
        for n in 0..3 {
            list.push(json!({"tool_call_count": {"tool_calls_count": {"a": [operator, n]}}}));
            list.push(json!({"tool_call_count": {
                "tool_calls_count": {"a": [operator, n], "b": ["<=", 1]},
                "strict": n == 1,
            }}));
        }
    }
    for args in [
        json!({}),
        json!({"x": 1}),
        json!({"x": 2, "command": "rm"}),
        json!({"x": 3}),
    ] {
        for strict in [false, true] {
            list.push(json!({"tool_order": {
                "expected_tools": [{"tool_name": "a", "parameters": args}],
                "exact_match": strict,
            }}));
            let calls = json!([{"name": "a", "args": args}, {"name": "b", "args": {"x": 2}}]);
            list.push(
                json!({"tool_call_args": {"tool_calls": calls, "strict": strict, "exact": strict}}),
            );
        }
    }
    for strict in [false, true] {
        list.push(json!({"tool_call_output": {
            "tool_outputs": [{"name": "a", "output": "ok"}, {"name": "b", "output": "ok"}],
            "strict": strict,
        }}));
    }
    list.push(json!({"tool_order": {"expected_tools": [], "exact_match": true}}));
    list.push(json!({"tool_call_args": {"tool_calls": []}}));
    list.push(json!({"execution_order": {"expected_output": [], "should_exact_match": true}}));
    for entry in [
        json!("a"),
        json!({"name": "a", "command": "rm"}),
        json!({"name": ".", "args": {"command": "rm"}}),
        json!({"name": "a", "command": "rm", "result": "ok"}),
    ] {
        list.push(json!({"tool_calls": {"required": [entry]}}));
        list.push(json!({"tool_calls": {"disallowed": [entry]}}));
    }
    for entry in [
        json!({"name": "a", "min_count": 2}),
        json!({"name": "b", "final": true}),
        json!({"name": "b", "at_step": 1}),
        json!({"name": "a", "before_step": 1}),
        json!({"name": "a", "command": "rm", "before_step": 2, "final": true}),
    ] {
        list.push(json!({"tool_calls": {"required": [entry]}}));
        list.push(json!({"tool_calls": {"required": [entry], "disallowed": ["b"]}}));
    }
    for template in ["existence", "absence", "exactly", "init", "end"] {
        list.push(json!({"constraints": {"rules": [{template: {"a": "a"}}]}}));
    }
    let counts = json!([{"absence": {"a": "a", "max": 1}}, {"existence": {"a": "b"}}]);
    list.push(json!({"constraints": {"rules": counts}}));
    for template in [
        "responded_existence",
        "coexistence",
        "not_coexistence",
        "response",
        "alternate_precedence",
        "chain_succession",
        "not_succession",
        "not_chain_succession",
    ] {
        for fields in [
            json!({"a": "a", "b": "b"}),
            json!({"a": "a", "b": "a", "same": ["args.x"]}),
            json!({"a": "b", "b": "a", "within": "10ms"}),
        ] {
            list.push(json!({"constraints": {"rules": [{template: fields}]}}));
        }
    }
    list.push(json!({"tool_calls": {"sequence": ["a", "b"]}}));
    list.push(json!({"tool_calls": {
        "sequence": [{"name": "a", "command": "rm"}, "a"],
        "disallowed": ["b"],
    }}));
    let load = |(at, evaluate): (usize, Value)| {
        [0.5, 1.0].map(|threshold| {
            let criterion = json!({
                "name": format!("{at} {evaluate}"),
                "evaluate": evaluate,
                "threshold": threshold,
            });
            Arc::new(serde_json::from_value(criterion).expect("every one of them loads"))
        })
    };
    list.into_iter().enumerate().flat_map(load).collect()
}

/// The sentence about a path without values appears even if another rule is violated.
#[test]
fn a_path_that_leads_nowhere_is_named_and_in_the_hash() {
    let evaluate = json!({ "constraints": { "rules": [
        { "absence": { "a": "c" } },
        { "not_coexistence": { "a": "a", "b": "b", "same": ["args.x"] } },
    ] } });
    let judged = |args: [Value; 3], names: &[&str]| {
        let calls = named(names).into_iter().zip(args);
        let calls = calls.map(|(call, args)| Call {
            args: Some(args),
            ..call
        });
        one(evaluate.clone(), 1.0, &whole(calls.collect())).unwrap()
    };
    let without = [json!({}), json!({}), json!({})];
    let with = [json!({ "x": 1 }), json!({ "x": 2 }), json!({})];
    let of_both = |names: &[&str]| [without.clone(), with.clone()].map(|args| judged(args, names));
    for (names, verdict) in [
        (["a", "b", "c"], Verdict::Fail),
        (["a", "b", "d"], Verdict::Pass),
    ] {
        let [a, b] = of_both(&names);
        assert_eq!((a.verdict, b.verdict), (verdict, verdict));
        let named = "no call of `a` has `args.x`";
        assert!(a.explanation().contains(named), "{}", a.explanation());
        assert!(!b.explanation().contains(named), "{}", b.explanation());
        assert!(hash_of(&a) != hash_of(&b));
    }
}
