//! A late span revises the verdicts of `constraints`, `trajectory_match` and `efficiency`, and the
//! revision shows what changed. Does not prove how a revision is written for a backend.

use std::time::Duration;

use crate::support::now;
use judge::assemble::Settings;
use judge::evaluate::Verdict;
use judge::pipeline::Pipeline;
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::scan::scan;
use otlp::span::{Batch, Now};
use serde_json::{Value, json};

use crate::support::rules_of_case;
use crate::support::spans::{SpanCall, request, spans_of_run};

/// Returns a run that approves, pays, and pays again. The second payment arrives late.
fn spans() -> Vec<Span> {
    let calls = ["approve", "pay", "pay"].map(|name| SpanCall {
        name: name.to_owned(),
        args: Some(json!({ "card": "s3cret" })),
        ..SpanCall::default()
    });
    spans_of_run(1, &[], &calls)
}

#[test]
fn a_late_call_revises_a_verdict_of_each_evaluator_over_time() {
    let criteria: [(&str, Value, &str); 3] = [
        (
            "constraints",
            json!({ "rules": [{ "alternate_precedence": { "a": "^approve$", "b": "^pay$" } }] }),
            "`pay` (call 3) has no `^approve$` of its own",
        ),
        (
            "trajectory_match",
            json!({ "expected": ["approve", "pay"], "score": "exact" }),
            "+pay",
        ),
        (
            "efficiency",
            json!({ "max_duplicates": 0 }),
            "`pay` (call 3)",
        ),
    ];
    for (evaluator, fields, why) in criteria {
        let rules = rules_of_case(evaluator, evaluator, &fields).expect("a criterion that loads");
        let start = now();
        let at = |seconds: u64| Now {
            instant: start.instant + Duration::from_secs(seconds),
            unix_nanos: start.unix_nanos + seconds * 1_000_000_000,
        };
        let settings = Settings {
            settle: Duration::from_secs(5),
            max_settle: Duration::from_secs(15),
            settle_remote: Duration::from_secs(15),
            ..Settings::replay()
        };
        let mut pipeline = Pipeline::new(settings, at(0));
        let batch = |spans: Vec<Span>| -> Batch {
            let body = request(spans);
            scan(&body, Some(&rules)).expect("OTLP").batch
        };
        let mut spans = spans();
        let late = spans.pop().expect("the second payment");
        pipeline.take(batch(spans), at(0));
        let first = pipeline.advance(&rules, at(100)).evaluations;
        let seen: Vec<(Verdict, u32)> = first
            .iter()
            .map(|seen| (seen.verdict, seen.revision))
            .collect();
        assert_eq!(seen, [(Verdict::Pass, 0)], "{evaluator}");

        assert_eq!(pipeline.take(batch(vec![late]), at(110)).n_late, 1);
        let revised = pipeline.advance(&rules, at(300)).evaluations;
        let [revised] = revised.as_slice() else {
            panic!("{evaluator}: {} evaluations", revised.len());
        };
        assert_eq!(
            (revised.verdict, revised.revision),
            (Verdict::Fail, 1),
            "{evaluator}"
        );
        assert!(
            revised.explanation().contains(why),
            "{evaluator}: {}",
            revised.explanation()
        );
        assert!(!revised.explanation().contains("s3cret"));
        assert!(!revised.details().to_string().contains("s3cret"));
        // The late call is blamed, and a score span can link to it.
        let blamed = revised
            .offending()
            .iter()
            .map(|call| &revised.trajectory.tool_calls[*call]);
        assert!(
            blamed
                .clone()
                .any(|call| &*call.name == "pay" && call.span_id.is_some())
        );
    }
}
