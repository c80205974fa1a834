//! Tests rules about one kind of calls: how many calls there are, and which call is first or last.

use judge::evaluate::{RULE_TEMPLATES, Verdict};
use proptest::prelude::*;
use serde_json::json;

use super::{Made, calls, evaluated, orders};

proptest! {
    #[test]
    fn calls_are_counted_and_stand_first_or_last_as_in_the_orders_that_are_possible(
        calls in calls(),
        template in prop::sample::select(
            (RULE_TEMPLATES.iter())
                .filter(|(template, has_b)| !has_b && *template != "total")
                .map(|(template, _)| *template)
                .collect::<Vec<_>>(),
        ),
        name in prop::sample::select(vec!["a", "b"]),
        error in prop::option::of(any::<bool>()),
        number in 1_usize..4,
        overlap in prop::option::of(prop::sample::select(vec!["fail", "pass", "not_evaluated"])),
        concurrency in prop::sample::select(vec!["interval", "reply", "none"]),
    ) {
        let mut fields = json!({ "a": { "name": format!("^{name}$") } });
        if let Some(error) = error {
            fields["a"]["error"] = json!(error);
        }
        match template {
            "existence" => fields["min"] = json!(number),
            "absence" => fields["max"] = json!(number - 1),
            "exactly" => fields["count"] = json!(number),
            _ => {
                if let Some(overlap) = overlap {
                    fields["overlap"] = json!(overlap);
                }
            }
        }
        let rule = json!({ template: fields });
        let evaluate = json!({ "constraints": { "rules": [rule], "concurrency": concurrency } });
        let evaluation = evaluated(&evaluate, &calls, None);

        let is_a = |call: &Made| {
            call.name == name && error.is_none_or(|error| call.has_failed() == error)
        };
        let n_made = calls.iter().filter(|call| is_a(call)).count();
        let n_ended = calls.iter().filter(|call| is_a(call) && !call.partial).count();
        let stands_at = |place: fn(&[usize]) -> usize| {
            let orders = orders(&calls, concurrency);
            let is_right = |order: &&Vec<usize>| {
                let call = &calls[place(order)];
                is_a(call) && !call.partial
            };
            let n_right = orders.iter().filter(is_right).count();
            match (n_right == orders.len(), n_right) {
                (true, _) => Some(true),
                (_, 0) => Some(false),
                _ => match overlap.unwrap_or("fail") {
                    "fail" => Some(false),
                    "pass" => Some(true),
                    _ => None,
                },
            }
        };
        let kept = match template {
            "existence" => Some(n_ended >= number),
            "absence" => Some(n_made < number),
            "exactly" => Some(n_ended >= number && n_made <= number),
            "init" => stands_at(|order| order[0]),
            _ => stands_at(|order| order[order.len() - 1]),
        };
        let verdict = match kept {
            Some(true) => Verdict::Pass,
            Some(false) => Verdict::Fail,
            None => Verdict::NotEvaluated,
        };
        let said = evaluation.explanation();
        prop_assert_eq!(evaluation.verdict, verdict, "{}", said);
        let found = &evaluation.details()["rules"][0];
        prop_assert_eq!(&found["satisfied"], &json!(kept), "{}", said);
        prop_assert_eq!(&found["activations"], &json!(1), "{}", said);
    }
}
