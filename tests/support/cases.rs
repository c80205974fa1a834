//! Converts the cases of independent oracles (`tests/conformance/README-beyond.md`) to OTLP spans:
//! calls with times, and trees of agents, models and tools. Judges nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value as Any,
};
use opentelemetry_proto::tonic::trace::v1::{ScopeSpans, Span, Status};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::spans::attribute;

/// Returns the lines of a packed file; each line is a case.
pub(crate) fn unpacked(packed: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed)
        .read_to_string(&mut text)
        .expect("gzip of UTF-8");
    text
}

/// Returns the criterion of a case. `fields` are the evaluator's fields with the threshold; under
/// `criterion` they contain further fields of the criterion.
pub(crate) fn criterion_of_case(id: &str, evaluator: &str, fields: &Value) -> Value {
    let mut fields = fields.clone();
    let threshold = fields
        .as_object_mut()
        .and_then(|fields| fields.shift_remove("threshold"));
    let of_criterion = (fields.as_object_mut()).and_then(|fields| fields.shift_remove("criterion"));
    let mut criterion = json!({ "name": id, "evaluate": { evaluator: fields } });
    for (field, value) in of_criterion.iter().filter_map(Value::as_object).flatten() {
        criterion[field] = value.clone();
    }
    if let Some(threshold) = threshold {
        criterion["threshold"] = threshold;
    }
    criterion
}

const BASE: u64 = 1_700_000_000_000_000_000;

/// A case that consists of calls.
#[derive(Deserialize)]
pub(crate) struct TimedCase {
    pub(crate) id: String,
    pub(crate) evaluator: String,
    pub(crate) criteria: Value,
    /// Fields of the criterion other than its evaluator.
    #[serde(default)]
    pub(crate) criterion: Map<String, Value>,
    pub(crate) calls: Vec<TimedCall>,
    pub(crate) expected: Value,
    #[serde(default)]
    pub(crate) cut: bool,
    pub(crate) duration_ms: Option<u64>,
    pub(crate) root_end: Option<bool>,
}

#[derive(Deserialize)]
pub(crate) struct TimedCall {
    pub(crate) name: String,
    pub(crate) args: Option<Value>,
    /// The arguments as they are sent, if the spelling of a number matters.
    pub(crate) args_json: Option<String>,
    pub(crate) result: Option<Value>,
    pub(crate) step: Option<u32>,
    pub(crate) start_ms: u64,
    pub(crate) end_ms: u64,
    #[serde(default)]
    pub(crate) error: bool,
    pub(crate) completed: Option<bool>,
    pub(crate) agent: Option<String>,
}

/// Returns the spans of an agent's run: the root unless the case is `cut`, its sub-agents, a model
/// span before each step, and the calls.
pub(crate) fn spans_of(case: &TimedCase) -> Vec<Span> {
    const ROOT: u64 = 1;
    let nanos = |ms: u64| BASE + ms * 1_000_000;
    let last_end = case.calls.iter().map(|call| call.end_ms).max().unwrap_or(0);
    let duration = case.duration_ms.unwrap_or(last_end + 3);
    let run = |id: u64, name: &str, start: u64, end: u64| {
        let fields = [
            ("gen_ai.operation.name", "invoke_agent".to_owned()),
            ("gen_ai.agent.name", name.to_owned()),
        ];
        span(id, 0, (start, end), &fields)
    };
    let mut spans = Vec::new();
    let mut root = run(ROOT, "tester", BASE, nanos(duration));
    if case.root_end == Some(false) {
        root.end_time_unix_nano = 0;
    }
    if !case.cut {
        spans.push(root);
    }
    let mut agents: BTreeMap<&str, u64> = BTreeMap::new();
    for agent in case.calls.iter().filter_map(|call| call.agent.as_deref()) {
        let id = 2 + agents.len() as u64;
        agents.entry(agent).or_insert(id);
    }
    for (agent, id) in &agents {
        let of_agent = case
            .calls
            .iter()
            .filter(|call| call.agent.as_deref() == Some(agent));
        let end = of_agent.map(|call| call.end_ms).max().unwrap_or(0);
        let mut run = run(*id, agent, BASE, nanos(end) + 500_000);
        run.parent_span_id = ROOT.to_be_bytes().to_vec();
        spans.push(run);
    }
    let parent_of = |agent: &Option<String>| match agent {
        Some(agent) => agents[agent.as_str()],
        None => ROOT,
    };
    let chat = [("gen_ai.operation.name", "chat".to_owned())];
    let mut asked: BTreeSet<(u64, u32)> = BTreeSet::new();
    for (at, call) in case.calls.iter().enumerate() {
        let parent = parent_of(&call.agent);
        if let Some(step) = call.step
            && asked.insert((parent, step))
        {
            let first = nanos(call.start_ms).saturating_sub(100_000);
            spans.push(span(
                200 + at as u64,
                parent,
                (first, first + 50_000),
                &chat,
            ));
        }
        let text = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        };
        let mut fields = vec![
            ("gen_ai.operation.name", "execute_tool".to_owned()),
            ("gen_ai.tool.name", call.name.clone()),
        ];
        fields.extend(
            (call.args.as_ref())
                .map(|args| args.to_string())
                .or_else(|| call.args_json.clone())
                .map(|args| ("gen_ai.tool.call.arguments", repeated(&args))),
        );
        fields.extend(
            call.result
                .as_ref()
                .map(|result| ("gen_ai.tool.call.result", repeated(&text(result)))),
        );
        let times = (nanos(call.start_ms), nanos(call.end_ms));
        let mut made = span(1_000 + at as u64, parent, times, &fields);
        if call.completed == Some(false) {
            made.end_time_unix_nano = 0;
        }
        if call.error {
            made.status = Some(Status {
                code: 2,
                ..Status::default()
            });
        }
        spans.push(made);
    }
    if case.cut {
        spans.push(span(900, ROOT, (BASE, BASE + 50_000), &chat));
    }
    spans
}

/// Expands `{{3 ab}}` to `ababab`.
pub(crate) fn repeated(text: &str) -> String {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{")
        && let Some((n_times, part)) = after.split_once(' ')
        && let (Ok(n_times), Some((part, after))) = (n_times.parse(), part.split_once("}}"))
    {
        whole.push_str(before);
        whole.push_str(&part.repeat(n_times));
        rest = after;
    }
    whole + rest
}

fn span(id: u64, parent: u64, (start, end): (u64, u64), fields: &[(&str, String)]) -> Span {
    Span {
        trace_id: [7_u64.to_be_bytes(), 1_u64.to_be_bytes()].concat(),
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: match parent {
            0 => Vec::new(),
            parent => parent.to_be_bytes().to_vec(),
        },
        name: fields[0].1.clone(),
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        flags: 0x100,
        attributes: (fields.iter())
            .map(|(key, text)| attribute(key, text))
            .collect(),
        ..Span::default()
    }
}

/// A case that consists of a tree of spans.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TreeCase {
    pub(crate) id: String,
    pub(crate) evaluator: String,
    pub(crate) criteria: Value,
    /// Further fields of the criterion.
    #[serde(default)]
    pub(crate) criterion: Value,
    pub(crate) tree: Vec<Node>,
    pub(crate) expected: Value,
    #[serde(default)]
    pub(crate) cut: bool,
    #[serde(rename = "calls")]
    pub(crate) _calls: Value,
    #[serde(rename = "exact")]
    pub(crate) _exact: bool,
    #[serde(rename = "peer")]
    pub(crate) _peer: String,
    #[serde(rename = "tags")]
    pub(crate) _tags: Value,
}

/// The id of a parent that never arrives.
const MISSING: u64 = 9_999;

/// A span. Its parent is an index in the list.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) parent: Option<usize>,
    pub(crate) start_ms: u64,
    pub(crate) end_ms: u64,
    pub(crate) attributes: Map<String, Value>,
    #[serde(default)]
    pub(crate) error: bool,
    #[serde(default)]
    pub(crate) scope: String,
}

/// The part of a tree that has arrived when the tree is judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cut {
    Whole,
    /// The root names a parent in its own process, but the parent is missing.
    ParentMissing,
    /// The root has not ended.
    RootOpen,
}

impl Node {
    pub(crate) fn span(&self, at: usize, cut: Cut) -> Span {
        let nanos = |ms: u64| BASE + ms * 1_000_000;
        let missing = (cut == Cut::ParentMissing).then_some(MISSING);
        let parent = self.parent.map(id).or(missing);
        let is_open = self.parent.is_none() && cut == Cut::RootOpen;
        let attributes = self.attributes.iter();
        Span {
            trace_id: [7_u64.to_be_bytes(), 1_u64.to_be_bytes()].concat(),
            span_id: id(at).to_be_bytes().to_vec(),
            parent_span_id: parent.map_or_else(Vec::new, |id| id.to_be_bytes().to_vec()),
            name: self.name.clone(),
            start_time_unix_nano: nanos(self.start_ms),
            end_time_unix_nano: if is_open { 0 } else { nanos(self.end_ms) },
            flags: 0x100,
            attributes: attributes
                .map(|(key, value)| value_of(key, value))
                .collect(),
            status: self.error.then(|| Status {
                code: 2,
                ..Status::default()
            }),
            ..Span::default()
        }
    }
}

fn id(at: usize) -> u64 {
    1 + at as u64
}

fn value_of(key: &str, value: &Value) -> KeyValue {
    let value = match (value.as_i64(), value.as_f64()) {
        (Some(number), _) => Any::IntValue(number),
        (None, Some(number)) => Any::DoubleValue(number),
        _ => Any::StringValue(value.as_str().expect("a text or a number").to_owned()),
    };
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

/// Returns the spans whose indices are in `arriving`, in that order, grouped by scope.
pub(crate) fn scopes_of(
    tree: &[Node],
    arriving: impl IntoIterator<Item = usize>,
    cut: Cut,
) -> Vec<ScopeSpans> {
    let mut scopes: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    for at in arriving {
        let node = &tree[at];
        scopes
            .entry(&node.scope)
            .or_default()
            .push(node.span(at, cut));
    }
    let scopes = scopes.into_iter().map(|(name, spans)| ScopeSpans {
        scope: Some(InstrumentationScope {
            name: name.to_owned(),
            ..InstrumentationScope::default()
        }),
        spans,
        ..ScopeSpans::default()
    });
    scopes.collect()
}
