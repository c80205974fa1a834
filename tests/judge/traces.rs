//! Runs the cases of `tests/corpus/traces/*.yaml`: the real scan and pipeline make calls and
//! verdicts of spans and log records. Only the fields that a case contains are compared. Does not
//! prove that any SDK sends such spans or records.

use std::collections::BTreeMap;
use std::time::Duration;

use judge::assemble::Settings;
use judge::evaluate::{Evaluation, Expectations, FromSpans};
use judge::extract::{Payload, ToolCall, Tools, Trajectory};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::span::Batch;
use otlp::{json as otlp_json, scan_logs};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::corpus::yaml_files;
use crate::support::cases::repeated;
use crate::support::records::{START, attributes, clock, typed};

type Fields = Map<String, Value>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// The promise.
    #[serde(rename = "name")]
    _name: String,
    /// Spans that arrive in one request, and in further runs one by one in other orders, and again.
    #[serde(default)]
    spans: Vec<Sent>,
    /// Log records, in a request of their own after the spans'.
    #[serde(default)]
    records: Vec<Record>,
    /// Spans that are added to `spans`. Each variant has the same answers.
    #[serde(default = "no_variants")]
    variants: Vec<Vec<Sent>>,
    /// Requests with times, instead of `spans` and `records`.
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
    /// The calls, in order of their traces; those of groups of log records first.
    calls: Option<Vec<Fields>>,
    /// The evaluations, in that order. A verdict may contain its criterion.
    verdicts: Option<Vec<Fields>>,
    /// Numbers of traces and spans, if each request arrives once.
    counts: Option<Fields>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arrival {
    after: String,
    #[serde(default)]
    spans: Vec<Sent>,
    #[serde(default)]
    records: Vec<Record>,
}

/// A span. Most fields stand for attributes of the GenAI conventions. `{{3 ab}}` is sent as
/// `ababab`.
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

/// A log record.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Record {
    /// In milliseconds.
    at: Option<u64>,
    observed: Option<u64>,
    /// A span of trace 1.
    span: Option<u64>,
    attributes: Fields,
    body: Value,
    /// Further fields of the record in OTLP/JSON.
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
    let rules = rules(&case)?;
    let counts = case.counts.as_ref();
    if !case.arrivals.is_empty() {
        return compare(&case, &rules, &case.arrivals, counts);
    }
    let arrival = |spans: &[Sent], records: &[Record]| Arrival {
        after: "0s".to_owned(),
        spans: spans.to_vec(),
        records: records.to_vec(),
    };
    for (number, variant) in (1..).zip(&case.variants) {
        let spans = [&*case.spans, variant].concat();
        compare(&case, &rules, &[arrival(&spans, &case.records)], counts)
            .map_err(|error| format!("variant {number}: {error}"))?;
        let records = case.records.chunks(1).map(|record| arrival(&[], record));
        let mut single: Vec<Arrival> = spans.chunks(1).map(|span| arrival(span, &[])).collect();
        single.extend(records);
        for _ in 0..single.len() {
            single.rotate_left(1);
            let arrivals: Vec<Arrival> = single.iter().rev().chain(&single).cloned().collect();
            compare(&case, &rules, &arrivals, None)
                .map_err(|error| format!("variant {number}, one by one and repeated: {error}"))?;
        }
    }
    Ok(())
}

fn compare(
    case: &Case,
    rules: &Rules,
    arrivals: &[Arrival],
    counts: Option<&Fields>,
) -> Result<(), String> {
    let found = judged(case, rules, arrivals)?;
    let counts = counts.map(std::slice::from_ref);
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
fn judged(case: &Case, rules: &Rules, arrivals: &[Arrival]) -> Result<Found, String> {
    let at = clock();
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
            found.add(second, pipeline.advance(rules, at(second)));
        }
        let Some(arrival) = arrival else { break };
        second = until;
        for batch in batches(rules, arrival)? {
            found.count("kept", batch.spans.len());
            let sizes = batch.spans.iter().map(|span| span.kept.size());
            found.count("kept_size", sizes.sum());
            found.count("without_ids", batch.n_without_ids);
            let taken = pipeline.take(batch, at(second));
            found.count("taken", taken.n_taken);
            found.count("late", taken.n_late);
            found.count("too_late", taken.n_too_late);
        }
    }
    found.add(second, pipeline.finish(rules, at(second)));
    for list in [&mut found.calls, &mut found.verdicts] {
        list.sort_by_key(|found| (found["trace"].as_u64(), found["trace"].to_string()));
    }
    Ok(found)
}

fn batches(rules: &Rules, arrival: &Arrival) -> Result<Vec<Batch>, String> {
    let mut batches = Vec::new();
    if !arrival.spans.is_empty() {
        let spans: Vec<Value> = arrival.spans.iter().map(resource_spans).collect();
        let body = repeated(&json!({ "resourceSpans": spans }).to_string());
        let body = otlp_json::traces(body.as_bytes()).map_err(|error| error.to_string())?;
        batches.push(rules.scan(&body).map_err(|error| error.to_string())?);
    }
    if !arrival.records.is_empty() {
        let records: Vec<Value> = arrival.records.iter().map(resource_logs).collect();
        let body = repeated(&json!({ "resourceLogs": records }).to_string());
        let body = otlp_json::logs(body.as_bytes()).map_err(|error| error.to_string())?;
        let scanned = scan_logs::scan(&body, Some(rules)).map_err(|error| error.to_string())?;
        let unscored = scan_logs::scan(&body, None).map_err(|error| error.to_string())?;
        if scanned.n_records != records.len() {
            return Err(format!("{} records were scanned", scanned.n_records));
        }
        if !unscored.batch.spans.is_empty() {
            return Err("records are kept when scoring is off".to_owned());
        }
        batches.push(scanned.batch);
    }
    Ok(batches)
}

impl Found {
    fn count(&mut self, what: &'static str, n: usize) {
        *self.counts.entry(what).or_default() += n;
    }

    fn add(&mut self, second: u64, judged: Judged) {
        self.count("closed", judged.reasons.len());
        self.count("runs", judged.trajectories.len());
        self.count("no_trajectory", judged.n_no_trajectory);
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
    let ms = |nanos: u64| nanos.checked_sub(START).map(|nanos| nanos / 1_000_000);
    json!({
        "trace": trace_of(trajectory),
        "session": trajectory.session.as_deref(),
        "span": call.span_id.and_then(number),
        "name": &*call.name,
        "id": call.call_id.as_deref(),
        "args": value(&call.args),
        "args_text": call.args.as_ref().map(|args| &*args.text),
        "result": value(&call.result),
        "result_text": call.result.as_ref().map(|result| &*result.text),
        "error": call.error,
        "start": ms(call.start_unix_nanos),
        "end": ms(call.end_unix_nanos),
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
        "trace": trace_of(trajectory),
        "session": trajectory.session.as_deref(),
        "service": &*trajectory.service,
        "span": trajectory.subject.as_ref().and_then(|subject| number(subject.span_id)),
        "completeness": trajectory.completeness.as_str(),
        "cut_short": trajectory.cut_short,
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
        "root": &*trajectory.root,
        "from_messages": trajectory.from_messages,
        "n_spans": trajectory.n_spans,
        "details": evaluation.details(),
    })
}

/// Returns a trace's id as a case writes it; a long one is not a number.
fn trace_of(trajectory: &Trajectory) -> Value {
    let id = trajectory.trace_id;
    number(id).map_or_else(|| json!(id.to_string()), Value::from)
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

fn resource_logs(record: &Record) -> Value {
    let time = |ms: u64| json!((START + ms * 1_000_000).to_string());
    let mut log = json!({ "attributes": attributes(&record.attributes.clone().into()) });
    for (field, value) in [
        ("timeUnixNano", record.at.map(time)),
        ("observedTimeUnixNano", record.observed.map(time)),
        ("traceId", record.span.map(|_| json!(format!("{:032x}", 1)))),
        (
            "spanId",
            record.span.map(|span| json!(format!("{span:016x}"))),
        ),
    ] {
        if let Some(value) = value {
            log[field] = value;
        }
    }
    if !record.body.is_null() {
        log["body"] = typed(&record.body);
    }
    for (field, value) in &record.fields {
        log[field] = value.clone();
    }
    let service = json!({ "service.name": "shop" });
    json!({
        "resource": { "attributes": attributes(&service) },
        "scopeLogs": [{ "logRecords": [log] }],
    })
}

fn attributes_of(sent: &Sent) -> Fields {
    let is_chat = sent.asks.is_some() || sent.answers.is_some();
    let call = |(id, call): (&String, &Value)| {
        let (name, arguments) = (&call[0], &call[1]);
        json!({ "type": "tool_call", "id": id, "name": name, "arguments": arguments })
    };
    let answer = |(id, response): (&String, &Value)| {
        let kind = "tool_call_response";
        json!({ "type": kind, "id": id, "response": response })
    };
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
        Value::Array(_) | Value::Object(_) => (key, value.to_string().into()),
        other => (key, other),
    });
    values.chain(sent.typed.clone()).collect()
}
