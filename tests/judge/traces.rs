//! Runs the cases of `tests/corpus/traces/*.yaml`: the real scan and pipeline make calls and
//! verdicts of spans. Only the fields that a case contains are compared. Does not prove that any
//! SDK sends such spans.

use std::collections::BTreeMap;
use std::time::Duration;

use judge::assemble::Settings;
use judge::evaluate::{Evaluation, Expectations, FromSpans};
use judge::extract::{Payload, ToolCall, Tools, Trajectory};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::json as otlp_json;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::corpus::yaml_files;
use crate::support::cases::repeated;
use crate::support::records::{START, attributes, clock};

type Fields = Map<String, Value>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// The promise.
    #[serde(rename = "name")]
    _name: String,
    /// Spans that arrive in one request, and in another run one by one in reverse order.
    #[serde(default)]
    spans: Vec<Sent>,
    /// Spans that are added to `spans`. Each variant has the same answers.
    #[serde(default = "no_variants")]
    variants: Vec<Vec<Sent>>,
    /// Requests with times, instead of `spans`.
    #[serde(default)]
    arrivals: Vec<Arrival>,
    #[serde(default)]
    tools: Tools,
    /// The timers of `assemble`; by default, a trace is judged at the end.
    #[serde(default)]
    assemble: BTreeMap<String, String>,
    /// As in `expectations`.
    from_spans: Option<FromSpans>,
    #[serde(default)]
    criteria: Vec<Value>,
    /// The calls, in order of their traces.
    calls: Option<Vec<Fields>>,
    /// The evaluations, in order of their traces. A verdict may contain its criterion.
    verdicts: Option<Vec<Fields>>,
    /// Numbers of traces and spans.
    counts: Option<Fields>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arrival {
    after: String,
    spans: Vec<Sent>,
}

/// A span. Most fields stand for attributes of the GenAI conventions. In `{{3 ab}}`, `ab` is sent
/// three times.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Sent {
    id: u64,
    /// By default span 1, which has none. 0 is no parent.
    parent: Option<u64>,
    trace: Option<u64>,
    name: Option<String>,
    /// Start and end in milliseconds, by default from 10 times the id for 5 ms, and for span 1 the
    /// first second. `null` is a time that is missing.
    at: Option<[Option<u64>; 2]>,
    scope: Option<String>,
    service: Option<String>,
    agent: Option<Value>,
    tool: Option<Value>,
    call_id: Option<Value>,
    args: Option<Value>,
    result: Option<Value>,
    /// The calls that a model requests: their names and arguments by their ids.
    asks: Option<Fields>,
    /// The results that a model's request contains, by their ids.
    answers: Option<Fields>,
    /// Lists and maps are sent as JSON text.
    attributes: Fields,
    /// Attributes that are sent as they are.
    typed: Fields,
    /// Further fields of the span in OTLP/JSON.
    fields: Fields,
}

fn no_variants() -> Vec<Vec<Sent>> {
    vec![Vec::new()]
}

#[test]
fn every_trace_is_judged_as_its_case_says() {
    let (mut n_cases, mut wrong) = (0, Vec::new());
    for (file, text) in yaml_files("traces") {
        let cases: Vec<Value> =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        n_cases += cases.len();
        for case in cases {
            let name = case["name"].to_string();
            let answer = serde_json::from_value(case).map_err(|error| error.to_string());
            if let Err(error) = answer.and_then(run) {
                wrong.push(format!("{file}: {name}: {error}"));
            }
        }
    }
    let (n_wrong, list) = (wrong.len(), wrong.join("\n"));
    assert!(wrong.is_empty(), "{n_wrong} of {n_cases} wrong:\n{list}");
}

fn run(mut case: Case) -> Result<(), String> {
    for verdict in case.verdicts.iter_mut().flatten() {
        let keys = ["evaluate", "threshold", "select", "scope"];
        let fields = keys.map(|key| Some((key.to_owned(), verdict.shift_remove(key)?)));
        let mut criterion: Fields = fields.into_iter().flatten().collect();
        if !criterion.is_empty() {
            let name = json!(format!("criterion {}", case.criteria.len() + 1));
            criterion.insert("name".to_owned(), name.clone());
            verdict.insert("criterion".to_owned(), name);
            case.criteria.push(criterion.into());
        }
    }
    if case.counts.is_none() && case.calls.is_none() && case.verdicts.is_none() {
        return Err("expects nothing".to_owned());
    }
    if !case.arrivals.is_empty() {
        return compare(&case, &case.arrivals);
    }
    let arrival = |spans| Arrival {
        after: "0s".to_owned(),
        spans,
    };
    for (number, variant) in (1..).zip(&case.variants) {
        let spans = [&*case.spans, variant].concat();
        let reversed = spans.iter().rev().map(|span| arrival(vec![span.clone()]));
        compare(&case, &reversed.collect::<Vec<_>>())
            .map_err(|error| format!("variant {number}, span by span: {error}"))?;
        compare(&case, &[arrival(spans)]).map_err(|error| format!("variant {number}: {error}"))?;
    }
    Ok(())
}

fn compare(case: &Case, arrivals: &[Arrival]) -> Result<(), String> {
    let found = judged(case, arrivals)?;
    let counts = case.counts.as_ref().map(std::slice::from_ref);
    let counted = json!(found.counts);
    let mut wrong = Vec::new();
    for (what, found, expected) in [
        ("count", &vec![counted], counts),
        ("call", &found.calls, case.calls.as_deref()),
        ("verdict", &found.verdicts, case.verdicts.as_deref()),
    ] {
        let Some(expected) = expected else { continue };
        if found.len() != expected.len() {
            let lines: Vec<String> = found.iter().map(|found| format!("\n    {found}")).collect();
            let (n_expected, lines) = (expected.len(), lines.concat());
            wrong.push(format!("expected {n_expected} {what}s, found {lines}"));
            continue;
        }
        for (number, (found, fields)) in (1..).zip(found.iter().zip(expected)) {
            let differing: Vec<String> = fields
                .iter()
                .filter(|(key, expected)| !is_as_expected(found, key, expected))
                .map(|(key, expected)| format!("\n    {key}: expected {expected}"))
                .collect();
            if !differing.is_empty() {
                wrong.push(format!(
                    "{what} {number}, found {found}{}",
                    differing.concat()
                ));
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn is_as_expected(found: &Value, key: &str, expected: &Value) -> bool {
    match (key, found.get(key), expected.as_str()) {
        // Texts that the explanation contains, and that no part of the evaluation contains.
        ("says", _, Some(text)) => found["explanation"]
            .as_str()
            .is_some_and(|it| it.contains(text)),
        ("unsaid", _, Some(text)) => !found.to_string().contains(text),
        (_, Some(found), _) => found == expected,
        (_, None, _) => false,
    }
}

fn rules(case: &Case) -> Result<Rules, String> {
    let rules = Rules::from_json(&json!({ "criteria": case.criteria }).to_string())
        .map_err(|error| error.to_string())?
        .with_tools(&case.tools);
    Ok(match case.from_spans {
        Some(from_spans) => rules.expecting(Expectations {
            from_spans,
            max_size: 16 << 10,
            cases: BTreeMap::new(),
        }),
        None => rules,
    })
}

fn settings(case: &Case) -> Result<Settings, String> {
    let mut settings = Settings::replay();
    for (key, value) in &case.assemble {
        let setting = match key.as_str() {
            "settle" => &mut settings.settle,
            "max_settle" => &mut settings.max_settle,
            "settle_remote" => &mut settings.settle_remote,
            "inactive" => &mut settings.inactive,
            _ => return Err(format!("`assemble.{key}` cannot be set")),
        };
        *setting = duration(value)?;
    }
    Ok(settings)
}

fn duration(text: &str) -> Result<Duration, String> {
    text::duration_from(text).ok_or_else(|| format!("`{text}` is not a duration"))
}

#[derive(Default)]
struct Found {
    counts: BTreeMap<&'static str, usize>,
    calls: Vec<Value>,
    verdicts: Vec<Value>,
}

/// Sends the requests at their times, and judges what is due in between.
fn judged(case: &Case, arrivals: &[Arrival]) -> Result<Found, String> {
    let (rules, at) = (rules(case)?, clock());
    let mut pipeline = Pipeline::new(settings(case)?, at(0));
    let mut found = Found::default();
    let mut second = 0;
    for arrival in arrivals.iter().map(Some).chain([None]) {
        let until = arrival
            .map(|arrival| duration(&arrival.after))
            .transpose()?;
        let until = until.map_or(100_000, |until| until.as_secs());
        while let Some(due) = pipeline.next_deadline() {
            let due = due
                .saturating_duration_since(at(0).instant)
                .as_millis()
                .div_ceil(1_000);
            if due > u128::from(until) {
                break;
            }
            second = u64::try_from(due).unwrap();
            found.add(second, pipeline.advance(&rules, at(second)));
        }
        let Some(arrival) = arrival else { break };
        second = until;
        let spans: Vec<Value> = arrival.spans.iter().map(resource_spans).collect();
        let body = json!({ "resourceSpans": spans }).to_string();
        let body = otlp_json::traces(body.as_bytes()).map_err(|error| error.to_string())?;
        let batch = rules.scan(&body).map_err(|error| error.to_string())?;
        *found.counts.entry("late").or_default() += pipeline.take(batch, at(second)).n_late;
    }
    found.add(second, pipeline.finish(&rules, at(second)));
    for list in [&mut found.calls, &mut found.verdicts] {
        list.sort_by_key(|found| found["trace"].as_u64());
    }
    Ok(found)
}

impl Found {
    fn add(&mut self, second: u64, judged: Judged) {
        *self.counts.entry("closed").or_default() += judged.reasons.len();
        let verdicts = judged.evaluations.iter();
        self.verdicts
            .extend(verdicts.map(|evaluation| verdict_of(second, evaluation)));
        for trajectory in &judged.trajectories {
            let calls = trajectory.tool_calls.iter();
            self.calls
                .extend(calls.map(|call| call_of(trajectory, call)));
        }
    }
}

fn call_of(trajectory: &Trajectory, call: &ToolCall) -> Value {
    let value = |payload: &Option<Payload>| {
        let text = &*payload.as_ref()?.text;
        Some(serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
    };
    json!({
        "trace": number(trajectory.trace_id),
        "span": call.span_id.and_then(number),
        "name": &*call.name,
        "id": call.call_id.as_deref(),
        "args": value(&call.args),
        "result": value(&call.result),
        "error": call.error,
        "step": call.step,
        "group": call.parallel_group,
        "convention": &*call.convention,
    })
}

fn verdict_of(second: u64, evaluation: &Evaluation) -> Value {
    let trajectory = &evaluation.trajectory;
    let blamed = evaluation.offending().iter();
    let blamed = blamed.map(|call| trajectory.tool_calls[*call].span_id.and_then(number));
    json!({
        "trace": number(trajectory.trace_id),
        "after": format!("{second}s"),
        "criterion": evaluation.criterion.name(),
        "evaluator": evaluation.criterion.evaluator(),
        "label": evaluation.verdict.as_str(),
        "score": evaluation.value,
        "explanation": evaluation.explanation(),
        // The spans of the calls to blame.
        "blamed": blamed.collect::<Vec<_>>(),
        "revision": evaluation.revision,
        "previous": evaluation.previous.map(|previous| previous.revision),
        "n_spans": trajectory.n_spans,
        "details": evaluation.details(),
    })
}

/// Returns an id as a case writes it.
fn number(id: impl ToString) -> Option<u64> {
    u64::from_str_radix(id.to_string().trim_start_matches('0'), 16).ok()
}

fn resource_spans(sent: &Sent) -> Value {
    let (id, is_first) = (sent.id, sent.id == 1);
    let usual = if is_first { [0, 1_000] } else { [10 * id, 10 * id + 5] };
    let [start, end] = (sent.at.unwrap_or(usual.map(Some)))
        .map(|ms| ms.map_or(0, |ms| START + ms * 1_000_000).to_string());
    let parent = match sent.parent.unwrap_or(u64::from(!is_first)) {
        0 => String::new(),
        parent => format!("{parent:016x}"),
    };
    let mut span = json!({
        "traceId": format!("{:032x}", sent.trace.unwrap_or(1)),
        "spanId": format!("{id:016x}"),
        "parentSpanId": parent,
        "name": sent.name.as_deref().unwrap_or("step"),
        "startTimeUnixNano": start,
        "endTimeUnixNano": end,
        "attributes": attributes(&attributes_of(sent).into()),
    });
    for (field, value) in &sent.fields {
        span[field] = value.clone();
    }
    let service = json!({ "service.name": sent.service.as_deref().unwrap_or("shop") });
    let scope = json!({ "name": sent.scope.as_deref().unwrap_or("app") });
    json!({
        "resource": { "attributes": attributes(&service) },
        "scopeSpans": [{ "scope": scope, "spans": [span] }],
    })
}

fn attributes_of(sent: &Sent) -> Fields {
    let is_chat = sent.asks.is_some() || sent.answers.is_some();
    let call = |(id, call): (&String, &Value)| json!({ "type": "tool_call", "id": id, "name": call[0], "arguments": call[1] });
    let answer = |(id, answer): (&String, &Value)| json!({ "type": "tool_call_response", "id": id, "response": answer });
    let calls: Vec<Value> = sent.asks.iter().flatten().map(call).collect();
    let answers: Vec<Value> = sent.answers.iter().flatten().map(answer).collect();
    let reply = json!([{ "role": "assistant", "parts": calls }]);
    let request =
        json!([{ "role": "assistant", "parts": [] }, { "role": "tool", "parts": answers }]);
    let operation = (sent.agent.as_ref().map(|_| "invoke_agent"))
        .or(sent.tool.as_ref().map(|_| "execute_tool"))
        .or(is_chat.then_some("chat"));
    let usual = [
        ("gen_ai.operation.name", operation.map(Value::from)),
        ("gen_ai.agent.name", sent.agent.clone()),
        ("gen_ai.tool.name", sent.tool.clone()),
        ("gen_ai.tool.call.id", sent.call_id.clone()),
        ("gen_ai.tool.call.arguments", sent.args.clone()),
        ("gen_ai.tool.call.result", sent.result.clone()),
        ("gen_ai.input.messages", is_chat.then_some(request)),
        ("gen_ai.output.messages", is_chat.then_some(reply)),
    ];
    let usual = usual
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let written = sent.attributes.clone().into_iter();
    let values = usual.chain(written).map(|(key, value)| match value {
        Value::String(text) => (key, repeated(&text).into()),
        Value::Array(_) | Value::Object(_) => (key, repeated(&value.to_string()).into()),
        other => (key, other),
    });
    values.chain(sent.typed.clone()).collect()
}
