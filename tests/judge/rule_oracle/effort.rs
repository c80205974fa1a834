//! Tests the limits of `efficiency` on calls and on the duration, with a count of every block and
//! every pair of calls.

use std::sync::Arc;

use judge::evaluate::{Criterion, Explain, judge};
use proptest::prelude::*;
use serde_json::json;

use super::{Made, calls, is_before, written};
use crate::support::calls::trajectory;

/// Returns the number of consecutive retries that led to a call. A call is a retry if the earlier
/// call of its name that ended last had failed.
fn n_retries(calls: &[Made], x: usize) -> usize {
    let is_earlier = |y: &usize| {
        *y != x && calls[*y].name == calls[x].name && is_before(calls, "interval", *y, x)
    };
    let earlier = (0..calls.len()).filter(is_earlier);
    match earlier.max_by_key(|y| (calls[*y].end, *y)) {
        Some(y) if calls[y].has_failed() => n_retries(calls, y) + 1,
        _ => 0,
    }
}

proptest! {
    #[test]
    fn effort_is_counted_as_it_is_by_hand(
        made in calls(),
        limits in prop::collection::vec(0_usize..4, 5),
        nanos in prop::sample::select(vec![0_u64, 999_999, 1_000_000, 1_000_001, 5_000_001]),
        max_millis in 1_u64..6,
        ignored in prop::option::of(prop::sample::select(vec!["a", "b"])),
    ) {
        const LIMITS: [&str; 5] =
            ["max_calls", "max_errors", "max_retries", "max_repeats", "max_duplicates"];
        let mut fields = json!({ "max_duration": format!("{max_millis}ms") });
        for (limit, most) in LIMITS.into_iter().zip(&limits) {
            fields[limit] = json!(most);
        }
        if let Some(ignored) = ignored {
            fields["ignore"] = json!([format!("^{ignored}$")]);
        }
        let criterion = json!({ "name": "any", "evaluate": { "efficiency": fields } });
        let criterion: Criterion = serde_json::from_value(criterion).expect("a criterion");
        let mut run = trajectory(&written(&made, None));
        let subject = run.subject.as_mut().expect("a run has a span");
        subject.end_unix_nanos = subject.start_unix_nanos + nanos;
        let evaluations = judge(&[Arc::new(criterion)], &Arc::new(run), &Explain::default());
        let evaluation = &evaluations[0];

        let calls: Vec<Made> =
            made.into_iter().filter(|call| Some(call.name) != ignored).collect();
        let same = |x: usize, y: usize| {
            let (x, y) = (&calls[x], &calls[y]);
            x.name == y.name && x.values == y.values && x.others == y.others
        };
        let n_calls = calls.len();
        let n_duplicates = (0..n_calls).filter(|&x| (0..x).any(|y| same(x, y))).count();
        let mut n_repeats = 0;
        for block in 1..=6 {
            for start in 0..n_calls {
                let comes_again = |n: usize| {
                    let end = start + block * (n + 1);
                    end <= n_calls && (start + block..end).all(|at| same(at, at - block))
                };
                let n_times = (1..=n_calls).take_while(|n| comes_again(*n)).count();
                n_repeats = n_repeats.max(n_times);
            }
        }
        let longest = (0..n_calls).map(|x| n_retries(&calls, x)).max().unwrap_or(0);
        let n_errors = calls.iter().filter(|call| call.has_failed()).count();
        let counted = [n_calls, n_errors, longest, n_repeats, n_duplicates];

        let found = &evaluation.details()["limits"];
        let mut n_kept = usize::from(nanos <= max_millis * 1_000_000);
        prop_assert_eq!(&found["max_duration"]["kept"], &json!(n_kept == 1), "{}", found);
        prop_assert_eq!(
            &found["max_duration"]["actual"], &json!(nanos.div_ceil(1_000_000)), "{}", found
        );
        for ((limit, most), actual) in LIMITS.into_iter().zip(&limits).zip(counted) {
            prop_assert_eq!(&found[limit]["actual"], &json!(actual), "{}: {}", limit, found);
            prop_assert_eq!(&found[limit]["kept"], &json!(actual <= *most), "{}: {}", limit, found);
            n_kept += usize::from(actual <= *most);
        }
        let share = n_kept as f64 / 6.0;
        prop_assert!(
            evaluation.value.is_some_and(|value| (value - share).abs() < 1e-12),
            "{} expected {}", evaluation.explanation(), share
        );
    }
}
