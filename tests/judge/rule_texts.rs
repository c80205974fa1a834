//! Tests texts of rules and limits in which rounding could contradict the verdict, because a limit
//! was exceeded by less than a millisecond. Also tests how a row describes its rule. Does not test
//! the other texts; `corpus` tests them.

use std::sync::Arc;

use judge::evaluate::{AlignmentRow, Criterion, Evaluation, Explain, Verdict, judge};
use judge::extract::{Payload, Trajectory};
use serde_json::{Value, json};

use crate::support::calls::{Call, Written, trajectory};

fn judged(evaluate: &Value, trajectory: Trajectory) -> Evaluation {
    let criterion: Criterion =
        serde_json::from_value(json!({ "name": "any", "evaluate": evaluate }))
            .expect("a criterion");
    let evaluations = judge(
        &[Arc::new(criterion)],
        &Arc::new(trajectory),
        &Explain::default(),
    );
    evaluations.into_iter().next().expect("one criterion")
}

fn two_calls() -> Trajectory {
    let named = |name: &str, at| Call {
        name: name.to_owned(),
        at: Some(at),
        ..Call::default()
    };
    trajectory(&Written {
        calls: vec![named("a", (0, 1)), named("b", (11, 12))],
        ..Written::default()
    })
}

#[test]
fn a_gap_beyond_the_limit_is_not_shown_as_equal_to_it() {
    let rule = json!([{ "precedence": { "a": "^a$", "b": "^b$", "within": "10ms" } }]);
    let evaluate = json!({ "constraints": { "rules": rule } });
    assert_eq!(judged(&evaluate, two_calls()).verdict, Verdict::Pass);
    let mut later = two_calls();
    later.tool_calls[1].start_unix_nanos += 1;
    let evaluation = judged(&evaluate, later);
    assert_eq!(evaluation.verdict, Verdict::Fail);
    assert_eq!(
        evaluation.explanation(),
        "no `^a$` before `b` (call 2) within 10ms: the last, call 1, had ended 11ms before"
    );
}

#[test]
fn a_run_beyond_the_limit_is_not_shown_as_equal_to_it() {
    let evaluate = json!({ "efficiency": { "max_duration": "2ms" } });
    let lasting = |nanos: u64| {
        let mut run = two_calls();
        let subject = run.subject.as_mut().expect("a run has a span");
        subject.end_unix_nanos = subject.start_unix_nanos + nanos;
        judged(&evaluate, run)
    };
    assert_eq!(lasting(2_000_000).verdict, Verdict::Pass);
    let evaluation = lasting(2_000_001);
    assert_eq!(evaluation.verdict, Verdict::Fail);
    assert_eq!(evaluation.explanation(), "the run took 3ms, at most 2ms");
    let found = &evaluation.details()["limits"]["max_duration"];
    assert_eq!(*found, json!({ "limit": 2, "actual": 3, "kept": false }));
}

#[test]
fn a_row_says_what_its_rule_compares() {
    let copied = json!({ "a": "result", "b": "args.body", "compare": "a_in_b" });
    let rules = json!([
        { "not_succession": { "a": "^a$", "b": "^b$", "same": [copied] } },
        { "total": { "a": "^a$", "of": "args.n", "max": 5, "same": ["args.x"] } },
    ]);
    let mut run = two_calls();
    let values = [json!({ "n": 1 }), json!({ "body": "text" })];
    for (call, value) in run.tool_calls.iter_mut().zip(values) {
        call.args = Some(Payload::new(value.to_string(), value, false));
        let result = "a secret text";
        call.result = Some(Payload::new(result, json!(result), false));
    }
    let evaluation = judged(&json!({ "constraints": { "rules": rules } }), run);
    let shown = |row: AlignmentRow| (row.expected.unwrap_or_default(), row.note);
    let rows: Vec<_> = evaluation.alignment().into_iter().map(shown).collect();
    let no_copy = "no literal copy was seen".to_owned();
    let copy = "not succession of `^a$`, `^b$` with a literal copy of `result` in `args.body`";
    let total = "total of `args.n` of `^a$` with the same `args.x`, at most 5";
    let expected = [(copy.to_owned(), Some(no_copy)), (total.to_owned(), None)];
    assert_eq!(rows, expected, "{}", evaluation.explanation());
}
