//! Suggests rewrites of criteria that people paste from the reference documents of other tools. The
//! fields of an evaluator are accepted in snake case; camel case and the levels around the fields
//! are rejected, with a rewrite.

use located::{Node, Reader, Rewrite, to_yaml};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Names of evaluators in other tools, each with the name of our evaluator.
const EVALUATORS: &[(&str, &str)] = &[
    ("uipath-tool-call-order", "tool_call_order"),
    ("uipath-tool-call-count", "tool_call_count"),
    ("uipath-tool-call-args", "tool_call_args"),
    ("uipath-tool-call-output", "tool_call_output"),
    ("ToolCallOrderEvaluator", "tool_call_order"),
    ("ToolCallCountEvaluator", "tool_call_count"),
    ("ToolCallArgsEvaluator", "tool_call_args"),
    ("ToolCallOutputEvaluator", "tool_call_output"),
    ("tool-call-order", "tool_call_order"),
    ("tool-call-count", "tool_call_count"),
    ("tool-call-args", "tool_call_args"),
    ("tool-call-output", "tool_call_output"),
    ("ToolOrderScorer", "tool_order"),
    ("Tool Order", "tool_order"),
    ("tool-order", "tool_order"),
    ("ExecutionOrderScorer", "execution_order"),
    ("Execution Order", "execution_order"),
    ("execution-order", "execution_order"),
    ("tool-calls", "tool_calls"),
];

/// Camel-case fields of other tools, each with our spelling and its evaluator.
const FIELDS: &[(&str, &str, &str)] = &[
    ("toolCallsOrder", "tool_calls_order", "tool_call_order"),
    ("toolCallsCount", "tool_calls_count", "tool_call_count"),
    ("toolCalls", "tool_calls", "tool_call_args"),
    ("toolOutputs", "tool_outputs", "tool_call_output"),
    ("expectedTools", "expected_tools", "tool_order"),
    ("exactMatch", "exact_match", "tool_order"),
    ("expectedOutput", "expected_output", "execution_order"),
    ("shouldExactMatch", "should_exact_match", "execution_order"),
    (
        "shouldConsiderOrdering",
        "should_consider_ordering",
        "execution_order",
    ),
    ("strictMode", "strict_mode", "execution_order"),
];

const WRAPPERS: &[&str] = &[
    "graders",
    "type",
    "config",
    "evaluatorTypeId",
    "evaluator_type_id",
    "evaluatorConfig",
    "evaluator_config",
    "default_evaluation_criteria",
    "defaultEvaluationCriteria",
    "evaluation_criteria",
    "evaluationCriteria",
];

/// Returns the rewrite of an unknown key, if another format has the key. `siblings` is the map with
/// the key.
pub(super) fn rewrite_key(key: &str, value: Option<&Node>, siblings: &Node) -> Option<Rewrite> {
    let value = value.and_then(as_json).unwrap_or_default();
    let siblings = as_json(siblings).unwrap_or_default();
    match key {
        "graders" => {
            let graders: Vec<Value> = value.as_array()?.iter().filter_map(of_grader).collect();
            let example = (!graders.is_empty()).then(|| to_yaml(&json!({ "criteria": graders })));
            Some(Rewrite {
                remedy: "write a list of `criteria`, each with a `name` and one evaluator under \
                    `evaluate`"
                    .to_owned(),
                example,
            })
        }
        _ if key.starts_with("x-") => Some(Rewrite {
            remedy:
                "keys for anchors, which begin with `x-`, belong to the top of the file, beside \
                `criteria`"
                    .to_owned(),
            example: None,
        }),
        "type" | "config" if siblings.get("type").is_some() && siblings.get("config").is_some() => {
            Some(Rewrite {
                remedy: "write the evaluator as the key of its fields".to_owned(),
                example: of_grader(&siblings).map(in_criteria),
            })
        }
        "type" => {
            let evaluator = value.as_str().map_or("…", ours);
            Some(Rewrite {
                remedy: format!("write `evaluate: {{ {evaluator}: {{ … }} }}`"),
                example: None,
            })
        }
        "config" => Some(Rewrite {
            remedy:
                "its fields belong below the evaluator's name: `evaluate: { tool_calls: { … } }`"
                    .to_owned(),
            example: None,
        }),
        "evaluatorTypeId" | "evaluator_type_id" => {
            let evaluator = value.as_str().map_or("…", ours);
            Some(Rewrite {
                remedy: format!("write `evaluate: {{ {evaluator}: {{ … }} }}`"),
                example: None,
            })
        }
        "evaluatorConfig" | "evaluator_config" => Some(Rewrite {
            remedy: "its fields belong below the evaluator's name, without this level".to_owned(),
            example: of_evaluator_config(&value, &siblings).map(in_criteria),
        }),
        "default_evaluation_criteria"
        | "defaultEvaluationCriteria"
        | "evaluation_criteria"
        | "evaluationCriteria" => {
            let fields = renamed(value.as_object()?);
            Some(Rewrite {
                remedy: "its fields belong below the evaluator's name, without this level"
                    .to_owned(),
                example: (!fields.is_empty()).then(|| to_yaml(&Value::Object(fields))),
            })
        }
        _ => {
            let (_, ours, _) = FIELDS.iter().find(|(theirs, _, _)| *theirs == key)?;
            Some(Rewrite {
                remedy: format!("write `{ours}`"),
                example: None,
            })
        }
    }
}

/// Returns the remedy for an unknown word, if the word belongs to another format.
pub(super) fn rewrite_word(word: &str) -> Option<String> {
    if word == "http/json" {
        // JSON would be a re-encoding; we forward the received protobuf bytes.
        return Some(
            "spanscore forwards protobuf only: write `http/protobuf`, which the same port accepts"
                .to_owned(),
        );
    }
    if word == "unordered" {
        return Some("write `any_order`, or with a graded score `ordered: false`".to_owned());
    }
    let (_, ours) = EVALUATORS.iter().find(|(theirs, _)| *theirs == word)?;
    Some(format!("write `{ours}`"))
}

/// Returns true if this key of another format wraps an evaluator and its fields.
pub(super) fn is_wrapper(refused: &str) -> bool {
    WRAPPERS.contains(&refused)
}

fn ours(theirs: &str) -> &str {
    EVALUATORS
        .iter()
        .find(|(name, _)| *name == theirs)
        .map_or(theirs, |(_, ours)| ours)
}

fn as_json(node: &Node) -> Option<Value> {
    Value::deserialize(Reader::new(node)).ok()
}

fn in_criteria(criterion: Value) -> String {
    to_yaml(&json!({ "criteria": [criterion] }))
}

/// Rewrites `{ type: tool-calls, name?, config: {…} }`.
fn of_grader(grader: &Value) -> Option<Value> {
    let theirs = grader.get("type")?.as_str()?;
    let name = grader.get("name").and_then(Value::as_str).unwrap_or(theirs);
    let fields = grader
        .get("config")
        .and_then(Value::as_object)
        .map(renamed)
        .unwrap_or_default();
    Some(criterion(name, ours(theirs), fields))
}

/// Rewrites `{ evaluatorTypeId, evaluatorConfig: { name, strict, defaultEvaluationCriteria: {…} }
/// }`.
fn of_evaluator_config(config: &Value, siblings: &Value) -> Option<Value> {
    let mut fields = Map::new();
    for (key, value) in config.as_object()? {
        match key.as_str() {
            "name" => {}
            "defaultEvaluationCriteria" | "default_evaluation_criteria" => {
                fields.extend(value.as_object().map(renamed)?)
            }
            _ => fields.extend(renamed(&Map::from_iter([(key.clone(), value.clone())]))),
        }
    }
    let type_id = siblings
        .get("evaluatorTypeId")
        .or_else(|| siblings.get("evaluator_type_id"))
        .and_then(Value::as_str)
        .map(ours);
    let by_field = || {
        FIELDS
            .iter()
            .find(|(_, ours, _)| fields.contains_key(*ours))
            .map(|(_, _, evaluator)| *evaluator)
    };
    let evaluator = type_id.or_else(by_field)?.to_owned();
    let name = config
        .get("name")
        .or_else(|| siblings.get("name"))
        .and_then(Value::as_str)
        .unwrap_or(&evaluator);
    Some(criterion(name, &evaluator, fields))
}

fn criterion(name: &str, evaluator: &str, fields: Map<String, Value>) -> Value {
    json!({ "name": name, "evaluate": { evaluator: fields } })
}

fn renamed(fields: &Map<String, Value>) -> Map<String, Value> {
    let name_of = |key: &String| {
        FIELDS
            .iter()
            .find(|(theirs, _, _)| theirs == key)
            .map_or(key.clone(), |(_, ours, _)| (*ours).to_owned())
    };
    fields
        .iter()
        .map(|(key, value)| (name_of(key), value.clone()))
        .collect()
}
