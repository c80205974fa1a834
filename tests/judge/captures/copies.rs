//! Some products copy attributes to the names of the OpenTelemetry conventions. Adding these copies
//! to a recorded session must not change the result. If the copies replace the originals, calls
//! must retain their names and arguments. Does not prove that agents retain their names then.

use judge::extract::ToolCall;
use judge::pipeline::Rules;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use otlp::json;
use prost::Message;
use serde_json::{Value, json};

use super::{Scenario, items, load, printed, spellings::spellings, trajectories};
use crate::support::spans::attribute;

/// The copies that the Collector's `genainormalizer` makes for its sources `openinference` and
/// `openllmetry`: pairs of source key and target key.
const COLLECTOR: &[(&str, &str)] = &[
    ("tool.name", "gen_ai.tool.name"),
    ("tool_call.function.arguments", "gen_ai.tool.call.arguments"),
    ("tool_call.id", "gen_ai.tool.call.id"),
    ("agent.name", "gen_ai.agent.name"),
    ("session.id", "gen_ai.conversation.id"),
    ("openinference.span.kind", "gen_ai.operation.name"),
    ("llm.request.type", "gen_ai.operation.name"),
    ("traceloop.span.kind", "gen_ai.operation.name"),
    ("traceloop.entity.name", "gen_ai.agent.name"),
    ("traceloop.entity.input", "gen_ai.input.messages"),
    ("traceloop.entity.output", "gen_ai.output.messages"),
];

/// The copies that OpenInference makes if `OPENINFERENCE_ENABLE_GENAI_SEMCONV` is set.
const OWN_SWITCH: &[(&str, &str)] = &[
    ("session.id", "gen_ai.conversation.id"),
    ("agent.name", "gen_ai.agent.name"),
    ("openinference.span.kind", "gen_ai.operation.name"),
    ("tool.name", "gen_ai.tool.name"),
    ("tool.id", "gen_ai.tool.call.id"),
    ("tool_call.id", "gen_ai.tool.call.id"),
    ("tool.parameters", "gen_ai.tool.call.arguments"),
    ("output.value", "gen_ai.tool.call.result"),
];

/// Returns the OpenTelemetry operation for an OpenInference span kind. OpenInference's own mapping
/// omits chains.
fn operation(kind: &str) -> Option<&'static str> {
    Some(match kind.to_lowercase().as_str() {
        "llm" | "chat" => "chat",
        "completion" | "prompt" => "text_completion",
        "chain" | "agent" | "task" => "invoke_agent",
        "workflow" => "invoke_workflow",
        "tool" => "execute_tool",
        _ => return None,
    })
}

#[test]
fn copies_change_nothing() {
    let rules = Rules::new(Vec::new());
    let mut wrong = Vec::new();
    for scenario in load::scenarios().into_iter().chain(spellings()) {
        let originals = changed(&scenario, |_| {});
        let originals = printed(&trajectories(items(&originals, &rules), &rules));
        let tables = [("collector", COLLECTOR), ("switch", OWN_SWITCH)];
        let tables = tables
            .into_iter()
            .flat_map(|table| [(table, false), (table, true)]);
        for ((by, table), disagree) in tables {
            let copied = with_copies(&scenario, table, disagree);
            let copied = printed(&trajectories(items(&copied, &rules), &rules));
            let mut lines = originals.lines().zip(copied.lines());
            if let Some((one, other)) = lines.find(|(one, other)| one != other) {
                let which = if disagree { "other values" } else { "copies" };
                wrong.push(format!(
                    "{} {by} {which}: {one} became {other}",
                    scenario.name
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn calls_survive_that_the_collector_removes_the_originals() {
    let rules = Rules::new(Vec::new());
    let calls = |scenario: &Scenario| -> Vec<(String, Value)> {
        let trajectories = trajectories(items(scenario, &rules), &rules);
        let calls = trajectories
            .iter()
            .flat_map(|trajectory| &trajectory.tool_calls);
        let args = |call: &ToolCall| call.args.as_ref().map(|args| args.json().clone());
        calls
            .map(|call| (call.name.to_string(), Value::from(args(call))))
            .collect()
    };
    for scenario in load::scenarios() {
        let (framework, _) = scenario.name.split_once('/').unwrap();
        if !["smolagents", "langgraph-openllmetry", "dspy"].contains(&framework) {
            continue;
        }
        let copied = with_copies(&scenario, COLLECTOR, false);
        let removed = changed(&copied, |attributes| {
            let is_original = |key: &str| COLLECTOR.iter().any(|(from, _)| *from == key);
            attributes.retain(|attribute| !is_original(&attribute.key));
        });
        assert_eq!(calls(&removed), calls(&scenario), "{}", scenario.name);
    }
}

/// Adds the copies in `table`, and flattened messages in the form of the conventions. With
/// `disagree`, the copies differ from their originals. Existing attributes are not changed.
fn with_copies(scenario: &Scenario, table: &[(&str, &str)], disagree: bool) -> Scenario {
    changed(scenario, |attributes| {
        let mut copies: Vec<KeyValue> = Vec::new();
        let kind = text(attributes, "openinference.span.kind").map(str::to_uppercase);
        for (from, to) in table {
            let is_switch = table.len() == OWN_SWITCH.len();
            let of_calls = to.starts_with("gen_ai.tool.") || kind.as_deref() == Some("CHAIN");
            if is_switch && (kind.is_none() || of_calls && kind.as_deref() != Some("TOOL")) {
                continue;
            }
            let is_there = |other: &KeyValue| other.key == *to;
            if attributes.iter().chain(&copies).any(is_there) {
                continue;
            }
            let mut of_key = attributes.iter();
            let Some(original) = of_key.find(|original| original.key == *from) else {
                continue;
            };
            let value = match (*to, text(attributes, from)) {
                ("gen_ai.operation.name", Some(kind)) => match operation(kind) {
                    Some(operation) => attribute(to, operation).value,
                    None => original.value.clone(),
                },
                _ => original.value.clone(),
            };
            copies.push(KeyValue {
                key: (*to).to_owned(),
                value,
                ..KeyValue::default()
            });
        }
        for side in ["input", "output"] {
            let to = format!("gen_ai.{side}.messages");
            let messages = messages(attributes, &format!("llm.{side}_messages."));
            if !messages.is_empty() && text(attributes, &to).is_none() {
                copies.push(attribute(&to, &Value::from(messages).to_string()));
            }
        }
        if disagree {
            // OpenLLMetry itself writes agents' names under the copy's key.
            let is_own = |copy: &KeyValue| copy.key == "gen_ai.agent.name" && kind.is_none();
            copies.retain(|copy| !is_own(copy));
            copies.iter_mut().for_each(make_another);
        }
        attributes.extend(copies);
    })
}

/// Changes a copy to a value that its original does not have.
fn make_another(copy: &mut KeyValue) {
    let value = text(std::slice::from_ref(copy), &copy.key).unwrap_or_default();
    let messages = || serde_json::from_str::<Value>(value).ok();
    let another = match &*copy.key {
        "gen_ai.operation.name" if value == "execute_tool" => "chat".to_owned(),
        "gen_ai.operation.name" => "execute_tool".to_owned(),
        "gen_ai.tool.call.arguments" => json!({ "another": 1 }).to_string(),
        "gen_ai.output.messages" => {
            let call = json!({ "type": "tool_call", "name": "another" });
            json!([{ "role": "assistant", "parts": [call] }]).to_string()
        }
        "gen_ai.input.messages" => {
            let mut messages = messages().unwrap_or_default();
            let parts = messages.as_array_mut().into_iter().flatten();
            let parts = parts.filter_map(|message| message["parts"].as_array_mut());
            for part in parts.flatten().filter_map(Value::as_object_mut) {
                part.entry("response")
                    .and_modify(|it| *it = "another".into());
            }
            messages.to_string()
        }
        _ => "another".to_owned(),
    };
    *copy = attribute(&copy.key, &another);
}

/// Converts flattened messages to the form of the OpenTelemetry conventions.
fn messages(attributes: &[KeyValue], prefix: &str) -> Vec<Value> {
    let field = |place: &str| text(attributes, &format!("{prefix}{place}"));
    let message = |idx: usize| {
        let role = field(&format!("{idx}.message.role"))?;
        let id = field(&format!("{idx}.message.tool_call_id"));
        let content = field(&format!("{idx}.message.content"))
            .or_else(|| field(&format!("{idx}.message.contents.0.message_content.text")));
        let answer = content.map(|content| match id {
            Some(id) => json!({ "type": "tool_call_response", "id": id, "response": content }),
            None => json!({ "type": "text", "content": content }),
        });
        let calls = (0..).map_while(|call| {
            let call = format!("{idx}.message.tool_calls.{call}.tool_call");
            let name = field(&format!("{call}.function.name"))?;
            let args = field(&format!("{call}.function.arguments"));
            let args: Option<Value> = args.and_then(|args| serde_json::from_str(args).ok());
            let id = field(&format!("{call}.id"));
            Some(json!({ "type": "tool_call", "id": id, "name": name, "arguments": args }))
        });
        let parts: Vec<Value> = answer.into_iter().chain(calls).collect();
        Some(json!({ "role": role, "parts": parts }))
    };
    (0..).map_while(message).collect()
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let mut attributes = attributes.iter();
    let value = &attributes.find(|attribute| attribute.key == key)?.value;
    match value {
        Some(AnyValue {
            value: Some(any_value::Value::StringValue(text)),
        }) => Some(text),
        _ => None,
    }
}

fn changed(scenario: &Scenario, change: impl Fn(&mut Vec<KeyValue>)) -> Scenario {
    let requests = scenario.requests.iter().map(|(file, body)| {
        if !file.contains(".traces.") {
            return (file.clone(), body.clone());
        }
        let body = if file.ends_with(".json") { json::traces(body).unwrap() } else { body.clone() };
        let mut request = ExportTraceServiceRequest::decode(&*body).unwrap();
        let resources = request.resource_spans.iter_mut();
        let scopes = resources.flat_map(|resource| &mut resource.scope_spans);
        scopes
            .flat_map(|scope| &mut scope.spans)
            .for_each(|span| change(&mut span.attributes));
        (file.replace(".json", ".pb"), request.encode_to_vec())
    });
    Scenario {
        name: scenario.name.clone(),
        expected: scenario.expected.clone(),
        requests: requests.collect(),
    }
}
