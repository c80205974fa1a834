//! Judges criteria with `error:` on recorded calls without spans, if the results in the messages
//! show whether a call failed. Does not prove that other frameworks' messages show failures.

use judge::evaluate::Verdict;
use judge::pipeline::Rules;
use serde_json::json;

use super::{items, judged, load};

#[test]
fn results_that_tell_failures_are_judged() {
    let verdict_of = |name: &str, tool: &str| {
        let failed = json!({ "name": format!("^{tool}$"), "error": true });
        let evaluate = json!({ "tool_calls": { "disallowed": [failed] } });
        let criterion = json!({ "name": "none-failed", "evaluate": evaluate });
        let rules = Rules::new(vec![serde_json::from_value(criterion).unwrap()]);
        let mut scenarios = load::scenarios().into_iter();
        let scenario = scenarios.find(|scenario| scenario.name == name).unwrap();
        let evaluations = judged(items(&scenario, &rules), &rules).evaluations;
        let verdicts = evaluations.iter().map(|evaluation| evaluation.verdict);
        verdicts.collect::<Vec<_>>()
    };
    assert_eq!(verdict_of("haystack/bank", "transfer"), [Verdict::Fail]);
    assert_eq!(verdict_of("haystack/bank", "authenticate"), [Verdict::Pass]);
    let untold = verdict_of("openai-responses-openllmetry/bank", "authenticate");
    assert_eq!(untold, [Verdict::NotEvaluated]);
}
