//! A span with `tool.name` counts as a call even if it has attributes that applications set, too,
//! such as `span.type: web`.

use judge::evaluate::Verdict;
use serde_json::{Value, json};

use super::{agent, sent, verdict};

#[test]
fn a_type_that_no_convention_knows_silences_no_tool_name() {
    let never = json!({ "tool_calls": { "disallowed": ["^wipe$"] } });
    let wipe = |more: Value| {
        let mut values = json!({ "tool.name": "wipe" });
        let more = more.as_object().unwrap().clone();
        values.as_object_mut().unwrap().extend(more);
        verdict(&never, &[agent(), sent(2, 1, (20, 30), &values)])
    };
    for key in ["span.type", "span_type"] {
        for unknown in ["function", "db", "web"] {
            assert_eq!(
                wipe(json!({ key: unknown })),
                Verdict::Fail,
                "{key}: {unknown}"
            );
        }
    }
    assert_eq!(wipe(json!({ "span.type": "tool" })), Verdict::Fail);
    // VoltAgent's spans of other kinds may name the tool that they work for.
    for known in ["llm", "memory", "retriever", "guardrail"] {
        assert_eq!(
            wipe(json!({ "span.type": known })),
            Verdict::Pass,
            "{known}"
        );
    }
}
