//! Tests score spans of `constraints`, `trajectory_match` and `efficiency`: they link to the
//! offending calls and contain no values. Checks the choice of linked calls in one case for
//! each evaluator.

use judge::evaluate::{Criterion, Explain, Verdict, judge};
use serde_json::json;

use super::fixture::{SECRET, fail};
use super::{decode, lines, settings};

#[test]
fn rules_references_and_limits_link_to_their_calls_and_show_no_value() {
    let pair = json!({ "a": "^check_inventory$", "b": "^create_order$", "same": ["args.card"] });
    for (evaluate, linked) in [
        (
            json!({ "constraints": { "rules": [{ "precedence": pair }] } }),
            vec![0x1001_u64, 0x1002],
        ),
        (
            json!({ "trajectory_match": {
                "expected": ["validate_user", "check_inventory"], "score": "exact",
            } }),
            vec![0x1001],
        ),
        (json!({ "efficiency": { "max_calls": 2 } }), vec![0x1002]),
    ] {
        let criterion = json!({ "name": "over-time", "evaluate": evaluate });
        let criterion: Criterion = serde_json::from_value(criterion).unwrap();
        let judged = judge(&[criterion.into()], &fail().trajectory, &Explain::default());
        assert_eq!(judged[0].verdict, Verdict::Fail, "{evaluate}");
        let request = decode(&judged, &settings(), &Explain::default());
        let span = &request.resource_spans[0].scope_spans[0].spans[0];
        let links = span.links.iter().map(|link| link.span_id.clone());
        let expected = linked.iter().map(|id| id.to_be_bytes().to_vec());
        assert_eq!(
            links.collect::<Vec<_>>(),
            expected.collect::<Vec<_>>(),
            "{evaluate}"
        );
        assert!(!lines(&span.attributes).contains(SECRET), "{evaluate}");
    }
}
