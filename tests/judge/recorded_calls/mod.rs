//! Tests which spans are calls, which spans report the same call, and which values of a call are
//! known, from OTLP requests to verdicts. Does not test what frameworks write.

mod capture;
mod folding;
mod general_keys;
mod own_scope;

use crate::support::now;
use judge::assemble::Settings;
use judge::evaluate::{Criterion, Evaluation, Verdict};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::span::{Batch, Now};
use otlp::{json as otlp_json, scan};
use serde_json::{Value, json};

use crate::support::records::attributes;

const MILLISECOND: u64 = 1_000_000;
const START: u64 = 1_700_000_000_000 * MILLISECOND;

/// A span of trace 1.
struct Sent {
    scope: &'static str,
    service: &'static str,
    json: Value,
}

/// Creates a span; `times` are milliseconds after [`START`].
fn sent(id: u64, parent: u64, times: (u64, u64), values: &Value) -> Sent {
    let parent = match parent {
        0 => String::new(),
        parent => format!("{parent:016x}"),
    };
    let json = json!({
        "traceId": format!("{:032x}", 1), "spanId": format!("{id:016x}"), "parentSpanId": parent,
        "name": "step", "attributes": attributes(values),
        "startTimeUnixNano": (START + times.0 * MILLISECOND).to_string(),
        "endTimeUnixNano": (START + times.1 * MILLISECOND).to_string(),
    });
    Sent {
        scope: "app",
        service: "shop",
        json,
    }
}

fn agent() -> Sent {
    let values = json!({ "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a" });
    sent(1, 0, (0, 1_000), &values)
}

fn tool(id: u64, parent: u64, times: (u64, u64), name: &str, more: &Value) -> Sent {
    let mut values = json!({ "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name });
    let more = more.as_object().unwrap().clone();
    values.as_object_mut().unwrap().extend(more);
    sent(id, parent, times, &values)
}

impl Sent {
    fn under_scope(self, scope: &'static str) -> Self {
        Self { scope, ..self }
    }

    fn of_service(self, service: &'static str) -> Self {
        Self { service, ..self }
    }

    fn with(mut self, field: &str, value: Value) -> Self {
        self.json[field] = value;
        self
    }
}

fn rules(evaluate: &Value) -> Rules {
    let criterion: Criterion =
        serde_json::from_value(json!({ "name": "rule", "evaluate": evaluate })).unwrap();
    Rules::new(vec![criterion])
}

fn batch(rules: &Rules, spans: &[Sent]) -> Batch {
    let group = |sent: &Sent| {
        let service = attributes(&json!({ "service.name": sent.service }));
        let scope = json!({ "scope": { "name": sent.scope }, "spans": [sent.json] });
        json!({ "resource": { "attributes": service }, "scopeSpans": [scope] })
    };
    let groups: Vec<Value> = spans.iter().map(group).collect();
    let body = json!({ "resourceSpans": groups }).to_string();
    let body = otlp_json::traces(body.as_bytes()).unwrap();
    scan::scan(&body, Some(rules)).unwrap().batch
}

fn judged(evaluate: &Value, spans: &[Sent]) -> Judged {
    let rules = rules(evaluate);
    let now = Now {
        instant: now().instant,
        unix_nanos: START,
    };
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    pipeline.take(batch(&rules, spans), now);
    pipeline.finish(&rules, now)
}

fn only(judged: &Judged) -> &Evaluation {
    let [evaluation] = judged.evaluations.as_slice() else {
        panic!("{} evaluations", judged.evaluations.len())
    };
    evaluation
}

fn verdict(evaluate: &Value, spans: &[Sent]) -> Verdict {
    only(&judged(evaluate, spans)).verdict
}
