//! Tests the ten scores of `trajectory_match` with an oracle that finds the best pairs of every
//! possible order.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Made, args_of, calls, evaluated, is_before, orders};

/// An expected call: its name, and the arguments that matter.
#[derive(Debug, Clone)]
struct Entry {
    name: &'static str,
    args: Option<Value>,
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let args = prop::sample::select(vec![
        None,
        None,
        Some(json!({ "x": [1] })),
        Some(json!({ "x": [2] })),
        Some(json!({ "y": null })),
        Some(json!({ "x": [1], "y": [2] })),
        Some(json!({ "x": null, "y": null })),
    ]);
    let entry = (prop::sample::select(vec!["a", "b", "c"]), args)
        .prop_map(|(name, args)| Entry { name, args });
    prop::collection::vec(entry, 0..6)
}

fn fits(entry: &Entry, call: &Made, exact_args: bool) -> bool {
    let made = args_of(call);
    let fits_args = entry.args.as_ref().is_none_or(|args| {
        if exact_args {
            *args == made
        } else {
            (args.as_object().expect("a map").iter())
                .all(|(key, value)| made.get(key) == Some(value))
        }
    });
    entry.name == call.name && fits_args
}

/// Returns the highest number of pairs in order, from the classic table.
fn in_order(expected: usize, made: &[usize], fits: &dyn Fn(usize, usize) -> bool) -> usize {
    let mut table = vec![vec![0; made.len() + 1]; expected + 1];
    for i in 0..expected {
        for (j, &call) in made.iter().enumerate() {
            let paired = if fits(i, call) { table[i][j] + 1 } else { 0 };
            table[i + 1][j + 1] = paired.max(table[i][j + 1]).max(table[i + 1][j]);
        }
    }
    table[expected][made.len()]
}

/// Returns the highest number of pairs in any order.
fn in_any_order(expected: usize, free: &[usize], fits: &dyn Fn(usize, usize) -> bool) -> usize {
    let Some(last) = expected.checked_sub(1) else {
        return 0;
    };
    let alone = in_any_order(last, free, fits);
    let paired = free.iter().filter(|&&call| fits(last, call)).map(|&call| {
        let left: Vec<usize> = free
            .iter()
            .copied()
            .filter(|other| *other != call)
            .collect();
        in_any_order(last, &left, fits) + 1
    });
    paired.max().unwrap_or(0).max(alone)
}

/// Returns the smallest number of changes that turn one list into the other.
fn changes(expected: usize, made: &[usize], fits: &dyn Fn(usize, usize) -> bool) -> usize {
    match (expected.checked_sub(1), made.split_last()) {
        (None, _) => made.len(),
        (_, None) => expected,
        (Some(last), Some((&call, rest))) => {
            let replaced = changes(last, rest, fits) + usize::from(!fits(last, call));
            let one_sided = changes(last, made, fits).min(changes(expected, rest, fits)) + 1;
            replaced.min(one_sided)
        }
    }
}

proptest! {
    #[test]
    fn a_reference_is_matched_in_the_best_order_that_is_possible(
        calls in calls(),
        expected in entries(),
        score in prop::sample::select(vec![
            "exact", "in_order", "any_order", "subset", "superset", "precision", "recall", "f1",
            "lcs_ratio", "edit",
        ]),
        ordered in any::<bool>(),
        exact_args in any::<bool>(),
        include_failed in any::<bool>(),
        concurrency in prop::sample::select(vec!["interval", "interval", "reply", "none"]),
    ) {
        let takes_ordered = matches!(score, "precision" | "recall" | "f1");
        let written: Vec<Value> = expected
            .iter()
            .map(|entry| match &entry.args {
                None => json!(entry.name),
                Some(args) => json!({ "name": entry.name, "args": args }),
            })
            .collect();
        let mut fields = json!({
            "expected": written, "score": score, "exact_args": exact_args,
            "include_failed": include_failed,
        });
        if takes_ordered {
            fields["ordered"] = json!(ordered);
        }
        let concurrency = if score == "edit" { "none" } else { concurrency };
        fields["concurrency"] = json!(concurrency);
        let evaluation = evaluated(&json!({ "trajectory_match": fields }), &calls, None);

        let counts = |call: &usize| include_failed || !calls[*call].has_failed();
        let counted: Vec<usize> = (0..calls.len()).filter(counts).collect();
        let fits = |entry: usize, call: usize| fits(&expected[entry], &calls[call], exact_args);
        let (n, m) = (expected.len(), counted.len());
        let is_in_order = matches!(score, "exact" | "in_order" | "lcs_ratio")
            || (takes_ordered && ordered);
        let matched = match score {
            "edit" => n.max(m) - changes(n, &counted, &fits),
            _ if is_in_order => {
                let orders = orders(&calls, concurrency).into_iter();
                let of_order = orders.map(|mut order| {
                    order.retain(counts);
                    in_order(n, &order, &fits)
                });
                of_order.max().unwrap_or(0)
            }
            _ => in_any_order(n, &counted, &fits),
        };
        let whole = |holds: bool| f64::from(u8::from(holds));
        let share = |of: usize, all: usize| if n == 0 || m == 0 {
            whole(n == m)
        } else {
            of as f64 / all as f64
        };
        let value = match score {
            "exact" | "any_order" => whole(matched == n && matched == m),
            "in_order" | "superset" => whole(matched == n),
            "subset" => whole(matched == m),
            "precision" => share(matched, m),
            "recall" | "lcs_ratio" => share(matched, n),
            "f1" => share(2 * matched, n + m),
            _ => share(matched, n.max(m)),
        };
        let (details, said) = (evaluation.details(), evaluation.explanation());
        prop_assert!(
            evaluation.value.is_some_and(|found| (found - value).abs() < 1e-12),
            "{} expected {}: {}", score, value, said
        );
        prop_assert_eq!(&details["actual"], &json!(m), "{}", said);

        // The alignment proves the score: each match fits, and, if order matters, no matched call
        // precedes the call of an earlier match.
        let number = |entry: &Value, key: &str| entry[key].as_u64().map(|n| n as usize - 1);
        let aligned = details["alignment"].as_array().expect("a list");
        let matches: Vec<(usize, usize)> = aligned
            .iter()
            .filter(|entry| entry["kind"] == "match")
            .filter_map(|entry| Some((number(entry, "expected")?, number(entry, "call")?)))
            .collect();
        prop_assert!(matches.iter().all(|(entry, call)| fits(*entry, *call)), "{}", said);
        if score != "edit" {
            prop_assert_eq!(&details["matched"], &json!(matched), "{}", said);
            prop_assert_eq!(matches.len(), matched, "{}", said);
        }
        for (at, (_, later)) in matches.iter().enumerate().filter(|_| is_in_order) {
            for (_, earlier) in &matches[..at] {
                prop_assert!(!is_before(&calls, concurrency, *later, *earlier), "{}", said);
            }
        }
        // Every expected call and every call that counts occurs once in the alignment.
        let listed = |key: &str| -> Vec<usize> {
            aligned.iter().filter_map(|entry| number(entry, key)).collect()
        };
        let mut made = listed("call");
        made.sort_unstable();
        prop_assert_eq!(made, counted, "{}", said);
        prop_assert_eq!(listed("expected"), (0..n).collect::<Vec<_>>(), "{}", said);
    }
}
