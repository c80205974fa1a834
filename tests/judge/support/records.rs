//! Log records of coding agents, written as maps. Converts OTLP/JSON to batches and trajectories.

use std::time::Duration;

use crate::support::now;
use judge::assemble::Settings;
use judge::evaluate::Criterion;
use judge::extract::{Payload, Trajectory};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::span::{Batch, Now};
use otlp::{json as otlp_json, scan, scan_logs};
use serde_json::{Value, json};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const START: u64 = 1_700_000_000 * SECOND;

pub(crate) fn rules() -> Rules {
    let order = json!({
        "name": "order",
        "evaluate": { "tool_call_order": {
            "tool_calls_order": ["Read", "Edit", "Bash"],
            "strict": true,
        } },
    });
    rules_of(json!([order]))
}

pub(crate) fn rules_of(criteria: Value) -> Rules {
    let criteria: Vec<Criterion> = serde_json::from_value(criteria).expect("they load");
    Rules::new(criteria)
}

pub(crate) fn attributes(values: &Value) -> Value {
    values
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| json!({ "key": key, "value": typed(value) }))
        .collect()
}

/// Returns the value in OTLP/JSON notation.
pub(crate) fn typed(value: &Value) -> Value {
    match value {
        Value::String(text) => json!({ "stringValue": text }),
        Value::Bool(value) => json!({ "boolValue": value }),
        Value::Number(number) if number.is_i64() => json!({ "intValue": number.to_string() }),
        Value::Array(items) => {
            json!({ "arrayValue": { "values": items.iter().map(typed).collect::<Vec<_>>() } })
        }
        Value::Object(_) => json!({ "kvlistValue": { "values": attributes(value) } }),
        other => json!({ "doubleValue": other }),
    }
}

/// Returns a clock that returns the time a number of seconds after the start.
pub(crate) fn clock() -> impl Fn(u64) -> Now {
    let start = now().instant;
    move |seconds| Now {
        instant: start + Duration::from_secs(seconds),
        unix_nanos: START + seconds * SECOND,
    }
}

/// Returns a record whose time is this many seconds after the start.
pub(crate) fn record(seconds: u64, values: Value) -> Value {
    json!({
        "timeUnixNano": (START + seconds * SECOND).to_string(),
        "attributes": attributes(&values),
    })
}

pub(crate) fn logs(records: &[Value]) -> Batch {
    let resource =
        json!({ "attributes": [{ "key": "service.name", "value": { "stringValue": "coder" } }] });
    let request = json!({ "resourceLogs": [{
        "resource": resource,
        "scopeLogs": [{ "logRecords": records }],
    }] });
    let body = otlp_json::logs(request.to_string().as_bytes()).unwrap();
    let scanned = scan_logs::scan(&body, Some(&rules())).unwrap();
    assert_eq!(scanned.n_records, records.len());
    assert_eq!(
        scan_logs::scan(&body, None).unwrap().batch.spans.len(),
        0,
        "nothing is kept when scoring is off"
    );
    scanned.batch
}

pub(crate) fn span(trace: &str, call_id: &str) -> Batch {
    let values = json!({
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "Read",
        "gen_ai.tool.call.id": call_id,
    });
    let span = json!({
        "traceId": trace,
        "spanId": "00000000000000aa",
        "name": "execute_tool Read",
        "startTimeUnixNano": START.to_string(),
        "endTimeUnixNano": (START + 1).to_string(),
        "attributes": attributes(&values),
    });
    spans(&[span])
}

pub(crate) fn claude(seconds: u64, sequence: i64, tool: &str, id: &str, more: Value) -> Value {
    let mut values = json!({
        "event.name": "tool_result", "tool_name": tool, "tool_use_id": id, "success": "true",
        "duration_ms": "250", "session.id": "s1", "prompt.id": "p1", "event.sequence": sequence,
    });
    values
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    record(seconds, values)
}

pub(crate) fn replay(batches: impl IntoIterator<Item = Batch>) -> Judged {
    let now = Now {
        instant: now().instant,
        unix_nanos: START,
    };
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    for batch in batches {
        pipeline.take(batch, now);
    }
    pipeline.finish(&rules(), now)
}

pub(crate) fn names(trajectory: &Trajectory) -> Vec<&str> {
    trajectory
        .tool_calls
        .iter()
        .map(|call| &*call.name)
        .collect()
}

pub(crate) fn text(payload: &Option<Payload>) -> Option<&str> {
    payload.as_ref().map(|payload| &*payload.text)
}

pub(crate) fn spans(spans: &[Value]) -> Batch {
    let request = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": spans }] }] });
    scan::scan(
        &otlp_json::traces(request.to_string().as_bytes()).unwrap(),
        Some(&rules()),
    )
    .unwrap()
    .batch
}
